# shellcheck shell=bash
# Phases of a longer run: each is announced, timed, and told again in a table at the end. Needs log.sh.

PHASES=()
FAILED_PHASES=0

# phase NAME COMMAND…: runs it; a failure ends the script.
phase() { try_phase "$@" || die "$1 failed" "what it said is above"; }

# try_phase NAME COMMAND…: runs it and keeps its result for the table; returns it.
try_phase() {
    local name=$1 began status=0
    shift
    say "--- $name"
    began=$(date +%s.%N)
    # A subshell of its own: a `die` inside ends the phase, not the script.
    ("$@") || status=$?
    phase_took "$name" "$(awk -v a="$(date +%s.%N)" -v b="$began" 'BEGIN { printf "%.1f", a - b }')" "$status"
    [ "$status" = 0 ] || FAILED_PHASES=$((FAILED_PHASES + 1))
    return "$status"
}

# phase_took NAME SECONDS [STATUS]
phase_took() { PHASES+=("$(printf '%8.1f s  %-9s %s' "$2" "$(verdict "${3:-0}")" "$1")"); }

verdict() { if [ "$1" = 0 ]; then echo ok; else echo "FAILED($1)"; fi; }

print_phases() { printf '%s\n' '' "${PHASES[@]}"; }
