#!/bin/sh
# cmdline hook, sourced: where this boot is ironroot's business, dracut brings the network up and looks for no root.
if /usr/bin/ironroot initrd --is-wanted; then
    # After two thirds of rd.retry the hook network-ironroot.sh ends dracut's wait for the network: after a minute, or after
    # ironroot.timeout where that is less. Where the kernel command line has an rd.retry of its own, that one counts.
    ironroot_wait=$(getarg ironroot.timeout=)
    case $ironroot_wait in
        0 | *ms) ironroot_wait=0 ;;
        [0-9]s | [0-5][0-9]s) ironroot_wait=${ironroot_wait%s} ironroot_wait=${ironroot_wait#0} ;;
        *) ironroot_wait=60 ;;
    esac
    mkdir -p /etc/cmdline.d
    ironroot_words="rd.retry=$((${ironroot_wait:-0} * 3 / 2 + 1))"
    # Nobody waits for a network that the operator has switched off.
    ironroot_network=1
    for ironroot_word in $(getargs ip=); do
        case $ironroot_word in off | none) ironroot_network='' ;; esac
    done
    [ -z "$ironroot_network" ] || ironroot_words="rd.neednet=1 $ironroot_words"
    echo "$ironroot_words" >/etc/cmdline.d/45-ironroot.conf
    unset ironroot_wait ironroot_words ironroot_network ironroot_word
    if ironroot_root=$(getarg root=); then
        warn "ironroot: root=$ironroot_root on the kernel command line is for others to find; leave it away: the root is what ironroot brings"
    fi
    unset ironroot_root
    # Without systemd dracut wants a root that somebody knows, and looks for one that it was told; with it, no root= at all is
    # fine.
    # shellcheck disable=SC2034 # dracut's variables
    if [ -z "${DRACUT_SYSTEMD:-}" ]; then
        root=ironroot
        rootok=1
    fi
fi
