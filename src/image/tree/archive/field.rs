//! The fields of a header block.

use tar::Header;

/// The sum over all bytes with the checksum's own place taken as blanks; some old programs added signed ones.
pub(super) fn checksum_is_right(block: &[u8]) -> bool {
    let (Some(front), Some(field), Some(behind)) =
        (block.get(..148), block.get(148..156), block.get(156..))
    else {
        return false;
    };
    let Some(said) = signed(field) else {
        return false;
    };
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| i64::from(*byte)).sum::<i64>();
    let unsigned = sum(front) + sum(behind) + 8 * i64::from(b' ');
    said == i128::from(unsigned) || {
        let signed = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|b| i64::from(b.cast_signed()))
                .sum::<i64>()
        };
        said == i128::from(signed(front) + signed(behind) + 8 * i64::from(b' '))
    }
}

/// A number of a header: octal digits between blanks and NULs, or, with the first bit set, binary in two's
/// complement (GNU tar, "base-256"). An empty field is 0.
pub(super) fn signed(field: &[u8]) -> Option<i128> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // Twelve bytes at most: 95 bits. The bit below the mark is the sign.
        let start = i128::from(first & 0x7f) - if first & 0x40 == 0 { 0 } else { 0x80 };
        return Some(
            field
                .iter()
                .skip(1)
                .fold(start, |sum, byte| (sum << 8) | i128::from(*byte)),
        );
    }
    let blank = |byte: &u8| matches!(byte, b' ' | 0);
    let digits = field
        .iter()
        .skip_while(|b| blank(b))
        .take_while(|b| !blank(b));
    digits.into_iter().try_fold(0i128, |sum, byte| match byte {
        b'0'..=b'7' => Some((sum << 3) | i128::from(byte.wrapping_sub(b'0'))),
        _ => None,
    })
}

pub(super) fn kind_byte(header: &Header) -> u8 {
    header.as_old().linkflag.first().copied().unwrap_or(0)
}

/// The name in the header, with what ustar puts before it.
pub(super) fn header_name(header: &Header) -> Vec<u8> {
    let name = until_nul(&header.as_old().name);
    match header.as_ustar().map(|ustar| until_nul(&ustar.prefix)) {
        Some(prefix) if !prefix.is_empty() => [prefix, b"/", name].concat(),
        _ => name.to_vec(),
    }
}

pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or_default()
}
