//! What a boot config says of an installed disk and its record does not: reported, never acted on.

use crate::host::{RecordIdentity, Sections};

/// The keys whose content has changed since the installation that left `record`, such as `disk.files`. Empty where
/// the record does not say what the config was then.
pub fn drift(now: &Sections, record: &RecordIdentity) -> Vec<String> {
    let Some(then) = &record.sections else {
        return Vec::new();
    };
    let mut keys: Vec<&String> = now.keys().chain(then.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .filter(|key| now.get(*key) != then.get(*key))
        .map(|key| format!("disk.{key}"))
        .collect()
}

/// The same for people; `None` where nothing has changed.
pub fn note(drift: &[String]) -> Option<String> {
    let verb = match drift {
        [] => return None,
        [_] => "says",
        _ => "say",
    };
    Some(format!(
        "{} {verb} something else than when this was installed; that is not acted on: raise `metadata.generation` to install again",
        drift.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sections(all: &[(&str, &str)]) -> Sections {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        all.iter().map(own).collect()
    }

    #[test]
    fn what_was_added_changed_and_left_out_is_named() {
        let now = sections(&[("files", "1"), ("grow", "2"), ("guids", "3")]);
        let then = |sections| RecordIdentity {
            sections,
            ..RecordIdentity::default()
        };
        let drift = |then_was| drift(&now, &then(then_was));
        assert!(drift(None).is_empty(), "nothing is known");
        assert!(drift(Some(now.clone())).is_empty());
        let old = sections(&[("files", "1"), ("grow", "9"), ("partitions", "4")]);
        assert_eq!(
            drift(Some(old)),
            ["disk.grow", "disk.guids", "disk.partitions"]
        );
        assert_eq!(note(&[]), None);
    }
}
