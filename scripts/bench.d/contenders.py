"""Who installs what: the inputs, the contenders of each, and the goals."""

import dataclasses
import pathlib

OURS = "ironroot"

# Input: the file that holds it, and what it is.
INPUTS = {
    "gz": ("disk.gz", "gzip, single stream"),
    "bgzf": ("disk.bgz", "gzip, many members (bgzf)"),
    "zstd": ("disk.zst", "zstd, one frame"),
    "pzstd": ("disk.pzst", "zstd, many frames (pzstd)"),
    "xz": ("disk.xz", "xz, many blocks"),
    "raw": ("disk.raw", "raw"),
    "file": ("disk.raw", "raw, from a local file"),
}

# Wall time of ironroot / wall time of the peer, at most.
GOALS = {
    ("gz", "coreos-installer"): 0.45,
    ("gz", "rapidgzip"): 0.65,
    ("gz", "igzip"): 0.65,
    ("gz", "gzip"): 0.25,
    ("zstd", "coreos-installer"): 0.50,
    ("zstd", "zstd"): 0.60,
    ("pzstd", "coreos-installer"): 0.45,
    ("pzstd", "pzstd"): 0.70,
    ("xz", "coreos-installer"): 0.50,
    ("xz", "xz -T0"): 1.0,
    ("raw", "coreos-installer"): 0.50,
    ("raw", "curl, dd"): 0.60,
    ("file", "qemu-img"): 1.2,
}
# The same for peak memory.
MEMORY_GOALS = {("gz", "rapidgzip"): 0.1}
# Wall time of a whole run / what its slowest part needs by itself, at most.
EFFICIENCY_GOAL = 1.15
# 64 MiB and the decoder's window, which is small in these inputs; decoding xz in parallel may take more.
MEMORY_LIMIT_MIB = {"xz": 64 + 256}
MEMORY_LIMIT_DEFAULT_MIB = 64 + 8


@dataclasses.dataclass
class Source:
    """One input as the contenders are given it."""

    name: str
    url: str
    file: pathlib.Path
    bmap: pathlib.Path
    digest: str


@dataclasses.dataclass
class Contender:
    name: str
    # Commands, each one's output the next one's input.
    pipeline: list
    # What it leaves as it was: "tables" are ironroot's own record and the tables fitted to the disk,
    # "holes" are the blocks that a block map leaves out.
    exempt: str = ""

    def shown(self, places):
        """As one would type it."""
        words = " | ".join(" ".join(map(str, stage)) for stage in self.pipeline)
        for long, short in places:
            words = words.replace(long, short)
        return words


# dd collects full blocks from its pipe, and writes with O_DIRECT: the page cache would cost it more.
WRITE = ["dd", "iflag=fullblock", "oflag=direct", "bs=4M", "status=none", "conv=fsync"]


def contenders(source, tools, device):
    """The contenders of one input, ours first. `tools` has the paths of what is not in PATH."""
    curl = ["curl", "-sSf", source.url]
    write = [*WRITE, f"of={device}"]

    def pipe(name, *decoder):
        return Contender(name, [curl, list(decoder), write] if decoder else [curl, write])

    place = source.file if source.name == "file" else source.url
    ours = [tools["ironroot"], "install", "--image", place, "--digest", f"sha256:{source.digest}",
            "--disk", device, "--overwrite", "Always"]
    coreos = Contender("coreos-installer", [[tools["without-udev"], tools["coreos-installer"], "install",
                                             "--insecure", "--image-url", source.url, device]])
    bmap = Contender("bmaptool", [["bmaptool", "-q", "copy", "--bmap", source.bmap, place, device]], "holes")
    rapid = pipe("rapidgzip", tools["rapidgzip"], "-P", "2", "-dc")
    igzip = pipe("igzip", "igzip", "-dc")
    qemu = ["qemu-img", "convert", "-n", "-t", "none", "-W", "-f", "raw", "-O", "raw", source.file, device]
    peers = {
        "gz": [coreos, rapid, igzip, pipe("pigz", "pigz", "-dc"), pipe("gzip", "gzip", "-dc"), bmap],
        "bgzf": [pipe("bgzip", "bgzip", "-@", "2", "-dc"), rapid, igzip],
        "zstd": [coreos, pipe("zstd", "zstd", "-dc"), bmap],
        "pzstd": [coreos, pipe("pzstd", "pzstd", "-dc", "-p", "2")],
        "xz": [coreos, pipe("xz -T0", "xz", "-T0", "-dc")],
        "raw": [coreos, pipe("curl, dd"), bmap],
        "file": [Contender("qemu-img", [qemu]), Contender("dd", [[*WRITE, f"if={source.file}", f"of={device}"]]), bmap],
    }
    return [Contender(OURS, [ours], "tables"), *peers[source.name]]
