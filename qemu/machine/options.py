"""The options of qemu/run, and what a --disk is made of."""

import argparse
import dataclasses
import re

BUSES = ("virtio", "nvme", "scsi")


@dataclasses.dataclass
class Disk:
    file: str
    bus: str = "virtio"
    serial: str = ""
    sector: str = "512"
    format: str = "raw"
    # The host's page cache outlives QEMU, so skipping its flushes loses nothing here and saves time.
    cache: str = "unsafe"
    readonly: bool = False
    # Every write and flush goes there too, in order and in the format of dm-log-writes.
    log: str = ""
    wwn: str = ""


def disk(text):
    file, *words = text.split(",")
    made = Disk(file)
    for word in words:
        key, equals, value = word.partition("=")
        if key not in ("bus", "serial", "sector", "format", "cache", "readonly", "log", "wwn"):
            raise argparse.ArgumentTypeError(f"unknown key {key!r} (known: bus serial sector format cache readonly log wwn)")
        setattr(made, key, value if equals else True)
    if made.bus not in BUSES:
        raise argparse.ArgumentTypeError(f"unknown bus {made.bus!r} (known: {' '.join(BUSES)})")
    return made


def regex(text):
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from problem


def parse():
    p = argparse.ArgumentParser(prog="qemu/run", formatter_class=argparse.ArgumentDefaultsHelpFormatter, argument_default=argparse.SUPPRESS)
    m = p.add_argument_group("machine")
    m.add_argument("--firmware", choices=["bios", "uefi"], default="bios")
    m.add_argument("--vars", default=None, metavar="FILE", help="this machine's UEFI variables, made from OVMF's template when missing; without it they are forgotten")
    m.add_argument("--memory", default="1024", metavar="MIB")
    m.add_argument("--cpus", default="1")
    m.add_argument("--smbios", default=None, metavar="uuid=U,serial=S", help="what the firmware says of the machine")
    m.add_argument("--disk", type=disk, action="append", default=[], metavar="FILE,bus=B,serial=S,sector=N,readonly", help="bus: virtio, nvme, scsi; sector: 512, 4096; log=FILE takes every write and flush (dm-log-writes); also wwn= (scsi), format=, cache= (repeatable). Two that name one file are two paths to it")
    m.add_argument("--qemu", action="append", default=[], metavar="ARG", help="one more argument for QEMU as it is (repeatable; write --qemu=-device --qemu=…)")

    n = p.add_argument_group("network and boot")
    n.add_argument("--net", default="none", metavar="user|none|silent|tap:NAME")
    n.add_argument("--nic", default="virtio-net-pci", metavar="DEVICE")
    n.add_argument("--mac", default="52:54:00:12:34:56")
    n.add_argument("--tftp", default=None, metavar="DIR", help="served by QEMU itself (with --net user)")
    n.add_argument("--bootfile", default="boot.ipxe", help="a file below --tftp, or an http:// URL for iPXE")
    n.add_argument("--boot", choices=["net", "disk", "nvram"], default="disk", help="what the firmware tries first; nvram: nothing is imposed, its own BootOrder decides")
    n.add_argument("--kernel", default=None, metavar="FILE", help="boot this directly")
    n.add_argument("--initrd", default=None, metavar="FILE")
    n.add_argument("--append", default="console=ttyS0", metavar="WORDS")
    n.add_argument("--no-reboot", action="store_true", default=False, help="QEMU ends where the machine would reboot")

    w = p.add_argument_group("watching")
    w.add_argument("--until", type=regex, action="append", default=[], metavar="REGEX", help="success when each of these was seen (repeatable)")
    w.add_argument("--fail-on", type=regex, action="append", default=[], metavar="REGEX")
    w.add_argument("--wait-end", action="store_true", default=False, help="after the last marker wait for the machine to power off by itself")
    w.add_argument("--timeout", type=float, default=120, metavar="SECONDS")
    w.add_argument("--serial-log", default=None, metavar="FILE", help="the console, every byte of it")
    w.add_argument("--times", default=None, metavar="FILE", help="a line per marker: seconds, tab, regex")
    w.add_argument("--qmp", default=None, metavar="SOCKET", help="QEMU's control socket, for power cuts and the like")
    w.add_argument("--quiet", action="store_true", default=False, help="console not on stdout")
    w.add_argument("--stdin", action="store_true", default=False, help="pass our stdin to the console")
    w.add_argument("--print-command", action="store_true", default=False)
    chosen = p.parse_args()
    if chosen.tftp and chosen.net != "user":
        p.error("--tftp needs --net user")
    return chosen
