# shellcheck shell=bash
# What is made of the tree. Needs log.sh, packages.sh, disk-image.sh; SOURCE_DATE_EPOCH.

# Places in MiB. The ESP has room for a second boot program.
ESP_AT=1 ESP_SIZE=256

# guid NAME: always the same for the same name and image (RFC 9562, version 8: a digest).
guid() {
    local hash
    hash=$(printf '%s %s' "$IDENTITY" "$1" | sha256sum)
    printf '%s-%s-8%s-a%s-%s\n' "${hash:0:8}" "${hash:8:4}" "${hash:12:3}" "${hash:15:3}" "${hash:18:12}"
}

# root_size TREE: MiB that an ext4 of it needs, and some to start with.
root_size() {
    as_root find "$1" -printf '%y %s\n' | awk '
        { blocks += 1 } $1 == "f" { blocks += int(($2 + 4095) / 4096) }
        END { mib = blocks / 256 * 1.08 + 160; print int((mib + 15) / 16) * 16 }'
}

# with_fixed_times EXT4: mke2fs -d copies change and access times of the tree, which no tool can set there.
with_fixed_times() {
    local count field
    count=$(dumpe2fs -h "$1" 2>/dev/null | awk -F: '/^Inode count/ { total = $2 } /^Free inodes/ { print total - $2 }')
    # Inodes are given out in order, from the root (2) on; 1 and 3 to 10 are the file system's own.
    { printf '2\n'; seq 11 "$count"; } | while read -r inode; do
        for field in atime ctime crtime; do printf 'sif <%s> %s @%s\n' "$inode" "$field" "$SOURCE_DATE_EPOCH"; done
        for field in atime_extra ctime_extra mtime_extra crtime_extra; do printf 'sif <%s> %s 0\n' "$inode" "$field"; done
    done >"$1.debugfs"
    E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH debugfs -w -f "$1.debugfs" "$1" >/dev/null
    rm "$1.debugfs"
}

# make_disk IMAGE TREE UKI
make_disk() {
    local image=$1 work size
    work=$(dirname "$image") size=$(root_size "$2")
    make_esp "$work/esp.img" $ESP_SIZE "$3::/EFI/BOOT/$(boot_program)"
    make_ext4 "$work/root.img" "$size" "$(guid filesystem)" "$2"
    with_fixed_times "$work/root.img"
    rm -f "$image" && truncate -s $((ESP_AT + ESP_SIZE + size + 1))M "$image"
    sfdisk -q "$image" <<END
label: gpt
label-id: $(guid disk)
unit: sectors
first-lba: 2048
start=$((ESP_AT * 2048)), size=$((ESP_SIZE * 2048)), type=uefi, name="esp", uuid=$(guid esp)
start=$(((ESP_AT + ESP_SIZE) * 2048)), size=$((size * 2048)), type=$(root_type), name="root", uuid=$(guid root)
END
    put "$work/esp.img" "$image" $ESP_AT
    put "$work/root.img" "$image" $((ESP_AT + ESP_SIZE))
    rm "$work/esp.img" "$work/root.img"
}

# UEFI 2.10, 3.5.1.1, and the Discoverable Partitions Specification.
boot_program() { case $ARCH in amd64) echo BOOTX64.EFI ;; arm64) echo BOOTAA64.EFI ;; esac; }
root_type() {
    case $ARCH in
        amd64) echo 4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709 ;;
        arm64) echo B921B045-1DF0-41C3-AF44-4C6F280D3FAE ;;
    esac
}

# packed FILE: zstd; the number of threads is fixed as it is a part of what comes out.
packed() { zstd -q -f -9 -T2 --rm "$1" -o "$1.zst"; }

make_squashfs() {
    # It takes SOURCE_DATE_EPOCH for the time of the file system by itself, and then refuses options for it.
    rm -f "$1" && as_root env SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" \
        mksquashfs "$2" "$1" -quiet -no-progress -comp zstd -Xcompression-level 15 >&2
}

make_erofs() { as_root mkfs.erofs --quiet -zlz4hc -T"$SOURCE_DATE_EPOCH" -U"$(guid erofs)" "$1" "$2" >&2; }

make_tar() {
    as_root tar -C "$2" --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
        --sort=name --numeric-owner --xattrs --xattrs-include='*' --acls --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime -cf "$1" .
}
