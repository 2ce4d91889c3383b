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
    for line in text.lines() {
        if line.trim() == BEGIN {
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
    ours.iter().any(|line| line.target == target)
        // The EFI system partition has one place; another one waits for a disk that is not there.
        || ["/efi", "/boot/efi"].contains(&target)
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
