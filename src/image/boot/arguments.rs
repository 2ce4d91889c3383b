//! Kernel arguments as words: what is added to a command line and what is taken away.
//!
//! A word ends at white space outside double quotes, as the kernel has it (kernel: lib/cmdline.c, `next_arg`).

use serde::Serialize;

/// A change of kernel arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Edit {
    append: Vec<String>,
    remove: Vec<String>,
}

/// Characters that GRUB would interpret outside quotes (GRUB manual, "Quoting").
const SPECIAL: [char; 7] = ['{', '}', '|', '&', ';', '<', '>'];

/// Why `word` cannot be a kernel argument that every boot loader passes on unchanged; `None` where it can.
pub fn flaw(word: &str) -> Option<&'static str> {
    if word.is_empty() {
        return Some("it is empty");
    }
    if word.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    if word.contains(['$', '\\', '\'', '`', '#']) {
        return Some("boot loaders interpret $, \\, ', ` and #");
    }
    match words(word).as_slice() {
        [one] if *one == word && word.matches('"').count().is_multiple_of(2) => None,
        _ => Some(
            "it is not one word: white space belongs within double quotes, and quotes in pairs",
        ),
    }
}

/// The words of a command line.
pub fn words(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = None;
    let mut quoted = false;
    for (at, c) in line.char_indices() {
        if c == '"' {
            quoted = !quoted;
        }
        if c.is_whitespace() && !quoted {
            found.extend(start.take().and_then(|from| line.get(from..at)));
        } else if start.is_none() {
            start = Some(at);
        }
    }
    found.extend(start.and_then(|from| line.get(from..)));
    found
}

impl Edit {
    /// Adds the words of `append` that are not there yet, after taking away those of `remove`: exactly, or, where
    /// it has no `=`, whatever value it has.
    pub fn new(append: &[String], remove: &[String]) -> Edit {
        Edit {
            append: append.to_vec(),
            remove: remove.to_vec(),
        }
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.append.is_empty() && self.remove.is_empty()
    }

    /// What is added.
    pub fn appended(&self) -> &[String] {
        &self.append
    }

    /// What is taken away.
    pub fn removed(&self) -> &[String] {
        &self.remove
    }

    /// `line` with the change. White space between words becomes one space.
    pub fn apply(&self, line: &str) -> String {
        let mut kept: Vec<String> = words(line)
            .into_iter()
            .filter(|word| !self.removes(word))
            .map(str::to_owned)
            .collect();
        for word in &self.append {
            let word = for_every_loader(word);
            if !kept.contains(&word) {
                kept.push(word);
            }
        }
        kept.join(" ")
    }

    fn removes(&self, word: &str) -> bool {
        self.remove.iter().any(|gone| {
            word == gone
                || word == for_every_loader(gone)
                || (!gone.contains('=') && word.split_once('=').is_some_and(|(key, _)| key == gone))
        })
    }
}

/// The word with its value in double quotes where GRUB needs them; the kernel drops them.
fn for_every_loader(word: &str) -> String {
    if !word.contains(SPECIAL) || word.contains('"') {
        return word.to_owned();
    }
    match word.split_once('=') {
        Some((key, value)) => format!("{key}=\"{value}\""),
        None => format!("\"{word}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edit(append: &[&str], remove: &[&str]) -> Edit {
        let own = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        Edit::new(&own(append), &own(remove))
    }

    #[test]
    fn words_are_added_once_and_taken_away_by_name_or_exactly() {
        let line = "root=/dev/vda1  ro quiet console=tty0 console=ttyS0 x=\"a b\"";
        assert_eq!(
            edit(&["quiet", "console=ttyS1,115200"], &["ro", "console"]).apply(line),
            "root=/dev/vda1 quiet x=\"a b\" console=ttyS1,115200"
        );
        assert_eq!(
            edit(&[], &["console=tty0", "x"]).apply(line),
            "root=/dev/vda1 ro quiet console=ttyS0"
        );
        // A name is no prefix.
        assert_eq!(
            edit(&[], &["roo", "qui"]).apply("root=x quiet"),
            "root=x quiet"
        );
    }

    #[test]
    fn what_grub_would_interpret_is_quoted_and_found_again() {
        let url = "ignition.config.url=http://h/?a=1&b=2";
        let once = edit(&[url], &[]).apply("ro");
        assert_eq!(once, "ro ignition.config.url=\"http://h/?a=1&b=2\"");
        assert_eq!(edit(&[url], &[]).apply(&once), once);
        assert_eq!(edit(&[], &[url]).apply(&once), "ro");
    }

    #[test]
    fn flaws() {
        for good in [
            "quiet",
            "a=b",
            "ip=[::1]:x",
            "a=\"b c\"",
            "u=http://h/?a&b",
            "dyndbg=\"file x +p\"",
        ] {
            assert_eq!(flaw(good), None, "{good}");
        }
        for bad in [
            "", "a b", " a", "a\n", "a=$b", "a'b", "a=\"b", "a\\b", "a#b",
        ] {
            assert!(flaw(bad).is_some(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_change_made_twice_is_made_once(
            line in "[a-z =\"]{0,60}", append in proptest::collection::vec("[a-z]{1,4}(=[a-z&;]{1,4})?", 0..4),
            remove in proptest::collection::vec("[a-z]{1,3}", 0..3),
        ) {
            // A line that ends within quotes has no place where a word could be added.
            prop_assume!(line.matches('"').count() % 2 == 0);
            // What is taken away and added again goes to the end, each time.
            prop_assume!(!append.iter().any(|w| Edit::new(&[], &remove).removes(w)));
            let change = Edit::new(&append, &remove);
            let once = change.apply(&line);
            prop_assert_eq!(change.apply(&once), once.clone());
            for word in &append {
                let key = word.split_once('=').map_or(word.as_str(), |(key, _)| key);
                if !remove.iter().any(|r| r == word || r == key) {
                    let all = words(&once).into_iter().map(str::to_owned).collect::<Vec<_>>();
                    prop_assert!(all.contains(&for_every_loader(word)), "{once}");
                }
            }
        }
    }
}
