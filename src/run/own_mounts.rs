//! What a system mounts by itself: its fstab (fstab(5)) and its mount units (systemd.mount(5)).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nix::dir::Dir;

use super::installed::fstab::{self, Entry};
use crate::error::chain;
use crate::sys::beneath::{Root, Walk};

/// Where a system keeps its units (systemd.unit(5)): the first that has one of a name wins. What fstab says comes
/// after the first of them and before the rest.
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

const FSTAB: &str = "/etc/fstab";

/// Larger files are no unit and no fstab.
const LIMIT: u64 = 1 << 20;

/// More units than any system has.
const FILES: usize = 8192;

/// More drop-ins than any unit has.
const DROP_INS: usize = 64;

/// How sure it is that the running system has it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It is mounted at boot.
    AtBoot,
    /// Only where somebody asks for it: `noauto`, or a unit that nothing starts.
    OnDemand,
    /// The unit is masked: nothing can be mounted there by systemd, whoever asks.
    Never,
}

/// Something that a system mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnMount {
    /// The file that says so.
    pub file: String,
    /// What and where.
    pub entry: Entry,
    /// Whether it does.
    pub when: When,
}

/// What a system mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnMounts {
    /// What counts of two for one place comes first.
    pub all: Vec<OwnMount>,
    /// What could not be read, and so may mount more.
    pub unread: Option<String>,
}

/// What the system at `root` mounts, the root itself left out.
pub fn of(root: &Root) -> OwnMounts {
    let units = units(root);
    let (first, rest): (Vec<OwnMount>, Vec<OwnMount>) = units
        .into_iter()
        .partition(|unit| unit.file.starts_with("/etc/"));
    let mut all = first;
    let (text, unread) = match root.read(Path::new(FSTAB), Walk::InRoot, LIMIT) {
        Ok(text) => (text, None),
        Err(error) if error.is_missing() => (Vec::new(), None),
        Err(error) => (
            Vec::new(),
            Some(format!(
                "{FSTAB} of the image cannot be read, and what it mounts is not known: {}",
                chain(&error)
            )),
        ),
    };
    all.extend(in_fstab(&text));
    all.extend(rest);
    OwnMounts { all, unread }
}

fn in_fstab(text: &[u8]) -> Vec<OwnMount> {
    fstab::parse(&String::from_utf8_lossy(text))
        .into_iter()
        .filter(|entry| entry.target != Path::new("/"))
        .map(|entry| OwnMount {
            file: FSTAB.to_owned(),
            when: if entry.is_mounted_at_boot() {
                When::AtBoot
            } else {
                When::OnDemand
            },
            entry,
        })
        .collect()
}

fn units(root: &Root) -> Vec<OwnMount> {
    let mut found: Vec<OwnMount> = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    let started = started(root);
    for directory in UNITS {
        for name in names(root, directory) {
            let is_mount = Path::new(&name).extension().is_some_and(|e| e == "mount");
            // The first directory wins, and /lib may be /usr/lib.
            if !is_mount || seen.contains(&name) {
                continue;
            }
            let path = Path::new(directory).join(&name);
            found.extend(unit(root, &path, &name, &started));
            seen.push(name);
        }
    }
    found
}

