//! fstab(5) as a system has it. Pure.

use std::path::PathBuf;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What is mounted.
    pub spec: Spec,
    /// Where.
    pub target: PathBuf,
    /// Type.
    pub kind: String,
    /// Options.
    pub options: String,
}

/// How a line names its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// UUID of the file system.
    Uuid(String),
    /// Label of the file system.
    Label(String),
    /// PARTUUID.
    Partuuid(String),
    /// Name of the partition.
    Partlabel(String),
    /// Anything else: a device, whose name another boot may give to another one, or no device at all.
    Other(String),
}

impl Entry {
    /// What one line says, its fields read already.
    pub fn new(spec: &str, target: PathBuf, kind: &str, options: &str) -> Entry {
        Entry {
            spec: spec_of(spec),
            target,
            kind: kind.to_owned(),
            options: options.to_owned(),
        }
    }

    /// Whether the running system has it there without being asked.
    pub fn is_mounted_at_boot(&self) -> bool {
        let has = |word: &str| self.options.split(',').any(|o| o == word);
        !has("noauto") || has("x-systemd.automount")
    }

    /// The `subvol=` option, as mount(8) takes it.
    pub fn subvolume(&self) -> Option<String> {
        self.options
            .split(',')
            .find(|o| o.starts_with("subvol=") || o.starts_with("subvolid="))
            .map(str::to_owned)
    }
}

/// The lines that mount something.
pub fn parse(text: &str) -> Vec<Entry> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let spec = fields.next().filter(|s| !s.starts_with('#'))?;
            let target = unescape(fields.next()?);
            let kind = fields.next().unwrap_or("auto");
            let options = fields.next().unwrap_or("defaults");
            target
                .starts_with('/')
                .then(|| Entry::new(&unescape(spec), PathBuf::from(&target), kind, options))
        })
        .collect()
}

fn spec_of(text: &str) -> Spec {
    let (key, value) = match text.strip_prefix("/dev/disk/by-") {
        Some(link) => link.split_once('/').unwrap_or((link, "")),
        None => text.split_once('=').unwrap_or(("", text)),
    };
    let value = value.trim_matches('"').to_owned();
    match key.to_ascii_lowercase().as_str() {
        "uuid" => Spec::Uuid(value),
        "label" => Spec::Label(value),
        "partuuid" => Spec::Partuuid(value),
        "partlabel" => Spec::Partlabel(value),
        _ => Spec::Other(text.to_owned()),
    }
}

/// White space and backslashes are written in octal: `\040`.
fn unescape(field: &str) -> String {
    let mut out: Vec<u8> = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            out.push(byte);
            rest = tail.get(3..).unwrap_or_default();
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The lines between these are ours.
const BEGIN: &str = "# ironroot begin: preserved paths";
const END: &str = "# ironroot end";

/// `text` with `lines` in a block of ours at its end; an older block goes. All other lines stay byte for byte,
/// whatever encoding they are in.
pub fn with_block(text: &[u8], lines: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut ours = false;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match line.trim_ascii() {
            trimmed if trimmed == BEGIN.as_bytes() => ours = true,
            trimmed if ours && trimmed == END.as_bytes() => ours = false,
            _ if ours => {}
            _ => out.extend_from_slice(line),
        }
    }
    if out.last().is_some_and(|byte| *byte != b'\n') {
        out.push(b'\n');
    }
    if !lines.is_empty() {
        for line in std::iter::once(BEGIN)
            .chain(lines.iter().map(String::as_str))
            .chain([END])
        {
            out.extend_from_slice(line.as_bytes());
            out.push(b'\n');
        }
    }
    out
}

/// A field as fstab(5) has it: white space and backslashes in octal.
pub fn escape(field: &str) -> String {
    let mut out = String::new();
    for c in field.chars() {
        match c {
            ' ' => out.push_str("\\040"),
            '\t' => out.push_str("\\011"),
            '\n' => out.push_str("\\012"),
            '\\' => out.push_str("\\134"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_is_replaced_and_the_rest_stays() {
        let text = "UUID=x / ext4 defaults 0 1\n";
        let with_block = |text: &str, lines: &[String]| {
            String::from_utf8(with_block(text.as_bytes(), lines)).unwrap()
        };
        let once = with_block(text, &["a b none bind 0 0".to_owned()]);
        assert_eq!(once, format!("{text}{BEGIN}\na b none bind 0 0\n{END}\n"));
        assert_eq!(
            with_block(&once, &["c".to_owned()]),
            format!("{text}{BEGIN}\nc\n{END}\n")
        );
        assert_eq!(with_block(&once, &[]), text);
        assert_eq!(with_block(text.trim_end(), &[]), text);
        // A block that somebody cut off ends with the file.
        assert_eq!(with_block(&format!("{text}{BEGIN}\nrest\n"), &[]), text);
        // A path in another encoding.
        let latin = b"LABEL=x /srv/caf\xe9 ext4 defaults 0 0\r\n";
        assert_eq!(super::with_block(latin, &[]), latin);
        assert_eq!(escape("/a b\\c"), "/a\\040b\\134c");
        assert_eq!(unescape(&escape("/a b\\c\t")), "/a b\\c\t");
    }

    #[test]
    fn devices_are_named_in_every_way() {
        let text = "# comment\nUUID=ab-1 / ext4 defaults 0 1\nLABEL=\"EFI\" /boot/efi vfat\n/dev/disk/by-partuuid/x /var xfs ro,noatime 0 2\nPARTLABEL=data /srv\\040x btrfs subvol=@srv,ro\n/dev/sda3 none swap sw\ntmpfs /tmp tmpfs\n";
        let all = parse(text);
        let specs: Vec<&Spec> = all.iter().map(|e| &e.spec).collect();
        assert_eq!(
            specs,
            [
                &Spec::Uuid("ab-1".into()),
                &Spec::Label("EFI".into()),
                &Spec::Partuuid("x".into()),
                &Spec::Partlabel("data".into()),
                &Spec::Other("tmpfs".into()),
            ]
        );
        assert_eq!(all[3].target, PathBuf::from("/srv x"));
        assert_eq!(all[3].subvolume().unwrap(), "subvol=@srv");
        assert_eq!(
            (all[1].kind.as_str(), all[1].options.as_str()),
            ("vfat", "defaults")
        );
    }
}
