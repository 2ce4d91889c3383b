"""Runs a pipeline of commands and says what it cost."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import tempfile
import time

# GNU time stands before each command: the peak of a command that Python starts itself would include Python's.
TIME = ["/usr/bin/time", "-q", "-f", "%e %U %S %M", "-o"]
# A pipeline that hangs is ended; the slowest known one needs half a minute on two idle cores.
LIMIT = 900


class Failed(Exception):
    """A command of the pipeline failed or did not end."""


@dataclasses.dataclass
class Cost:
    wall: float
    cpu: float
    # The sum over the commands of a pipeline of the peak of each.
    rss_mib: float


def end_all(processes):
    for process in processes:
        if process.poll() is None:
            # Its own session, so that what it started ends as well.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)


def run(pipeline, log, watch=None):
    """`watch`, if given, is called every few milliseconds with the process ids of the `time` programs."""
    with tempfile.TemporaryDirectory() as scratch, open(log, "ab") as errors:
        notes = [pathlib.Path(scratch) / str(number) for number in range(len(pipeline))]
        processes, output = [], None
        began = time.monotonic()
        try:
            for number, command in enumerate(pipeline):
                last = number == len(pipeline) - 1
                process = subprocess.Popen(
                    [*TIME, str(notes[number]), *map(str, command)],
                    stdin=output or subprocess.DEVNULL,
                    stdout=errors if last else subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
                # Only the next command may hold the pipe, or its writer would not see it end.
                if output:
                    output.close()
                output = process.stdout
                processes.append(process)
            wait(processes, began + LIMIT, watch)
            wall = time.monotonic() - began
        finally:
            end_all(processes)
        for process, command in zip(processes, pipeline):
            if process.returncode != 0:
                raise Failed(f"{pathlib.Path(str(command[0])).name} ended with {process.returncode}, see {log}")
        cpu = rss = 0.0
        for note in notes:
            _, user, system, peak = note.read_text().split()
            cpu += float(user) + float(system)
            rss += int(peak) / 1024
        return Cost(wall, cpu, rss)


def wait(processes, deadline, watch):
    for process in processes:
        while watch and process.poll() is None and time.monotonic() < deadline:
            watch([each.pid for each in processes])
            time.sleep(0.005)
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"not done after {LIMIT} s") from None
