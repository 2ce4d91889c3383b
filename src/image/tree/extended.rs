//! Extended headers: the records of POSIX.1-2001 pax (`LENGTH KEY=VALUE\n`, IEEE Std 1003.1, pax, "pax
//! Extended Header") and the keys that GNU tar, star and libarchive add.

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::limits::{Limits, XATTRS_MAX};
use super::member::{Time, Xattr};
use super::sparse::{self, Segment};

/// libarchive writes no padding, others do.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What extended headers say of the next entry (or, in a global header, of all that follow).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<Time>,
    pub(super) atime: Option<Time>,
    pub(super) xattrs: Vec<Xattr>,
    pub(super) acl_access: Option<Vec<u8>>,
    pub(super) acl_default: Option<Vec<u8>>,
    pub(super) sparse: Sparse,
}

/// `GNU.sparse.*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sparse {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) map: Vec<Segment>,
    /// Of format 0.0, where each piece is two records.
    offset: Option<u64>,
}

impl Extended {
    /// Takes over the records of a header of kind `x`.
    pub(super) fn read(&mut self, header: &[u8], limits: &Limits) -> Result<(), String> {
        for record in records(header) {
            let (key, value) = record?;
            self.apply(key, value, limits)
                .map_err(|what| format!("{}: {what}", String::from_utf8_lossy(key)))?;
        }
        Ok(())
    }

    /// What a global header must not say of all entries at once.
    pub(super) fn names_one_entry(&self) -> bool {
        self.path.is_some()
            || self.link.is_some()
            || self.size.is_some()
            || self.sparse != Sparse::default()
    }

    fn apply(&mut self, key: &[u8], value: &[u8], limits: &Limits) -> Result<(), String> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            // GNU tar writes the two characters that the record's form needs as hexadecimal.
            return self.xattr(
                unescape(name, |byte| matches!(byte, b'=' | b'%')),
                value.to_vec(),
                limits,
            );
        }
        if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = BASE64.decode(value).map_err(|e| e.to_string())?;
            return self.xattr(unescape(name, |_| true), value, limits);
        }
        if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            return self.sparse.apply(key, value);
        }
        // An empty value takes back what was said before.
        let text = (!value.is_empty()).then(|| value.to_vec());
        match key {
            b"path" => self.path = text,
            b"linkpath" => self.link = text,
            b"size" => self.size = optional(value, number)?,
            b"uid" => self.uid = optional(value, number)?,
            b"gid" => self.gid = optional(value, number)?,
            b"mtime" => self.mtime = optional(value, time)?,
            b"atime" => self.atime = optional(value, time)?,
            b"SCHILY.acl.access" => self.acl_access = text,
            b"SCHILY.acl.default" => self.acl_default = text,
            b"RHT.security.selinux" if !value.is_empty() => {
                // The kernel keeps labels with the NUL that ends them.
                let mut label = value.to_vec();
                if label.last() != Some(&0) {
                    label.push(0);
                }
                return self.xattr(b"security.selinux".to_vec(), label, limits);
            }
            // Names of owners, comments, times that cannot be set, and keys that nobody has told us.
            _ => {}
        }
        Ok(())
    }

    fn xattr(&mut self, name: Vec<u8>, value: Vec<u8>, limits: &Limits) -> Result<(), String> {
        if value.len() > limits.xattr {
            return Err(format!(
                "it has {} bytes; at most {} are taken",
                value.len(),
                limits.xattr
            ));
        }
        if name.is_empty() || name.contains(&0) || name.len() > crate::sys::xattr::NAME_MAX {
            return Err("no attribute can have this name".into());
        }
        let count = self.xattrs.len();
        match self.xattrs.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None if count >= XATTRS_MAX => {
                return Err(format!("the entry has more than {XATTRS_MAX} attributes"));
            }
            None => self.xattrs.push((name, value)),
        }
        Ok(())
    }
}

