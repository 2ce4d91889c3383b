# shellcheck shell=bash
# Artifacts in target/lab: made again only when what they are made from changed. Needs log.sh, ROOT.

LAB=$ROOT/target/lab

# inputs_hash FILE_OR_DIRECTORY…: one hash over names and contents, relative to ROOT or absolute.
inputs_hash() {
    (cd "$ROOT" && find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum | cut -d' ' -f1
}

# if_changed NAME HASH RESULT COMMAND…: runs COMMAND unless RESULT exists and was made from HASH.
if_changed() {
    local name=$1 hash=$2 result=$3 stamp=$LAB/.made-from/$1
    shift 3
    if [ -e "$result" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then
        say "$name: unchanged"
        return 0
    fi
    mkdir -p "$LAB/.made-from"
    rm -f "$stamp"
    local began=$SECONDS
    "$@"
    [ -e "$result" ] || die "$name: $result was not made"
    printf '%s\n' "$hash" >"$stamp"
    say "$name: made in $((SECONDS - began)) s"
}

# with_checksum FILE…: FILE.sha256 beside each, as sha256sum -c reads it.
with_checksum() {
    local file
    for file; do (cd "$(dirname "$file")" && sha256sum "$(basename "$file")" >"$(basename "$file").sha256"); done
}
