//! The patterns of modules.alias: fnmatch(3) without flags, as depmod writes and modprobe matches them.

/// Whether `text` matches `pattern`: `*` any text, `?` any byte, `[a-f0-9]` and `[!…]` one byte of a set.
///
/// Linear memory and at most `pattern x text` steps: only the last `*` is ever taken back, which is enough
/// because an earlier one can always give its surplus to a later one.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (pattern, text);
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        match p.split_first() {
            Some((b'*', rest)) => {
                retry = Some((rest, t));
                p = rest;
                continue;
            }
            Some(_) => {
                if let Some((after_p, after_t)) = one(p, t) {
                    (p, t) = (after_p, after_t);
                    continue;
                }
            }
            None if t.is_empty() => return true,
            None => {}
        }
        // The star takes one byte more.
        let Some((after_star, from)) = retry else {
            return false;
        };
        let Some((_, shorter)) = from.split_first() else {
            return false;
        };
        retry = Some((after_star, shorter));
        (p, t) = (after_star, shorter);
    }
}

/// One element of the pattern against one byte of text: what is left of both.
fn one<'a>(pattern: &'a [u8], text: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&byte, text_rest) = text.split_first()?;
    let (&element, pattern_rest) = pattern.split_first()?;
    match element {
        b'?' => Some((pattern_rest, text_rest)),
        b'[' => {
            let (inside, after) = set(pattern_rest, byte)?;
            inside.then_some((after, text_rest))
        }
        _ => (element == byte).then_some((pattern_rest, text_rest)),
    }
}

/// A set, without its `[`: whether it holds `byte`, and what follows its `]`. A set without end matches
/// nothing.
fn set(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern.split_first() {
        Some((b'!' | b'^', rest)) => (true, rest),
        _ => (false, pattern),
    };
    let mut found = false;
    let mut first = true;
    loop {
        let (&low, after) = rest.split_first()?;
        if low == b']' && !first {
            return Some((found != negated, after));
        }
        first = false;
        rest = after;
        let high = match rest {
            [b'-', high, after @ ..] if *high != b']' => {
                rest = after;
                *high
            }
            _ => low,
        };
        found |= (low..=high).contains(&byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes())
    }

    #[test]
    fn stars_questions_and_sets() {
        assert!(is(
            "pci:v00001AF4d*sv*sd*bc*sc*i*",
            "pci:v00001AF4d00001041sv00001AF4sd00001100bc02sc00i00"
        ));
        assert!(!is("pci:v00001AF5d*", "pci:v00001AF4d00001041"));
        assert!(is(
            "usb:v0781p[0-9A-F]*d?ic08*",
            "usb:v0781p5567d1ic08isc06"
        ));
        assert!(is("acpi*:PNP0[CF]1[!0-2]:*", "acpi:PNP0C13:"));
        assert!(!is("acpi*:PNP0[CF]1[!0-2]:*", "acpi:PNP0C12:"));
        assert!(is("a[]x]b", "a]b"));
        assert!(!is("a[bc", "ab"));
        assert!(is("", "") && is("*", "") && is("**a**", "ba") && !is("", "a"));
    }

    #[test]
    fn a_hostile_pattern_ends_soon() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!is(&pattern, &"a".repeat(4000)));
    }

    /// The definition, slow and obvious; sets are compared by their own tests.
    fn by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|n| by_definition(rest, &text[n..])),
            Some((b'?', rest)) => !text.is_empty() && by_definition(rest, &text[1..]),
            Some((c, rest)) => text.first() == Some(c) && by_definition(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            prop_assert_eq!(
                is(&pattern, &text),
                by_definition(pattern.as_bytes(), text.as_bytes())
            );
        }

        #[test]
        fn any_bytes_match_without_a_panic(
            pattern in proptest::collection::vec(any::<u8>(), 0..40),
            text in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = matches(&pattern, &text);
        }
    }
}
