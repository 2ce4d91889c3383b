# shellcheck shell=bash
# The images that scripts/bench installs: one disk image, compressed in every way. Needs log.sh, packages.sh, cache.sh.

# How much of the image is content; the rest is holes, as on a disk that is not full.
CONTENT_PERCENT=45

# data_extents FILE: where a file holds data, "START LENGTH" in MiB a line; not its first and last MiB, the tables.
data_extents() {
    /usr/bin/python3 - "$1" <<'PYTHON'
import os, sys
MIB = 1 << 20
with open(sys.argv[1], "rb") as image:
    end = os.fstat(image.fileno()).st_size
    at = MIB
    while at < end - MIB:
        try:
            start = os.lseek(image.fileno(), at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(image.fileno(), start, os.SEEK_HOLE)
        first, last = -(-start // MIB), min(at, end - MIB) // MIB
        if last > first:
            print(first, last - first)
PYTHON
}

# make_raw DEBIAN_IMAGE OUT MIB: a GPT with one partition, filled with the Debian image's data, over and over,
# in runs of at most 48 MiB with holes between.
make_raw() {
    local debian=$1 out=$2 size=$3 left at=1 start length piece gap extent extents
    mapfile -t extents < <(data_extents "$debian")
    [ ${#extents[@]} -gt 0 ] || die "$debian holds no data" "remove it; scripts/lab debian makes it again"
    left=$((size * CONTENT_PERCENT / 100))
    rm -f "$out" && truncate -s "${size}M" "$out"
    printf 'label: gpt\nfirst-lba: 2048\nstart=2048, type=linux, name=root\n' | sfdisk -q "$out"
    while [ $left -gt 0 ]; do
        for extent in "${extents[@]}"; do
            read -r start length <<<"$extent"
            while [ "$length" -gt 0 ] && [ $left -gt 0 ]; do
                piece=$((length < 48 ? length : 48))
                piece=$((piece < left ? piece : left))
                dd if="$debian" of="$out" bs=1M skip="$start" seek="$at" count="$piece" conv=notrunc,sparse status=none
                gap=$((piece * (100 - CONTENT_PERCENT) / CONTENT_PERCENT))
                at=$((at + piece + gap)) start=$((start + piece)) length=$((length - piece)) left=$((left - piece))
                [ $((at + 48)) -lt $((size - 1)) ] || left=0
            done
        done
    done
}

# compress_all DIRECTORY: disk.raw as disk.FORMAT.
compress_all() {
    local in=$1/disk.raw
    say "compressing $in (some minutes)"
    # pigz -p1 writes one stream without the marks that its threads need, as gzip does, in less time.
    timeout 1800 pigz -6 -p 1 -c "$in" >"$1/disk.gz"
    timeout 1800 bgzip -@ "$(nproc)" -c "$in" >"$1/disk.bgz"
    timeout 1800 zstd -q -3 --single-thread -c "$in" >"$1/disk.zst"
    timeout 1800 pzstd -q -3 -p "$(nproc)" -c "$in" >"$1/disk.pzst"
    timeout 1800 xz -6 -T0 -c "$in" >"$1/disk.xz"
    bmaptool -q create -o "$1/disk.bmap" "$in"
}

make_inputs() {
    local directory=$1 size=$2 file
    mkdir -p "$directory"
    make_raw "$LAB/debian.raw" "$directory/disk.raw" "$size"
    compress_all "$directory"
    for file in "$directory"/disk.{raw,gz,bgz,zst,pzst,xz}; do
        sha256sum "$file" | cut -d' ' -f1 >"$file.sha256"
    done
}

# need_inputs DIRECTORY MIB
need_inputs() {
    need_packages pigz tabix zstd xz-utils bmap-tools fdisk
    [ -e "$LAB/debian.raw" ] || "$ROOT/scripts/lab" debian
    if_changed "bench-$2" "$(inputs_hash scripts/lib/bench-inputs.sh) $2" "$1/disk.xz.sha256" make_inputs "$1" "$2"
}
