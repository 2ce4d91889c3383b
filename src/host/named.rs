//! What a path that the operator named is: the planner may not look, so it is told.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::{DevNum, Disk, DiskKind, Holder, Named, NamedKind, contents};
use crate::units::{Bytes, SectorSize};

/// Looks at `path` below `root`, following links; opens nothing.
pub fn look(root: &Path, path: &Path, disks: &[Disk]) -> Named {
    let place = root.join(path.strip_prefix("/").unwrap_or(path));
    let what = match std::fs::metadata(&place) {
        Ok(meta) if meta.file_type().is_block_device() => {
            let dev = DevNum::of_rdev(meta.rdev()).unwrap_or_default();
            let of = disks.iter().find_map(|d| {
                let part = d.partitions.iter().find(|p| p.dev == dev)?;
                Some(NamedKind::Partition {
                    disk: d.name.clone(),
                    number: part.number,
                })
            });
            of.unwrap_or(NamedKind::WholeDisk { dev })
        }
        Ok(meta) if meta.is_file() => NamedKind::RegularFile {
            size: Bytes(meta.len()),
        },
        Ok(meta) if meta.is_dir() => NamedKind::Other {
            what: "a directory".to_owned(),
        },
        Ok(_) => NamedKind::Other {
            what: "neither a block device nor a file".to_owned(),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => NamedKind::Missing,
        Err(e) => NamedKind::Other {
            what: format!("a path that cannot be looked at ({e})"),
        },
    };
    Named {
        path: path.to_owned(),
        what,
    }
}

/// The loop devices over a file: what is mounted from them would not survive.
fn holders(file: &Path, name: &str, disks: &[Disk]) -> Vec<Holder> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let Some(own) = identity(file) else {
        return Vec::new();
    };
    disks
        .iter()
        .filter(|d| d.backing_file.as_deref().and_then(identity) == Some(own))
        .map(|d| Holder::Device {
            device: name.to_owned(),
            holder: d.name.clone(),
            what: "a loop device".to_owned(),
        })
        .collect()
}

/// A regular file as a disk with 512-byte sectors, for a target that was allowed to be a file.
pub fn file_as_disk(root: &Path, named: &Named, disks: &[Disk]) -> Option<Disk> {
    let NamedKind::RegularFile { size } = named.what else {
        return None;
    };
    let mut disk = [Disk {
        name: named.path.to_string_lossy().into_owned(),
        path: named.path.clone(),
        kind: DiskKind::Other,
        size,
        sector: Some(SectorSize::S512),
        ..Disk::default()
    }];
    contents::read_all(root, &mut disk);
    let [mut disk] = disk;
    let place = root.join(named.path.strip_prefix("/").unwrap_or(&named.path));
    disk.holders = holders(&place, &disk.name, disks);
    Some(disk)
}

/// udev writes characters that it does not like in a link as `\xHH`.
pub fn unescaped(text: &str) -> String {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let (Some(code), Some(rest)) = (code, part.get(2..)) {
            bytes.push(code);
            bytes.extend_from_slice(rest.as_bytes());
        } else {
            bytes.extend_from_slice(b"\\x");
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
