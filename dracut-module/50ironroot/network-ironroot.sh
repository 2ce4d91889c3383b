#!/bin/sh
# initqueue/timeout hook, sourced: no network came. dracut would give up without a word of ironroot; ironroot says why it
# fails, and until its own deadline an address that comes later is good too.
if /usr/bin/ironroot initrd --is-wanted; then
    warn "ironroot: no port has an address yet; going on without dracut's wait for one"
    # Of network-legacy for each port, and of NetworkManager.
    # shellcheck disable=SC2154 # dracut's variable
    rm -f -- "$hookdir"/initqueue/finished/wait-*.sh "$hookdir/initqueue/finished/nm.sh"
    if [ -x /sbin/ifup ] && [ ! -e /tmp/ironroot-ask.pid ]; then
        /sbin/ironroot-ask </dev/null &
        echo "$!" >/tmp/ironroot-ask.pid
    fi
fi
