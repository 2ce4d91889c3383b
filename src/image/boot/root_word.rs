//! Kernel command lines that leave it to systemd to find the root by the type of its partition
//! (systemd-gpt-auto-generator(8)). It looks on the disk that the firmware started, which systemd-boot and systemd-stub
//! tell it by a variable of the firmware (LoaderDevicePartUUID); a kernel that was started otherwise is told its root.

use super::arguments::words;

/// Values of `root=` that say the same as none.
const AUTO: [&str; 3] = ["", "gpt-auto", "gpt-auto-force"];

/// Words by which an initrd finds its root without `root=`: dm-verity by the halves of a hash, ostree and Ignition by
/// what they know, a live system by its own means.
const OTHERWISE: [&str; 4] = ["roothash=", "ostree=", "ignition.", "boot="];

/// Whether the root of `line` is found by its type alone.
pub fn is_by_type(line: &str) -> bool {
    let words = words(line);
    match words.iter().rev().find_map(|w| w.strip_prefix("root=")) {
        Some(root) => AUTO.contains(&root),
        None => !words
            .iter()
            .any(|word| OTHERWISE.iter().any(|other| word.starts_with(other))),
    }
}

/// `line` with the root that systemd would have found. Whether it is mounted for writing stays as it is: both ways
/// `rw` decides.
pub fn with_root(line: &str, partuuid: &str) -> String {
    let named = format!("root=PARTUUID={partuuid}");
    let mut all: Vec<&str> = words(line);
    all.retain(|word| !word.starts_with("root="));
    all.push(&named);
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_relies_on_types_is_told_the_root() {
        for line in [
            "",
            "quiet rw",
            "root=gpt-auto quiet",
            "root=/dev/sda1 root=gpt-auto-force",
            "rootflags=subvol=@ rootfstype=btrfs",
        ] {
            assert!(is_by_type(line), "{line}");
        }
        for line in [
            "root=/dev/sda1",
            "root=gpt-auto root=UUID=x",
            "roothash=abc",
            "ostree=/ostree/boot.1/x",
            "ignition.firstboot",
            "boot=live",
        ] {
            assert!(!is_by_type(line), "{line}");
        }
        assert_eq!(
            with_root("root=gpt-auto rw dyndbg=\"a b\"", "x-y"),
            "rw dyndbg=\"a b\" root=PARTUUID=x-y"
        );
        assert!(!is_by_type(&with_root("quiet", "x")));
    }
}
