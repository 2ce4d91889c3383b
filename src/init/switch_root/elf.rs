//! What an ELF program needs: its machine and its interpreter (System V ABI, gABI chapters 4 and 5).

use std::fs::File;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// What was read of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// `e_machine`.
    pub machine: u16,
    /// PT_INTERP: the dynamic linker; `None` for a static program.
    pub interpreter: Option<PathBuf>,
}

/// The machine that this program was built for, where it is one of those below.
pub const OURS: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else if cfg!(target_arch = "riscv64") {
    Some(243)
} else if cfg!(target_arch = "powerpc64") {
    Some(21)
} else if cfg!(target_arch = "s390x") {
    Some(22)
} else {
    None
};

/// The name of `e_machine` as uname(1) has it.
pub fn machine_name(machine: u16) -> String {
    match machine {
        3 => "i386".to_owned(),
        21 => "ppc64".to_owned(),
        22 => "s390x".to_owned(),
        40 => "arm".to_owned(),
        62 => "x86_64".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "riscv64".to_owned(),
        other => format!("ELF machine {other}"),
    }
}

/// Whether a kernel for `ours` may have the 32-bit support that runs programs for `other`.
pub fn may_run(ours: u16, other: u16) -> bool {
    matches!((ours, other), (62, 3) | (183, 40))
}

/// Longest table of program headers and longest interpreter that the kernel takes (fs/binfmt_elf.c,
/// `load_elf_phdrs`, `load_elf_binary`).
const MAX_TABLE: u64 = 65536;
const MAX_INTERPRETER: u64 = 4096;

/// Reads the header of `file`. `None`: the file does not begin as an ELF program that can be started.
pub fn read(file: &File) -> Option<Elf> {
    let mut start = [0u8; 64];
    let length = read_up_to(file, &mut start, 0)?;
    let header = Header::parse(start.get(..length)?)?;
    let mut table = vec![0u8; usize::try_from(header.table_length()?).ok()?];
    file.read_exact_at(&mut table, header.table).ok()?;
    let interpreter = match header.interpreter(&table)? {
        None => None,
        Some((offset, length)) => {
            let mut name = vec![0u8; usize::try_from(length).ok()?];
            file.read_exact_at(&mut name, offset).ok()?;
            let end = name.iter().position(|b| *b == 0)?;
            name.truncate(end);
            Some(PathBuf::from(std::ffi::OsString::from_vec(name)))
        }
    };
    Some(Elf {
        machine: header.machine,
        interpreter,
    })
}

/// The start of a file, which may be shorter.
pub fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = offset.checked_add(u64::try_from(done).ok()?)?;
        match file.read_at(rest, at) {
            Ok(0) => break,
            Ok(n) => done = done.checked_add(n)?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(done)
}

#[derive(Debug)]
struct Header {
    wide: bool,
    big_endian: bool,
    machine: u16,
    table: u64,
    entry_size: u16,
    entries: u16,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Header> {
        if bytes.get(..4)? != b"\x7fELF" {
            return None;
        }
        let wide = match bytes.get(4)? {
            1 => false,
            2 => true,
            _ => return None,
        };
        let big_endian = match bytes.get(5)? {
            1 => false,
            2 => true,
            _ => return None,
        };
        let number = Numbers { bytes, big_endian };
        // ET_EXEC, ET_DYN.
        if !matches!(number.u16(16)?, 2 | 3) {
            return None;
        }
        Some(Header {
            wide,
            big_endian,
            machine: number.u16(18)?,
            table: number.word(wide, if wide { 32 } else { 28 })?,
            entry_size: number.u16(if wide { 54 } else { 42 })?,
            entries: number.u16(if wide { 56 } else { 44 })?,
        })
    }

    fn table_length(&self) -> Option<u64> {
        let smallest = if self.wide { 56 } else { 32 };
        let length = u64::from(self.entry_size).checked_mul(u64::from(self.entries))?;
        (self.entry_size == smallest && (1..=MAX_TABLE).contains(&length)).then_some(length)
    }

