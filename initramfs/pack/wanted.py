"""The list files: one entry a line, '#' begins a comment."""


def lines(path):
    for line in path.read_text().splitlines():
        entry = line.partition("#")[0].strip()
        if entry:
            yield entry
