#!/bin/sh
# Runs in the new system, at the end of its installation.
systemctl enable ironroot-demo.service
# Emulated, each of these costs seconds: databases that are complete already, waits for devices that are not there.
systemctl mask systemd-hwdb-update.service systemd-journal-catalog-update.service systemd-update-done.service \
    systemd-udev-settle.service systemd-pstore.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-binfmt.service
# Empty, not absent: the machine gets its own id, and the first boot is not taken for a factory reset.
: >/etc/machine-id
echo lab >/etc/hostname
printf 'PARTUUID=deb1a000-0000-4000-8000-0000000000a2 / ext4 rw,noatime 0 1\n' >/etc/fstab
# A lab image, reachable by its console alone.
passwd -d root
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
