"""Where the time of a run of ironroot goes: the CPU time of each of its threads, and two parts by themselves.

A thread that computes and never waits needs its CPU time, so the thread with the most of it is the slowest
stage. What the kernel does for us, network and disk, is measured by itself instead."""

import fcntl
import mmap
import os
import pathlib
import struct
import subprocess
import time

# linux/fs.h
BLKZEROOUT = 0x127F
MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")


class Threads:
    """Collects the CPU time in seconds of every thread of the commands below some `time` programs."""

    def __init__(self):
        self.seconds = {}

    def __call__(self, parents):
        for parent in parents:
            for process in children(parent):
                for task in listed(pathlib.Path("/proc", process, "task")):
                    try:
                        ran = int((task / "schedstat").read_text().split()[0])
                        name = (task / "comm").read_text().strip()
                    except (OSError, ValueError, IndexError):
                        continue
                    self.seconds[task.name, name] = ran / 1e9

    def by_name(self):
        """The most that any thread of a name used: threads of one name share their work."""
        found = {}
        for (_, name), seconds in self.seconds.items():
            if name != "time":
                found[name] = max(found.get(name, 0), seconds)
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def children(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def listed(directory):
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def cpu_of(pid):
    """User and system time of a process in seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def network_alone(url):
    began = time.monotonic()
    subprocess.run(["curl", "-sSf", "-o", "/dev/null", url], check=True, timeout=300)
    return time.monotonic() - began


def write_alone(image, device):
    """Seconds for writing what is not zero with O_DIRECT, the rest zeroed by the device, and for the flush."""
    block = 4 * MIB
    source = os.open(image, os.O_RDONLY)
    target = os.open(device, os.O_WRONLY | os.O_DIRECT | os.O_EXCL)
    buffer, zeros = mmap.mmap(-1, block), bytes(block)
    spent, at = 0.0, 0
    try:
        size = os.fstat(source).st_size
        while at < size:
            length = min(block, size - at)
            os.preadv(source, [buffer], at)
            empty = buffer[:length] == zeros[:length]
            began = time.monotonic()
            if empty:
                fcntl.ioctl(target, BLKZEROOUT, struct.pack("QQ", at, length))
            else:
                os.pwrite(target, memoryview(buffer)[:length], at)
            spent += time.monotonic() - began
            at += length
        began = time.monotonic()
        os.fsync(target)
        return spent + time.monotonic() - began
    finally:
        os.close(source)
        os.close(target)
