//! Names in a FAT directory: eight and three characters, and long ones in entries before those (Microsoft, "FAT: General
//! Overview of On-Disk Format", 1.03, "Long File Name Implementation").

use std::io;

use super::{ENTRY, LONG_NAME, LONG_UNITS, put, wrong};

/// A name of eleven characters with blanks behind it.
pub(super) fn padded(name: &str) -> [u8; 11] {
    let mut padded = [b' '; 11];
    for (to, from) in padded.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    padded
}

pub(super) fn is_short_character(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit() || "_-".contains(c)
}

/// The eleven characters of a name that needs no long one: `BOOTX64.EFI`.
pub(super) fn exact_short_name(name: &str) -> Option<[u8; 11]> {
    let (base, extension) = name.split_once('.').unwrap_or((name, ""));
    let fits = |part: &str, most| part.len() <= most && part.chars().all(is_short_character);
    if base.is_empty() || !fits(base, 8) || !fits(extension, 3) || name.ends_with('.') {
        return None;
    }
    let mut short = padded(base);
    put(
        &mut short,
        8,
        padded(extension).get(..3).unwrap_or_default(),
    );
    Some(short)
}

/// The short name of `name`: itself, or one that none of `taken` is.
pub(super) fn short_name(name: &str, taken: &[[u8; 11]]) -> Option<[u8; 11]> {
    if let Some(exact) = exact_short_name(name) {
        return Some(exact).filter(|s| !taken.contains(s));
    }
    let clean = |part: &str, most: usize| -> String {
        part.to_uppercase()
            .chars()
            .filter(|c| is_short_character(*c))
            .take(most)
            .collect()
    };
    let (base, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    (1..1_000_000u32).find_map(|number| {
        let tail = format!("~{number}");
        let base = clean(base, 8usize.saturating_sub(tail.len()));
        let mut short = padded(&format!("{base}{tail}"));
        let extension = padded(&clean(extension, 3));
        put(&mut short, 8, extension.get(..3).unwrap_or_default());
        (!taken.contains(&short)).then_some(short)
    })
}

/// The entries of a long name, the last part first.
pub(super) fn long_name(name: &str, short: &[u8; 11]) -> io::Result<Vec<u8>> {
    let mut units: Vec<u16> = name.encode_utf16().collect();
    let count = units.len().div_ceil(LONG_UNITS);
    if !units.len().is_multiple_of(LONG_UNITS) {
        units.push(0);
    }
    units.resize(count * LONG_UNITS, 0xffff);
    let sum = short
        .iter()
        .fold(0u8, |sum, b| sum.rotate_right(1).wrapping_add(*b));
    let mut out = Vec::new();
    for (i, part) in units.chunks(LONG_UNITS).enumerate().rev() {
        let last = if i + 1 == count { 0x40 } else { 0 };
        let order = u8::try_from(i + 1).map_err(|_| wrong("a name that is too long"))? | last;
        let mut entry = [0u8; ENTRY];
        put(&mut entry, 0, &[order]);
        put(&mut entry, 11, &[LONG_NAME]);
        put(&mut entry, 13, &[sum]);
        let places = (1..11)
            .step_by(2)
            .chain((14..26).step_by(2))
            .chain([28, 30]);
        for (unit, at) in part.iter().zip(places) {
            put(&mut entry, at, &unit.to_le_bytes());
        }
        out.extend(entry);
    }
    Ok(out)
}
