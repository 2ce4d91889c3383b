# shellcheck shell=bash
# The peers that scripts/bench runs beside ironroot. Needs log.sh, packages.sh, rust-tools.sh, ROOT.

COREOS_INSTALLER_VERSION=0.27.0 RAPIDGZIP_VERSION=0.16.2
TOOLS=$ROOT/target/bench/tools VENV=$ROOT/target/bench/venv

need_bench_packages() {
    need_packages curl gzip pigz isal tabix zstd xz-utils bmap-tools qemu-utils nginx-light time \
        python3 python3-venv ca-certificates mount util-linux iproute2 fdisk coreutils git
}

# From PyPI; in a directory of its own, as Debian's Python takes no packages from there.
need_rapidgzip() {
    [ ! -x "$VENV/bin/rapidgzip" ] || return 0
    say "installing rapidgzip $RAPIDGZIP_VERSION from PyPI"
    { /usr/bin/python3 -m venv "$VENV" && timeout 600 "$VENV/bin/pip" install --quiet "rapidgzip==$RAPIDGZIP_VERSION"; } ||
        die "rapidgzip could not be installed from PyPI" "leave out what needs it: --only zstd,pzstd,xz,raw,file"
}

# From crates.io, optimised as its authors publish it, since its speed is what is measured.
need_coreos_installer() {
    [ ! -x "$TOOLS/bin/coreos-installer" ] || return 0
    need_packages libssl-dev zlib1g-dev liblzma-dev libzstd-dev pkg-config
    need_cargo
    say "building coreos-installer $COREOS_INSTALLER_VERSION from crates.io (five minutes)"
    timeout 3600 cargo install --quiet --locked --root "$TOOLS" --target-dir "$ROOT/target/bench/build" \
        "coreos-installer@$COREOS_INSTALLER_VERSION" ||
        die "cargo install coreos-installer failed" "cargo's own words are above"
    rm -rf "$ROOT/target/bench/build"
}
