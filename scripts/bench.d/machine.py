"""What the figures were made on."""

import os
import pathlib
import platform
import re
import subprocess

# Peer: the Debian package that it comes from.
PACKAGES = {"curl": "curl", "gzip": "gzip", "pigz": "pigz", "igzip": "isal", "bgzip": "tabix", "zstd": "zstd",
            "xz": "xz-utils", "dd": "coreutils", "qemu-img": "qemu-utils", "bmaptool": "bmap-tools"}


def output(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError:
        return ""
    return done.stdout + done.stderr


def version(*command):
    found = re.search(r"\d+(\.\d+)+", output(*command))
    return found.group() if found else "?"


def cpu():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    sha = {"sha_ni", "sha2"} & set(flags.group(1).split() if flags else ())
    return f"{model.group(1) if model else platform.machine()}, {'with' if sha else 'without'} SHA-256 instructions"


def memory_gib():
    kib = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return round(int(kib.group(1)) / (1 << 20)) if kib else 0


def facts(tools):
    repository = pathlib.Path(__file__).resolve().parent.parent.parent
    versions = {name: output("dpkg-query", "-W", "-f", "${Version}", deb) for name, deb in PACKAGES.items()}
    for name in ("coreos-installer", "rapidgzip"):
        versions[name] = version(tools[name], "--version")
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "memory_gib": memory_gib(),
        "kernel": platform.release().partition("-")[0],
        "commit": output("git", "-C", str(repository), "rev-parse", "--short", "HEAD").strip(),
        "binary_bytes": os.path.getsize(tools["ironroot"]),
        "versions": versions,
    }
