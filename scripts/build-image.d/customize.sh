#!/bin/sh
# Runs in the new system by sh -eu, at the end of its installation.
systemctl --quiet enable systemd-networkd.service systemd-resolved.service systemd-timesyncd.service
echo localhost >/etc/hostname
# Empty, not absent: each machine gets its own id, and its first boot is not taken for a factory reset.
: >/etc/machine-id
# No line for the root: the kernel command line says which it is, and from memory it is none of a disk.
: >/etc/fstab
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