impl Sparse {
    /// Whether the entry is a sparse file at all.
    pub(super) fn is_used(&self) -> bool {
        self.major.is_some() || self.size.is_some() || !self.map.is_empty()
    }

    fn apply(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"major" => self.major = Some(number(value)?),
            b"minor" => self.minor = Some(number(value)?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(number(value)?),
            b"offset" => self.offset = Some(number(value)?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or("there is no offset before it")?;
                sparse::push(&mut self.map, (offset, number(value)?))?;
            }
            b"map" => {
                self.map.clear();
                let mut numbers = value.split(|b| *b == b',');
                while let Some(offset) = numbers.next() {
                    let length = numbers.next().ok_or("an offset without a length")?;
                    sparse::push(&mut self.map, (number(offset)?, number(length)?))?;
                }
            }
            // numblocks only says how many follow.
            _ => {}
        }
        Ok(())
    }
}

/// The records of a header; values may hold any bytes.
fn records(mut rest: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), String>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some((record, after)) = record(rest) {
            rest = after;
            Some(Ok(record))
        } else {
            rest = &[];
            Some(Err(
                "a record does not have the form LENGTH KEY=VALUE".into()
            ))
        }
    })
}

type Record<'a> = (&'a [u8], &'a [u8]);

fn record(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let blank = bytes.iter().take(20).position(|b| *b == b' ')?;
    let length = usize::try_from(number(bytes.get(..blank)?).ok()?).ok()?;
    let (whole, after) = bytes.split_at_checked(length)?;
    let body = whole.get(blank.checked_add(1)?..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|b| *b == b'=').filter(|at| *at > 0)?;
    let (key, value) = body.split_at_checked(equals)?;
    Some(((key, value.get(1..)?), after))
}

fn optional<T>(
    value: &[u8],
    read: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if value.is_empty() {
        Ok(None)
    } else {
        read(value).map(Some)
    }
}

fn number(text: &[u8]) -> Result<u64, String> {
    std::str::from_utf8(text)
        .ok()
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|t| t.parse().ok())
        .ok_or_else(|| format!("{:?} is not a number", String::from_utf8_lossy(text)))
}

/// `[-]SECONDS[.FRACTION]`; digits below the nanosecond are cut off.
fn time(text: &[u8]) -> Result<Time, String> {
    let wrong = || format!("{:?} is not a time", String::from_utf8_lossy(text));
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut parts = digits.splitn(2, |b| *b == b'.');
    let whole = number(parts.next().unwrap_or_default())?;
    let mut seconds = i64::try_from(whole).map_err(|_| wrong())?;
    let mut nanoseconds = 0u32;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    for at in 0..9 {
        let digit = fraction
            .get(at)
            .map_or(0, |b| u32::from(b.wrapping_sub(b'0')));
        nanoseconds = nanoseconds.saturating_mul(10).saturating_add(digit);
    }
    if negative {
        seconds = seconds.checked_neg().ok_or_else(wrong)?;
        // The nanoseconds count forward, from the second before.
        if nanoseconds > 0 {
            seconds = seconds.checked_sub(1).ok_or_else(wrong)?;
            nanoseconds = 1_000_000_000u32.saturating_sub(nanoseconds);
        }
    }
    Ok(Time {
        seconds,
        nanoseconds,
    })
}

/// `%3D` and the like, where they stand for a `known` byte; anything else stays as it is.
fn unescape(name: &[u8], known: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((byte, after)) = rest.split_first() {
        let escaped = (*byte == b'%')
            .then(|| after.split_first_chunk::<2>())
            .flatten();
        let value = escaped.and_then(|(digits, _)| {
            let text = std::str::from_utf8(digits).ok()?;
            let value = u8::from_str_radix(text, 16)
                .ok()
                .filter(|_| !text.starts_with('+'));
            value.filter(|value| known(*value))
        });
        if let (Some(value), Some((_, tail))) = (value, escaped) {
            out.push(value);
            rest = tail;
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    out
}

#[cfg(test)]
mod tests;
