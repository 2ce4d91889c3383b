//! UEFI variables through efivarfs (kernel: Documentation/filesystems/efivarfs.rst): a file per variable,
//! named `Name-GUID`, that holds four bytes of attributes and the value.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use super::inode_flags;

/// Where efivarfs is mounted, below the root.
const DIRECTORY: &str = "sys/firmware/efi/efivars";
/// Firmware keeps all variables together in less.
const SIZE_LIMIT: u64 = 1 << 20;

/// The namespace of `BootOrder` and its like (UEFI specification, section 3.3, `EFI_GLOBAL_VARIABLE`).
pub const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Attributes of a boot variable: non-volatile, for boot services, for the running system
/// (UEFI specification, section 8.2).
pub const BOOT_ATTRIBUTES: u32 = 0x7;

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Attributes, see UEFI specification, section 8.2.
    pub attributes: u32,
    /// The value.
    pub data: Vec<u8>,
}

/// The names of all variables of the namespace `guid`, without it.
pub fn names(root: &Path, guid: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join(DIRECTORY))? {
        let name = entry?.file_name();
        let variable = name
            .to_str()
            .and_then(|n| n.strip_suffix(guid))
            .and_then(|n| n.strip_suffix('-'));
        names.extend(variable.map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Reads a variable; `None` where there is none.
pub fn read(root: &Path, name: &str, guid: &str) -> io::Result<Option<Variable>> {
    let file = match File::open(path(root, name, guid)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(SIZE_LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes
        .split_first_chunk::<4>()
        .map(|(attributes, data)| Variable {
            attributes: u32::from_le_bytes(*attributes),
            data: data.to_vec(),
        }))
}

/// Writes a variable, creating it where it is missing. The kernel makes most variables immutable against
/// `rm -r`; that flag is dropped first.
pub fn write(root: &Path, name: &str, guid: &str, variable: &Variable) -> io::Result<()> {
    let path = path(root, name, guid);
    let existed = path.exists();
    if existed {
        make_mutable(&path)?;
    }
    // One write call is one SetVariable; no O_TRUNC, which would be another.
    let mut bytes = variable.attributes.to_le_bytes().to_vec();
    bytes.extend_from_slice(&variable.data);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)?;
    if let Err(error) = write_once(&mut file, &bytes) {
        if !existed {
            // Older kernels leave an empty file behind that is no variable.
            let _ = std::fs::remove_file(&path);
        }
        return Err(error);
    }
    // efivarfs sets the length itself; a plain file below another root keeps its old tail.
    let length = u64::try_from(bytes.len()).map_err(io::Error::other)?;
    if file.metadata()?.len() > length {
        file.set_len(length)?;
    }
    Ok(())
}

/// Deletes a variable; one that is not there is deleted.
pub fn delete(root: &Path, name: &str, guid: &str) -> io::Result<()> {
    let path = path(root, name, guid);
    if !path.exists() {
        return Ok(());
    }
    make_mutable(&path)?;
    std::fs::remove_file(&path)
}

fn path(root: &Path, name: &str, guid: &str) -> PathBuf {
    root.join(DIRECTORY).join(format!("{name}-{guid}"))
}

fn write_once(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let written = loop {
        match file.write(bytes) {
            // The kernel limits the rate of variable accesses, and a signal may end the wait.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    if written == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{written} of {} bytes were written",
            bytes.len()
        )))
    }
}

fn make_mutable(path: &Path) -> io::Result<()> {
    inode_flags::clear(File::open(path)?.as_fd(), inode_flags::IMMUTABLE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(DIRECTORY)).unwrap();
        dir
    }

    fn variable(data: &[u8]) -> Variable {
        Variable {
            attributes: BOOT_ATTRIBUTES,
            data: data.to_vec(),
        }
    }

    #[test]
    fn a_variable_is_attributes_and_value() {
        let dir = fixture();
        let root = dir.path();
        assert_eq!(read(root, "BootNext", GLOBAL).unwrap(), None);
        write(root, "BootNext", GLOBAL, &variable(&[1, 0])).unwrap();
        let file = root.join(DIRECTORY).join(format!("BootNext-{GLOBAL}"));
        assert_eq!(std::fs::read(&file).unwrap(), [7, 0, 0, 0, 1, 0]);
        assert_eq!(
            read(root, "BootNext", GLOBAL).unwrap(),
            Some(variable(&[1, 0]))
        );
        // Shorter than before: no tail is left.
        write(root, "BootNext", GLOBAL, &variable(&[9])).unwrap();
        assert_eq!(
            read(root, "BootNext", GLOBAL).unwrap(),
            Some(variable(&[9]))
        );
        assert_eq!(names(root, GLOBAL).unwrap(), ["BootNext"]);
        assert_eq!(names(root, "other").unwrap(), [""; 0]);
        delete(root, "BootNext", GLOBAL).unwrap();
        delete(root, "BootNext", GLOBAL).unwrap();
        assert_eq!(read(root, "BootNext", GLOBAL).unwrap(), None);
    }

    #[test]
    fn a_file_without_attributes_is_no_variable() {
        let dir = fixture();
        std::fs::write(path(dir.path(), "X", GLOBAL), [1, 2]).unwrap();
        assert_eq!(read(dir.path(), "X", GLOBAL).unwrap(), None);
    }

    #[test]
    fn an_immutable_variable_is_written_and_deleted() {
        let dir = fixture();
        let root = dir.path();
        write(root, "Boot0001", GLOBAL, &variable(b"old")).unwrap();
        let file = path(root, "Boot0001", GLOBAL);
        for step in ["write", "delete"] {
            let fd = File::open(&file).unwrap();
            inode_flags::set(fd.as_fd(), inode_flags::IMMUTABLE).unwrap();
            assert!(
                OpenOptions::new().write(true).open(&file).is_err(),
                "the flag protects the file"
            );
            match step {
                "write" => write(root, "Boot0001", GLOBAL, &variable(b"new")).unwrap(),
                _ => delete(root, "Boot0001", GLOBAL).unwrap(),
            }
        }
        assert!(!file.exists());
    }

    #[test]
    fn a_refused_new_variable_leaves_nothing_behind() {
        let dir = fixture();
        let other = variable(b"x");
        assert!(write(dir.path(), "no/such", GLOBAL, &other).is_err());
        assert_eq!(names(dir.path(), GLOBAL).unwrap(), [""; 0]);
    }
}
