//! Unified kernel images (UAPI.5): where a tree has one, and the command line in it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::rooted::names;
use crate::error::{Class, Context as _, Failure, Result};
use crate::image::boot::addon;
use crate::image::boot::uki::{Section, machine, sections};
use crate::sys::beneath::{Root, Walk};

/// Where one is looked for, as messages say it.
pub const PLACES: &str = "/efi/EFI/Linux/*.efi, /boot/efi/EFI/Linux/*.efi, /boot/EFI/Linux/*.efi, /boot/*.efi, /usr/lib/modules/VERSION/*.efi";

const DIRECTORIES: [&str; 4] = [
    "efi/EFI/Linux",
    "boot/efi/EFI/Linux",
    "boot/EFI/Linux",
    "boot",
];

/// Command lines are no longer (x86: arch/x86/include/asm/setup.h, `COMMAND_LINE_SIZE`), and a section is padded.
const TEXT: u64 = 64 << 10;

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
            if is_efi && is_uki(root, &path) {
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

fn is_uki(root: &Root, path: &Path) -> bool {
    section(root, path, ".linux").is_some()
}

/// A section of a PE file, and the file. What makes no sense has none.
fn section(root: &Root, path: &Path, name: &str) -> Option<(File, Section)> {
    let file = root.file(path, Walk::InRoot).ok()?;
    let all = sections(&mut &file).ok()?;
    let found = all.into_iter().find(|s| s.name == name)?;
    Some((file, found))
}

/// Why no words can be added to those in a unified kernel image; `None` where an addon does that.
pub fn takes_no_words(root: &Root, path: &Path) -> Result<Option<String>> {
    let magic = content(root, path, ".sdmagic")?;
    Ok(match magic.as_deref().and_then(addon::stub_version) {
        Some(version) if addon::reads_addons(version) => None,
        Some(version) => Some(format!(
            "its systemd-stub {version} reads no addons, that of systemd 254 is the first to"
        )),
        None => Some("it is not of systemd-stub, whose addons carry words".to_owned()),
    })
}

/// An addon for it, with `line`.
pub fn addon_for(root: &Root, path: &Path, line: &str) -> Result<Vec<u8>> {
    let reading = || format!("reading {}", path.display());
    let file = root.file(path, Walk::InRoot)?;
    let machine = machine(&mut &file).context(Class::Integrity, reading)?;
    addon::addon(machine, line).ok_or_else(|| {
        Failure::new(
            Class::Integrity,
            format!(
                "no addon can be made for {}: its machine {machine:#x} is not known, or there are too many words",
                path.display()
            ),
        )
    })
}

/// The command line in a unified kernel image; empty where it has none.
pub fn command_line(root: &Root, path: &Path) -> Result<String> {
    let bytes = content(root, path, ".cmdline")?.unwrap_or_default();
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).trim().to_owned())
}

/// The text in a section; `None` where there is no such section.
fn content(root: &Root, path: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let Some((mut file, section)) = section(root, path, name) else {
        return Ok(None);
    };
    let length = section.place.end.saturating_sub(section.place.start);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(section.place.start))
        .and_then(|_| file.take(length.min(TEXT)).read_to_end(&mut bytes))
        .context(Class::Media, || format!("reading {}", path.display()))?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PE file with nothing but sections.
    fn sample(all: &[(&str, &[u8])]) -> Vec<u8> {
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
}
