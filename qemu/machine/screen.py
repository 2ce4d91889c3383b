"""The console as text: escape sequences taken out, shown as it grows, searched line by line."""

import re
import sys

# Firmware paints its screen with these; they would hide the words and spoil a terminal.
ESCAPES = re.compile(r"\x1b\[[0-9;?=]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1bc|\r")
CUT_ESCAPE = re.compile(r"\x1b([\[()][0-9;?=]*)?$")


class Screen:
    def __init__(self, quiet):
        self.quiet = quiet
        self.line = ""  # the last, still growing line: shown, and searched again when it has grown
        self.held = ""  # the beginning of an escape sequence whose end is still to come

    def take(self, data):
        """Takes new bytes; returns the lines they belong to, whole, for searching."""
        new = self.held + data.decode("utf-8", "replace")
        cut = CUT_ESCAPE.search(new)
        self.held = cut.group() if cut else ""
        new = ESCAPES.sub("", new[: len(new) - len(self.held)])
        if not self.quiet:
            sys.stdout.write(new)
            sys.stdout.flush()
        text = self.line + new
        self.line = text[text.rfind("\n") + 1:]
        return text

    def close(self):
        """What comes next in the terminal begins on a line of its own."""
        if self.line and not self.quiet:
            print(flush=True)
