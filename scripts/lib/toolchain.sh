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
    need_packages rustc-web cargo-web rust-web-src musl-tools libunwind-14-dev
    [ -x /usr/bin/cargo ] ||
        die "cargo-web and rustc-web are installed, but there is no /usr/bin/cargo" "try: apt-get install --reinstall rustc-web cargo-web"
}

# env_name TRIPLE: the triple as cargo and the cc crate spell it in variable names.
env_name() { printf '%s\n' "${1//-/_}"; }
