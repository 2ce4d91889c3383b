"""The QEMU command line. TCG always: the lab's machines have no KVM that works."""

import os
import pathlib
import shutil

OVMF_CODE = "/usr/share/OVMF/OVMF_CODE_4M.fd"
OVMF_VARS = "/usr/share/OVMF/OVMF_VARS_4M.fd"


def build(o, scratch):
    line = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"]
    # graphics=off: SeaBIOS and iPXE then talk to the serial line.
    line += ["-machine", "q35,graphics=off", "-accel", "tcg,tb-size=256", "-cpu", "max"]
    line += ["-m", o.memory, "-smp", o.cpus, "-device", "virtio-rng-pci"]
    if o.no_reboot:
        line += ["-no-reboot"]
    if o.smbios:
        line += ["-smbios", f"type=1,{o.smbios}"]
    if o.qmp:
        line += ["-qmp", f"unix:{o.qmp},server=on,wait=off"]
    if o.firmware == "uefi":
        line += uefi(o, scratch)
    if o.kernel:
        line += ["-kernel", o.kernel, "-append", o.append]
        line += ["-initrd", o.initrd] if o.initrd else []
    line += network(o)
    line += disks(o)
    return line + o.qemu


def uefi(o, scratch):
    variables = o.vars or os.path.join(scratch, "vars.fd")
    if not os.path.exists(variables):
        pathlib.Path(variables).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(OVMF_VARS, variables)
    line = ["-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={OVMF_CODE}"]
    line += ["-drive", f"if=pflash,format=raw,unit=1,file={variables}"]
    # The iPXE ROM is what boots from the network here; OVMF's own tries over IPv6 and HTTP only
    # cost time, as does IPv4 where the disk is meant to boot.
    for protocol in ("IPv6",) if o.boot != "disk" else ("IPv4", "IPv6"):
        line += ["-fw_cfg", f"name=opt/org.tianocore/{protocol}PXESupport,string=n"]
    return line


def network(o):
    if o.net == "none":
        return []
    kind, _, name = o.net.partition(":")
    if kind == "tap":
        netdev = f"tap,id=n0,ifname={name},script=no,downscript=no"
    elif kind == "user":
        netdev = "user,id=n0"
        if o.tftp:
            netdev += f",tftp={o.tftp}"
        if o.tftp or "://" in o.bootfile:
            netdev += f",bootfile={o.bootfile}"
    elif kind == "silent":
        # A hub with nobody else on it: the port has a carrier, and no answer ever comes.
        netdev = "hubport,id=n0,hubid=0"
    else:
        raise OSError(f"--net {o.net}: known are user, none, silent, tap:NAME")
    device = f"{o.nic},netdev=n0,mac={o.mac}"
    # The kernel given directly needs no boot ROM, nor does a disk.
    if o.kernel or o.boot == "disk":
        device += ",romfile="
    elif o.boot == "net":
        device += ",bootindex=1"
    return ["-netdev", netdev, "-device", device]


def disks(o):
    line = ["-device", "virtio-scsi-pci,id=scsi0"] if any(d.bus == "scsi" for d in o.disk) else []
    for number, disk in enumerate(o.disk):
        shared = [d.file for d in o.disk].count(disk.file) > 1
        line += logged(number, disk) if disk.log else drive(number, disk, shared)
        model = {"virtio": "virtio-blk-pci", "nvme": "nvme", "scsi": "scsi-hd,bus=scsi0.0"}[disk.bus]
        # NVMe cannot do without a serial number.
        serial = disk.serial or (f"disk{number}" if disk.bus == "nvme" else "")
        device = f"{model},drive=d{number},logical_block_size={disk.sector},physical_block_size={disk.sector}"
        if serial:
            device += f",serial={serial}"
        if disk.wwn:
            device += f",wwn={disk.wwn}"
        if shared:
            device += ",share-rw=on"
        if o.boot != "nvram" and not o.kernel:
            device += f",bootindex={10 + number}"
        line += ["-device", device]
    return line


def drive(number, disk, shared):
    text = f"if=none,id=d{number},format={disk.format},file={disk.file},cache={disk.cache},discard=unmap"
    if disk.readonly:
        text += ",readonly=on"
    if shared:
        text += ",file.locking=off"
    return ["-drive", text]


def logged(number, disk):
    # The log is what counts: it must have the flushes, the files need none.
    with open(disk.log, "wb"):
        pass
    line = []
    for node, file in (("f", disk.file), ("l", disk.log)):
        line += ["-blockdev", f"driver=file,node-name={node}{number},filename={file},cache.no-flush=on,discard=unmap"]
    return line + ["-blockdev", f"driver=blklogwrites,node-name=d{number},file=f{number},log=l{number},log-sector-size=512,discard=unmap"]
