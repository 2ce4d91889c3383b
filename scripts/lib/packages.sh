# shellcheck shell=bash
# Debian packages: install what is missing, and nothing else. Needs log.sh.

# A session that is root already needs no sudo, and a minimal machine has none.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# The names among the arguments that are not installed; one dpkg call, so that a repeat is instant.
missing_packages() {
    comm -13 \
        <({ dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true; } |
            sed -n 's/ installed$//p' | sort -u) \
        <(printf '%s\n' "$@" | sort -u)
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive timeout 1200 \
        apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >&2
}

# Installing nginx or dnsmasq must not start a server on the machine: the lab starts its own.
without_services() {
    local policy=/usr/sbin/policy-rc.d status=0
    [ ! -e "$policy" ] || { "$@"; return; }
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    "$@" || status=$?
    as_root rm -f "$policy"
    return "$status"
}

# A qemu-utils taken from backports breaks the release's qemu-system-common, and apt then
# refuses all of QEMU. Prints the release's own qemu-utils as an extra argument in that case.
qemu_utils_downgrade() {
    local installed release version
    is_installed qemu-utils || return 0
    installed=$(dpkg-query -W -f '${Version}' qemu-utils)
    release=$(apt-cache policy qemu-system-common | awk '$1 == "Candidate:" { print $2 }')
    dpkg --compare-versions "$installed" gt "${release:-$installed}" || return 0
    while read -r version; do
        dpkg --compare-versions "$version" le "$release" || continue
        say "qemu-utils $installed is newer than this release's QEMU $release and blocks it: going back to $version"
        printf 'qemu-utils=%s\n' "$version"
        return 0
    done < <(apt-cache madison qemu-utils | awk '{ print $3 }')
}

need_packages() {
    local missing=()
    mapfile -t missing < <(missing_packages "$@")
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null ||
        die "missing: ${missing[*]}, and there is no apt-get here" "install them in your system's way, or use Debian 12"
    say "installing ${missing[*]}"
    # Lists may be absent or so old that the files they name are gone: update once when it fails.
    if ! apt_install "${missing[@]}"; then
        { apt_get update && apt_install "${missing[@]}"; } ||
            die "apt-get install ${missing[*]} failed (also after apt-get update)" "apt's own words are above"
    fi
}

apt_install() {
    local extra=()
    case " $* " in *" qemu-system"*) mapfile -t extra < <(qemu_utils_downgrade) ;; esac
    without_services apt_get install --no-install-recommends --allow-downgrades "$@" "${extra[@]}"
}
