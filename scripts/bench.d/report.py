#!/usr/bin/python3 -sEB
"""report.py RESULTS.json [--write DIRECTORY]: prints the figures; writes performance.md and performance.svg."""

import json
import pathlib
import sys

import plot
from contenders import EFFICIENCY_GOAL, GOALS, INPUTS, OURS
from figures import efficiency, medians, ratio, verdicts, word

TEXTS = pathlib.Path(__file__).resolve().parent


def mib(count):
    return f"{count / (1 << 20):.0f} MiB"


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def setting(results):
    machine = results["machine"]
    loads = [run["load"] for result in results["inputs"].values() for runs in result["runs"].values() for run in runs]
    yield f"* {results['date']}, commit {machine['commit']}, a binary of {machine['binary_bytes'] / 1e6:.1f} MB"
    yield f"* {machine['cores']} cores, {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}"
    if loads:
        yield f"* medians of {results['rounds']} rounds; load average {min(loads):.1f} to {max(loads):.1f}, the runs' own included"
    sizes = ", ".join(f"{name} {mib(result['bytes'])}" for name, result in results["inputs"].items() if name != "file")
    yield f"* image: {mib(results['size'])}, not quite half of it content of a Debian 12, the rest zeros; {sizes}"
    yield "* peers: " + ", ".join(f"{name} {version}" for name, version in machine["versions"].items())


def table(name, result):
    yield f"## {name}: {INPUTS[name][1]}"
    yield ""
    yield "| | wall s | CPU s | peak MiB | ironroot / it | goal, at most | |"
    yield "|---|---|---|---|---|---|---|"
    rows = medians(result)
    for contender in result["runs"]:
        row, goal = rows.get(contender), GOALS.get((name, contender))
        if row is None:
            yield f"| {contender} | - | - | - | - | {number(goal) if goal else ''} | {result['faults'].get(contender, '')} |"
            continue
        found = None if contender == OURS else ratio(result, contender)
        shown = f"**{contender}**" if contender == OURS else contender
        yield (f"| {shown} | {row['wall']:.2f} | {row['cpu']:.2f} | {row['rss_mib']:.0f} | {number(found)} "
               f"| {number(goal) if goal else ''} | {word(goal, found) if goal else ''} |")
    yield ""


def goals(results):
    yield "## Goals"
    yield ""
    yield "| compared | goal, at most | measured | |"
    yield "|---|---|---|---|"
    for what, goal, measured in verdicts(results):
        yield f"| {what} | {goal:g} | {number(measured)} | {word(goal, measured)} |"
    yield ""


def whole(results):
    cores = results["machine"]["cores"]
    yield "## Whole runs against their parts"
    yield ""
    yield "The least possible is the largest of: the CPU time of the busiest thread; the network alone (curl to /dev/null);"
    yield "writing alone (O_DIRECT, one block at a time, zeros by the device); and the CPU time of everything, nginx and"
    yield f"the kernel's writing included, over {cores} cores. The goal is {EFFICIENCY_GOAL}. Medians of further, watched runs."
    yield ""
    yield "| input | wall s | least s | which is | ratio | all CPU s | network s | writing s | CPU s of threads |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, result in results["inputs"].items():
        if found := efficiency(result, cores):
            threads = ", ".join(f"{thread} {seconds:.2f}" for thread, seconds in list(found["threads"].items())[:6])
            yield (f"| {name} | {found['wall']:.2f} | {found['least']:.2f} | {found['bound']} | {found['ratio']:.2f} "
                   f"| {found['all_cpu']:.2f} | {found['network']:.2f} | {found['write']:.2f} | {threads} |")
    yield ""


def commands(results):
    yield "## Commands"
    yield ""
    yield "```text"
    for name, result in results["inputs"].items():
        for command in result["commands"].values():
            yield f"{name + ':':7}{command}"
    yield "```"


def document(results):
    lines = [(TEXTS / "introduction.md").read_text(), *setting(results), "", *goals(results)]
    for name, result in results["inputs"].items():
        lines += table(name, result)
    lines += [*whole(results), *commands(results)]
    return "\n".join(lines) + "\n"


def main():
    if "--help" in sys.argv or len(sys.argv) not in (2, 4):
        print(__doc__)
        return
    results = json.loads(pathlib.Path(sys.argv[1]).read_text())
    for name, result in results["inputs"].items():
        print("\n".join(table(name, result)))
    print("\n".join([*whole(results), *goals(results)]))
    if len(sys.argv) == 4:
        directory = pathlib.Path(sys.argv[3])
        (directory / "performance.md").write_text(document(results))
        (directory / "performance.svg").write_text(plot.svg(results))


main()