fn unit(root: &Root, path: &Path, name: &str, started: &[String]) -> Option<OwnMount> {
    let file = path.display().to_string();
    let leads_nowhere = root
        .real_path(path)
        .is_ok_and(|real| real == Path::new("/dev/null"));
    let text = if leads_nowhere {
        Vec::new()
    } else {
        root.read(path, Walk::InRoot, LIMIT).ok()?
    };
    // An empty file masks as a link to /dev/null does (systemd.unit(5)).
    if text.is_empty() {
        let entry = Entry::new("", place_of(name)?, "none", "");
        return Some(OwnMount {
            file,
            entry,
            when: When::Never,
        });
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    for more in drop_ins(root, name) {
        text.push('\n');
        text.push_str(&more);
    }
    let entry = Entry::new(
        &value(&text, "Mount", "What").unwrap_or_default(),
        PathBuf::from(value(&text, "Mount", "Where")?),
        &value(&text, "Mount", "Type").unwrap_or_else(|| "auto".to_owned()),
        &value(&text, "Mount", "Options").unwrap_or_default(),
    );
    if !entry.target.is_absolute() || entry.target == Path::new("/") {
        return None;
    }
    let automount = Path::new(name).with_extension("automount");
    let is_started = started
        .iter()
        .any(|s| s == name || Path::new(s) == automount);
    let when = if is_started && condition_holds(root, &text) {
        When::AtBoot
    } else {
        When::OnDemand
    };
    Some(OwnMount { file, entry, when })
}

/// What changes the unit `name` afterwards: `NAME.d/*.conf`, by their names, of two with one name the first directory's
/// (systemd.unit(5)).
fn drop_ins(root: &Root, name: &str) -> Vec<String> {
    let mut all: BTreeMap<String, PathBuf> = BTreeMap::new();
    for directory in UNITS {
        let directory = Path::new(directory).join(format!("{name}.d"));
        for file in names(root, &directory.display().to_string()) {
            if Path::new(&file).extension().is_some_and(|e| e == "conf") && all.len() < DROP_INS {
                let path = directory.join(&file);
                all.entry(file).or_insert(path);
            }
        }
    }
    let read = |path: &PathBuf| root.read(path, Walk::InRoot, LIMIT).ok();
    all.values()
        .filter_map(read)
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .collect()
}

/// `ConditionPathExists=`, with which units wait for what is there; any other condition is taken as met.
fn condition_holds(root: &Root, text: &str) -> bool {
    let wanted = value(text, "Unit", "ConditionPathExists");
    wanted
        .filter(|path| path.starts_with('/'))
        .is_none_or(|path| root.exists(Path::new(&path), Walk::InRoot).unwrap_or(true))
}

/// The names of the units that others start (`X.wants`, `X.requires`, `X.upholds`).
fn started(root: &Root) -> Vec<String> {
    let mut all = Vec::new();
    for directory in UNITS {
        for name in names(root, directory) {
            let of_others = Path::new(&name)
                .extension()
                .is_some_and(|e| e == "wants" || e == "requires" || e == "upholds");
            if of_others && all.len() < FILES {
                let place = Path::new(directory).join(&name);
                all.extend(names(root, &place.display().to_string()));
            }
        }
    }
    all
}

fn names(root: &Root, directory: &str) -> Vec<String> {
    let Ok(fd) = root.directory(Path::new(directory), Walk::InRoot) else {
        return Vec::new();
    };
    let Ok(mut entries) = Dir::from_fd(fd) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .iter()
        .take(FILES)
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
        .collect();
    names.sort();
    names
}

/// The value of a key; the last one counts.
fn value(text: &str, section: &str, key: &str) -> Option<String> {
    let mut here = "";
    let mut found = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            here = line.trim_matches(['[', ']']);
        } else if here == section
            && let Some((name, value)) = line.split_once('=')
            && name.trim_end() == key
        {
            found = Some(value.trim_start().to_owned());
        }
    }
    found
}

