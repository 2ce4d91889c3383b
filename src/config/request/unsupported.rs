//! Every key that has a meaning and is not carried out yet.

use super::{Problems, wire};

/// Refuses them by name. The destructuring without `..` makes the compiler ask about each new key.
pub(super) fn refuse(config: &wire::BootConfig, problems: &mut Problems) {
    let wire::BootConfig {
        api_version: _,
        kind: _,
        metadata: _,
        boot_policy: _,
        image: _,
        disk,
        memory: _,
        preserve: _,
        ignition,
        network,
        ca: _,
        proxy: _,
        report,
        then: _,
        on_failure: _,
        wait: _,
    } = config;
    problems.unsupported("ignition", ignition.is_some() && disk.is_none());
    problems.unsupported("network", network.is_some());
    if let Some(disk) = disk {
        let wire::Disk {
            select: _,
            pick: _,
            overwrite: _,
            keep: _,
            wipe: _,
            grow: _,
            record: _,
            partitions: _,
            guids: _,
            table: _,
            bootloader: _,
            efi: _,
            kernel_arguments: _,
            files: _,
        } = disk;
    }
    if let Some(report) = report {
        let wire::Report {
            url: _,
            bootstate,
            headers: _,
            events,
        } = report;
        problems.unsupported("report.bootstate", bootstate.is_some());
        problems.unsupported("report.events", *events);
    }
}
