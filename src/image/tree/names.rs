//! Paths as archives write them, made safe: relative, without `.` and `..`, components that the kernel takes.

use super::limits::{NAME_MAX, PATH_MAX};
use super::refusal::{integrity, shown};
use crate::error::Result;

/// The path of an entry inside the root: components joined by `/`, empty for the root itself. Leading
/// slashes and `./` are stripped, as GNU tar does; `..` is refused.
pub(super) fn clean(path: &[u8], depth: usize) -> Result<Vec<u8>> {
    if path.is_empty() {
        return Err(integrity("the archive has an entry without a name"));
    }
    if path.contains(&0) {
        return Err(integrity(format!(
            "the name {} contains a NUL",
            shown(path)
        )));
    }
    let mut out = Vec::with_capacity(path.len());
    let mut count = 0usize;
    for component in path.split(|b| *b == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => {
                return Err(integrity(format!(
                    "the archive names {}, which leads out of its tree",
                    shown(path)
                )));
            }
            _ if component.len() > NAME_MAX => {
                return Err(integrity(format!(
                    "{} has a component of {} bytes; at most {NAME_MAX} can exist",
                    shown(path),
                    component.len()
                )));
            }
            _ => {}
        }
        count = count.saturating_add(1);
        if !out.is_empty() {
            out.push(b'/');
        }
        out.extend_from_slice(component);
    }
    if count > depth || out.len() > PATH_MAX {
        return Err(integrity(format!(
            "{} is {count} directories deep and {} bytes long; at most {depth} and {PATH_MAX} are taken",
            shown(path),
            out.len()
        )));
    }
    Ok(out)
}

/// Parent and last component of a clean path that is not the root.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(slash) => (
            path.get(..slash).unwrap_or_default(),
            path.get(slash.saturating_add(1)..).unwrap_or_default(),
        ),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn leading_slashes_and_dots_go_and_what_leads_out_is_refused() {
        for (path, cleaned) in [
            (&b"./"[..], &b""[..]),
            (b"/", b""),
            (b".", b""),
            (b"./usr//bin/./sh", b"usr/bin/sh"),
            (b"///etc/passwd", b"etc/passwd"),
            (b"dir/", b"dir"),
            (b"\xff\xfe/..a/...", b"\xff\xfe/..a/..."),
        ] {
            assert_eq!(clean(path, 9).unwrap(), cleaned);
        }
        let long = [b'x'; 256];
        let deep = b"d/".repeat(10);
        for path in [
            &b""[..],
            b"..",
            b"a/../b",
            b"/..",
            b"./..",
            b"a\0b",
            &long,
            &deep,
        ] {
            assert!(clean(path, 9).is_err(), "{path:?}");
        }
        assert!(clean(&b"abcdefgh/".repeat(500), 1000).is_err());
        assert_eq!(split(b"usr/bin/sh"), (&b"usr/bin"[..], &b"sh"[..]));
        assert_eq!(split(b"sh"), (&b""[..], &b"sh"[..]));
    }

    proptest! {
        #[test]
        fn a_clean_path_has_only_plain_components(path: Vec<u8>) {
            if let Ok(cleaned) = clean(&path, 20) {
                for component in cleaned.split(|b| *b == b'/').filter(|_| !cleaned.is_empty()) {
                    prop_assert!(!matches!(component, b"" | b"." | b".."));
                    prop_assert!(component.len() <= NAME_MAX && !component.contains(&0));
                }
                prop_assert_eq!(clean(&cleaned, 20).unwrap_or_default(), cleaned);
            }
        }
    }
}
