//! The order of versions (UAPI.10 Version Format Specification, "Version Comparison").

use std::cmp::Ordering;

/// Whether `a` is older than, the same as, or newer than `b`.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        a = behind(a, |c| !has_meaning(c));
        b = behind(b, |c| !has_meaning(c));
        // What follows is a pre-release, which is older than even nothing.
        match both_begin_with(b'~', &mut a, &mut b) {
            Ordering::Equal => {}
            other => return other,
        }
        if a.is_empty() || b.is_empty() {
            return b.is_empty().cmp(&a.is_empty());
        }
        for separator in [b'-', b'^', b'.'] {
            match both_begin_with(separator, &mut a, &mut b) {
                Ordering::Equal => {}
                other => return other,
            }
        }
        let is_digit = |c: u8| c.is_ascii_digit();
        let begins = |text: &[u8]| text.first().is_some_and(u8::is_ascii_digit);
        let by_part = if begins(a) || begins(b) {
            let (left, right) = (run(&mut a, is_digit), run(&mut b, is_digit));
            // A number is newer than letters.
            let some = (!left.is_empty()).cmp(&!right.is_empty());
            let (left, right) = (behind(left, |c| c == b'0'), behind(right, |c| c == b'0'));
            some.then_with(|| left.len().cmp(&right.len()))
                .then_with(|| left.cmp(right))
        } else {
            let is_letter = |c: u8| c.is_ascii_alphabetic();
            run(&mut a, is_letter).cmp(run(&mut b, is_letter))
        };
        if by_part != Ordering::Equal {
            return by_part;
        }
    }
}

const fn has_meaning(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'~' | b'-' | b'^' | b'.')
}

/// Takes `mark` from the beginning of both. The one that alone has it is older.
fn both_begin_with(mark: u8, a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (left, right) = (a.strip_prefix(&[mark]), b.strip_prefix(&[mark]));
    if let (Some(left), Some(right)) = (left, right) {
        (*a, *b) = (left, right);
        return Ordering::Equal;
    }
    right.is_some().cmp(&left.is_some())
}

/// What follows the bytes of a kind at the beginning.
fn behind(text: &[u8], of_kind: impl Fn(u8) -> bool) -> &[u8] {
    let mut rest = text;
    run(&mut rest, of_kind);
    rest
}

/// Takes the bytes of a kind from the beginning.
fn run<'a>(text: &mut &'a [u8], of_kind: impl Fn(u8) -> bool) -> &'a [u8] {
    let end = text.iter().position(|c| !of_kind(*c)).unwrap_or(text.len());
    let (taken, rest) = text.split_at_checked(end).unwrap_or((text, &[]));
    *text = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_have_the_order_of_the_specification() {
        // Each is older than the next (the examples of UAPI.10 among them).
        for chain in [
            &["", "1"][..],
            &["~", "", "a"],
            &["6.1.0-9-amd64", "6.1.0-10-amd64"],
            &["6.1", "6.1.0"],
            &[
                "122.1",
                "123~rc1-1",
                "123",
                "123-a",
                "123-a.1",
                "123-1",
                "123-1.1",
                "123^post1",
                "123.a-1",
                "123.1-1",
                "123a-1",
                "124-1",
            ],
        ] {
            for pair in chain.windows(2) {
                assert_eq!(compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
                assert_eq!(compare(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
            }
        }
        for (a, b) in [("007", "7"), ("1_2", "1 2"), ("1__2", "1_2"), ("ab", "ab")] {
            assert_eq!(compare(a, b), Ordering::Equal, "{a} {b}");
        }
    }

    proptest! {
        #[test]
        fn it_is_an_order(all in proptest::collection::vec("[a-c0-2~^._-]{0,6}", 3)) {
            let [a, b, c] = [&all[0], &all[1], &all[2]];
            prop_assert_eq!(compare(a, b), compare(b, a).reverse());
            prop_assert_eq!(compare(a, a), Ordering::Equal);
            if compare(a, b) != Ordering::Greater && compare(b, c) != Ordering::Greater {
                prop_assert!(compare(a, c) != Ordering::Greater);
            }
        }
    }
}
