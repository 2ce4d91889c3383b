# shellcheck shell=bash
# What nextest's closing line says: "Summary [ 1.2s] 10 tests run: 8 passed (1 slow), 1 failed, 1 timed out, 3 skipped".

# result_count LOG WORDS: the number before WORDS in the last summary, 0 where it names none.
result_count() {
    local line
    line=$(grep -E 'Summary \[.*tests? run' "$1" 2>/dev/null | tail -1) || true
    grep -oE "[0-9]+ $2" <<<"$line" | grep -oE '[0-9]+' | tail -1 || true
}

# results_line LOG: "N passed, N failed, N skipped"; what ran and did not pass has failed, however it ended.
results_line() {
    local run passed skipped
    run=$(result_count "$1" 'tests? run') passed=$(result_count "$1" passed) skipped=$(result_count "$1" skipped)
    printf '%s passed, %s failed, %s skipped\n' "${passed:-0}" "$((${run:-0} - ${passed:-0}))" "${skipped:-0}"
}
