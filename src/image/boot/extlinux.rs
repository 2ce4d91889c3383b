//! extlinux and syslinux configuration (SYSLINUX documentation, "SYSLINUX Config Files"): `append` lines. U-Boot
//! reads the same files.

use super::Entry;
use super::arguments::Edit;

/// `text` with the change made to the `append` line of every label with a kernel, or one added; `None` where no
/// label has a kernel. Of several `append` lines of a label the last one counts, and one before all labels is for
/// those that have none: where either is there, none is added.
pub fn edit(text: &str, change: &Edit) -> Option<String> {
    let mut out: Vec<String> = Vec::new();
    let mut found = false;
    let (mut in_label, mut for_all) = (false, false);
    let (mut kernel, mut append) = (false, false);
    let end_of_label = |out: &mut Vec<String>, kernel: &mut bool, has_append: bool| {
        if std::mem::take(kernel) && !has_append {
            out.push(format!("  append {}", change.apply("")));
        }
    };
    for line in text.lines() {
        match keyword(line) {
            Some(("label", _, _)) => {
                end_of_label(&mut out, &mut kernel, append || for_all);
                (in_label, append) = (true, false);
            }
            Some(("kernel" | "linux", _, _)) => {
                found = true;
                kernel = true;
            }
            Some(("append", indent, arguments)) => {
                append = true;
                for_all |= !in_label;
                let arguments = if arguments == NOTHING { "" } else { arguments };
                out.push(format!("{indent}append {}", change.apply(arguments)));
                continue;
            }
            _ => {}
        }
        out.push(line.to_owned());
    }
    end_of_label(&mut out, &mut kernel, append || for_all);
    found.then(|| out.join("\n") + "\n")
}

/// What stands for no arguments, not even those for all labels.
const NOTHING: &str = "-";

/// What the default label starts, or the first one where none is named.
pub fn parse(text: &str) -> Option<Entry> {
    let wanted = text.lines().find_map(|line| match keyword(line) {
        Some(("default", _, name)) => Some(name),
        _ => None,
    });
    let mut entries: Vec<(String, Entry)> = Vec::new();
    let mut for_all = "";
    for line in text.lines() {
        match (keyword(line), entries.last_mut()) {
            (Some(("label", _, name)), _) => {
                let options = for_all.to_owned();
                let entry = Entry {
                    options,
                    ..Entry::default()
                };
                entries.push((name.to_owned(), entry));
            }
            (Some(("append", _, arguments)), None) => for_all = arguments,
            (Some(("kernel" | "linux", _, path)), Some((_, entry))) => {
                path.clone_into(&mut entry.kernel);
            }
            (Some(("initrd", _, paths)), Some((_, entry))) => {
                entry.initrds.extend(paths.split(',').map(str::to_owned));
            }
            (Some(("append", _, arguments)), Some((_, entry))) => {
                let words = super::arguments::words(arguments);
                let words = words.into_iter().filter(|word| *word != NOTHING);
                let (initrd, rest): (Vec<_>, Vec<_>) =
                    words.partition(|w| w.starts_with("initrd="));
                let named = initrd.iter().filter_map(|w| w.split_once('='));
                entry
                    .initrds
                    .extend(named.flat_map(|(_, v)| v.split(',')).map(str::to_owned));
                entry.options = rest.join(" ");
            }
            _ => {}
        }
    }
    let serving = |(_, entry): &&(String, Entry)| !entry.kernel.is_empty();
    let default = entries
        .iter()
        .filter(serving)
        .find(|(name, _)| Some(name.as_str()) == wanted);
    default
        .or_else(|| entries.iter().find(serving))
        .map(|(_, entry)| entry.clone())
}

/// Keyword, indentation and the rest of a line. Keywords may be spelled in any case.
fn keyword(line: &str) -> Option<(&'static str, &str, &str)> {
    const KEYWORDS: [&str; 6] = ["default", "label", "kernel", "linux", "initrd", "append"];
    let rest = line.trim_start();
    let indent = line.get(..line.len().checked_sub(rest.len())?)?;
    let (word, arguments) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let known = KEYWORDS.iter().find(|k| word.eq_ignore_ascii_case(k))?;
    Some((known, indent, arguments.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "DEFAULT second\nLABEL first\n  KERNEL /vmlinuz-1\n  APPEND initrd=/a,/b root=x quiet\nlabel second\n  linux /vmlinuz-2\n  initrd /i\nlabel third\n  kernel vesamenu.c32\n  append ro\n";

    #[test]
    fn every_label_with_a_kernel_has_the_change() {
        let change = Edit::new(&["console=ttyS0".to_owned()], &["quiet".to_owned()]);
        let edited = edit(TEXT, &change).unwrap();
        assert!(
            edited.contains("  append initrd=/a,/b root=x console=ttyS0\n"),
            "{edited}"
        );
        assert!(
            edited.contains("  initrd /i\n  append console=ttyS0\nlabel third\n"),
            "{edited}"
        );
        assert_eq!(edit("default x\ntimeout 5\n", &change), None);
    }

    #[test]
    fn a_label_never_gets_a_second_append_line() {
        let change = Edit::new(&["x".to_owned()], &[]);
        // Before the kernel.
        assert_eq!(
            edit(
                "label a\n  append root=y\n  linux /v\nlabel b\n  linux /w\n",
                &change
            )
            .unwrap(),
            "label a\n  append root=y x\n  linux /v\nlabel b\n  linux /w\n  append x\n"
        );
        // For all labels that have none of their own.
        assert_eq!(
            edit("append root=y\nlabel a\n  linux /v\n", &change).unwrap(),
            "append root=y x\nlabel a\n  linux /v\n"
        );
        // A hyphen: none at all.
        assert_eq!(
            edit("append root=y\nlabel a\n  linux /v\n  append -\n", &change).unwrap(),
            "append root=y x\nlabel a\n  linux /v\n  append x\n"
        );
        let text = "append root=y\nlabel a\n  linux /v\nlabel b\n linux /w\n append -\n";
        assert_eq!(parse(text).unwrap().options, "root=y");
        assert_eq!(parse(&format!("default b\n{text}")).unwrap().options, "");
    }

    #[test]
    fn the_default_label_is_what_starts() {
        let entry = parse(TEXT).unwrap();
        assert_eq!(
            (entry.kernel.as_str(), entry.options.as_str()),
            ("/vmlinuz-2", "")
        );
        assert_eq!(entry.initrds, ["/i"]);
        let first = parse(&TEXT.replace("DEFAULT second\n", "")).unwrap();
        assert_eq!(first.initrds, ["/a", "/b"]);
        assert_eq!(first.options, "root=x quiet");
    }
}
