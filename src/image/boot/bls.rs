//! Boot loader entries (UAPI.1 Boot Loader Specification, type #1): `/loader/entries/*.conf`, read by systemd-boot
//! and by GRUB's blscfg.

use std::cmp::Ordering;

use super::Entry;
use super::arguments::Edit;

/// `text` with the change made to its `options`; `None` where it names no kernel.
pub fn edit(text: &str, change: &Edit) -> Option<String> {
    field(text, "linux").or_else(|| field(text, "uki"))?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let places: Vec<usize> = (0..lines.len())
        .filter(|i| lines.get(*i).is_some_and(|l| value(l, "options").is_some()))
        .collect();
    let removal = Edit::new(&[], change.removed());
    for place in &places {
        if let Some(line) = lines.get_mut(*place) {
            let options = value(line, "options").unwrap_or_default().to_owned();
            // All `options` lines count together: words are added to the last one only.
            let applied = if Some(place) == places.last() {
                change.apply(&options)
            } else {
                removal.apply(&options)
            };
            *line = format!("options {applied}");
        }
    }
    if places.is_empty() {
        lines.push(format!("options {}", change.apply("")));
    }
    Some(lines.join("\n") + "\n")
}

/// What the entry starts; `None` where it names no kernel of type #1.
pub fn parse(text: &str) -> Option<Entry> {
    let all = |key: &str| {
        text.lines()
            .filter_map(|l| value(l, key))
            .collect::<Vec<_>>()
    };
    Some(Entry {
        kernel: field(text, "linux")?.to_owned(),
        initrds: all("initrd")
            .iter()
            .flat_map(|line| line.split_whitespace())
            // GRUB's variable for a microcode or test initrd that is usually not set.
            .filter(|word| !word.starts_with('$'))
            .map(str::to_owned)
            .collect(),
        options: all("options").join(" "),
    })
}

/// Which of two entries comes first in the menu, and so is started: by `sort-key`, else by version, the newest
/// first (section "Sorting"). `a` and `b` are file name and text.
pub fn order(a: (&str, &str), b: (&str, &str)) -> Ordering {
    let key = |text| field(text, "sort-key");
    match (key(a.1), key(b.1)) {
        (Some(x), Some(y)) if x != y => return x.cmp(y),
        (Some(_), None) => return Ordering::Less,
        (None, Some(_)) => return Ordering::Greater,
        _ => {}
    }
    let version = |text| field(text, "version").unwrap_or_default();
    compare_versions(version(b.1), version(a.1)).then_with(|| compare_versions(b.0, a.0))
}

/// Whether an entry's file name says that it was tried as often as it may be and never came up: `name+0-3.conf`
/// (UAPI.1, "Boot counting").
pub fn is_known_bad(name: &str) -> bool {
    counted(name).is_some_and(|(_, left)| left == 0)
}

/// The entry's id: its file name without the counter.
fn id(name: &str) -> String {
    counted(name).map_or_else(|| name.to_owned(), |(id, _)| id)
}

/// Name without a counter, and how many tries are left.
fn counted(name: &str) -> Option<(String, u32)> {
    let stem = name.strip_suffix(".conf")?;
    let (id, counter) = stem.rsplit_once('+')?;
    let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
    done.parse::<u32>().ok()?;
    Some((format!("{id}.conf"), left.parse().ok()?))
}

/// Whether the entry in the file `name` is the one that `default` means: a pattern in `loader.conf`
/// (loader.conf(5)), or the id without `.conf` in GRUB's `saved_entry`.
pub fn is_default(name: &str, default: &str) -> bool {
    let id = id(name);
    let bare = id.strip_suffix(".conf").unwrap_or(&id);
    let pattern = wildmatch::WildMatch::new(default);
    pattern.matches(&id) || pattern.matches(bare)
}

/// The value of the first line with this key.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| value(line, key))
}

fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.trim().strip_prefix(key)?;
    rest.starts_with(char::is_whitespace).then(|| rest.trim())
}

