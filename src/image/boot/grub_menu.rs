//! The menu of a `grub.cfg`, and which of its entries starts by itself (GRUB manual, "default" and "saved_entry").

use super::{Entry, grub};

/// What GRUB starts by itself, as far as the file and `saved_entry` of its environment block say; the first
/// entry where they say nothing that is there.
pub fn default_entry(text: &str, saved: Option<&str>) -> Option<Entry> {
    let wanted = wanted(text, saved);
    let items = items(text);
    wanted
        .as_deref()
        .and_then(|wanted| chosen(&items, wanted))
        .or_else(|| grub::parse(text))
}

/// The value that `default` gets in the end. `next_entry` is not asked for: it is for one start by GRUB itself,
/// which forgets it then.
pub fn wanted(text: &str, saved: Option<&str>) -> Option<String> {
    let values = text.lines().filter_map(|line| {
        let value = line.trim().strip_prefix("set default=")?;
        Some(value.trim().trim_matches(['"', '\'']).to_owned())
    });
    let value = values.rev().find(|value| !value.contains("next_entry"))?;
    match value.as_str() {
        "${saved_entry}" | "$saved_entry" => saved.map(str::to_owned),
        _ => Some(value),
    }
}

/// What an item of the menu is called.
#[derive(Debug)]
struct Name {
    index: usize,
    title: String,
    id: Option<String>,
}

impl Name {
    fn is(&self, wanted: &str) -> bool {
        self.id.as_deref() == Some(wanted)
            || self.title == wanted
            || wanted.parse() == Ok(self.index)
    }
}

/// Something that can be started: its submenus, itself, and the lines of its block.
struct Item<'a> {
    names: Vec<Name>,
    lines: Vec<&'a str>,
}

/// A block of the file.
enum Block {
    Menu,
    Entry,
    /// A function or the like.
    Other,
}

fn items(text: &str) -> Vec<Item<'_>> {
    let mut found: Vec<Item<'_>> = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    let mut menus: Vec<Name> = Vec::new();
    // How many items each open menu has so far; the outermost is the file.
    let mut counts = vec![0usize];
    for line in text.lines() {
        let line = line.trim();
        if line == "}" {
            if let Some(Block::Menu) = blocks.pop() {
                menus.pop();
                counts.pop();
            }
            continue;
        }
        let word = line.split_whitespace().next().unwrap_or_default();
        if !line.ends_with('{') {
            if let (Some(Block::Entry), Some(item)) = (blocks.last(), found.last_mut()) {
                item.lines.push(line);
            }
            continue;
        }
        if word != "menuentry" && word != "submenu" {
            blocks.push(Block::Other);
            continue;
        }
        let index = counts.last().copied().unwrap_or_default();
        if let Some(count) = counts.last_mut() {
            *count = count.saturating_add(1);
        }
        let name = name(line, index);
        if word == "submenu" {
            blocks.push(Block::Menu);
            menus.push(name);
            counts.push(0);
        } else {
            blocks.push(Block::Entry);
            let copy = |n: &Name| Name {
                index: n.index,
                title: n.title.clone(),
                id: n.id.clone(),
            };
            found.push(Item {
                names: menus.iter().map(copy).chain([name]).collect(),
                lines: Vec::new(),
            });
        }
    }
    found
}

/// Title and id of `menuentry 'title' … --id id {`, or with the variable that grub-mkconfig uses for `--id`.
fn name(line: &str, index: usize) -> Name {
    let words = words(line);
    let id = words
        .iter()
        .position(|w| w == "--id" || w == "$menuentry_id_option" || w == "${menuentry_id_option}")
        .and_then(|at| words.get(at.checked_add(1)?))
        .cloned();
    Name {
        index,
        title: words.get(1).cloned().unwrap_or_default(),
        id,
    }
}

/// The words of a line, without their quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Whether entries of the Boot Loader Specification are in the menu that `text` makes (the module of distributions).
pub fn reads_entries(text: &str) -> bool {
    text.lines()
        .any(|line| line.split_whitespace().next() == Some("blscfg"))
}

/// The parts of `a>b`; `>>` stands for the character in a title.
fn parts(wanted: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = wanted.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '>' && chars.next_if_eq(&'>').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

/// The item that `wanted` means: `a>b` is `b` in the submenu `a`; a submenu alone starts its first entry.
fn chosen(items: &[Item<'_>], wanted: &str) -> Option<Entry> {
    let parts = parts(wanted);
    let means = |item: &&Item<'_>| {
        item.names.len() >= parts.len() && item.names.iter().zip(&parts).all(|(n, p)| n.is(p))
    };
    let item = items.iter().find(means)?;
    grub::parse(&item.lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CFG: &str = r#"
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
else
   set default="DEFAULT"
fi
function savedefault {
  save_env saved_entry
}
menuentry 'Debian' --class debian $menuentry_id_option 'gnulinux-simple-x' {
	linux /vmlinuz-2 root=x
	initrd /initrd-2
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-x' {
	menuentry 'Debian, with 2' --id gnulinux-2 {
		linux /vmlinuz-2 root=x advanced
	}
	menuentry 'Debian, with 1' --id gnulinux-1 {
		linux /vmlinuz-1 root=x
		initrd /initrd-1
	}
}
menuentry "Other" {
	linux /vmlinuz-other
}
menuentry 'One > two' {
	linux /vmlinuz-arrow
}
"#;

    #[test]
    fn the_entry_that_the_file_or_the_environment_names() {
        let kernel = |default: &str, saved| {
            let entry = default_entry(&CFG.replace("DEFAULT", default), saved).unwrap();
            format!("{} {}", entry.kernel, entry.options)
        };
        for (default, saved, wanted) in [
            ("0", None, "/vmlinuz-2 root=x"),
            ("2", None, "/vmlinuz-other "),
            ("Other", None, "/vmlinuz-other "),
            ("1", None, "/vmlinuz-2 root=x advanced"),
            ("1>1", None, "/vmlinuz-1 root=x"),
            ("Advanced options>Debian, with 1", None, "/vmlinuz-1 root=x"),
            ("gnulinux-advanced-x>gnulinux-1", None, "/vmlinuz-1 root=x"),
            ("${saved_entry}", Some("1>gnulinux-1"), "/vmlinuz-1 root=x"),
            ("${saved_entry}", Some("2"), "/vmlinuz-other "),
            ("${saved_entry}", Some("One >> two"), "/vmlinuz-arrow "),
            // What is not there is nobody's wish.
            ("${saved_entry}", None, "/vmlinuz-2 root=x"),
            ("gone", None, "/vmlinuz-2 root=x"),
            ("7>1", None, "/vmlinuz-2 root=x"),
        ] {
            assert_eq!(kernel(default, saved), wanted, "{default} {saved:?}");
        }
        let entry = default_entry(&CFG.replace("DEFAULT", "1>1"), None).unwrap();
        assert_eq!(entry.initrds, ["/initrd-1"]);
    }

    #[test]
    fn entries_in_other_files_are_in_the_menu_where_a_command_says_so() {
        assert!(reads_entries("insmod blscfg\nif x; then\n  blscfg\nfi\n"));
        assert!(!reads_entries(CFG) && !reads_entries("insmod blscfg\n# blscfg\n"));
    }

    #[test]
    fn what_is_no_menu_is_read_as_before() {
        let entry = default_entry("linux /vmlinuz a\ninitrd /i\n", Some("0")).unwrap();
        assert_eq!(
            (entry.kernel.as_str(), entry.options.as_str()),
            ("/vmlinuz", "a")
        );
        assert_eq!(default_entry("}\n}\nset default=\"1\"\n", None), None);
    }
}
