# shellcheck shell=bash
# What the finished binary must be: the initramfs has no loader, and every byte is sent over the network. Needs log.sh.

# It guards against a dependency that nobody weighed: 9.0 MiB are in use.
MAX_BINARY_BYTES=$((9728 * 1024))

check_static_binary() {
    local binary=$1 size
    # Not `grep -q`: it ends at the first hit, readelf gets SIGPIPE and pipefail turns the answer around.
    if readelf -lW "$binary" | grep INTERP >&2; then
        die "$binary asks for a program loader (INTERP): it is not static" "was it built without +crt-static?"
    fi
    if readelf -dW "$binary" 2>/dev/null | grep NEEDED >&2; then
        die "$binary needs shared libraries: it is not static"
    fi
    if readelf -SW "$binary" | grep -E '\.(symtab|debug_info)' >&2; then
        die "$binary has symbols: it is not stripped"
    fi
    size=$(stat -c %s "$binary")
    [ "$size" -le "$MAX_BINARY_BYTES" ] ||
        die "$binary has $size bytes, the limit is $MAX_BINARY_BYTES" "look at the last dependency that was added: cargo bloat --release --crates"
}
