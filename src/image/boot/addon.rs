//! Addons of unified kernel images: a PE file with nothing but a `.cmdline`, whose words systemd-stub adds to those in
//! the image (systemd-stub(7), "Companion Files", since systemd 254). One in `\loader\addons` counts for every image
//! on its partition.
//!
//! Firmware loads it and starts nothing of it (Microsoft PE format specification, "Optional Header",
//! "Section Table"; UEFI specification 2.10, section 2.1.1).

/// Where one for all images lies on the EFI system partition.
pub const PLACE: &str = "loader/addons/ironroot.addon.efi";

/// The first systemd-stub that reads addons.
const FIRST: u32 = 254;

/// Words are no longer (arch/x86/include/asm/setup.h has 2048).
const LINE: usize = 16 << 10;

const FILE_ALIGNMENT: usize = 512;
const PAGE: usize = 4096;
const HEADERS: usize = 512;

/// The version of systemd-stub that its section `.sdmagic` names: `#### LoaderInfo: systemd-stub 257.13-1 ####`.
pub fn stub_version(magic: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(magic.split(|b| *b == 0).next()?).ok()?;
    let version = text.split_once("systemd-stub ")?.1;
    let end = version
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(version.len());
    version.get(..end)?.parse().ok()
}

/// The first systemd-stub that takes initrds and microcode from addons.
const FIRST_WITH_INITRDS: u32 = 257;

/// Whether a systemd-stub of this version takes initrds and microcode from addons.
pub const fn reads_initrds(version: u32) -> bool {
    version >= FIRST_WITH_INITRDS
}

/// Whether a systemd-stub of this version reads addons.
pub const fn reads_addons(version: u32) -> bool {
    version >= FIRST
}

/// An addon with these words, for images whose COFF header names `machine`; `None` for a machine that is not known,
/// or too many words.
pub fn addon(machine: u16, line: &str) -> Option<Vec<u8>> {
    // Nobody calls it; a program has a beginning all the same: return 0.
    let code: &[u8] = match machine {
        0x8664 => &[0x31, 0xc0, 0xc3],
        0xaa64 => &[0x00, 0x00, 0x80, 0xd2, 0xc0, 0x03, 0x5f, 0xd6],
        _ => return None,
    };
    if line.len() > LINE || line.contains('\0') {
        return None;
    }
    let words = [line.as_bytes(), b"\0"].concat();
    let raw = words.len().next_multiple_of(FILE_ALIGNMENT);
    let whole = words.len().next_multiple_of(PAGE).checked_add(2 * PAGE)?;
    let mut out = Writer::default();
    // The DOS header has two fields that count: its magic, and where the PE header is.
    out.bytes(b"MZ").zeros(58).word(64);
    out.bytes(b"PE\0\0").half(machine).half(2).zeros(12);
    // Size of the optional header; an executable that may be loaded above 2 GiB.
    out.half(240).half(0x22);
    // PE32+, without a linker's version; sizes of code and data; where code begins.
    out.half(0x20b)
        .zeros(2)
        .word(FILE_ALIGNMENT)
        .word(raw)
        .word(0)
        .word(PAGE)
        .word(PAGE);
    // Preferred place none, alignments, versions.
    out.zeros(8).word(PAGE).word(FILE_ALIGNMENT).zeros(16);
    out.word(whole).word(HEADERS).word(0);
    // An EFI application, anywhere in memory, without writable code.
    out.half(10).half(0x160);
    // Stack and heap; 16 directories, all empty.
    out.zeros(32).word(0).word(16).zeros(16 * 8);
    let sections = [
        (
            *b".text\0\0\0",
            code.len(),
            PAGE,
            FILE_ALIGNMENT,
            HEADERS,
            0x6000_0020,
        ),
        (
            *b".cmdline",
            words.len(),
            2 * PAGE,
            raw,
            HEADERS + FILE_ALIGNMENT,
            0x4000_0040,
        ),
    ];
    for (name, size, address, stored, at, flags) in sections {
        out.bytes(&name)
            .word(size)
            .word(address)
            .word(stored)
            .word(at);
        out.zeros(12).word(flags);
    }
    out.fill(HEADERS).bytes(code).fill(HEADERS + FILE_ALIGNMENT);
    out.bytes(&words)
        .fill((HEADERS + FILE_ALIGNMENT).checked_add(raw)?);
    out.done()
}

/// Puts little-endian fields behind one another.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    too_large: bool,
}

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn zeros(&mut self, count: usize) -> &mut Writer {
        self.fill(self.bytes.len().saturating_add(count))
    }

    /// Zeros up to this length.
    fn fill(&mut self, length: usize) -> &mut Writer {
        self.too_large |= length < self.bytes.len();
        self.bytes.resize(length.max(self.bytes.len()), 0);
        self
    }

    fn half(&mut self, number: u16) -> &mut Writer {
        self.bytes(&number.to_le_bytes())
    }

    fn word(&mut self, number: usize) -> &mut Writer {
        let number = u32::try_from(number).unwrap_or_else(|_| {
            self.too_large = true;
            0
        });
        self.bytes(&number.to_le_bytes())
    }

    fn done(self) -> Option<Vec<u8>> {
        (!self.too_large).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::boot::uki::sections;
    use proptest::prelude::*;
    use std::io::Cursor;

    #[test]
    fn versions_are_those_of_systemd() {
        let of = |text: &str| stub_version(text.as_bytes());
        assert_eq!(
            of("#### LoaderInfo: systemd-stub 257.13-1~deb13u1 ####\0\0"),
            Some(257)
        );
        assert_eq!(of("#### LoaderInfo: systemd-stub 252.39-1 ####"), Some(252));
        assert_eq!(of("#### LoaderInfo: systemd-boot 257 ####"), None);
        assert_eq!(of("systemd-stub x"), None);
        assert!(reads_addons(254) && !reads_addons(253));
    }

    #[test]
    fn what_no_image_can_be_given_is_none() {
        assert_eq!(addon(0x14c, "quiet"), None);
        assert_eq!(addon(0x8664, "a\0b"), None);
        assert_eq!(addon(0x8664, &"x".repeat(LINE + 1)), None);
    }

    /// objdump(1) reads it too.
    #[test]
    fn another_program_reads_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), addon(0x8664, "quiet console=ttyS0").unwrap()).unwrap();
        let out = std::process::Command::new("objdump")
            .args(["-h", "-f"])
            .arg(file.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(
            out.status.success() && text.contains("pei-x86-64"),
            "{text}"
        );
        assert!(text.contains(".cmdline      00000014"), "{text}");
    }

    proptest! {
        #[test]
        fn the_words_are_in_it(line in "[ -~]{0,600}", arm in any::<bool>()) {
            let machine = if arm { 0xaa64 } else { 0x8664 };
            let file = addon(machine, &line).unwrap();
            let found = sections(&mut Cursor::new(&file)).unwrap();
            prop_assert_eq!(found.len(), 2);
            let words = &found[1];
            prop_assert_eq!(&words.name, ".cmdline");
            let place = usize::try_from(words.place.start).unwrap()..usize::try_from(words.place.end).unwrap();
            prop_assert_eq!(&file[place], [line.as_bytes(), b"\0"].concat());
        }
    }
}
