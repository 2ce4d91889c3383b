# shellcheck shell=bash
# The system of the image as a tree of files. Needs log.sh, packages.sh, chroot.sh; SUITE, PARTS, KERNEL, PACKAGES, EXTRA, FILES, BINARY.

COMPONENTS=main,non-free-firmware

bootstrap() {
    local tree=$1 include=$KERNEL,$PACKAGES${EXTRA:+,$EXTRA}
    # INITRD=No: the kernel's package makes none; ours is made when everything is in its place.
    as_root env INITRD=No timeout 2400 mmdebstrap --quiet --variant=minbase --components="$COMPONENTS" --include="$include" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-include=/usr/share/locale/locale.alias' \
        "$SUITE" "$tree" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >&2 </dev/null
}

# newest_package TREE: when the newest of its packages was made. dpkg keeps the times of what a package brings.
newest_package() { find "$1/var/lib/dpkg/info" -name '*.md5sums' -printf '%Ts\n' | sort -n | tail -1; }

# customize TREE: what makes a Debian this image.
customize() {
    local package
    # Before anything else: several are refused.
    package=$(kernel_package "$1")
    as_root cp -R --no-preserve=mode,ownership "$PARTS/etc" "$1/"
    in_tree "$1" sh -eu <"$PARTS/customize.sh" >&2
    # The kernel that the UKI has inside is one that autoremove would take, with its modules, after an upgrade.
    [ -z "$package" ] || in_tree "$1" apt-mark manual "$package" >&2
    as_root "$ROOT/scripts/install-module" --destdir "$1" --binary "$BINARY" --for dracut
    # Not the mirror that it was built from: that may be frozen, near, or have a password in it.
    as_root rm -rf "$1"/etc/apt/sources.list.d/*
    sources | as_root tee "$1/etc/apt/sources.list" >/dev/null
    [ -z "$FILES" ] || put_files "$1"
}

# put_files TREE: what is in FILES, as root's. Unpacked by the tree's own tar inside of it, as its links lead to this machine's
# files otherwise (/etc/localtime): a file stands in the place of a link, a directory goes where a link leads.
put_files() {
    as_root tar -C "$FILES" --owner=0 --group=0 --numeric-owner -cf - . |
        in_tree "$1" tar -C / --no-same-owner --no-overwrite-dir --keep-directory-symlink -xpf - >&2
}

# sources: of the image's apt. Firmware that was packed gets its updates, too.
sources() {
    printf "deb http://deb.debian.org/debian %s ${COMPONENTS//,/ }\n" "$SUITE" "$SUITE-updates"
    printf "deb http://security.debian.org/debian-security %s ${COMPONENTS//,/ }\n" "$SUITE-security"
}

# kernel_package TREE: which one brought its kernel; nothing for one that came by other means.
kernel_package() {
    local version owner
    version=$(kernel_version "$1") || return
    owner=$(dpkg-query --admindir="$1/var/lib/dpkg" -S "/boot/vmlinuz-$version" 2>/dev/null) || return 0
    echo "${owner%%:*}"
}

# kernel_version TREE: of its one kernel. Which of several the image boots is nobody's guess.
kernel_version() {
    local found=("$1"/lib/modules/*/)
    [ -d "${found[0]}" ] || die "no kernel in the image" "--kernel names a package with one"
    [ ${#found[@]} = 1 ] ||
        die "several kernels in the image: $(basename -a "${found[@]}" | paste -sd ' ')" "--kernel names the one; leave others out of --packages"
    basename "${found[0]}"
}

# identity TREE: a digest of what the image is made from. The initrd, in the working directory, holds ironroot, and what
# the kernel and dracut bring.
identity() {
    {
        printf '%s\n' "$SUITE" "$ARCH" "$SOURCE_DATE_EPOCH" "$WORDS"
        # shellcheck disable=SC2016 # dpkg-query fills them in
        dpkg-query --admindir="$1/var/lib/dpkg" -W -f '${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\n' | sort
        cat initramfs "$BINARY"
        packed_files "$PARTS"
        [ -z "$FILES" ] || packed_files "$FILES"
    } | sha256sum | cut -d' ' -f1
}

# packed_files DIR: names, modes and content, on stdout.
packed_files() { as_root tar -C "$1" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - .; }

# warn_of_default_acls TREE
warn_of_default_acls() {
    local found
    found=$(as_root python3 -sEBc '
import os, sys
for place, _, _ in os.walk(sys.argv[1]):
    if "system.posix_acl_default" in os.listxattr(place, follow_symlinks=False):
        print(place.removeprefix(sys.argv[1]) or "/")' "$1")
    [ -z "$found" ] || say "warning: mksquashfs before 4.6 leaves out the default ACLs of" "$(paste -sd ' ' <<<"$found")"
}

# make_initrd TREE VERSION: in the tree's /boot, by the tree's own dracut.
make_initrd() { in_tree "$1" env SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" dracut --quiet --force --kver "$2" /boot/initramfs >&2; }

# settle TREE: takes away what belongs to one build or one machine, and every time after SOURCE_DATE_EPOCH.
settle() {
    local tree=$1 days=$((SOURCE_DATE_EPOCH / 86400))
    as_root find "$tree/var/log" "$tree/var/cache/apt" "$tree/var/cache/debconf" "$tree/var/lib/apt/lists" -type f -delete
    as_root rm -rf "$tree"/etc/ssh/ssh_host_* "$tree"/var/lib/dbus/machine-id "$tree"/var/lib/systemd/random-seed \
        "$tree"/var/cache/ldconfig/aux-cache "$tree"/var/lib/dpkg/*-old "$tree"/etc/{passwd,group,shadow,gshadow,subuid,subgid}- \
        "$tree"/run/* "$tree"/tmp/* "$tree"/var/tmp/*
    # When a password was last changed.
    as_root sed -i -E "s/^([^:]*:[^:]*):[0-9]+:/\1:$days:/" "$tree/etc/shadow"
    as_root find "$tree" -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}
