"""Command line of initramfs/build: decides what goes where; the other files know how."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import compress
import modules
import tools
from archive import Archive, PackError

HERE = pathlib.Path(__file__).resolve().parent.parent
TARGET = HERE.parent / "target"


def arguments():
    default_binary = TARGET / f"{os.uname().machine}-unknown-linux-musl/release/ironroot"
    p = argparse.ArgumentParser(prog="initramfs/build", description="Packs an ironroot initramfs.")
    p.add_argument("--output", type=pathlib.Path, required=True, metavar="FILE")
    p.add_argument("--binary", type=pathlib.Path, default=default_binary, metavar="FILE", help="default: what scripts/build-static made")
    p.add_argument("--modules", type=pathlib.Path, metavar="DIR", help="…/lib/modules/VERSION of the kernel that will run this")
    p.add_argument("--modules-list", type=pathlib.Path, default=HERE / "modules.list", metavar="FILE", help="which modules; modules-vm.list is a short one for virtual machines")
    p.add_argument("--firmware", type=pathlib.Path, metavar="DIR", help="a lib/firmware; what the packed modules name is taken from it")
    p.add_argument("--tools-list", type=pathlib.Path, default=HERE / "tools.list", metavar="FILE")
    p.add_argument("--config", type=pathlib.Path, metavar="FILE", help="becomes /etc/ironroot/config.json")
    p.add_argument("--ca", type=pathlib.Path, action="append", default=[], metavar="FILE", help="more CA certificates (PEM), appended to the bundle")
    p.add_argument("--add", action="append", default=[], metavar="SRC:DST", help="a further file or directory")
    p.add_argument("--compress", choices=["zstd", "gzip", "none"], default="zstd")
    return p.parse_args()


def add_base(archive, args):
    for name in ("dev", "proc", "sys", "run", "tmp", "root", "etc", "sysroot"):
        archive.directory(name, 0o1777 if name == "tmp" else 0o700 if name == "root" else 0o755)
    # The kernel opens it as fd 0-2 of /init before anything can mount a devtmpfs.
    archive.device("dev/console", 5, 1, 0o600)
    # Without it a program in Rust dies before main where the console cannot be opened.
    archive.device("dev/null", 1, 3, 0o666)
    archive.file("init", args.binary.read_bytes(), 0o755)
    archive.symlink("usr/bin/ironroot", "../../init")
    archive.file("etc/initrd-release", b'NAME="ironroot"\nID=ironroot\nPRETTY_NAME="ironroot initramfs"\n')
    bundle = pathlib.Path("/etc/ssl/certs/ca-certificates.crt").read_bytes()
    for extra in args.ca:
        bundle += b"\n" + extra.read_bytes()
    archive.file("etc/ssl/certs/ca-certificates.crt", bundle)
    if args.config:
        archive.file("etc/ironroot/config.json", args.config.read_bytes(), 0o600)


def main():
    args = arguments()
    if not args.binary.is_file():
        raise PackError(f"no binary at {args.binary}: run scripts/build-static, or name one with --binary")
    archive = Archive()
    add_base(archive, args)
    tools.add(archive, args.tools_list)
    if args.modules:
        with tempfile.TemporaryDirectory() as scratch:
            modules.add(archive, args.modules, args.modules_list, args.firmware, pathlib.Path(scratch))
    for pair in args.add:
        source, _, destination = pair.rpartition(":")
        archive.tree(pathlib.Path(source), destination)
    plain = archive.newc(int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    packed = compress.run(plain, args.compress)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = args.output.with_name(args.output.name + ".new")
    unfinished.write_bytes(packed)
    unfinished.replace(args.output)
    print(f"== {args.output}: {len(packed)} bytes ({len(plain)} unpacked, {len(archive)} entries)", file=sys.stderr)


try:
    main()
except (PackError, OSError, subprocess.CalledProcessError) as problem:
    sys.exit(f"error: {problem}")
