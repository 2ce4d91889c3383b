//! World wide names, which every program writes in a way of its own.

/// What says how a name is written, as sysfs has it.
const KINDS: [&str; 5] = ["naa.", "eui.", "nvme.", "t10.", "uuid."];

/// A world wide name without what says how it is written: sysfs has `naa.5000…` and `eui.0025…`, udev and lsblk
/// `0x5000…`, the links below /dev/disk/by-id `wwn-0x5000…` and `nvme-eui.0025…`.
pub fn bare(text: &str) -> String {
    let lower = text.trim().to_lowercase();
    let named = ["wwn-", "nvme-"]
        .iter()
        .find_map(|prefix| lower.strip_prefix(prefix))
        .unwrap_or(&lower);
    ["0x", "naa.", "eui."]
        .iter()
        .find_map(|prefix| named.strip_prefix(prefix))
        .unwrap_or(named)
        .to_owned()
}

/// Whether two names cannot be those of one disk. A kernel may make another kind of name for the same disk (an NVMe
/// namespace is `eui.…` or `nvme.…`), of which neither says anything about the other.
pub fn contradict(a: &str, b: &str) -> bool {
    let kind = |text: &str| {
        let lower = text.trim().to_lowercase();
        KINDS.into_iter().find(|kind| lower.starts_with(kind))
    };
    bare(a) != bare(b) && (kind(a) == kind(b) || kind(a).is_none() || kind(b).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_kind_contradict_and_names_of_two_do_not() {
        for (a, b, wanted) in [
            ("naa.5000c5", "0x5000C5", false),
            ("naa.5000c5", "naa.5000c6", true),
            ("0x5000c5", "naa.5000c6", true),
            ("eui.0025", "nvme.144d-5331-53-00000001", false),
            (
                "nvme.144d-5331-53-00000001",
                "nvme.144d-5332-53-00000001",
                true,
            ),
        ] {
            assert_eq!(contradict(a, b), wanted, "{a} {b}");
            assert_eq!(contradict(b, a), wanted, "{b} {a}");
        }
    }
}
