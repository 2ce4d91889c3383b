//! The menu of a boot loader that follows the Boot Loader Specification (UAPI.1): which of its entries comes first, and
//! which one a configuration means.

use std::cmp::Ordering;

use super::{bls, versions};
use crate::init::modules::glob;

/// What an entry is sorted by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// File name without the counter of boots.
    id: String,
    /// How often it may still be tried, and was: boot counting (`name+2-1.conf`).
    tries: Option<(u32, u32)>,
    sort_key: String,
    machine_id: String,
    version: String,
}

impl Item {
    /// A file of `/loader/entries` (type #1).
    pub fn of_entry(name: &str, text: &str) -> Item {
        let value = |key| bls::field(text, key).unwrap_or_default().to_owned();
        Item {
            sort_key: value("sort-key"),
            machine_id: value("machine-id"),
            version: value("version"),
            ..Item::named(name)
        }
    }

    /// A unified kernel image (type #2) and the os-release(5) in it.
    pub fn of_unified(name: &str, release: &str) -> Item {
        let first = |keys: &[&str]| {
            let mut found = keys.iter().filter_map(|key| of_release(release, key));
            found.next().unwrap_or_default()
        };
        Item {
            sort_key: first(&["IMAGE_ID", "ID"]),
            version: first(&["IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID"]),
            ..Item::named(name)
        }
    }

    fn named(name: &str) -> Item {
        match counted(name) {
            Some((id, tries)) => Item {
                id,
                tries: Some(tries),
                ..Item::default()
            },
            None => Item {
                id: name.to_owned(),
                ..Item::default()
            },
        }
    }

    /// Whether it was tried as often as it may be and never came up ("Boot counting").
    pub fn is_bad(&self) -> bool {
        self.tries.is_some_and(|(left, _)| left == 0)
    }

    /// Whether `default` means it: a pattern in `loader.conf` (loader.conf(5)), or the id without `.conf` in GRUB's
    /// `saved_entry`. Names on a FAT have no case.
    pub fn is_meant_by(&self, default: &str) -> bool {
        let id = self.id.to_lowercase();
        let bare = id.strip_suffix(".conf").unwrap_or(&id);
        let pattern = default.to_lowercase();
        [id.as_str(), bare]
            .iter()
            .any(|name| glob::matches(pattern.as_bytes(), name.as_bytes()))
    }

    /// Which of two comes first in the menu, and so is started ("Sorting").
    pub fn order(&self, other: &Item) -> Ordering {
        let keyed = |item: &Item| !item.sort_key.is_empty();
        let by_key = match (keyed(self), keyed(other)) {
            (true, true) => self
                .sort_key
                .cmp(&other.sort_key)
                .then_with(|| self.machine_id.cmp(&other.machine_id))
                .then_with(|| versions::compare(&other.version, &self.version)),
            (left, right) => right.cmp(&left),
        };
        self.is_bad()
            .cmp(&other.is_bad())
            .then(by_key)
            .then_with(|| self.by_name(other))
            .then_with(|| match (self.tries, other.tries) {
                // The one that may be tried more often, then the one that was tried less.
                (Some((left, done)), Some((others, others_done))) => {
                    others.cmp(&left).then(done.cmp(&others_done))
                }
                _ => Ordering::Equal,
            })
    }

    /// The same in the menu of GRUB's blscfg, which looks at names alone.
    pub fn by_name(&self, other: &Item) -> Ordering {
        versions::compare(&other.id, &self.id)
    }
}

/// Puts `items` into the order of the menu, what `default` means before all others: a pattern, a name, or, for GRUB, the
/// place in its menu. Not even one that failed before is passed over where it is named.
pub fn sort<T>(
    items: &mut [(Item, T)],
    default: Option<&str>,
    order: impl Fn(&Item, &Item) -> Ordering,
) {
    items.sort_by(|(a, _), (b, _)| order(a, b));
    let Some(default) = default else { return };
    let meant = items
        .iter()
        .position(|(item, _)| item.is_meant_by(default))
        .or_else(|| default.parse().ok().filter(|at| *at < items.len()));
    if let Some(first) = meant.and_then(|at| items.get_mut(..=at)) {
        first.rotate_right(1);
    }
}

/// Name without a counter, and the counter: `left` or `left-done` behind the last `+`.
fn counted(name: &str) -> Option<(String, (u32, u32))> {
    let (stem, suffix) = name.rsplit_once('.')?;
    let (id, counter) = stem.rsplit_once('+')?;
    let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
    Some((
        format!("{id}.{suffix}"),
        (left.parse().ok()?, done.parse().ok()?),
    ))
}

