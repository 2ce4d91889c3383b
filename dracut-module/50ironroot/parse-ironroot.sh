#!/bin/sh
# cmdline hook, sourced: where this boot is ironroot's business, dracut brings the network up and looks for no root.
if /usr/bin/ironroot initrd --is-wanted; then
    mkdir -p /etc/cmdline.d
    echo "rd.neednet=1" >/etc/cmdline.d/45-ironroot.conf
    # Without systemd dracut wants a root that somebody knows; with it, no root= at all is fine.
    # shellcheck disable=SC2034 # dracut's variables
    if [ -z "${DRACUT_SYSTEMD:-}" ]; then
        [ -n "${root:-}" ] || root=ironroot
        rootok=1
    fi
fi
