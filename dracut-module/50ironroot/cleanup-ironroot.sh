#!/bin/sh
# cleanup hook, sourced: /run goes into the new root, where nothing of the initrd's network may act.
rm -f /run/systemd/network/zz-ironroot.network
if [ -e /tmp/ironroot-ask.pid ]; then
    read -r ironroot_ask </tmp/ironroot-ask.pid
    kill "$ironroot_ask" 2>/dev/null
    rm -f /tmp/ironroot-ask.pid
fi
:
