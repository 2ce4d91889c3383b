"""Kernel modules: which are wanted, what those need, and the index files over just these."""

import fnmatch
import pathlib
import shutil
import subprocess
import sys

import wanted
from archive import PackError

# What depmod makes for libkmod; ironroot reads the text forms.
DROPPED_SUFFIX = ".bin"
COPIED_INDEXES = ("modules.builtin", "modules.builtin.modinfo", "modules.order")


def add(archive, directory, list_file, firmware, scratch):
    if not (directory / "kernel").is_dir():
        raise PackError(f"{directory} is no modules directory (no kernel/ in it): give …/lib/modules/VERSION")
    version = directory.name
    index = Index(directory, scratch / "index")
    chosen = index.closure(index.select(list_file))
    staged = scratch / "lib/modules" / version
    for path in sorted(chosen):
        (staged / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(directory / path, staged / path)
    for name in COPIED_INDEXES:
        if (directory / name).exists():
            shutil.copyfile(directory / name, staged / name)
    subprocess.run(["depmod", "-b", scratch, version], check=True)
    for path in staged.rglob("*"):
        if path.is_file() and path.suffix != DROPPED_SUFFIX:
            archive.file(f"lib/modules/{version}/{path.relative_to(staged)}", path.read_bytes())
    add_firmware(archive, [staged / path for path in sorted(chosen)], firmware)


def module_name(path):
    return pathlib.PurePath(path).name.split(".ko")[0].replace("-", "_")


class Index:
    """modules.dep and modules.softdep of the whole directory (made anew: a bare package has none)."""

    def __init__(self, directory, out):
        # depmod writes beside the modules; a directory that points to them leaves the source untouched.
        made = out / "lib/modules" / directory.name
        made.mkdir(parents=True)
        for name in ("kernel", *COPIED_INDEXES):
            (made / name).symlink_to(directory.resolve() / name)
        subprocess.run(["depmod", "-b", out, directory.name], check=True)
        self.needs = {}
        for line in (made / "modules.dep").read_text().splitlines():
            path, _, needed = line.partition(":")
            self.needs[path] = needed.split()
        self.by_name = {module_name(path): path for path in self.needs}
        self.soft = {}
        for line in (made / "modules.softdep").read_text().splitlines():
            if line.startswith("softdep "):
                _, name, *others = line.split()
                self.soft.setdefault(name.replace("-", "_"), []).extend(o for o in others if not o.endswith(":"))
        builtin = (directory / "modules.builtin").read_text().split() if (directory / "modules.builtin").exists() else []
        self.builtin = {module_name(path) for path in builtin}

    def select(self, list_file):
        chosen, absent = set(), []
        for entry in wanted.lines(list_file):
            refuse = entry.startswith("!")
            hits = self.match(entry.lstrip("!"))
            if not hits and not refuse and not self.is_builtin(entry):
                absent.append(entry)
            chosen = chosen - hits if refuse else chosen | hits
        if absent:
            print(f"   not in this kernel: {' '.join(absent)}", file=sys.stderr)
        return chosen

    def match(self, entry):
        if entry.endswith("/"):
            return {path for path in self.needs if path.startswith(f"kernel/{entry}")}
        pattern = entry.replace("-", "_")
        return {path for name, path in self.by_name.items() if fnmatch.fnmatchcase(name, pattern)}

    def is_builtin(self, entry):
        return bool(fnmatch.filter(self.builtin, entry.replace("-", "_")))

    def closure(self, chosen):
        todo, done = list(chosen), set()
        while todo:
            path = todo.pop()
            if path in done:
                continue
            done.add(path)
            todo += self.needs[path]
            for name in self.soft.get(module_name(path), []):
                todo += self.match(name)
        return done


def add_firmware(archive, staged, directory):
    if not staged:
        return
    listing = subprocess.run(["modinfo", "-F", "firmware", *staged], capture_output=True, text=True, check=True)
    names, missing = sorted(set(listing.stdout.split())), 0
    for name in names:
        hits = [hit for suffix in ("", ".xz", ".zst") for hit in (directory.glob(name + suffix) if directory else ())]
        for hit in hits:
            archive.file(f"lib/firmware/{hit.relative_to(directory)}", hit.read_bytes())
        missing += not hits
    print(f"   {len(staged)} modules; firmware: {len(names) - missing} of {len(names)} named files packed", file=sys.stderr)