/// Compares versions by their runs of digits and letters (UAPI.10 Version Format Specification, without the rules
/// for `~`, `^` and `-` between equal parts, which kernels do not use).
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (parts(a), parts(b));
    loop {
        return match (left.next(), right.next()) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(x), Some(y)) => {
                let digits = |s: &str| s.starts_with(|c: char| c.is_ascii_digit());
                let by_part = match (digits(x), digits(y)) {
                    (true, true) => {
                        let (x, y) = (x.trim_start_matches('0'), y.trim_start_matches('0'));
                        x.len().cmp(&y.len()).then_with(|| x.cmp(y))
                    }
                    (true, false) => Ordering::Greater,
                    (false, true) => Ordering::Less,
                    (false, false) => x.cmp(y),
                };
                if by_part == Ordering::Equal {
                    continue;
                }
                by_part
            }
        };
    }
}

/// Runs of digits, and runs of letters.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let first = rest.chars().next()?;
        let digits = first.is_ascii_digit();
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() || c.is_ascii_digit() != digits)
            .unwrap_or(rest.len());
        let (part, left) = rest.split_at_checked(end)?;
        rest = left;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = "title Debian\n# a comment\nversion 6.1.0-9\nlinux /m/6.1.0-9/linux\ninitrd /m/6.1.0-9/initrd $tuned_initrd\noptions root=PARTUUID=x ro\noptions quiet $tuned_params\n";

    fn change() -> Edit {
        Edit::new(
            &["console=ttyS0".to_owned()],
            &["quiet".to_owned(), "ro".to_owned()],
        )
    }

    #[test]
    fn options_change_and_the_rest_stays() {
        assert_eq!(
            edit(ENTRY, &change()).unwrap(),
            "title Debian\n# a comment\nversion 6.1.0-9\nlinux /m/6.1.0-9/linux\ninitrd /m/6.1.0-9/initrd $tuned_initrd\noptions root=PARTUUID=x\noptions $tuned_params console=ttyS0\n"
        );
        assert_eq!(
            edit("linux /vmlinuz\n", &change()).unwrap(),
            "linux /vmlinuz\noptions console=ttyS0\n"
        );
        assert_eq!(edit("title x\nefi /shell.efi\n", &change()), None);
        // A key is a whole word.
        assert_eq!(edit("linuxes /vmlinuz\n", &change()), None);
    }

    #[test]
    fn counters_and_defaults() {
        for (name, bad) in [
            ("a+0-3.conf", true),
            ("a+0.conf", true),
            ("a+2-1.conf", false),
            ("a.conf", false),
            ("6.1+deb-1.conf", false),
        ] {
            assert_eq!(is_known_bad(name), bad, "{name}");
        }
        for (name, default, wanted) in [
            ("debian-6.1.conf", "debian-*", true),
            ("debian-6.1.conf", "debian-6.1.conf", true),
            ("debian-6.1.conf", "debian-6.1", true),
            ("debian-6.1+2-1.conf", "debian-6.1.conf", true),
            ("other.conf", "debian-*", false),
            ("other.conf", "", false),
        ] {
            assert_eq!(is_default(name, default), wanted, "{name} {default}");
        }
    }

    #[test]
    fn an_entry_is_read() {
        let entry = parse(ENTRY).unwrap();
        assert_eq!(entry.kernel, "/m/6.1.0-9/linux");
        assert_eq!(entry.initrds, ["/m/6.1.0-9/initrd"]);
        assert_eq!(entry.options, "root=PARTUUID=x ro quiet $tuned_params");
    }

    #[test]
    fn the_newest_comes_first_and_a_sort_key_before_that() {
        let old = ("a.conf", "version 6.1.0-9\nlinux /a");
        let new = ("b.conf", "version 6.1.0-10\nlinux /b");
        let keyed = ("c.conf", "sort-key debian\nversion 1\nlinux /c");
        let mut all = [old, keyed, new];
        all.sort_by(|a, b| order(*a, *b));
        assert_eq!(all.map(|e| e.0), ["c.conf", "b.conf", "a.conf"]);
        assert_eq!(
            compare_versions("6.1.0-10-amd64", "6.1.0-9-amd64"),
            Ordering::Greater
        );
        assert_eq!(compare_versions("6.1", "6.1.0"), Ordering::Less);
        assert_eq!(compare_versions("007", "7"), Ordering::Equal);
    }
}
