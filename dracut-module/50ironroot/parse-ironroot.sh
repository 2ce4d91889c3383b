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
    echo "rd.neednet=1 rd.retry=$((${ironroot_wait:-0} * 3 / 2 + 1))" >/etc/cmdline.d/45-ironroot.conf
    unset ironroot_wait
    # Without systemd dracut wants a root that somebody knows; with it, no root= at all is fine.
    # shellcheck disable=SC2034 # dracut's variables
    if [ -z "${DRACUT_SYSTEMD:-}" ]; then
        [ -n "${root:-}" ] || root=ironroot
        rootok=1
    fi
fi
