//! Small disk images as image builders make them: boot code, data behind the table, numbered partitions
//! with gaps, and content in which every 4 KiB differ.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::loop_device::LoopDevice;
use ironroot::units::{Digest, HashAlgorithm};
use sha2::Digest as _;

pub const MIB: usize = 1 << 20;

/// The last 4 KiB before byte 1 MiB, where ironroot keeps its record.
pub const RECORD: std::ops::Range<usize> = MIB - 4096..MIB;

/// A GPT image of `mib` MiB (at least 8) with partitions 14, 15 and 1, in this order.
pub fn gpt(mib: usize) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    std::fs::write(&file, vec![0; mib * MIB]).unwrap();
    partition(file.to_str().unwrap(), mib, 2048);
    let mut image = std::fs::read(&file).unwrap();
    fill(&mut image, 40 * 512, mib);
    image
}

/// The same for a disk with sectors of 4096 bytes.
pub fn gpt_4096(mib: usize) -> Vec<u8> {
    let device = LoopDevice::attached(&vec![0; mib * MIB], &["--sector-size", "4096"]);
    partition(device.arg(), mib, 256);
    let mut image = device.bytes();
    fill(&mut image, 8 * 4096, mib);
    image
}

/// Writes the table with sfdisk(8); `per_mib` is the number of sectors in a MiB.
fn partition(place: &str, mib: usize, per_mib: usize) {
    let part = |number: usize, from: usize, to: usize, kind: &str| {
        format!(
            "p{number} : start={}, size={}, type={kind}, uuid=7E2A9A5B-62B0-4A1D-9A42-{number:012}, name=\"part {number}\"\n",
            from * per_mib,
            (to - from) * per_mib
        )
    };
    let script = [
        "label: gpt\nlabel-id: 7E2A9A5B-62B0-4A1D-9A42-AAAAAAAAAAAA\n".to_owned(),
        part(14, 1, 2, "21686148-6449-6E6F-744E-656564454649"),
        part(15, 2, 4, "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"),
        part(1, 4, mib - 1, "0FC63DAF-8483-4772-8E79-3D69D8477DE4"),
    ];
    let args = ["--quiet", "--no-reread", "--no-tell-kernel", place];
    let out = filtered("sfdisk", &args, script.concat().as_bytes());
    assert!(out.is_empty());
}

/// An MBR image of `mib` MiB with one partition up to `partition_end` MiB; the rest has data as well.
pub fn mbr(mib: usize, partition_end: usize) -> Vec<u8> {
    let mut image = vec![0; mib * MIB];
    // One primary entry of type 0x83 from 1 MiB on, active; the disk signature; the boot signature.
    image[440..444].copy_from_slice(&0x1234_5678_u32.to_le_bytes());
    image[446] = 0x80;
    image[450] = 0x83;
    image[454..458].copy_from_slice(&2048u32.to_le_bytes());
    let sectors = u32::try_from((partition_end - 1) * 2048).unwrap();
    image[458..462].copy_from_slice(&sectors.to_le_bytes());
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    fill(&mut image, 512, mib + 1);
    image
}

/// Boot code, data from `table_end` to the record's place, and everything up to the last MiB of `mib`.
fn fill(image: &mut [u8], table_end: usize, mib: usize) {
    let boot_code = noise(440, 7);
    image[..440].copy_from_slice(&boot_code);
    let gap = noise(RECORD.start - table_end, 8);
    image[table_end..RECORD.start].copy_from_slice(&gap);
    let body = noise((mib - 2) * MIB, 9);
    image[MIB..(mib - 1) * MIB].copy_from_slice(&body);
}

/// Bytes that every compressor makes about half as long, and of which no two pages are the same.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 4096);
    while bytes.len() < len {
        for _ in 0..256 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_be_bytes());
        }
        bytes.resize(bytes.len() + 2048, 0x11);
    }
    bytes.truncate(len);
    bytes
}

/// `bytes` through a compressor.
pub fn compressed(program: &str, bytes: &[u8]) -> Vec<u8> {
    filtered(program, &["-1", "-c"], bytes)
}

/// What a program makes of `input`.
fn filtered(program: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let mut to_child = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || to_child.write_all(input).unwrap());
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{program}");
        out.stdout
    })
}

/// As `image.digest` wants it.
pub fn sha256(bytes: &[u8]) -> String {
    Digest::from_bytes(HashAlgorithm::Sha256, &sha2::Sha256::digest(bytes)).to_string()
}
