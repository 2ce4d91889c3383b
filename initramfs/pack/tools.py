"""Programs of the building machine, with the shared libraries and the loader they need."""

import pathlib
import shutil
import subprocess

import wanted
from archive import PackError

SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"


def add(archive, list_file):
    for entry in wanted.lines(list_file):
        if entry.startswith("/"):
            archive.file(entry, pathlib.Path(entry).read_bytes())
            continue
        found = shutil.which(entry, path=SEARCH)
        if not found:
            raise PackError(f"{list_file} names {entry}, which is not in {SEARCH}: install its package or take it off the list")
        add_program(archive, pathlib.Path(found))


def add_program(archive, path):
    real = path.resolve()
    archive.file(str(real), real.read_bytes(), 0o755)
    if real.name != path.name:
        archive.symlink(f"/usr/sbin/{path.name}", str(real))
    for library in [*libraries(real), *opened_later(real)]:
        # The directory is resolved, the name is kept: the loader looks for the soname.
        place = library.parent.resolve() / library.name
        archive.file(str(place), library.read_bytes(), 0o755)


def opened_later(program):
    """What the C library opens when a thread ends (pthread_exit(3)), which ldd does not see: cryptsetup's do."""
    if program.name != "cryptsetup":
        return
    beside = {library.parent for library in libraries(program) if library.name.startswith("libc.so")}
    for directory in sorted(beside):
        library = directory / "libgcc_s.so.1"
        if library.exists():
            yield library


def libraries(program):
    """Every shared object ldd names, the loader included; none for a static program."""
    ldd = subprocess.run(["ldd", program], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": SEARCH})
    for line in ldd.stdout.splitlines():
        if "not found" in line:
            raise PackError(f"{program} needs a library that is not here: {line.strip()}")
        for word in line.split():
            if word.startswith("/"):
                yield pathlib.Path(word)
