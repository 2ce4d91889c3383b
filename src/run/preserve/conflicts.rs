//! What in the image mounts something at a preserved path too: its fstab (fstab(5)) and its mount units
//! (systemd.mount(5)). systemd leaves a path alone at which something is mounted already, and so the image's own
//! entry would be ignored without a word.

use std::path::{Path, PathBuf};

use nix::dir::Dir;

use crate::error::printable;
use crate::sys::beneath::{Root, Walk};

/// Where an image keeps its units.
const UNITS: [&str; 3] = [
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Larger files are no unit and no fstab.
const LIMIT: u64 = 1 << 20;

/// More units than any system has.
const FILES: usize = 8192;

/// Warnings about what is in conflict with `targets`.
pub fn find(root: &Root, targets: &[&Path]) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut add = |place: &Path, file: &str| {
        if targets.contains(&place) {
            warnings.push(format!(
                "{file} of the image mounts something at {} too: that is ignored, the preserved path is there already; take it out of the image",
                printable(&place.display().to_string())
            ));
        }
    };
    if let Ok(text) = root.read(Path::new("/etc/fstab"), Walk::InRoot, LIMIT) {
        for place in in_fstab(&String::from_utf8_lossy(&text)) {
            add(&place, "/etc/fstab");
        }
    }
    let mut seen: Vec<String> = Vec::new();
    for directory in UNITS {
        for name in mount_units(root, directory) {
            // The first directory wins, and /lib may be /usr/lib.
            if seen.contains(&name) {
                continue;
            }
            let path = Path::new(directory).join(&name);
            if let Ok(text) = root.read(&path, Walk::InRoot, LIMIT)
                && let Some(place) = in_unit(&String::from_utf8_lossy(&text))
            {
                add(&place, &path.display().to_string());
            }
            seen.push(name);
        }
    }
    warnings
}

fn mount_units(root: &Root, directory: &str) -> Vec<String> {
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
        .filter(|name| Path::new(name).extension().is_some_and(|e| e == "mount"))
        .collect();
    names.sort();
    names
}

/// The mount points of an fstab: the second field.
fn in_fstab(text: &str) -> Vec<PathBuf> {
    text.lines()
        .map(str::trim_start)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let place = fields.nth(1)?;
            Some(normal(&unescaped(place)))
        })
        .filter(|place| place.is_absolute())
        .collect()
}

/// Blanks and the like are written as a backslash and three octal digits (getmntent(3)).
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|d| u8::from_str_radix(d, 8).ok());
        match (code, part.get(3..)) {
            (Some(code), Some(rest)) if code.is_ascii() => {
                out.push(char::from(code));
                out.push_str(rest);
            }
            _ => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// `Where=` of a mount unit; the last one counts.
fn in_unit(text: &str) -> Option<PathBuf> {
    let mut section = "";
    let mut place = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[Mount]"
            && let Some((key, value)) = line.split_once('=')
            && key.trim_end() == "Where"
        {
            place = Some(normal(value.trim_start()));
        }
    }
    place.filter(|place| place.is_absolute())
}

/// Without double slashes and one at the end.
fn normal(text: &str) -> PathBuf {
    Path::new(text).components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fstab_and_units_are_read_as_their_readers_do() {
        let fstab = "# /dev/sda1 /no ext4\nLABEL=x /var/lib//x/ ext4 defaults 0 2\n\nUUID=y\t/a\\040b xfs\n\
            /swap none swap sw\nhalf\n  tmpfs /tmp tmpfs\n";
        let found: Vec<PathBuf> = ["/var/lib/x", "/a b", "/tmp"].map(PathBuf::from).into();
        assert_eq!(in_fstab(fstab), found);
        let unit = "[Unit]\nWhere=/no\n[Mount]\nWhat=/dev/x\nWhere = /var/lib/x/\n";
        assert_eq!(in_unit(unit), Some("/var/lib/x".into()));
        assert_eq!(in_unit("[Mount]\nWhat=x\n"), None);
    }

    #[test]
    fn an_image_is_searched_where_systemd_looks() {
        let dir = tempfile::tempdir().unwrap();
        let units = dir.path().join("usr/lib/systemd/system");
        std::fs::create_dir_all(&units).unwrap();
        std::fs::create_dir_all(dir.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/usr/lib", dir.path().join("lib")).unwrap();
        std::fs::write(dir.path().join("etc/fstab"), "x /srv ext4\n").unwrap();
        std::fs::write(units.join("srv.mount"), "[Mount]\nWhere=/srv\n").unwrap();
        std::fs::write(units.join("tmp.mount"), "[Mount]\nWhere=/tmp\n").unwrap();
        let root = Root::open(dir.path()).unwrap();
        let found = find(&root, &[Path::new("/srv"), Path::new("/var")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("/etc/fstab of the image"));
        assert!(found[1].starts_with("/usr/lib/systemd/system/srv.mount"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[ -~\\n\\t\\\\ü]{0,200}") {
            let _ = in_fstab(&text);
            let _ = in_unit(&text);
        }
    }
}
