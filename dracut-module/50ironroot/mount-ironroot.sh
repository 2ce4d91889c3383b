#!/bin/sh
# pre-mount hook, sourced, of an initrd without systemd: a root is at $NEWROOT afterwards, or nobody looks for another.
type emergency_shell >/dev/null 2>&1 || . /lib/dracut-lib.sh
if /usr/bin/ironroot initrd --is-wanted; then
    /usr/bin/ironroot initrd --sysroot "$NEWROOT" || emergency_shell "ironroot failed; its reason is above"
fi
