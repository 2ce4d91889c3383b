#!/usr/bin/python3 -sEB
"""list.py: the inputs of scripts/bench, their contenders, and the goal against each."""

import pathlib
import sys

from contenders import GOALS, INPUTS, Source, contenders

# As if they were in PATH; the wrapper is of no interest here.
TOOLS = {"ironroot": "ironroot", "coreos-installer": "coreos-installer", "rapidgzip": "rapidgzip", "without-udev": ""}


def main():
    if "--help" in sys.argv:
        print(__doc__)
        return
    for name, (file, what) in INPUTS.items():
        print(f"{name}: {what}")
        source = Source(name, f"http://server/{file}", pathlib.Path(file), pathlib.Path("disk.bmap"), "…")
        for contender in contenders(source, TOOLS, "/dev/loopN"):
            goal = GOALS.get((name, contender.name))
            limit = f"at most {goal:g} of it" if goal else ""
            print(f"    {contender.name:17} {limit:16} {contender.shown([]).strip()}")


main()
