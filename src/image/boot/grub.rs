//! GRUB's own configuration: `grub.cfg` as `grub-mkconfig` writes it, and `/etc/default/grub`, from which it is
//! written again at the next kernel update.

use super::Entry;
use super::arguments::Edit;

/// Commands that load a kernel (GRUB manual, "linux"; `linuxefi` and `linux16` are those of distributions).
const LINUX: [&str; 3] = ["linux", "linuxefi", "linux16"];
const INITRD: [&str; 3] = ["initrd", "initrdefi", "initrd16"];

/// Names that a Linux kernel's file begins with; `linux16` starts memory tests and the like, too.
const KERNELS: [&str; 6] = ["vmlinuz", "vmlinux", "linux", "bzImage", "Image", "kernel"];

/// `grub.cfg` with the change made to every line that loads Linux; `None` where there is none.
pub fn edit(text: &str, change: &Edit) -> Option<String> {
    let mut found = false;
    let lines: Vec<String> = text
        .lines()
        .map(|line| match command(line) {
            Some((indent, command, kernel, arguments)) => {
                found = true;
                let arguments = change.apply(arguments);
                format!("{indent}{command} {kernel} {arguments}")
                    .trim_end()
                    .to_owned()
            }
            None => line.to_owned(),
        })
        .collect();
    found.then(|| lines.join("\n") + "\n")
}

/// Indentation, command, kernel and arguments of a line that loads Linux.
fn command(line: &str) -> Option<(&str, &str, &str, &str)> {
    let rest = line.trim_start();
    let indent = line.get(..line.len().checked_sub(rest.len())?)?;
    let (command, rest) = rest.split_once(char::is_whitespace)?;
    if !LINUX.contains(&command) {
        return None;
    }
    let rest = rest.trim();
    let (kernel, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let name = kernel.trim_matches(['"', '\'']).rsplit('/').next()?;
    KERNELS
        .iter()
        .any(|k| name.starts_with(k))
        .then_some((indent, command, kernel, arguments))
}

/// What the first entry of `grub.cfg` starts.
pub fn parse(text: &str) -> Option<Entry> {
    let mut entry: Option<Entry> = None;
    for line in text.lines() {
        if let Some((_, _, kernel, arguments)) = command(line) {
            if entry.is_some() {
                break;
            }
            entry = Some(Entry {
                kernel: path(kernel),
                initrds: Vec::new(),
                options: arguments.trim().to_owned(),
            });
            continue;
        }
        let mut words = line.split_whitespace();
        match (&mut entry, words.next()) {
            (Some(entry), Some(word)) if INITRD.contains(&word) => {
                entry.initrds.extend(words.map(path));
            }
            (Some(_), Some(word)) if word.starts_with("menuentry") || word == "submenu" => break,
            _ => {}
        }
    }
    entry
}

/// A path without quotes and without the device in front of it: `($root)/vmlinuz`, `"/@/vmlinuz"`.
fn path(word: &str) -> String {
    let word = word.trim_matches(['"', '\'']);
    match word.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((_, path)) => path.to_owned(),
        None => word.to_owned(),
    }
}

/// `/etc/default/grub` with the change made to `GRUB_CMDLINE_LINUX`; what is taken away goes from the other
/// variables too.
pub fn edit_defaults(text: &str, change: &Edit) -> String {
    const MAIN: &str = "GRUB_CMDLINE_LINUX";
    const ALL: [&str; 3] = [
        MAIN,
        "GRUB_CMDLINE_LINUX_DEFAULT",
        "GRUB_CMDLINE_LINUX_RECOVERY",
    ];
    let removal = Edit::new(&[], change.removed());
    let mut found = false;
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| {
            let Some((name, value)) = line.split_once('=') else {
                return line.to_owned();
            };
            let name = name.trim();
            if !ALL.contains(&name) {
                return line.to_owned();
            }
            let (value, comment) = before_comment(value);
            let Some(value) = unquoted(value.trim()) else {
                return line.to_owned();
            };
            let value = if name == MAIN {
                found = true;
                change.apply(&value)
            } else {
                removal.apply(&value)
            };
            format!("{name}={}{comment}", quoted(&value))
        })
        .collect();
    if !found {
        lines.push(format!("{MAIN}={}", quoted(&change.apply(""))));
    }
    lines.join("\n") + "\n"
}

/// The kernel's words of `/etc/default/grub`, as grub-mkconfig puts them into the first entry. What the shell would
/// compute is not among them.
pub fn defaults(text: &str) -> String {
    let value = |wanted: &str| {
        let mut assigned = text.lines().filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == wanted).then(|| unquoted(before_comment(value).0.trim()))?
        });
        assigned.next_back().unwrap_or_default()
    };
    let both = [
        value("GRUB_CMDLINE_LINUX"),
        value("GRUB_CMDLINE_LINUX_DEFAULT"),
    ];
    both.join(" ").trim().to_owned()
}

/// What is assigned, and the blanks and the comment behind it.
fn before_comment(value: &str) -> (&str, &str) {
    let (mut quote, mut escaped, mut blank) = (None, false, false);
    for (at, c) in value.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' && quote != Some('\'') {
            escaped = true;
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && matches!(c, '"' | '\'') {
            quote = Some(c);
        } else if quote.is_none() && c == '#' && (blank || at == 0) {
            let end = value.get(..at).unwrap_or_default().trim_end().len();
            return value.split_at_checked(end).unwrap_or((value, ""));
        }
        blank = c.is_whitespace();
    }
    (value, "")
}

/// The value of a shell assignment; `None` where it is more than one quoted or plain word.
fn unquoted(value: &str) -> Option<String> {
    if let Some(inner) = value.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')) {
        return (!inner.contains('\'')).then(|| inner.to_owned());
    }
    if let Some(inner) = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) {
        // Within double quotes a backslash protects what would end or change the text.
        let mut out = String::new();
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => match chars.next()? {
                    next @ ('"' | '\\' | '$' | '`') => out.push(next),
                    next => out.extend(['\\', next]),
                },
                // The shell's doing decides what stands there.
                '"' | '$' | '`' => return None,
                c => out.push(c),
            }
        }
        return Some(out);
    }
    (!value.contains(|c: char| c.is_whitespace() || "\"'$`\\;#".contains(c)))
        .then(|| value.to_owned())
}

fn quoted(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        if matches!(c, '"' | '\\' | '$' | '`') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const CFG: &str = "set default=\"0\"\nmenuentry 'Debian' --class debian {\n\tload_video\n\tlinux\t/boot/vmlinuz-6.1 root=PARTUUID=x ro  quiet\n\tinitrd\t/boot/early.cpio /boot/initrd.img-6.1\n}\nsubmenu 'Advanced' {\n\tmenuentry 'old' {\n\t\tlinux ($root)/vmlinuz-5.10 root=x ro single\n\t\tinitrd /initrd-5.10\n\t}\n}\nmenuentry memtest {\n\tlinux16 /boot/memtest86+.bin\n}\n";

    fn change() -> Edit {
        Edit::new(&["console=ttyS0".to_owned()], &["quiet".to_owned()])
    }

    #[test]
    fn every_line_that_loads_linux_changes() {
        let edited = edit(CFG, &change()).unwrap();
        assert!(edited.contains("\tlinux /boot/vmlinuz-6.1 root=PARTUUID=x ro console=ttyS0\n"));
        assert!(edited.contains("\t\tlinux ($root)/vmlinuz-5.10 root=x ro single console=ttyS0\n"));
        assert!(edited.contains("linux16 /boot/memtest86+.bin\n"));
        assert_eq!(edit("set x=1\nchainloader /x\n", &change()), None);
    }

    #[test]
    fn the_first_entry_is_what_starts() {
        let entry = parse(CFG).unwrap();
        assert_eq!(entry.kernel, "/boot/vmlinuz-6.1");
        assert_eq!(entry.initrds, ["/boot/early.cpio", "/boot/initrd.img-6.1"]);
        assert_eq!(entry.options, "root=PARTUUID=x ro  quiet");
        let second = CFG.split_once("submenu").unwrap().1;
        assert_eq!(parse(second).unwrap().kernel, "/vmlinuz-5.10");
    }

    #[test]
    fn the_words_of_the_defaults_are_those_of_the_first_entry() {
        let text = "# GRUB_CMDLINE_LINUX=x\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX='console=ttyS0'\nGRUB_CMDLINE_LINUX_RECOVERY=single\n";
        assert_eq!(defaults(text), "console=ttyS0 quiet");
        assert_eq!(defaults("GRUB_CMDLINE_LINUX=\"$X\"\n"), "");
        let text =
            "GRUB_CMDLINE_LINUX='a=#1 b' # for 'us'\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\t#loud\n";
        assert_eq!(defaults(text), "a=#1 b quiet");
        assert_eq!(defaults("GRUB_CMDLINE_LINUX=\"\" # \"x\"\n"), "");
        assert_eq!(defaults("GRUB_CMDLINE_LINUX=\"a\" \"b\"\n"), "");
    }

    #[test]
    fn the_defaults_change_within_their_quotes() {
        let text = "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet splash\"\nGRUB_CMDLINE_LINUX='a=\"b c\"'\n";
        assert_eq!(
            edit_defaults(text, &change()),
            "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"splash\"\nGRUB_CMDLINE_LINUX=\"a=\\\"b c\\\" console=ttyS0\"\n"
        );
        assert_eq!(
            edit_defaults("X=1\n", &change()),
            "X=1\nGRUB_CMDLINE_LINUX=\"console=ttyS0\"\n"
        );
        assert_eq!(
            edit_defaults("GRUB_CMDLINE_LINUX=\"quiet #1\"  # \"ours\"\n", &change()),
            "GRUB_CMDLINE_LINUX=\"#1 console=ttyS0\"  # \"ours\"\n"
        );
        // What the shell computes stays, and a line of ours adds to nothing it says.
        assert!(
            edit_defaults("GRUB_CMDLINE_LINUX=\"$X\"\n", &change())
                .starts_with("GRUB_CMDLINE_LINUX=\"$X\"\n")
        );
    }
}
