//! Boot loader entries (UAPI.1 Boot Loader Specification, type #1): `/loader/entries/*.conf`, read by systemd-boot
//! and by GRUB's blscfg.

use super::Entry;
use super::arguments::Edit;

/// `text` with the change made to its `options`; `None` where it names no kernel, or a unified kernel image and no words:
/// those that are added would stand instead of the image's own.
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
    if places.is_empty() && field(text, "linux").is_none() {
        return None;
    }
    if places.is_empty() {
        lines.push(format!("options {}", change.apply("")));
    }
    Some(lines.join("\n") + "\n")
}

/// The EFI program that the entry starts instead of a kernel, which may be a unified kernel image, and the words for it.
pub fn program(text: &str) -> Option<(&str, String)> {
    let path = field(text, "uki").or_else(|| field(text, "efi"))?;
    Some((path, options(text)))
}

/// Whether a machine of `arch`, as `uname -m` has it, starts the entry.
pub fn is_for(text: &str, arch: &str) -> bool {
    let name = match arch {
        "x86_64" => "x64",
        "aarch64" => "aa64",
        "i386" | "i586" | "i686" => "ia32",
        "riscv64" => "riscv64",
        "loongarch64" => "loongarch64",
        "armv6l" | "armv7l" => "arm",
        _ => return true,
    };
    field(text, "architecture").is_none_or(|wanted| wanted.eq_ignore_ascii_case(name))
}

fn options(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter_map(|l| value(l, "options")).collect();
    lines.join(" ")
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
        options: options(text),
    })
}

/// The value of the first line with this key.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| value(line, key))
}

fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.trim().strip_prefix(key)?;
    rest.starts_with(char::is_whitespace).then(|| rest.trim())
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
        assert_eq!(edit("uki /EFI/Linux/a.efi\n", &change()), None);
        assert_eq!(
            edit("uki /EFI/Linux/a.efi\noptions root=x\n", &change()).unwrap(),
            "uki /EFI/Linux/a.efi\noptions root=x console=ttyS0\n"
        );
        // A key is a whole word.
        assert_eq!(edit("linuxes /vmlinuz\n", &change()), None);
    }

    #[test]
    fn an_entry_is_read() {
        let entry = parse(ENTRY).unwrap();
        assert_eq!(entry.kernel, "/m/6.1.0-9/linux");
        assert_eq!(entry.initrds, ["/m/6.1.0-9/initrd"]);
        assert_eq!(entry.options, "root=PARTUUID=x ro quiet $tuned_params");
    }

    #[test]
    fn an_entry_names_a_program_and_an_architecture() {
        let text = "uki /EFI/Linux/a.efi\noptions root=x\noptions quiet\narchitecture X64\n";
        let (path, options) = program(text).unwrap();
        assert_eq!(
            (path, options.as_str()),
            ("/EFI/Linux/a.efi", "root=x quiet")
        );
        assert_eq!(program("efi /shell.efi").unwrap().0, "/shell.efi");
        assert_eq!(program(ENTRY), None);
        assert!(is_for(text, "x86_64") && !is_for(text, "aarch64"));
        assert!(is_for(ENTRY, "x86_64") && is_for(text, "s390x"));
    }
}
