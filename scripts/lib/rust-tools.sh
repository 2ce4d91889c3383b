# shellcheck shell=bash
# cargo and the tools around it that tests need. Needs log.sh, packages.sh.

# A toolchain in PATH is used as it is; else Debian's own one, with its formatter and linter.
need_cargo() {
    need_packages gcc libc6-dev
    # Where `cargo install` puts programs; not in PATH on every machine.
    export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    case $(command -v cargo) in
        # Debian's own, perhaps installed for the static build alone.
        ''|/usr/bin/cargo|/bin/cargo) need_packages rustc-web cargo-web rustfmt-web rust-web-clippy ;;
    esac
    say "toolchain: $(command -v cargo), $(rustc --version)"
}

# need_cargo_tool NAME VERSION [OPTION]…: built from its published source unless some version is there.
need_cargo_tool() {
    local name=$1 version=$2
    shift 2
    if command -v "$name" >/dev/null; then return 0; fi
    say "installing $name $version by cargo (some minutes)"
    # Hardly optimised: compiling it costs more than ever running it.
    CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=false \
        timeout 1800 cargo install --quiet --locked "$name@$version" "$@" ||
        die "cargo install $name failed" "install $name by hand, any recent version"
}
