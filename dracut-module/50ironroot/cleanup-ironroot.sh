#!/bin/sh
# cleanup hook, sourced: /run goes into the new root, where nothing of the initrd's network may act.
rm -f /run/systemd/network/zz-ironroot.network
# Of the generator's files for every port, where nobody asked for them by ip=: their DHCP was ours.
for ironroot_default in 71-default 91-default; do
    ironroot_file=/run/systemd/network/$ironroot_default.network
    if [ -e "$ironroot_file.d/ironroot.conf" ]; then
        rm -f "$ironroot_file.d/ironroot.conf" "$ironroot_file"
        rmdir "$ironroot_file.d" 2>/dev/null
    fi
done
unset ironroot_default ironroot_file

# A process and all that it started, from the top: one that is stopped starts nothing more.
# shellcheck disable=SC3043 # every shell that an initrd has knows local
ironroot_end() {
    local stat pid rest
    kill -STOP "$1" || return 0
    for stat in /proc/[0-9]*/stat; do
        # PID (COMM) STATE PPID …: proc(5); a comm may have spaces and brackets in it.
        read -r pid rest <"$stat" || continue
        rest=${rest##*) }
        case ${rest#? } in "$1 "*) ironroot_end "$pid" ;; esac
    done
    kill -KILL "$1"
} 2>/dev/null

if [ -e /tmp/ironroot-ask.pid ]; then
    read -r ironroot_ask </tmp/ironroot-ask.pid
    # With ifup, and a dhclient that has no address yet: those that have one kill-dhclient.sh knows.
    ironroot_end "$ironroot_ask"
    rm -f /tmp/ironroot-ask.pid
fi
:
