//! The kernel command line: a pure tokenizer by the kernel's own rules, and the words that are ours.

/// One word: `key`, or `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// What stands before the first `=`.
    pub key: String,
    /// What stands after it; `None` where there is no `=`.
    pub value: Option<String>,
}

/// A parsed kernel command line, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cmdline {
    words: Vec<Word>,
    init_arguments: Vec<String>,
}

impl Cmdline {
    /// Splits by the kernel's rules (lib/cmdline.c, `next_arg`): white space separates, a double quote
    /// toggles quoting anywhere in a word and is dropped around the whole word or the whole value, there is
    /// no escape character, and what follows a bare `--` belongs to init. The first `=` only separates.
    pub fn parse(text: &str) -> Cmdline {
        let mut cmdline = Cmdline::default();
        let mut after_dashes = false;
        for raw in split(text) {
            if after_dashes {
                cmdline.init_arguments.push(raw.replace('"', ""));
            } else if raw == "--" {
                after_dashes = true;
            } else {
                cmdline.words.push(word(&raw));
            }
        }
        cmdline
    }

    /// The value of `key`, where it was given; the last one wins, as in the kernel. A `key` without `=`
    /// gives the empty string.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.words
            .iter()
            .rev()
            .find(|w| w.key == key)
            .map(|w| w.value.as_deref().unwrap_or(""))
    }

    /// Every value of `key`, in order.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.words
            .iter()
            .filter(move |w| w.key == key)
            .map(|w| w.value.as_deref().unwrap_or(""))
    }

    /// Whether `key` was given, with or without a value.
    pub fn has(&self, key: &str) -> bool {
        self.words.iter().any(|w| w.key == key)
    }

    /// Whether any word begins with `prefix`.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.words.iter().any(|w| w.key.starts_with(prefix))
    }

    /// Every word, in order.
    pub fn words(&self) -> &[Word] {
        &self.words
    }

    /// What follows `--`: arguments of the init of the new system.
    pub fn init_arguments(&self) -> &[String] {
        &self.init_arguments
    }
}

fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut current = String::new();
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                current.push(c);
            }
            c if c.is_ascii_whitespace() && !quoted => {
                if !current.is_empty() {
                    words.push(std::mem::take(&mut current));
                }
            }
            c => current.push(c),
        }
    }
    if !current.is_empty() {
        words.push(current);
    }
    words
}

fn word(raw: &str) -> Word {
    // `"key=a value"` quotes the whole word, `key="a value"` the value.
    let whole = raw
        .strip_prefix('"')
        .map_or(raw, |inner| inner.strip_suffix('"').unwrap_or(inner));
    match whole.split_once('=') {
        None => Word {
            key: whole.to_owned(),
            value: None,
        },
        Some((key, value)) => {
            let value = value
                .strip_prefix('"')
                .map_or(value, |v| v.strip_suffix('"').unwrap_or(v));
            Word {
                key: key.to_owned(),
                value: Some(value.to_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_equals_sign_separates_and_the_last_word_wins() {
        let c = Cmdline::parse(
            "BOOT_IMAGE=/vmlinuz a=b=c ironroot.config=http://x/?a=b quiet ironroot.config=http://y/\n",
        );
        assert_eq!(c.get("a"), Some("b=c"));
        assert_eq!(c.get("ironroot.config"), Some("http://y/"));
        assert_eq!(c.get("quiet"), Some(""));
        assert_eq!(c.get("nothing"), None);
        assert!(c.has_prefix("ironroot."));
    }

    #[test]
    fn quotes_keep_blanks_together() {
        let c = Cmdline::parse(r#"x="a b" "y=c d" init=/sbin/init -- single "two words""#);
        assert_eq!(c.get("x"), Some("a b"));
        assert_eq!(c.get("y"), Some("c d"));
        assert_eq!(c.init_arguments(), ["single", "two words"]);
    }

    #[test]
    fn several_consoles_stay_in_order() {
        let c = Cmdline::parse("console=tty0 console=ttyS0,115200n8");
        assert_eq!(
            c.all("console").collect::<Vec<_>>(),
            ["tty0", "ttyS0,115200n8"]
        );
    }

    proptest! {
        #[test]
        fn any_text_parses_without_a_panic(text in "\\PC*") {
            let _ = Cmdline::parse(&text);
        }

        #[test]
        fn plain_words_come_back(words in proptest::collection::vec("[a-z.]{1,8}=[a-z:/0-9]{0,12}", 0..20)) {
            let parsed = Cmdline::parse(&words.join("  "));
            let again: Vec<String> = parsed.words().iter()
                .map(|w| format!("{}={}", w.key, w.value.as_deref().unwrap_or(""))).collect();
            prop_assert_eq!(again, words);
        }
    }
}
