//! What the `disk` section says that shapes the installed system, as short digests: a later boot compares them with
//! those of the record.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::wire;
use crate::host::Sections;
use crate::units::hex;

/// Keys whose change after an installation changes nothing until the next one. The others choose the disk, say what
/// may be erased, or are carried out at each boot.
const SHAPING: [&str; 7] = [
    "bootloader",
    "files",
    "grow",
    "guids",
    "kernelArguments",
    "partitions",
    "table",
];

/// Bytes of a digest that are recorded: enough to see a change, too few to give away what a file holds.
const KEPT: usize = 4;

/// A digest for each key that says something else than its default.
pub(super) fn of(disk: &wire::Disk) -> Sections {
    let value = |disk: &wire::Disk| serde_json::to_value(disk).unwrap_or_default();
    let (given, default) = (value(disk), value(&wire::Disk::default()));
    SHAPING
        .iter()
        .filter_map(|key| {
            let said = given
                .get(key)
                .filter(|said| default.get(key) != Some(*said))?;
            Some(((*key).to_owned(), digest(key, said)))
        })
        .collect()
}

fn digest(key: &str, said: &Value) -> String {
    let mut hash = Sha256::new();
    for text in ["ironroot-section-1", key, &plain(said).to_string()] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hex(hash.finalize().get(..KEPT).unwrap_or_default())
}

/// Without what was not given, so that a key that a later version adds inside changes no digest.
fn plain(said: &Value) -> Value {
    match said {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect(),
        Value::Array(all) => all.iter().map(plain).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(disk: &str) -> Sections {
        of(&serde_json::from_str(disk).unwrap())
    }

    #[test]
    fn only_what_shapes_the_system_and_is_no_default_is_there() {
        let all = serde_json::to_value(wire::Disk::default()).unwrap();
        for key in SHAPING {
            assert!(all.get(key).is_some(), "{key} is no key of `disk`");
        }
        assert!(sections("{}").is_empty());
        let other = r#"{"select":{"serial":"1"},"overwrite":"Always","keep":["a"],"guids":"Keep"}"#;
        assert!(sections(other).is_empty());
    }

    /// Frozen: a change here makes every installed machine report a change.
    #[test]
    fn digests_are_frozen_and_tell_a_change() {
        let one = sections(r#"{"grow":"root","files":[{"path":"/a","contents":"x"}]}"#);
        let said: Vec<_> = one.iter().map(|(k, d)| format!("{k} {d}")).collect();
        assert_eq!(said, ["files f42a919f", "grow 03c4dc29"]);
        let same =
            sections(r#"{"files":[{"contents":"x","path":"/a","mode":null}],"grow":"root"}"#);
        assert_eq!(one, same);
        let other = sections(r#"{"grow":"root","files":[{"path":"/a","contents":"y"}]}"#);
        assert_ne!(one, other);
    }
}
