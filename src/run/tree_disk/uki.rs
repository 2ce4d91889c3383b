//! Unified kernel images (UAPI.5): where a tree has one, and the command line in it.

use std::path::{Path, PathBuf};

use super::rooted::{self, is_file, names};
use crate::error::Result;
use crate::sys::beneath::Root;

/// Where one is looked for, as messages say it.
pub const PLACES: &str = "/efi/EFI/Linux/*.efi, /boot/efi/EFI/Linux/*.efi, /boot/EFI/Linux/*.efi, /boot/*.efi, /usr/lib/modules/VERSION/*.efi";

const DIRECTORIES: [&str; 4] = [
    "efi/EFI/Linux",
    "boot/efi/EFI/Linux",
    "boot/EFI/Linux",
    "boot",
];

/// The headers of a PE file lie within so much.
const HEAD: u64 = 64 << 10;

/// Command lines are no longer (x86: arch/x86/include/asm/setup.h, `COMMAND_LINE_SIZE`), and a section is padded.
const CMDLINE: u64 = 64 << 10;

/// The unified kernel images of a tree, the newest last. A PE file without a kernel in it is none.
pub fn find(root: &Root) -> Result<Vec<PathBuf>> {
    let mut directories: Vec<PathBuf> = DIRECTORIES.iter().map(PathBuf::from).collect();
    let modules = Path::new("usr/lib/modules");
    directories.extend(names(root, modules)?.iter().map(|v| modules.join(v)));
    let mut found = Vec::new();
    for directory in directories {
        for name in names(root, &directory)? {
            let path = directory.join(&name);
            let is_efi = Path::new(&name)
                .extension()
                .is_some_and(|e| e.eq_ignore_ascii_case("efi"));
            if is_efi && is_file(root, &path) && is_uki(root, &path)? {
                found.push(path);
            }
        }
    }
    let name = |path: &PathBuf| {
        path.file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    found.sort_by(|a, b| super::kernels::compare(&name(a), &name(b)));
    Ok(found)
}

fn is_uki(root: &Root, path: &Path) -> Result<bool> {
    let head = rooted::head(root, path, 0, HEAD)?;
    Ok(sections(&head).iter().any(|s| s.name == ".linux"))
}

/// The command line in a unified kernel image; empty where it has none.
pub fn command_line(root: &Root, path: &Path) -> Result<String> {
    let head = rooted::head(root, path, 0, HEAD)?;
    let all = sections(&head);
    let Some(section) = all.iter().find(|s| s.name == ".cmdline") else {
        return Ok(String::new());
    };
    let bytes = rooted::head(root, path, section.start, section.length.min(CMDLINE))?;
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).trim().to_owned())
}

/// A section of a PE file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    name: String,
    start: u64,
    length: u64,
}

/// The table of sections (Microsoft PE format, "Section Table"). What makes no sense has none.
fn sections(head: &[u8]) -> Vec<Section> {
    read_sections(head).unwrap_or_default()
}

fn read_sections(head: &[u8]) -> Option<Vec<Section>> {
    if !head.starts_with(b"MZ") {
        return None;
    }
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = head.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    };
    let pe = usize::try_from(number(0x3c, 4)?).ok()?;
    if head.get(pe..pe.checked_add(4)?)? != b"PE\0\0" {
        return None;
    }
    let count = number(pe.checked_add(6)?, 2)?;
    let optional = usize::try_from(number(pe.checked_add(20)?, 2)?).ok()?;
    let table = pe.checked_add(24)?.checked_add(optional)?;
    let mut sections = Vec::new();
    for i in 0..usize::try_from(count).ok()? {
        let at = table.checked_add(i.checked_mul(40)?)?;
        let Some(name) = head.get(at..at.checked_add(8)?) else {
            break;
        };
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        // What is in the file may be padded beyond what is in memory.
        let (in_memory, in_file) = (number(at + 8, 4)?, number(at + 16, 4)?);
        sections.push(Section {
            name: String::from_utf8_lossy(name).into_owned(),
            start: number(at + 20, 4)?,
            length: if in_memory == 0 {
                in_file
            } else {
                in_memory.min(in_file)
            },
        });
    }
    Some(sections)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A PE file with nothing but sections.
    pub(in crate::run::tree_disk) fn sample(all: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[0x3c] = 0x80;
        bytes[0x80..0x84].copy_from_slice(b"PE\0\0");
        bytes[0x86] = u8::try_from(all.len()).unwrap();
        for (i, (name, content)) in all.iter().enumerate() {
            let at = 0x80 + 24 + i * 40;
            let (start, length) = (bytes.len(), u32::try_from(content.len()).unwrap());
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&length.to_le_bytes());
            let start = u32::try_from(start).unwrap();
            bytes[at + 16..at + 20].copy_from_slice(&512u32.to_le_bytes());
            bytes[at + 20..at + 24].copy_from_slice(&start.to_le_bytes());
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        bytes
    }

    #[test]
    fn unified_kernels_are_told_from_other_programs_and_their_command_line_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str, bytes: &[u8]| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let uki = sample(&[
            (".text", b"x"),
            (".cmdline", b"root=LABEL=x quiet\0"),
            (".linux", b"kernel"),
        ]);
        put("boot/efi/EFI/Linux/os-6.9.efi", &uki);
        put(
            "usr/lib/modules/6.10/os-6.10.efi",
            &sample(&[(".linux", b"kernel")]),
        );
        put("boot/memtest.efi", &sample(&[(".text", b"x")]));
        put("boot/text.efi", b"MZ");
        let root = Root::open(folder.path()).unwrap();
        let found = find(&root).unwrap();
        let names: Vec<&str> = found.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "boot/efi/EFI/Linux/os-6.9.efi",
                "usr/lib/modules/6.10/os-6.10.efi"
            ]
        );
        assert_eq!(
            command_line(&root, &found[0]).unwrap(),
            "root=LABEL=x quiet"
        );
        assert_eq!(command_line(&root, &found[1]).unwrap(), "");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in any::<u8>()) {
            let mut head = b"MZ".to_vec();
            head.extend(&bytes);
            let _ = sections(&head);
            if let Some(place) = head.get_mut(0x3c..0x40) {
                place.copy_from_slice(&u32::from(at).to_le_bytes());
            }
            let at = usize::from(at);
            if let Some(place) = head.get_mut(at..at + 4) {
                place.copy_from_slice(b"PE\0\0");
            }
            let _ = sections(&head);
        }
    }
}
