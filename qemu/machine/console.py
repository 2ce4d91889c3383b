"""Runs QEMU and watches its serial line: markers, failures, the time limit."""

import ctypes
import select
import signal
import subprocess
import sys
import tempfile
import time

from screen import Screen

SEEN, TIME_LIMIT, FAILED, ENDED = 0, 3, 4, 5
PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def watch(line, o):
    started = time.monotonic()
    with tempfile.TemporaryFile() as complaints, open(o.serial_log or "/dev/null", "wb") as log:
        qemu = subprocess.Popen(line, stdin=None if o.stdin else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, preexec_fn=die_with_parent)
        try:
            screen = Screen(quiet=o.quiet)
            found, verdict = follow(qemu, o, log, screen, started)
            screen.close()
        finally:
            end(qemu)
            complaints.seek(0)
            words = complaints.read().decode("utf-8", "replace").splitlines(keepends=True)
            # Ours is the signal, so that line says nothing.
            sys.stderr.writelines(word for word in words if "terminating on signal 15" not in word)
    if verdict == SEEN and not o.until and qemu.returncode != 0:
        verdict = ENDED
    tell(o, found, verdict, time.monotonic() - started, qemu.returncode)
    return verdict


def follow(qemu, o, log, screen, started):
    found = {}
    while True:
        left = started + o.timeout - time.monotonic()
        if left <= 0 or not select.select([qemu.stdout], [], [], left)[0]:
            return found, TIME_LIMIT
        data = qemu.stdout.read1(65536)
        if not data:
            complete = all(marker in found for marker in o.until)
            return found, SEEN if complete else ENDED
        log.write(data)
        log.flush()
        text = screen.take(data)
        now = time.monotonic() - started
        for marker in o.until:
            if marker not in found and marker.search(text):
                found[marker] = now
        for pattern in o.fail_on:
            if pattern.search(text):
                found[pattern] = now
                return found, FAILED
        if o.until and not o.wait_end and all(marker in found for marker in o.until):
            return found, SEEN


def end(qemu):
    if qemu.poll() is None:
        qemu.terminate()
        try:
            qemu.wait(10)
        except subprocess.TimeoutExpired:
            qemu.kill()
    qemu.wait()


def tell(o, found, verdict, seconds, status):
    lines = [f"{when:.1f}\t{pattern.pattern}" for pattern, when in found.items()]
    if o.times:
        with open(o.times, "w", encoding="utf-8") as out:
            out.write("".join(f"{line}\n" for line in lines))
    for line in lines:
        print(f"== {line}", file=sys.stderr)
    missing = ", ".join(repr(m.pattern) for m in o.until if m not in found)
    unseen = f", not seen: {missing}" if missing else ""
    why = {
        SEEN: "done",
        TIME_LIMIT: f"time limit of {o.timeout:g} s reached{unseen}",
        FAILED: "a --fail-on pattern was seen",
        ENDED: f"QEMU ended (status {status}){unseen}",
    }[verdict]
    print(f"== machine: {why} after {seconds:.1f} s", file=sys.stderr)
