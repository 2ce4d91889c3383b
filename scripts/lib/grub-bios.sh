# shellcheck shell=bash
# GRUB for BIOS, put into an image file by hand: grub-install wants a device that the kernel knows. Needs disk-image.sh.

# le64 NUMBER: eight bytes, little endian.
le64() {
    local shift
    for shift in 0 8 16 24 32 40 48 56; do printf '%b' "\\x$(printf %02x $(($1 >> shift & 255)))"; done
}

# install_grub_bios WORK IMAGE BIOS_PARTITION_MIB LINUX_COMMAND: boots (hd0,gpt2)/initrd with that kernel command.
install_grub_bios() {
    local work=$1 image=$2 at=$3 grub=/usr/lib/grub/i386-pc sector
    sector=$((at * MIB / 512))
    printf 'serial\nterminal_output serial console\necho "GRUB of the image"\n%s\ninitrd (hd0,gpt2)/initrd\nboot\n' "$4" >"$work/grub.cfg"
    grub-mkimage -O i386-pc -d "$grub" -c "$work/grub.cfg" -o "$work/core.img" -p '(hd0,gpt2)/' \
        biosdisk part_gpt fat linux echo serial terminal
    cp "$grub/boot.img" "$work/boot.img"
    # boot.img names the sector of core.img (at 0x5c), core.img's first sector the one after (at 500).
    le64 "$sector" | dd of="$work/boot.img" bs=1 seek=92 conv=notrunc status=none
    le64 $((sector + 1)) | dd of="$work/core.img" bs=1 seek=500 conv=notrunc status=none
    # Only the code: the rest of LBA 0 is the protective MBR.
    dd if="$work/boot.img" of="$image" bs=1 count=440 conv=notrunc status=none
    put "$work/core.img" "$image" "$at"
}
