#!/bin/sh
# initqueue/timeout hook, sourced. Where no port comes up, dracut's own network scripts give up the whole boot, without a
# word of why there was to be a network. ironroot goes on instead, and says what it cannot reach.
# shellcheck disable=SC2154 # dracut sets it
if [ -e "$hookdir/initqueue/finished/wait-network.sh" ] && /usr/bin/ironroot initrd --is-wanted; then
    warn "ironroot: the network did not come up"
    rm -f -- "$hookdir/initqueue/finished/wait-network.sh"
fi
