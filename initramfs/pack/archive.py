"""An initramfs in memory, written as newc cpio in which nothing of the building machine is left."""

import os
import stat

# On today's distributions these are links into /usr; doing the same lets every path that a
# binary, a loader or the kernel has built in (/lib/modules, /lib64/ld-…, /sbin/…) be found.
MERGED = ("bin", "sbin", "lib", "lib32", "lib64")


class PackError(Exception):
    """Something the caller of initramfs/build can put right."""


class Archive:
    def __init__(self):
        self.entries = {}
        for name in MERGED:
            self.directory(f"usr/{name}")
            self.entries[name] = (stat.S_IFLNK | 0o777, f"usr/{name}".encode(), (0, 0))

    def __len__(self):
        return len(self.entries)

    def directory(self, path, mode=0o755):
        self._put(path, stat.S_IFDIR | mode, b"")

    def file(self, path, data, mode=0o644):
        self._put(path, stat.S_IFREG | mode, data)

    def symlink(self, path, to):
        self._put(path, stat.S_IFLNK | 0o777, os.fsencode(to))

    def device(self, path, major, minor, mode):
        self._put(path, stat.S_IFCHR | mode, b"", (major, minor))

    def tree(self, source, path):
        """A file or a whole directory; of the modes only 'executable' is kept, so that umask does not matter."""
        if source.is_symlink():
            self.symlink(path, os.readlink(source))
        elif source.is_dir():
            self.directory(path)
            for child in source.iterdir():
                self.tree(child, f"{path}/{child.name}")
        else:
            self.file(path, source.read_bytes(), 0o755 if os.access(source, os.X_OK) else 0o644)

    def _put(self, path, mode, data, device=(0, 0)):
        path = path.strip("/")
        if path.split("/")[0] in MERGED:
            path = f"usr/{path}"
        if path in MERGED or not path:
            raise PackError(f"/{path} is the initramfs's own and cannot be replaced")
        was_directory = path in self.entries and stat.S_ISDIR(self.entries[path][0])
        if was_directory and not stat.S_ISDIR(mode):
            raise PackError(f"/{path} is a directory in the initramfs: name the file below it")
        parent = path.rpartition("/")[0]
        if parent and parent not in self.entries:
            self.directory(parent)
        self.entries[path] = (mode, data, device)

    def newc(self, mtime):
        """The archive: sorted by name (so a directory precedes its content), root's, one time for all."""
        out = bytearray()
        for inode, name in enumerate(sorted(self.entries), start=1):
            mode, data, device = self.entries[name]
            out += record(inode, name, mode, data, device, 2 if stat.S_ISDIR(mode) else 1, mtime)
        out += record(0, "TRAILER!!!", 0, b"", (0, 0), 1, 0)
        return bytes(out + bytes(-len(out) % 512))


def record(inode, name, mode, data, device, links, mtime):
    name = os.fsencode(name) + b"\0"
    fields = (inode, mode, 0, 0, links, mtime, len(data), 0, 0, *device, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
