#!/usr/bin/python3 -sEB
"""run.py: the runs of scripts/bench, inside its network and with its web server up. Writes results.json."""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import sys

import machine
import measure
import stages
from contenders import INPUTS, OURS, Source, contenders
from target import MIB, Target, mapped_ranges

# ironroot's own: the first MiB, where its record is, but for the partitions; and the image's backup table.
HEAD, PARTITIONS, BACKUP = MIB, (1024, 1024 + 128 * 128), 33 * 512


class Bench:
    def __init__(self, options, tools, target):
        self.options, self.tools, self.target = options, tools, target
        self.raw = options.inputs / "disk.raw"
        self.log = options.state / "bench.log"

    def source(self, name):
        file = self.options.inputs / INPUTS[name][0]
        digest = pathlib.Path(f"{file}.sha256").read_text().strip()
        return Source(name, f"{self.options.url}/{file.name}", file, self.options.inputs / "disk.bmap", digest)

    def fault(self, contender, source):
        """What is not as it must be on the target, of which every byte is looked at; else None."""
        size = self.raw.stat().st_size
        ranges = {
            "": [(0, size)],
            "tables": [PARTITIONS, (HEAD, size - BACKUP)],
            "holes": mapped_ranges(source.bmap),
        }[contender.exempt]
        at = self.target.differs(self.raw, ranges)
        if at is not None:
            return f"the disk is not the image, first in the block at byte {at}"
        at = self.target.touched(size, self.target.size - MIB)
        return None if at is None else f"written behind the image, first in the block at byte {at}"

    def once(self, contender, source, watch=None):
        self.target.fill()
        cost = measure.run(contender.pipeline, self.log, watch)
        self.target.drop_cache()
        if fault := self.fault(contender, source):
            raise measure.Failed(fault)
        return {**dataclasses.asdict(cost), "load": os.getloadavg()[0]}

    def profiled(self, ours, source):
        """One more run of ours that is looked into, and two of its parts by themselves."""
        threads, before = stages.Threads(), stages.cpu_of(self.options.web_pid)
        cost = self.once(ours, source, threads)
        # The server shares the processors, so what it costs is part of what a run costs.
        served = stages.cpu_of(self.options.web_pid) - before
        network = 0.0 if source.name == "file" else stages.network_alone(source.url)
        self.target.fill()
        write = stages.write_alone(self.raw, self.target.device)
        return {**cost, "threads": threads.by_name(), "server_cpu": served, "network": network, "write": write}

    def input(self, name):
        source = self.source(name)
        # Into the page cache, so that the first one to ask is not slower than the rest.
        with open(source.file, "rb", buffering=0) as file:
            while file.read(8 * MIB):
                pass
        field = contenders(source, self.tools, self.target.device)
        # What commands are shown with instead of this machine's paths.
        shorter = [(path, os.path.basename(path)) for path in self.tools.values()]
        shorter += [(self.options.url, "http://server"), (f"{self.options.inputs}/", ""),
                    (self.target.device, "/dev/loopN"), (source.digest, "…")]
        result = {"bytes": source.file.stat().st_size, "runs": {each.name: [] for each in field}, "faults": {},
                  "commands": {each.name: each.shown(shorter) for each in field}, "profile": []}
        for number in range(self.options.rounds):
            # Each round begins elsewhere, so that nobody always runs behind the same one.
            turn = number % len(field)
            for contender in field[turn:] + field[:turn]:
                self.attempt(contender, source, result, f"{name} {number + 1}/{self.options.rounds}")
            if OURS not in result["faults"]:
                result["profile"].append(self.profiled(field[0], source))
        return result

    def attempt(self, contender, source, result, where):
        """One run; a contender that failed once is not run again, as its figures would not be paired."""
        if contender.name in result["faults"]:
            return
        try:
            cost = self.once(contender, source)
        except measure.Failed as fault:
            result["faults"][contender.name] = str(fault)
            result["runs"][contender.name] = []
            say(f"{where} {contender.name}: {fault}")
            return
        result["runs"][contender.name].append(cost)
        say(f"{where} {contender.name}: {cost['wall']:.2f} s, cpu {cost['cpu']:.2f} s, {cost['rss_mib']:.0f} MiB")


def say(text):
    print(f"== {text}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=pathlib.Path, required=True)
    parser.add_argument("--state", type=pathlib.Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--web-pid", type=int, required=True)
    parser.add_argument("--only", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--tool", action="append", default=[], help="NAME=PATH")
    options = parser.parse_args()
    tools = dict(tool.split("=", 1) for tool in options.tool)
    size = (options.inputs / "disk.raw").stat().st_size
    results = {"machine": machine.facts(tools), "date": datetime.date.today().isoformat(), "size": size,
               "rounds": options.rounds, "inputs": {}}
    with Target(options.state / "disk", size + size // 10 // MIB * MIB) as target:
        bench = Bench(options, tools, target)
        bench.log.write_text("")
        for name in options.only.split(","):
            results["inputs"][name] = bench.input(name)
            # After each, so that what was measured survives an interruption.
            (options.state / "results.json").write_text(json.dumps(results, indent=1))
    sys.exit(any(OURS in result["faults"] for result in results["inputs"].values()))


main()
