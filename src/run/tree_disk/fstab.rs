//! /etc/fstab (fstab(5)): the lines of this disk's own partitions. Pure.

/// A line of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What is mounted.
    pub source: String,
    /// Where.
    pub target: String,
    /// Type of the file system.
    pub kind: &'static str,
    /// Mount options.
    pub options: &'static str,
    /// When it is checked.
    pub pass: u8,
}

const BEGIN: &str = "# ironroot begin";
const END: &str = "# ironroot end";

/// `text` with `lines` in one marked block, which replaces an older one. Other lines for the same targets, and those
/// of the root and of the EFI system partition of wherever the tree came from, are commented out: they are the second
/// result.
pub fn edit(text: &str, lines: &[Line]) -> (String, Vec<String>) {
    let mut out = String::new();
    let mut gone = Vec::new();
    let mut ours = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim() == BEGIN {
            if !text.lines().skip(at).any(|l| l.trim() == END) {
                // A block without an end would take the rest with it.
                continue;
            }
            ours = true;
        }
        if !ours {
            if conflicts(line, lines) {
                out.push_str("# ");
                gone.push(line.trim().to_owned());
            }
            out.push_str(line);
            out.push('\n');
        }
        if line.trim() == END {
            ours = false;
        }
    }
    out.push_str(BEGIN);
    out.push('\n');
    for line in lines {
        let Line {
            source,
            target,
            kind,
            options,
            pass,
        } = line;
        out.push_str(&format!("{source} {target} {kind} {options} 0 {pass}\n"));
    }
    out.push_str(END);
    out.push('\n');
    (out, gone)
}

/// Whether `line` mounts something where one of ours is mounted.
fn conflicts(line: &str, ours: &[Line]) -> bool {
    let mut fields = line.split_whitespace();
    let (Some(source), Some(target)) = (fields.next(), fields.next()) else {
        return false;
    };
    if source.starts_with('#') {
        return false;
    }
    // A trailing slash is the same place.
    let target = match target.trim_end_matches('/') {
        "" => "/",
        target => target,
    };
    let is_fat = fields.next() == Some("vfat");
    ours.iter().any(|line| line.target == target)
        // The EFI system partition has one place; another one waits for a disk that is not there.
        || ["/efi", "/boot/efi"].contains(&target)
        || (is_fat && target == "/boot")
}

/// Lines that wait for a device which is none of ours: systemd gives it 90 seconds, and the system up without it
/// (systemd.mount(5), `nofail`).
pub fn elsewhere(text: &str, ours: &[Line]) -> Vec<String> {
    let names_a_device = |source: &str| {
        ["UUID=", "LABEL=", "PARTUUID=", "PARTLABEL=", "/dev/"]
            .iter()
            .any(|kind| source.starts_with(kind))
    };
    let waits = |line: &&str| {
        let mut fields = line.split_whitespace();
        let source = fields.next().unwrap_or_default();
        let options = fields.nth(2).unwrap_or_default();
        names_a_device(source)
            && !options.split(',').any(|o| o == "nofail" || o == "noauto")
            && !ours.iter().any(|line| line.source == source)
    };
    let found = text.lines().filter(waits);
    found.map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines() -> Vec<Line> {
        let line = |source: &str, target: &str, kind, options, pass| Line {
            source: source.to_owned(),
            target: target.to_owned(),
            kind,
            options,
            pass,
        };
        vec![
            line("PARTUUID=a", "/", "ext4", "defaults", 1),
            line("PARTUUID=b", "/boot/efi", "vfat", "umask=0077", 2),
        ]
    }

    #[test]
    fn conflicting_lines_are_commented_out_and_others_stay() {
        let text = "# a comment\nUUID=1  /  xfs  defaults 0 0\n\nLABEL=x /efi/ vfat\ntmpfs /tmp tmpfs nosuid\n# UUID=2 / ext4";
        let (edited, gone) = edit(text, &lines());
        assert_eq!(
            edited,
            "# a comment\n# UUID=1  /  xfs  defaults 0 0\n\n# LABEL=x /efi/ vfat\ntmpfs /tmp tmpfs nosuid\n# UUID=2 / ext4\n\
             # ironroot begin\nPARTUUID=a / ext4 defaults 0 1\nPARTUUID=b /boot/efi vfat umask=0077 0 2\n# ironroot end\n"
        );
        assert_eq!(gone, ["UUID=1  /  xfs  defaults 0 0", "LABEL=x /efi/ vfat"]);
    }

    #[test]
    fn a_block_without_an_end_takes_nothing_with_it() {
        let text = "tmpfs /tmp tmpfs\n# ironroot begin\nLABEL=data /srv ext4\n";
        let (edited, gone) = edit(text, &lines());
        assert!(edited.starts_with("tmpfs /tmp tmpfs\nLABEL=data /srv ext4\n# ironroot begin\n"));
        assert!(gone.is_empty());
    }

    #[test]
    fn lines_that_wait_for_other_devices_are_named() {
        let text = "UUID=1234-ABCD /boot vfat defaults 0 2\nUUID=2 none swap sw\n/dev/sda3 /home ext4\n\
                    LABEL=x /srv ext4 noatime,nofail\n#UUID=3 /x ext4\nproc /proc proc\nLABEL=y /y ext4 noauto\n";
        let (edited, gone) = edit(text, &lines());
        assert_eq!(gone, ["UUID=1234-ABCD /boot vfat defaults 0 2"]);
        assert_eq!(
            elsewhere(&edited, &lines()),
            ["UUID=2 none swap sw", "/dev/sda3 /home ext4"]
        );
    }

    proptest! {
        #[test]
        fn editing_again_changes_nothing(text in "[#a-z/ \\n=]{0,120}") {
            let (once, _) = edit(&text, &lines());
            let (twice, gone) = edit(&once, &lines());
            prop_assert_eq!(once, twice);
            prop_assert!(gone.is_empty());
        }
    }
}
