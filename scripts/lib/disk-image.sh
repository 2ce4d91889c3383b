# shellcheck shell=bash
# Disk images out of plain files: no mounts, no loop devices, as not every kernel reads GPT. Needs log.sh.

MIB=$((1024 * 1024))

# put FILE IMAGE MIB: writes a partition's content at its place.
put() { dd if="$1" of="$2" bs=$MIB seek="$3" conv=notrunc,sparse status=none; }

# make_esp FILE SIZE_MIB LOCAL::REMOTE…: a FAT file system with these files in it.
make_esp() {
    local file=$1 size=$2 pair remote dir
    shift 2
    rm -f "$file" && truncate -s "${size}M" "$file"
    mkfs.vfat --invariant -n ESP "$file" >/dev/null
    for pair; do
        remote=${pair#*::}
        dir=$(dirname "$remote")
        # Parents one by one; one that exists already is no fault.
        while [ "$dir" != / ] && [ "$dir" != . ]; do printf '%s\n' "$dir"; dir=$(dirname "$dir"); done | tac |
            while read -r dir; do mmd -D s -i "$file" "::$dir" </dev/null 2>/dev/null || true; done
        mcopy -i "$file" "${pair%%::*}" "::$remote"
    done
}

# make_ext4 FILE SIZE_MIB UUID DIRECTORY
make_ext4() {
    rm -f "$1" && truncate -s "$2M" "$1"
    # No metadata_csum_seed, no orphan_file: GRUB 2.06 and older tools do not know them.
    E2FSPROGS_FAKE_TIME=${SOURCE_DATE_EPOCH:-1} mke2fs -q -F -t ext4 -O ^metadata_csum_seed,^orphan_file \
        -E lazy_itable_init=0,hash_seed="$3" -U "$3" -m 0 -d "$4" "$1"
}

# The stub, the kernel, its initrd and its command line as one EFI program.
# UKI_STUB names another stub than this machine's, UKI_OSREL the os-release of the system in it.
# make_uki OUT KERNEL INITRD CMDLINE
make_uki() {
    local arch stub scratch end section file args=()
    case $(uname -m) in x86_64) arch=x64 ;; aarch64) arch=aa64 ;; *) die "no UEFI stub known for $(uname -m)" ;; esac
    stub=${UKI_STUB:-/usr/lib/systemd/boot/efi/linux$arch.efi.stub}
    scratch=$(mktemp -d)
    printf '%s\0' "$4" >"$scratch/cmdline"
    if [ -n "${UKI_OSREL:-}" ]; then cp "$UKI_OSREL" "$scratch/osrel"
    else printf 'ID=ironroot-lab\nPRETTY_NAME="ironroot lab image"\n' >"$scratch/osrel"; fi
    # Sections are placed behind one another from the stub's own end on, at page bounds.
    end=0
    while read -r size vma; do
        [ $((16#$vma + 16#$size)) -le $end ] || end=$((16#$vma + 16#$size))
    done < <(objdump -h "$stub" | awk '$1 ~ /^[0-9]+$/ { print $3, $4 }')
    for section in osrel="$scratch/osrel" cmdline="$scratch/cmdline" linux="$2" initrd="$3"; do
        file=${section#*=}
        end=$(((end + 4095) / 4096 * 4096))
        args+=(--add-section ".${section%%=*}=$file" --change-section-vma ".${section%%=*}=$end")
        end=$((end + $(stat -Lc %s "$file")))
    done
    objcopy "${args[@]}" "$stub" "$1"
    rm -rf "$scratch"
}