/// The place that a mount unit of this name is for: `srv-a\x2db.mount` is /srv/a-b (systemd.unit(5), "String
/// escaping for inclusion in unit names").
fn place_of(name: &str) -> Option<PathBuf> {
    let stem = name.strip_suffix(".mount")?;
    let mut bytes = vec![b'/'];
    let mut rest = stem.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = tail
            .get(..3)
            .filter(|code| *first == b'\\' && code.first() == Some(&b'x'))
            .and_then(|code| std::str::from_utf8(code.get(1..)?).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = match (code, *first) {
            (Some(byte), _) => {
                bytes.push(byte);
                tail.get(3..).unwrap_or_default()
            }
            (None, b'-') => {
                bytes.push(b'/');
                tail
            }
            (None, other) => {
                bytes.push(other);
                tail
            }
        };
    }
    Some(PathBuf::from(String::from_utf8(bytes).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn units_are_read_as_their_reader_does() {
        let unit = "[Unit]\nWhere=/no\n[Mount]\nWhat=/dev/x\nWhere = /var/lib/x/\n";
        assert_eq!(value(unit, "Mount", "Where").unwrap(), "/var/lib/x/");
        assert_eq!(value("[Mount]\nWhat=x\n", "Mount", "Where"), None);
        assert_eq!(
            place_of("srv-a\\x2db.mount"),
            Some(PathBuf::from("/srv/a-b"))
        );
        assert_eq!(place_of("srv\\x2.mount"), Some(PathBuf::from("/srv\\x2")));
        assert_eq!(place_of("srv.service"), None);
    }

    #[test]
    fn a_system_is_searched_where_systemd_looks() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let (usr, etc) = ("usr/lib/systemd/system", "etc/systemd/system");
        put("etc/fstab", "x / ext4\nx /srv ext4\ny /mnt ext4 noauto\n");
        put(&format!("{usr}/srv.mount"), "[Mount]\nWhere=/srv\n");
        put(&format!("{usr}/on.mount"), "[Mount]\nWhere=/on\n");
        put(&format!("{usr}/auto.mount"), "[Mount]\nWhere=/auto\n");
        put(
            &format!("{usr}/late.mount"),
            "[Unit]\nConditionPathExists=/late.raw\n[Mount]\nWhere=/late\n",
        );
        put(
            &format!("{etc}/a.mount"),
            "[Mount]\nWhat=/dev/a\nWhere=/a\n",
        );
        for name in ["on.mount", "late.mount", "auto.automount"] {
            put(&format!("{usr}/local-fs.target.wants/{name}"), "");
        }
        symlink("/dev/null", dir.path().join(etc).join("on\\x2do.mount")).unwrap();
        symlink("/usr/lib", dir.path().join("lib")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let own = of(&root);
        assert_eq!(own.unread, None);
        let found: Vec<(String, String, When)> = own
            .all
            .into_iter()
            .map(|m| {
                let target = m.entry.target.display().to_string();
                (m.file, target, m.when)
            })
            .collect();
        let short: Vec<(&str, &str, When)> = found
            .iter()
            .map(|(f, t, w)| (f.as_str(), t.as_str(), *w))
            .collect();
        assert_eq!(
            short,
            [
                ("/etc/systemd/system/a.mount", "/a", When::OnDemand),
                ("/etc/systemd/system/on\\x2do.mount", "/on-o", When::Never),
                ("/etc/fstab", "/srv", When::AtBoot),
                ("/etc/fstab", "/mnt", When::OnDemand),
                ("/usr/lib/systemd/system/auto.mount", "/auto", When::AtBoot),
                (
                    "/usr/lib/systemd/system/late.mount",
                    "/late",
                    When::OnDemand
                ),
                ("/usr/lib/systemd/system/on.mount", "/on", When::AtBoot),
                ("/usr/lib/systemd/system/srv.mount", "/srv", When::OnDemand),
            ]
        );
    }

    #[test]
    fn a_mask_has_three_forms_and_a_unit_is_changed_by_drop_ins() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let (usr, etc) = ("usr/lib/systemd/system", "etc/systemd/system");
        for name in ["empty", "near", "far", "chain", "on"] {
            let text = format!("[Mount]\nWhat=/dev/a\nWhere=/{name}\n");
            put(&format!("{usr}/{name}.mount"), &text);
        }
        put(
            &format!("{usr}/on.mount.d/10-a.conf"),
            "[Mount]\nWhat=/dev/b\nOptions=ro\n",
        );
        put(
            &format!("{usr}/on.mount.d/20-b.conf"),
            "[Mount]\nOptions=no\n",
        );
        put(
            &format!("{etc}/on.mount.d/20-b.conf"),
            "[Mount]\nOptions=subvol=x\n",
        );
        put(
            &format!("{etc}/on.mount.d/30-c.txt"),
            "[Mount]\nOptions=no\n",
        );
        put(&format!("{etc}/empty.mount"), "");
        let at = |name: &str| dir.path().join(etc).join(name);
        symlink("/dev/null", at("far.mount")).unwrap();
        symlink("../../../dev/null", at("near.mount")).unwrap();
        symlink("far.mount", at("chain.mount")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        for own in of(&root).all {
            let name = own.entry.target.display().to_string();
            if name == "/on" {
                assert_eq!(own.entry.spec, fstab::Spec::Other("/dev/b".to_owned()));
                assert_eq!(own.entry.options, "subvol=x");
            } else {
                assert_eq!(own.when, When::Never, "{name}");
            }
        }
        assert_eq!(of(&root).all.len(), 5);
    }

    #[test]
    fn a_table_that_cannot_be_read_is_said() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("etc/fstab")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let own = of(&root);
        assert!(own.all.is_empty());
        assert!(
            own.unread
                .unwrap()
                .contains("/etc/fstab of the image cannot be read")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[ -~\\n\\t\\\\ü]{0,200}") {
            let _ = value(&text, "Mount", "Where");
            let _ = place_of(&format!("{text}.mount"));
        }
    }
}
