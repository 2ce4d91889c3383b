# shellcheck shell=bash
# Rust toolchains: which one is used for what. Nothing here downloads a toolchain. Needs log.sh, packages.sh.

musl_target() { printf '%s-unknown-linux-musl\n' "$(uname -m)"; }

# True where the rustc in PATH can build for TARGET as it is.
has_rust_target() {
    local libs
    command -v cargo >/dev/null && libs=$(rustc --print target-libdir --target "$1" 2>/dev/null) &&
        compgen -G "$libs/libstd-*.rlib" >/dev/null
}

# Debian's own rustc, with std's sources, beside any other toolchain. Calls must put /usr/bin first in PATH.
need_debian_rust() {
    local wanted
    need_packages rustc-web cargo-web rust-web-src musl-tools libunwind-14-dev
    [ -x /usr/bin/cargo ] ||
        die "cargo-web and rustc-web are installed, but there is no /usr/bin/cargo" "try: apt-get install --reinstall rustc-web cargo-web"
    wanted=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$ROOT/Cargo.toml")
    ! debian_rust_is_at_least "$wanted" || return 0
    # Lists that came with the machine's image name the release's first version; Debian raises it in its updates.
    say "$(/usr/bin/rustc --version) is older than $wanted: asking for a newer one"
    apt_get update && apt_install rustc-web cargo-web rust-web-src
    debian_rust_is_at_least "$wanted" ||
        die "Debian's $(/usr/bin/rustc --version) is older than $wanted, which ironroot needs" \
            "give the toolchain in PATH the target $(musl_target), or use a release of Debian with a newer rustc-web"
}

debian_rust_is_at_least() { dpkg --compare-versions "$(/usr/bin/rustc --version | cut -d' ' -f2)" ge "$1"; }

# env_name TRIPLE: the triple as cargo and the cc crate spell it in variable names.
env_name() { printf '%s\n' "${1//-/_}"; }
