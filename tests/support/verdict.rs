//! What a disk is after a run: complete to the last byte, not bootable, or untouched.

use super::disk_image::{MIB, RECORD};
use super::loop_device::{LoopDevice, PATTERN, tool, try_tool};
use ironroot::image::record::{self, State};

/// Where `a` and `b` differ first.
#[track_caller]
pub fn same(a: &[u8], b: &[u8], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: length");
    if a != b {
        let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap();
        panic!("{what}: byte {at} is {:#04x}, not {:#04x}", a[at], b[at]);
    }
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// [`assert_complete_gpt`], and the kernel lists the partitions.
#[track_caller]
pub fn assert_installed_gpt(disk: &LoopDevice, image: &[u8], sector: usize, before: u8) {
    assert_complete_gpt(disk, image, sector, before);
    assert_eq!(disk.partitions(), [1, 14, 15]);
}

/// `image` is on `disk`, every byte of it, its backup GPT at the disk's end, and other people's tools
/// find nothing to complain about. `before` is what the disk was filled with.
#[track_caller]
pub fn assert_complete_gpt(disk: &LoopDevice, image: &[u8], sector: usize, before: u8) {
    let now = disk.bytes();
    let array = (128 * 128usize).div_ceil(sector);
    let last = now.len() / sector - 1;
    let backup = (last - array) * sector;
    let stale = image.len() - (array + 1) * sector;

    // Head: what was patched, and the rest byte for byte.
    let mut head = image[..MIB].to_vec();
    head[458..462].copy_from_slice(&u32::try_from(last).unwrap().to_le_bytes());
    let header = &mut head[sector..sector + 92];
    header[16..20].copy_from_slice(&now[sector + 16..sector + 20]);
    header[32..40].copy_from_slice(&(last as u64).to_le_bytes());
    header[48..56].copy_from_slice(&((last - array - 1) as u64).to_le_bytes());
    same(&now[..RECORD.start], &head[..RECORD.start], "head");
    let record = record::decode(&now[RECORD]).unwrap().expect("a record");
    assert_ne!(record.state, State::Mark);

    // Body, then what nobody may have touched, then zeros, then the backup.
    let body_end = stale.min(backup);
    same(&now[MIB..body_end], &image[MIB..body_end], "body");
    let cleared = now.len() - 2 * MIB;
    if stale < backup {
        same(
            &now[stale..image.len().min(backup)],
            &vec![0; image.len().min(backup) - stale],
            "the image's own backup GPT",
        );
    }
    if image.len() < cleared {
        let rest = &now[image.len()..cleared];
        same(rest, &vec![before; rest.len()], "behind the image");
    }
    let gap = &now[image.len().max(cleared).min(backup)..backup];
    same(gap, &vec![0; gap.len()], "before the backup GPT");
    let entries = &now[2 * sector..2 * sector + 128 * 128];
    same(&now[backup..backup + 128 * 128], entries, "backup entries");
    let header = &now[last * sector..];
    assert_eq!(&header[..8], b"EFI PART");
    assert_eq!((le(&header[24..32]), le(&header[32..40])), (last as u64, 1));

    let text = tool("sgdisk", &["--verify", disk.arg()]);
    assert!(text.contains("No problems found"), "{text}");
    let text = tool("sfdisk", &["--verify", disk.arg()]);
    assert!(text.contains("No errors detected"), "{text}");
}

/// Nothing on `disk` can be taken for a system: no boot code, no table at either end, no signature.
#[track_caller]
pub fn assert_not_bootable(disk: &LoopDevice) {
    let now = disk.bytes();
    let head = &now[..RECORD.start];
    same(head, &vec![0; head.len()], "before the record's place");
    let tail = &now[now.len() - 64 * 512..];
    let header = tail.chunks(512).position(|s| s.starts_with(b"EFI PART"));
    assert_eq!(header, None, "a backup GPT");
    if let Some(record) = record::decode(&now[RECORD]).unwrap() {
        assert_eq!(record.state, State::Mark);
    }
    assert_eq!(tool("wipefs", &[disk.arg()]), "");
    let (found, text) = try_tool("blkid", &["--probe", disk.arg()]);
    assert!(!found, "{text}");
}

/// Zeros where the backup GPT will be.
#[track_caller]
pub fn assert_no_tail(disk: &LoopDevice) {
    let now = disk.bytes();
    let tail = &now[now.len() - 33 * 512..];
    same(tail, &vec![0; tail.len()], "the place of the backup GPT");
}

/// Not a byte differs, and the kernel was asked for no write.
pub struct Untouched<'a> {
    disk: &'a LoopDevice,
    bytes: Vec<u8>,
    written: Vec<u64>,
}

impl Untouched<'_> {
    pub fn of(disk: &LoopDevice) -> Untouched<'_> {
        Untouched {
            disk,
            bytes: disk.bytes(),
            written: disk.written(),
        }
    }

    #[track_caller]
    pub fn check(&self) {
        assert_eq!(
            self.disk.written(),
            self.written,
            "writes to {}",
            self.disk.arg()
        );
        same(&self.disk.bytes(), &self.bytes, "a disk that was refused");
    }
}

/// The whole disk holds the pattern that it was filled with.
#[track_caller]
pub fn assert_pattern(disk: &LoopDevice) {
    let now = disk.bytes();
    same(&now, &vec![PATTERN; now.len()], "a disk that was refused");
}