/// A file name without its counter.
pub fn without_counter(name: &str) -> String {
    counted(name).map_or_else(|| name.to_owned(), |(id, _)| id)
}

/// A value of os-release(5), without quotes; `None` where it is missing or empty.
fn of_release(text: &str, key: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix('=')?;
        Some(value.trim().trim_matches(['"', '\'']).to_owned())
    });
    lines.next_back().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn sorted(entries: &[(&str, &str)], default: Option<&str>) -> Vec<String> {
        let mut items: Vec<(Item, String)> = entries
            .iter()
            .map(|(name, text)| {
                let item = if Path::new(name).extension().is_some_and(|e| e == "efi") {
                    Item::of_unified(name, text)
                } else {
                    Item::of_entry(name, text)
                };
                (item, (*name).to_owned())
            })
            .collect();
        sort(&mut items, default, Item::order);
        items.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn counters_and_defaults() {
        for (name, bad) in [
            ("a+0-3.conf", true),
            ("a+0.conf", true),
            ("a+0-3.efi", true),
            ("a+2-1.conf", false),
            ("a.conf", false),
            ("6.1+deb-1.conf", false),
        ] {
            assert_eq!(Item::of_entry(name, "").is_bad(), bad, "{name}");
        }
        for (name, default, wanted) in [
            ("debian-6.1.conf", "debian-*", true),
            ("debian-6.1.conf", "debian-6.1.conf", true),
            ("debian-6.1.conf", "debian-6.1", true),
            ("debian-6.1+2-1.conf", "debian-6.1.conf", true),
            ("Debian-6.1+2-1.EFI", "debian-[5-7].1.efi", true),
            ("debian-6.1.efi", "debian-6.1", false),
            ("other.conf", "debian-*", false),
            ("other.conf", "", false),
        ] {
            let item = Item::of_entry(name, "");
            assert_eq!(item.is_meant_by(default), wanted, "{name} {default}");
        }
    }

    /// The rules of "Sorting", one after the other.
    #[test]
    fn the_order_is_that_of_the_specification() {
        let all = [
            ("fail+0-3.conf", "sort-key a\nversion 9"),
            ("old-9.conf", "version 1"),
            ("old-10.conf", "version 0"),
            ("b.conf", "sort-key debian\nmachine-id b\nversion 7"),
            ("a.conf", "sort-key debian\nmachine-id a\nversion 6.1.0-9"),
            ("c.conf", "sort-key debian\nmachine-id a\nversion 6.1.0-10"),
            ("arch.efi", "ID=arch\nVERSION_ID=\"1\"\n"),
            (
                "tried+1-2.conf",
                "sort-key debian\nmachine-id a\nversion 6.1.0-10~rc1",
            ),
            (
                "image.efi",
                "ID=zeta\nIMAGE_ID='arch'\nIMAGE_VERSION=2\nVERSION_ID=0",
            ),
        ];
        assert_eq!(
            sorted(&all, None),
            [
                "image.efi",
                "arch.efi",
                "c.conf",
                "tried+1-2.conf",
                "a.conf",
                "b.conf",
                "old-10.conf",
                "old-9.conf",
                "fail+0-3.conf",
            ]
        );
    }

    #[test]
    fn the_default_goes_first_and_the_rest_stays_in_order() {
        let all = [
            ("a-1.conf", ""),
            ("a-3.efi", ""),
            ("a-2.conf", ""),
            ("b+0-3.conf", ""),
        ];
        let first = |default| sorted(&all, Some(default)).join(" ");
        assert_eq!(first("a-1*"), "a-1.conf a-3.efi a-2.conf b+0-3.conf");
        assert_eq!(first("*.efi"), "a-3.efi a-2.conf a-1.conf b+0-3.conf");
        assert_eq!(first("b.conf"), "b+0-3.conf a-3.efi a-2.conf a-1.conf");
        // Of several the first in the menu.
        assert_eq!(first("a-*.conf"), "a-2.conf a-3.efi a-1.conf b+0-3.conf");
        assert_eq!(first("2"), "a-1.conf a-3.efi a-2.conf b+0-3.conf");
        for nothing in ["4", "none", ""] {
            assert_eq!(first(nothing), "a-3.efi a-2.conf a-1.conf b+0-3.conf");
        }
    }

    #[test]
    fn of_two_that_differ_in_their_counters_the_fresher_one() {
        let all = [("a+1-2.conf", ""), ("a+2-1.conf", ""), ("a+2-0.conf", "")];
        assert_eq!(
            sorted(&all, None),
            ["a+2-0.conf", "a+2-1.conf", "a+1-2.conf"]
        );
    }
}
