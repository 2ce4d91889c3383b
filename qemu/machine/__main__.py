"""qemu/run: options -> a QEMU command line -> its console, watched until the markers came."""

import signal
import sys
import tempfile

import command
import console
import options


def main():
    # A SIGTERM must run the `finally` that ends QEMU.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = options.parse()
    with tempfile.TemporaryDirectory(prefix="qemu-run-") as scratch:
        line = command.build(chosen, scratch)
        if chosen.print_command:
            print(" ".join(line))
            return 0
        return console.watch(line, chosen)


try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
except OSError as problem:
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)
