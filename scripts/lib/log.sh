# shellcheck shell=bash
# Words to the person at the terminal: what happens, how long it took, what went wrong.
# All of it goes to stderr, so that a script's stdout stays free for its result.

say() { printf '== %s\n' "$*" >&2; }

# die MESSAGE [HINT]: the message says what was tried, the hint what to do next.
die() {
    printf 'error: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf '       %s\n' "$2" >&2
    exit 1
}

# usage FILE: prints the comment block at the head of a script, which is its --help.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$1"; }
