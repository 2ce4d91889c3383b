//! The order in which people expect device names: `sdb` before `sdaa`, `nvme2n1` before `nvme10n1`.

use std::cmp::Ordering;

/// Drivers that count in letters, after this prefix.
const LETTERED: [&str; 6] = ["xvd", "dasd", "sd", "vd", "hd", "ubd"];

/// Sorts by the name that `key` finds in each item.
pub(super) fn sort<T>(items: &mut [T], key: impl Fn(&T) -> &str) {
    items.sort_by(|a, b| compare(key(a), key(b)));
}

/// Compares two device names.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    match (lettered(a), lettered(b)) {
        (Some((driver_a, letters_a, rest_a)), Some((driver_b, letters_b, rest_b)))
            if driver_a == driver_b =>
        {
            (letters_a.len(), letters_a)
                .cmp(&(letters_b.len(), letters_b))
                .then_with(|| natural(rest_a, rest_b))
        }
        _ => natural(a, b),
    }
}

fn lettered(name: &str) -> Option<(&str, &str, &str)> {
    let driver = LETTERED.into_iter().find(|d| name.starts_with(d))?;
    let rest = name.strip_prefix(driver)?;
    let end = rest
        .find(|c: char| !c.is_ascii_lowercase())
        .unwrap_or(rest.len());
    let (letters, rest) = rest.split_at(end);
    Some((driver, letters, rest))
}

/// Runs of digits compare as numbers, everything else as text.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    // Each turn eats at least one byte of both, or decides.
    while !a.is_empty() && !b.is_empty() {
        let ((run_a, rest_a), (run_b, rest_b)) = (run(a), run(b));
        let order = match (run_a.parse::<u64>(), run_b.parse::<u64>()) {
            (Ok(x), Ok(y)) => x.cmp(&y),
            _ => run_a.cmp(run_b),
        };
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (rest_a, rest_b);
    }
    a.len().cmp(&b.len())
}

fn run(text: &str) -> (&str, &str) {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text
        .find(|c: char| c.is_ascii_digit() != digits)
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_sort_as_people_count() {
        let want = [
            "dm-2", "dm-10", "loop9", "loop10", "nvme0n1", "nvme2n1", "nvme2n10", "nvme10n1",
            "sda", "sda2", "sda10", "sdb", "sdz", "sdaa", "sdab", "sr0", "vda", "xvda",
        ];
        let mut names = want;
        names.reverse();
        sort(&mut names, |n| n);
        assert_eq!(names, want);
    }

    proptest! {
        #[test]
        fn the_order_is_total(mut names in proptest::collection::vec("(sd|nvme|x)[a-c0-9]{0,6}", 0..30)) {
            // sort_by panics on an order that is not total.
            sort(&mut names, |n| n);
            prop_assert!(names.windows(2).all(|w| compare(&w[0], &w[1]) != Ordering::Greater));
        }
    }
}
