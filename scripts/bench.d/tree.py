#!/usr/bin/python3 -sEB
"""tree.py: the runs of scripts/bench-memory, inside its namespaces and with its web server up."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import measure

MIB = 1024 * 1024
# What ironroot may need beside the tree.
LIMIT_MIB = 64
PEER = "curl, zstd, tar"


def ours(options, place):
    config = options.state / "config.json"
    image = {"url": options.url, "digest": f"sha256:{options.digest}"}
    config.write_text(
        json.dumps({"apiVersion": "ironroot.dev/v1alpha1", "kind": "BootConfig", "image": image, "memory": {}})
    )
    return [[options.binary, "initrd", "--sysroot", place, "--config", config]]


def peer(options, place):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755,size=50%,nr_inodes=1000000", "tree", place], check=True)
    # As root tar restores owners and modes by itself.
    unpack = ["tar", "-x", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-C", place, "-f", "-"]
    return [["curl", "-sSf", options.url], ["zstd", "-dc"], unpack]


def once(options, make):
    """What a run cost, the tree's size in MiB, and how many entries it has."""
    place = options.state / "root"
    place.mkdir(exist_ok=True)
    pipeline = make(options, place)
    try:
        cost = measure.run(pipeline, options.state / "bench.log")
        stat = os.statvfs(place)
        tree = (stat.f_blocks - stat.f_bfree) * stat.f_frsize / MIB
        return cost, tree, stat.f_files - stat.f_ffree
    finally:
        subprocess.run(["umount", place], check=False)
        subprocess.run(["rm", "-rf", "/run/ironroot"], check=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("binary", "state"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    for name in ("url", "digest"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    contenders = {"ironroot": ours, PEER: peer}
    results = {name: [] for name in contenders}
    for number in range(options.rounds + 1):
        for name, make in contenders.items():
            result = once(options, make)
            # The first round fills the page cache.
            if number:
                results[name].append(result)
    trees = {name: {round(tree) for _, tree, _ in runs} for name, runs in results.items()}
    if len({entries for runs in results.values() for _, _, entries in runs}) != 1:
        sys.exit(f"the trees differ: {results}")
    print(f"| {options.rounds} runs each, in turns | wall s | CPU s | processes MiB | tree MiB |\n|---|---|---|---|---|")
    for name, runs in results.items():
        wall, cpu, rss = (statistics.median(getattr(cost, key) for cost, _, _ in runs) for key in ("wall", "cpu", "rss_mib"))
        tree = " ".join(map(str, sorted(trees[name])))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {rss:.0f} | {tree} |")
    ratios = sorted(a.wall / b.wall for (a, _, _), (b, _, _) in zip(results["ironroot"], results[PEER]))
    ratio, rss = statistics.median(ratios), max(cost.rss_mib for cost, _, _ in results["ironroot"])
    print(f"\nwall time, ironroot / {PEER}: {ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); at most {rss:.0f} MiB beside the tree")
    sys.exit(0 if ratio <= 1 and rss <= LIMIT_MIB else 1)


main()
