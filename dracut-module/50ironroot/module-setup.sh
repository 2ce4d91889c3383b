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
    local handler network=network
    # Not systemd: with it there is a unit, without it a hook. Nor whatever network program the building machine happens to
    # have: networkd, where there is systemd and nobody asked for another one; else network picks one.
    # shellcheck disable=SC2154 # dracut sets them
    for handler in network-wicked connman network-manager network-legacy; do
        case " $dracutmodules $add_dracutmodules $force_add_dracutmodules $mods_to_load " in *" $handler "*) network='' ;; esac
    done
    case " $omit_dracutmodules " in *" systemd "* | *" systemd-networkd "*) network='' ;; esac
    # In a shell of its own: it notes what it has seen.
    if [[ $network ]] && (check_module systemd-networkd) >/dev/null 2>&1; then echo systemd-networkd; fi
    echo base network fs-lib
    # From 108 on the loop in which network scripts run is a module of its own; without systemd nobody else asks for it.
    # shellcheck disable=SC2154 # dracut sets it
    if compgen -G "$dracutbasedir/modules.d/[0-9][0-9]initqueue" >/dev/null; then echo initqueue; fi
    return 0
}

installkernel() {
    local modules
    # What ironroot itself asks for it names, so that the list here is never out of date; then hardware, and ports of ports.
    modules=$("$IRONROOT" tools --modules) || { derror "ironroot: \`$IRONROOT tools --modules\` does not run"; return 1; }
    # Whatever machine builds the initrd, another one boots it.
    # shellcheck disable=SC2086 # words
    hostonly='' instmods $modules "=fs/nls" virtio_pci virtio_blk virtio_scsi virtio_net nvme ahci sd_mod bonding 8021q \
        "=drivers/net/ethernet" "=drivers/ata" "=drivers/scsi" "=drivers/mmc" usb-storage uas
    return 0
}

# The programs that ironroot may run are the ones it names itself, so the list here is never out of date.
install_tools() {
    local name purpose path
    "$IRONROOT" tools >"${DRACUT_TMPDIR:-$initdir}/ironroot-tools" || return 1
    while read -r name purpose; do
        if path=$(find_binary "$name"); then
            # Where busybox came first this is a link to it, which would stay; its mke2fs makes ext2 and nothing else.
            if [[ -L $initdir$path && $(readlink "$initdir$path") == */busybox ]]; then rm -f "$initdir$path"; fi
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
        # Where busybox came first this is a link to it, and what is written through a link is busybox itself. busybox's own
        # poweroff asks PID 1 by a signal, which a shell does not hear.
        rm -f "$initdir$path"
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
    for file in /etc/ironroot/config.json /etc/ironroot/config.json.* /etc/ironroot/docker-config.json /etc/ironroot/keys/*; do
        [[ -f $file ]] && inst_simple "$file"
    done
    # shellcheck disable=SC2154 # dracut sets it
    inst_hook cmdline 30 "$moddir/parse-ironroot.sh"
    inst_hook initqueue/timeout 99 "$moddir/network-ironroot.sh"
    inst_script "$moddir/ironroot-ask" /sbin/ironroot-ask
    # Before kill-dhclient.sh, which ends what this one has started.
    inst_hook cleanup 05 "$moddir/cleanup-ironroot.sh"
    inst_multiple mkdir rm rmdir sleep
    if dracut_module_included "systemd"; then
        inst_simple "$moddir/ironroot.service" "$systemdsystemunitdir/ironroot.service"
        "$SYSTEMCTL" -q --root "$initdir" add-requires initrd-root-fs.target ironroot.service || return 1
        inst_simple "$moddir/wait-online.conf" /usr/lib/ironroot/wait-online.conf
        inst_script "$moddir/ironroot-generator" "$systemdutildir/system-generators/ironroot-generator"
        inst_multiple mkdir cp ln
    else
        inst_hook pre-mount 50 "$moddir/mount-ironroot.sh"
        install_power
    fi
    return 0
}
