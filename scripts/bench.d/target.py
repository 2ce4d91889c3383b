"""The disk that is installed to: a loop device over a file on a tmpfs, so that no medium limits anything."""

import fcntl
import os
import pathlib
import subprocess
import xml.etree.ElementTree as xml

MIB = 1 << 20
BLOCK = 4 * MIB
PATTERN = b"\xa5" * BLOCK
# linux/fs.h: drop the device's page cache.
BLKFLSBUF = 0x1261


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


class Target:
    """A context manager. The device detaches itself when this process ends, however that happens; the
    tmpfs is mounted in the caller's own mount namespace and ends with it."""

    def __init__(self, directory, size):
        self.directory = pathlib.Path(directory)
        self.size = size

    def __enter__(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", f"size={self.size + 64 * MIB}", "bench", str(self.directory))
        try:
            file = self.directory / "disk"
            self.file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            os.truncate(self.file, self.size)
            # coreos-installer insists on a device whose partitions can be read again.
            self.device = run("losetup", "--find", "--show", "--partscan", str(file))
            self.handle = os.open(self.device, os.O_RDONLY | os.O_CLOEXEC)
            # Detaching a device that is open takes effect at its last close.
            run("losetup", "--detach", self.device)
        except BaseException:
            run("umount", "--lazy", str(self.directory))
            raise
        return self

    def __exit__(self, *_):
        os.close(self.handle)
        os.close(self.file)
        run("umount", "--lazy", str(self.directory))

    def fill(self):
        """Every byte becomes the pattern, so that a byte that was not written shows."""
        for at in range(0, self.size, BLOCK):
            os.pwrite(self.file, PATTERN[: self.size - at], at)
        self.drop_cache()

    def drop_cache(self):
        """The device's pages are written and dropped, so that the file behind it is all there is."""
        os.fsync(self.handle)
        fcntl.ioctl(self.handle, BLKFLSBUF, 0)

    def differs(self, image, ranges):
        """The first block in (start, end) ranges in which the target is not the image; None if all are equal."""
        with open(image, "rb", buffering=0) as source:
            for start, end in ranges:
                for at in range(start, end, BLOCK):
                    length = min(BLOCK, end - at)
                    if os.pread(source.fileno(), length, at) != os.pread(self.file, length, at):
                        return at
        return None

    def touched(self, start, end):
        """The first block in start..end with a byte that is neither pattern nor zero; None where there is none."""
        for at in range(start, end, BLOCK):
            length = min(BLOCK, end - at)
            found = os.pread(self.file, length, at)
            if found != PATTERN[:length] and found.translate(None, b"\0\xa5"):
                return at
        return None


def mapped_ranges(bmap):
    """The blocks that a bmap file names, as byte ranges."""
    root = xml.parse(bmap).getroot()
    block, size = int(root.findtext("BlockSize")), int(root.findtext("ImageSize"))
    for entry in root.iter("Range"):
        first, _, last = entry.text.strip().partition("-")
        yield int(first) * block, min(size, (int(last or first) + 1) * block)
