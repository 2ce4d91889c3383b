//! Entries of a boot loader (UAPI.1 Boot Loader Specification, type 1), and the kernel's words in them. Pure.

use std::fmt::Write as _;

use crate::image::boot::arguments::{Edit, words};

/// Word that keeps an ironroot in the system's own initrd from starting.
pub const SKIP: &str = "ironroot.skip";

/// The kernel's words: the root, then those that the tree brings with the change that the config asks for.
pub fn options(root: &str, own: &str, change: &Edit) -> String {
    // A line ends in any case: whatever stands on the next one is no part of an entry.
    let own = own.replace(char::is_control, " ");
    let ours = |word: &&str| {
        let key = word.split('=').next().unwrap_or_default();
        // The tree's own words for a root are those of the machine that it comes from.
        ![
            "root",
            "ro",
            "rw",
            "rootflags",
            "rootfstype",
            "BOOT_IMAGE",
            "initrd",
            SKIP,
        ]
        .contains(&key)
    };
    let root = format!("root=PARTUUID={root}");
    let mut all = vec![root.as_str(), "ro"];
    all.extend(words(&own).into_iter().filter(ours));
    let line = change.apply(&all.join(" "));
    // The config may have said it already.
    if words(&line).contains(&SKIP) {
        line
    } else {
        format!("{line} {SKIP}")
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Title in the menu.
    pub title: String,
    /// Version of the kernel, by which entries are sorted.
    pub version: String,
    /// Path of the kernel on the partition.
    pub linux: String,
    /// Path of the initrd.
    pub initrd: Option<String>,
    /// The kernel's words.
    pub options: String,
}

impl Entry {
    /// The text of its file.
    pub fn text(&self) -> String {
        let Entry {
            title,
            version,
            linux,
            initrd,
            options,
        } = self;
        let mut text = format!("title {title}\nversion {version}\nlinux {linux}\n");
        if let Some(initrd) = initrd {
            let _ = writeln!(text, "initrd {initrd}");
        }
        let _ = writeln!(text, "options {options}");
        text
    }
}

/// A grub.cfg with one entry (GRUB manual, "Writing your own configuration file"). The paths are those of the file
/// system that it is on.
pub fn grub_cfg(title: &str, kernel: &str, initrd: Option<&str>, options: &str) -> String {
    let title: String = title
        .chars()
        .filter(|c| !c.is_control() && !"'\\".contains(*c))
        .collect();
    let options: Vec<String> = words(options).into_iter().map(grub_word).collect();
    let options = options.join(" ");
    let mut text = format!(
        "# Made by ironroot when this system was installed; update-grub makes it anew.\nset default=0\nset timeout=1\nmenuentry '{title}' {{\n\tlinux {kernel} {options}\n"
    );
    if let Some(initrd) = initrd {
        let _ = writeln!(text, "\tinitrd {initrd}");
    }
    text.push_str("}\n");
    text
}

/// A word with its value in quotes where GRUB would interpret it (GRUB manual, "Quoting").
fn grub_word(word: &str) -> String {
    let special = |c: char| "{}|&;<>$\\#".contains(c);
    if !word.contains(special) || word.contains(['\'', '"']) {
        return word.to_owned();
    }
    match word.split_once('=') {
        Some((key, value)) if !key.contains(special) => format!("{key}='{value}'"),
        _ => format!("'{word}'"),
    }
}

/// A value of /etc/os-release (os-release(5)), without quotes and on one line.
pub fn os_release(text: &str, key: &str) -> Option<String> {
    let value = text.lines().find_map(|line| {
        line.trim()
            .strip_prefix(key)?
            .strip_prefix('=')
            .map(str::trim)
    })?;
    let value = value.trim_matches(|c| c == '"' || c == '\'');
    let value: String = value
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    Some(value).filter(|v| !v.is_empty())
}

/// What can be a directory of the boot loader's (kernel-install(8): an entry token).
pub fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && !text.starts_with('.')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_trees_own_words_stay_without_its_root_and_with_the_change() {
        let own = r#"root=UUID=1 rw quiet console=tty0 console=ttyS0 dyndbg="file a b" initrd=x"#;
        let own_words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let change = Edit::new(
            &own_words(&["a=1", "quiet"]),
            &own_words(&["console", "quiet"]),
        );
        assert_eq!(
            options("p", own, &change),
            r#"root=PARTUUID=p ro dyndbg="file a b" a=1 quiet ironroot.skip"#
        );
        let change = Edit::new(&own_words(&["ironroot.skip"]), &[]);
        assert_eq!(
            options("p", own, &change),
            r#"root=PARTUUID=p ro quiet console=tty0 console=ttyS0 dyndbg="file a b" ironroot.skip"#
        );
    }

    #[test]
    fn an_entry_is_as_the_specification_has_it() {
        let entry = Entry {
            title: "Debian".to_owned(),
            version: "6.1".to_owned(),
            linux: "/debian/6.1/linux".to_owned(),
            initrd: Some("/debian/6.1/initrd".to_owned()),
            options: "a b".to_owned(),
        };
        assert_eq!(
            entry.text(),
            "title Debian\nversion 6.1\nlinux /debian/6.1/linux\ninitrd /debian/6.1/initrd\noptions a b\n"
        );
    }

    #[test]
    fn a_grub_cfg_says_the_same_to_grub_and_to_whoever_reads_it() {
        let text = grub_cfg(
            "It's {Debian}",
            "/boot/vmlinuz-6.1",
            Some("/boot/initrd.img-6.1"),
            r#"root=PARTUUID=p ro a=1&2 dyndbg="file a b" x"#,
        );
        assert!(text.contains(
            "menuentry 'Its {Debian}' {\n\tlinux /boot/vmlinuz-6.1 root=PARTUUID=p ro a='1&2' dyndbg=\"file a b\" x\n\tinitrd /boot/initrd.img-6.1\n}\n"
        ), "{text}");
        let entry = crate::image::boot::grub::parse(&text).unwrap();
        assert_eq!(entry.kernel, "/boot/vmlinuz-6.1");
        assert_eq!(entry.initrds, ["/boot/initrd.img-6.1"]);
        assert!(
            entry.options.starts_with("root=PARTUUID=p ro a="),
            "{}",
            entry.options
        );
    }

    #[test]
    fn os_release_is_read_with_and_without_quotes() {
        let text = "NAME=x\nID=debian\nPRETTY_NAME=\"Debian 12\"\nIMAGE_ID=''\n";
        assert_eq!(os_release(text, "ID").as_deref(), Some("debian"));
        assert_eq!(
            os_release(text, "PRETTY_NAME").as_deref(),
            Some("Debian 12")
        );
        assert_eq!(os_release(text, "IMAGE_ID"), None);
        assert!(is_token("debian") && !is_token("../x") && !is_token("a/b") && !is_token(""));
    }

    proptest! {
        #[test]
        fn no_entry_has_more_lines_than_fields(line in "[a-z\\n\\r\" =]{0,60}") {
            let text = options("p", &line, &Edit::default());
            prop_assert!(!text.contains('\n'));
        }
    }
}
