#!/bin/bash
# dracut module: ironroot as the helper of the initrd's PID 1. For dracut 059 and later.
# It is asked for by name (dracut.conf: add_dracutmodules+=" ironroot "), never taken by default.
# shellcheck disable=SC2154 # moddir, initdir and the like are dracut's

IRONROOT=/usr/bin/ironroot

check() {
    require_binaries "$IRONROOT" || return 1
    return 255
}

depends() {
    # Not systemd: with it there is a unit, without it a hook. network picks whoever brings the network up.
    echo base network fs-lib
    # From 108 on the loop in which network scripts run is a module of its own; without systemd nobody else asks for it.
    # shellcheck disable=SC2154 # dracut sets it
    if compgen -G "$dracutbasedir/modules.d/[0-9][0-9]initqueue" >/dev/null; then echo initqueue; fi
    return 0
}

installkernel() {
    # Whatever machine builds the initrd, another one boots it.
    hostonly='' instmods overlay squashfs erofs loop zram lzo-rle zstd ext4 xfs btrfs vfat "=fs/nls" efivarfs \
        crc32c crc32 virtio_pci virtio_blk virtio_scsi virtio_net nvme ahci sd_mod dm_mod \
        dm_crypt algif_skcipher xts essiv cbc ecb aes_generic sha256_generic sha512_generic \
        "=drivers/net/ethernet" "=drivers/ata" "=drivers/scsi"
    return 0
}

# The programs that ironroot may run are the ones it names itself, so the list here is never out of date.
install_tools() {
    local name purpose
    "$IRONROOT" tools >"${DRACUT_TMPDIR:-$initdir}/ironroot-tools" || return 1
    while read -r name purpose; do
        if find_binary "$name" >/dev/null; then
            inst_multiple "$name"
        else
            dwarn "ironroot: $name is not installed here and so not in the initrd: it $purpose"
        fi
    done <"${DRACUT_TMPDIR:-$initdir}/ironroot-tools"
    rm -f "${DRACUT_TMPDIR:-$initdir}/ironroot-tools"
    inst_multiple -o /etc/mke2fs.conf
    # The C library opens it when a thread of cryptsetup ends; no program names it.
    inst_libdir_file "libgcc_s.so*"
}

# Debian's poweroff, reboot and halt are systemd's systemctl, which asks a systemd for it unless it is forced twice.
# Without systemd in the initrd nobody would be there, and rd.emergency= would end in a panic.
install_power() {
    local name path
    for name in poweroff reboot halt; do
        path=$(find_binary "$name") || continue
        # shellcheck disable=SC2154 # dracut sets it where it builds for another root
        [[ $(readlink -f "${dracutsysrootdir-}$path") == */systemctl ]] || continue
        inst_multiple systemctl
        mkdir -p "$initdir${path%/*}"
        printf '#!/bin/sh\nexec systemctl --force --force %s\n' "$name" >"$initdir$path"
        chmod 755 "$initdir$path"
    done
}

install() {
    local file
    inst_binary "$IRONROOT"
    install_tools || { derror "ironroot: \`$IRONROOT tools\` does not run"; return 1; }
    # Further authorities and what the builder of the image wants inside; the well-known ones are compiled in.
    inst_multiple -o /etc/ssl/certs/ca-certificates.crt
    for file in /etc/ironroot/config.json /etc/ironroot/config.json.* /etc/ironroot/keys/*; do
        [[ -f $file ]] && inst_simple "$file"
    done
    # shellcheck disable=SC2154 # dracut sets it
    inst_hook cmdline 30 "$moddir/parse-ironroot.sh"
    inst_hook initqueue/timeout 50 "$moddir/no-network.sh"
    if dracut_module_included "systemd"; then
        inst_simple "$moddir/ironroot.service" "$systemdsystemunitdir/ironroot.service"
        "$SYSTEMCTL" -q --root "$initdir" add-requires initrd-root-fs.target ironroot.service || return 1
        inst_simple "$moddir/ironroot.network" /usr/lib/ironroot/ironroot.network
        inst_simple "$moddir/wait-online.conf" /usr/lib/ironroot/wait-online.conf
        inst_script "$moddir/ironroot-generator" "$systemdutildir/system-generators/ironroot-generator"
        inst_multiple mkdir cp ln
    else
        inst_hook pre-mount 50 "$moddir/mount-ironroot.sh"
        install_power
    fi
    return 0
}
