//! Little-endian numbers at places of a table.

/// The 64-bit number at `at`.
pub fn get64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    field.try_into().ok().map(u64::from_le_bytes)
}

/// The 32-bit number at `at`.
pub fn get32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    field.try_into().ok().map(u32::from_le_bytes)
}

/// Puts `value` at `at`; nothing where it would not fit.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let end = at.checked_add(value.len());
    if let Some(place) = end.and_then(|end| bytes.get_mut(at..end)) {
        place.copy_from_slice(value);
    }
}
