//! Unified kernel images (UAPI.5): PE files whose sections `.linux`, `.initrd` and `.cmdline` are what is started.
//!
//! Only the section table is read (Microsoft PE format specification, "COFF File Header", "Section Table").

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

/// A section of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name, without the zeros.
    pub name: String,
    /// Where its content is in the file.
    pub place: Range<u64>,
}

/// More than any image has; the field is 16 bits wide.
const SECTIONS: u16 = 96;

/// The machine that a PE file is for (COFF header, `Machine`).
pub fn machine(file: &mut (impl Read + Seek)) -> io::Result<u16> {
    let mut field = [0u8; 4];
    file.seek(SeekFrom::Start(0x3c))?;
    file.read_exact(&mut field)?;
    // Behind "PE\0\0".
    let at = u64::from(u32::from_le_bytes(field)).saturating_add(4);
    let mut field = [0u8; 2];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut field)?;
    Ok(u16::from_le_bytes(field))
}

/// The sections of a PE file; an error where it is none.
pub fn sections(file: &mut (impl Read + Seek)) -> io::Result<Vec<Section>> {
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let length = file.seek(SeekFrom::End(0))?;
    let mut dos = [0u8; 64];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut dos)?;
    let header = match dos {
        [b'M', b'Z', .., a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => return Err(wrong("not a PE file: it does not begin with MZ")),
    };
    let mut coff = [0u8; 24];
    file.seek(SeekFrom::Start(header.into()))?;
    file.read_exact(&mut coff)?;
    let [
        b'P',
        b'E',
        0,
        0,
        _,
        _,
        count_low,
        count_high,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        optional_low,
        optional_high,
        _,
        _,
    ] = coff
    else {
        return Err(wrong("not a PE file: it has no PE header"));
    };
    let count = u16::from_le_bytes([count_low, count_high]);
    if count > SECTIONS {
        return Err(wrong("a PE file with too many sections"));
    }
    let optional = i64::from(u16::from_le_bytes([optional_low, optional_high]));
    file.seek(SeekFrom::Current(optional))?;
    let mut found = Vec::new();
    for _ in 0..count {
        let mut entry = [0u8; 40];
        file.read_exact(&mut entry)?;
        let number = |at: usize| -> Option<u64> {
            let bytes = entry.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?).into())
        };
        let (Some(virtual_size), Some(raw_size), Some(start)) = (number(8), number(16), number(20))
        else {
            return Err(wrong("a PE section that makes no sense"));
        };
        // The raw size is rounded up; the virtual one says how much is meant.
        let size = match virtual_size {
            0 => raw_size,
            size => size.min(raw_size),
        };
        let end = start.saturating_add(size);
        if end > length {
            return Err(wrong("a PE section that reaches over the file's end"));
        }
        let name = entry.get(..8).unwrap_or_default();
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        found.push(Section {
            name: String::from_utf8_lossy(name).into_owned(),
            place: start..end,
        });
    }
    Ok(found)
}

/// The section that counts where nothing else is chosen: that of the first profile, which stands between the first and the
/// second `.profile`, else the one that all profiles share, before them (UAPI.5, "Multi-Profile UKIs").
pub fn section<'a>(all: &'a [Section], name: &str) -> Option<&'a Section> {
    let mut profiles = all.split(|s| s.name == ".profile");
    let shared = profiles.next().unwrap_or_default();
    let first = profiles.next().unwrap_or_default();
    first.iter().chain(shared).find(|s| s.name == name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A PE file with these sections.
    pub fn pe(parts: &[(&str, &[u8])]) -> Vec<u8> {
        let mut file = vec![0u8; 64];
        file[..2].copy_from_slice(b"MZ");
        file[60..].copy_from_slice(&64u32.to_le_bytes());
        file.extend(b"PE\0\0\x64\x86");
        file.extend(u16::try_from(parts.len()).unwrap().to_le_bytes());
        file.extend([0; 12]);
        file.extend(16u16.to_le_bytes());
        file.extend([0; 2]);
        file.extend([0xaa; 16]);
        let mut at = file.len() + parts.len() * 40;
        for (name, content) in parts {
            let mut entry = [0u8; 40];
            entry[..name.len()].copy_from_slice(name.as_bytes());
            let length = u32::try_from(content.len()).unwrap();
            entry[8..12].copy_from_slice(&length.to_le_bytes());
            entry[16..20].copy_from_slice(&length.to_le_bytes());
            entry[20..24].copy_from_slice(&u32::try_from(at).unwrap().to_le_bytes());
            file.extend(entry);
            at += content.len();
        }
        for (_, content) in parts {
            file.extend(*content);
        }
        file
    }

    #[test]
    fn sections_are_found_by_name() {
        let file = pe(&[
            (".osrel", b"ID=x"),
            (".linux", b"kernel"),
            (".cmdline", b"ro\0"),
        ]);
        let found = sections(&mut io::Cursor::new(&file)).unwrap();
        let linux = found.iter().find(|s| s.name == ".linux").unwrap();
        let place =
            usize::try_from(linux.place.start).unwrap()..usize::try_from(linux.place.end).unwrap();
        assert_eq!(&file[place], b"kernel");
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn the_first_profile_counts() {
        let start = |parts: &[(&str, &[u8])], name: &str| {
            let file = pe(parts);
            let all = sections(&mut io::Cursor::new(&file)).unwrap();
            section(&all, name).map(|s| {
                let place =
                    usize::try_from(s.place.start).unwrap()..usize::try_from(s.place.end).unwrap();
                String::from_utf8(file[place].to_vec()).unwrap()
            })
        };
        let parts: [(&str, &[u8]); 7] = [
            (".linux", b"kernel"),
            (".cmdline", b"shared"),
            (".profile", b"ID=main"),
            (".cmdline", b"first"),
            (".profile", b"ID=reset"),
            (".cmdline", b"second"),
            (".initrd", b"reset"),
        ];
        assert_eq!(start(&parts, ".cmdline").as_deref(), Some("first"));
        assert_eq!(start(&parts, ".linux").as_deref(), Some("kernel"));
        assert_eq!(start(&parts, ".initrd"), None);
        assert_eq!(start(&parts[..2], ".cmdline").as_deref(), Some("shared"));
    }

    #[test]
    fn what_is_no_pe_file_is_an_error() {
        assert!(sections(&mut io::Cursor::new(vec![0u8; 4096])).is_err());
        let mut cut = pe(&[(".linux", b"kernel")]);
        cut.truncate(cut.len() - 1);
        assert!(sections(&mut io::Cursor::new(cut)).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut file = pe(&[(".linux", b"kernel")]);
            for (to, from) in file.iter_mut().skip(60).zip(&bytes) {
                *to = *from;
            }
            let _ = sections(&mut io::Cursor::new(file));
            let _ = sections(&mut io::Cursor::new(bytes));
        }
    }
}