    /// Offset and length of the interpreter's name. The outer `None`: the table is not sound.
    #[allow(clippy::option_option)]
    fn interpreter(&self, table: &[u8]) -> Option<Option<(u64, u64)>> {
        for entry in table.chunks_exact(usize::from(self.entry_size)) {
            let number = Numbers {
                bytes: entry,
                big_endian: self.big_endian,
            };
            // PT_INTERP
            if number.u32(0)? == 3 {
                let (offset, length) = if self.wide {
                    (number.word(true, 8)?, number.word(true, 32)?)
                } else {
                    (number.word(false, 4)?, number.word(false, 16)?)
                };
                return (2..=MAX_INTERPRETER)
                    .contains(&length)
                    .then_some(Some((offset, length)));
            }
        }
        Some(None)
    }
}

struct Numbers<'a> {
    bytes: &'a [u8],
    big_endian: bool,
}

impl Numbers<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut array: [u8; N] = *self.bytes.get(at..)?.first_chunk()?;
        if !self.big_endian {
            array.reverse();
        }
        Some(array)
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// An address or offset of the file's class.
    fn word(&self, wide: bool, at: usize) -> Option<u64> {
        if wide {
            self.array(at).map(u64::from_be_bytes)
        } else {
            self.u32(at).map(u64::from)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    /// The smallest ELF program for `machine`.
    pub fn program(
        machine: u16,
        interpreter: Option<&str>,
        wide: bool,
        big_endian: bool,
    ) -> Vec<u8> {
        let (header, entry) = if wide { (64, 56) } else { (52, 32) };
        let name = interpreter.map(|i| format!("{i}\0")).unwrap_or_default();
        let mut bytes = vec![0u8; header + entry];
        let mut put = |at: usize, value: u64, size: usize| {
            let all = value.to_be_bytes();
            let mut part = all[8 - size..].to_vec();
            if !big_endian {
                part.reverse();
            }
            bytes[at..at + size].copy_from_slice(&part);
        };
        let word = if wide { 8 } else { 4 };
        put(16, 2, 2);
        put(18, machine.into(), 2);
        put(if wide { 32 } else { 28 }, header as u64, word);
        put(if wide { 54 } else { 42 }, entry as u64, 2);
        put(if wide { 56 } else { 44 }, 1, 2);
        put(header, if interpreter.is_some() { 3 } else { 1 }, 4);
        put(
            header + if wide { 8 } else { 4 },
            (header + entry) as u64,
            word,
        );
        put(header + if wide { 32 } else { 16 }, name.len() as u64, word);
        bytes[..4].copy_from_slice(b"\x7fELF");
        bytes[4] = if wide { 2 } else { 1 };
        bytes[5] = if big_endian { 2 } else { 1 };
        bytes.extend(name.bytes());
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Option<Elf> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read(&file)
    }

    #[test]
    fn machine_and_interpreter_in_both_classes_and_byte_orders() {
        for wide in [true, false] {
            for big_endian in [true, false] {
                let made = program(22, Some("/lib/ld.so.1"), wide, big_endian);
                let elf = read_bytes(&made).unwrap();
                assert_eq!(elf.machine, 22);
                assert_eq!(elf.interpreter, Some(PathBuf::from("/lib/ld.so.1")));
                let elf = read_bytes(&program(62, None, wide, big_endian)).unwrap();
                assert_eq!((elf.machine, elf.interpreter), (62, None));
            }
        }
    }

    #[test]
    fn this_very_program_is_for_this_machine() {
        let elf = read(&File::open("/proc/self/exe").unwrap()).unwrap();
        assert_eq!(Some(elf.machine), OURS);
    }

    #[test]
    fn what_is_cut_off_or_no_program_is_none() {
        let whole = program(62, Some("/lib64/ld.so"), true, false);
        for length in 0..whole.len() {
            assert_eq!(read_bytes(&whole[..length]), None, "{length}");
        }
        let mut relocatable = whole.clone();
        relocatable[16] = 1;
        assert_eq!(read_bytes(&relocatable), None);
        let mut without_segments = whole;
        without_segments[56] = 0;
        assert_eq!(read_bytes(&without_segments), None);
        assert_eq!(read_bytes(b"#!/bin/sh\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_behind_the_magic_are_read_without_a_panic(
            rest in proptest::collection::vec(any::<u8>(), 0..256), wide in any::<bool>()
        ) {
            let mut bytes = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1];
            bytes.extend(rest);
            let _ = read_bytes(&bytes);
        }
    }
}
