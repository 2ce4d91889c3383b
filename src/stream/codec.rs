//! Which format a download has, by its first bytes alone: one table of magic, name and what follows. To
//! add a codec: an arm in [`Codec`], a row in [`FORMATS`], a file in `codec/`.

mod bzip2;
mod frames;
mod gzip;
mod lz4;
mod means;
mod parallel;
#[cfg(test)]
mod proofs;
mod source;
mod xz;
mod zstd;

use std::fmt;
use std::io;

pub(super) use means::Means;
pub(super) use source::Chunks;

use super::buffer::{BLOCKS, BLOCKS_PARALLEL};
use super::cancel::Cancel;
use crate::error::{Class, Failure, Result};
use crate::image::qcow2;

/// The largest window or dictionary that a stream may ask for, in bytes (`zstd --long=27`; `xz -9` needs
/// half of it). Part of invariant I7.
pub const WINDOW_CAP: u64 = 128 << 20;

/// How many of a stream's first bytes the table looks at.
pub(super) const HEAD: usize = 2048;

/// How an image is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not at all.
    Raw,
    /// gzip (RFC 1952): any number of members, bgzf, zero padding.
    Gzip,
    /// Zstandard (RFC 8878): any number of frames, skippable ones as well.
    Zstd,
    /// xz (format 1.2): any number of streams and blocks, stream padding.
    Xz,
    /// bzip2: any number of streams.
    Bzip2,
    /// lz4 frames (format 1.6): any number, skippable ones as well; not the legacy frame.
    Lz4,
    /// A qcow2 image, which is read in two passes.
    Qcow2,
}

impl Codec {
    /// The usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Raw => "raw",
            Codec::Gzip => "gzip",
            Codec::Zstd => "zstd",
            Codec::Xz => "xz",
            Codec::Bzip2 => "bzip2",
            Codec::Lz4 => "lz4",
            Codec::Qcow2 => "qcow2",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Decodes what it was made over. A decoder that uses several threads fits behind the same two promises.
pub(super) trait Decoder: Send {
    /// Fills the start of `out`; 0 only when the stream ended as its format demands *and* the source is at
    /// its end, so that nothing trails.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize>;
}

/// What an image is for; a format that serves one purpose is a mistake for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// To be written to a disk as it is.
    #[default]
    Disk,
    /// To be the root of a session.
    Root,
    /// To be unpacked into the root of a disk.
    Tree,
    /// To be found out: a disk where it is one, else a tree.
    DiskOrTree,
    /// To be kept as it is, whatever it is: a kernel or an initrd.
    File,
}

impl Purpose {
    /// Whether a file system that is only read serves it.
    const fn takes_roots(self) -> bool {
        match self {
            Purpose::Root | Purpose::Tree | Purpose::DiskOrTree => true,
            Purpose::Disk | Purpose::File => false,
        }
    }
}

/// What is done with a format.
#[derive(Clone, Copy)]
enum Handling {
    Decode(Codec),
    Refuse,
    /// A file system that is only read: no disk, but a root.
    OnlyRoot,
}

struct Format {
    offset: usize,
    magic: &'static [u8],
    name: &'static str,
    handling: Handling,
}

const fn refuse(offset: usize, magic: &'static [u8], name: &'static str) -> Format {
    Format {
        offset,
        magic,
        name,
        handling: Handling::Refuse,
    }
}

const fn only_root(offset: usize, magic: &'static [u8], name: &'static str) -> Format {
    Format {
        offset,
        magic,
        name,
        handling: Handling::OnlyRoot,
    }
}

const fn decode(magic: &'static [u8], codec: Codec) -> Format {
    Format {
        offset: 0,
        magic,
        name: codec.name(),
        handling: Handling::Decode(codec),
    }
}

/// Everything that must not be written to a disk as it is.
const FORMATS: &[Format] = &[
    decode(&[0x1f, 0x8b], Codec::Gzip),
    decode(&[0x28, 0xb5, 0x2f, 0xfd], Codec::Zstd),
    // Skippable frames (RFC 8878 section 3.1.2), with which pzstd begins. An lz4 file may do so, too; see
    // `find`.
    decode(&[0x50, 0x2a, 0x4d, 0x18], Codec::Zstd),
    decode(&[0xfd, b'7', b'z', b'X', b'Z', 0x00], Codec::Xz),
    decode(b"BZh", Codec::Bzip2),
    decode(&[0x04, 0x22, 0x4d, 0x18], Codec::Lz4),
    refuse(0, &[0x02, 0x21, 0x4c, 0x18], "lz4 (legacy)"),
    refuse(0, b"LZIP", "lzip"),
    refuse(0, &[0x89, b'L', b'Z', b'O', 0x00], "lzop"),
    refuse(0, &[0x5d, 0x00, 0x00, 0x80, 0x00], "lzma"),
    refuse(0, &[0x1f, 0x9d], "compress (.Z)"),
    refuse(0, b"PK\x03\x04", "zip"),
    refuse(0, b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    decode(qcow2::MAGIC, Codec::Qcow2),
    refuse(0, b"KDMV", "VMDK"),
    refuse(0, b"# Disk DescriptorFile", "VMDK descriptor"),
    refuse(0, b"vhdxfile", "VHDX"),
    refuse(0, b"conectix", "VHD"),
    refuse(64, &[0x7f, 0x10, 0xda, 0xbe], "VDI"),
    only_root(0, b"hsqs", "squashfs"),
    only_root(1024, &[0xe2, 0xe1, 0xf5, 0xe0], "erofs"),
    refuse(0, &[0x3a, 0xff, 0x26, 0xed], "Android sparse image"),
];

/// What the first bytes of a download say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sniffed {
    /// How to decode it.
    pub(super) codec: Codec,
    /// The decoded content is at least that long.
    pub(super) at_least: u64,
}

/// Finds the format of a download that begins with `head`, which has [`HEAD`] bytes unless the download is
/// shorter. `what` names the download.
pub(super) fn sniff(what: &str, head: &[u8], purpose: Purpose) -> Result<Sniffed> {
    if head.is_empty() {
        return Err(Failure::new(Class::Integrity, format!("{what} is empty")));
    }
    // A kernel or an initrd may be compressed: whoever starts it decodes it.
    let found = find(head).filter(|_| purpose != Purpose::File);
    let codec = match found {
        Some(format) => match format.handling {
            Handling::Decode(codec) => codec,
            Handling::OnlyRoot if purpose.takes_roots() => Codec::Raw,
            Handling::Refuse | Handling::OnlyRoot => {
                return Err(unsupported(what, format.name, purpose));
            }
        },
        None => Codec::Raw,
    };
    if let Some(format) = FORMATS
        .iter()
        .find(|f| f.offset == 0 && is_cut(head, f.magic))
    {
        let text = format!(
            "{what} ends after {} bytes, in the middle of what may be a {} header",
            head.len(),
            format.name
        );
        return Err(Failure::new(Class::Integrity, text));
    }
    let at_least = match codec {
        Codec::Zstd => zstd::declared(what, head)?,
        Codec::Raw | Codec::Gzip | Codec::Xz | Codec::Bzip2 | Codec::Lz4 | Codec::Qcow2 => 0,
    };
    Ok(Sniffed { codec, at_least })
}

/// Refuses decoded content that is itself in a format that must not be written as it is.
pub(super) fn check_content(what: &str, head: &[u8], purpose: Purpose) -> Result<()> {
    match find(head).map(|format| (format.handling, format.name)) {
        _ if purpose == Purpose::File => Ok(()),
        None => Ok(()),
        Some((Handling::OnlyRoot, _)) if purpose.takes_roots() => Ok(()),
        Some((Handling::Refuse | Handling::OnlyRoot, name)) => {
            Err(unsupported(what, name, purpose))
        }
        Some((Handling::Decode(Codec::Qcow2), _)) => Err(Failure::new(
            Class::Config,
            format!("{what} is compressed qcow2, which cannot be read in the order of its content"),
        )
        .hint("publish the qcow2 as it is; `qemu-img convert -c` compresses inside it")),
        Some((Handling::Decode(codec), _)) => Err(Failure::new(
            Class::Config,
            format!("{what} is compressed twice: its decoded content is {codec} again"),
        )
        .hint("publish the image compressed once")),
    }
}

fn find(head: &[u8]) -> Option<&'static Format> {
    // Both zstd and lz4 may begin with frames to be skipped: what follows them tells.
    let head = match zstd::after_skippable(head) {
        [] => head,
        frame if frame.starts_with(&[0x04, 0x22, 0x4d, 0x18]) => frame,
        _ => head,
    };
    FORMATS
        .iter()
        .find(|f| head.get(f.offset..).is_some_and(|h| h.starts_with(f.magic)))
}

/// Whether `head` is all there is and stops inside of a magic.
fn is_cut(head: &[u8], magic: &[u8]) -> bool {
    head.len() < magic.len() && magic.starts_with(head)
}

fn unsupported(what: &str, name: &str, purpose: Purpose) -> Failure {
    let (wrong, hint) = match purpose {
        Purpose::Disk | Purpose::DiskOrTree => (
            "is not supported for a disk in this version",
            "convert it to qcow2 or to a raw image, compressed with zstd, gzip, xz, lz4 or bzip2 or not at all",
        ),
        Purpose::Root => (
            "is not supported in this version",
            "publish the root as squashfs, erofs, a tar archive or a raw disk image",
        ),
        Purpose::Tree | Purpose::File => (
            "is no tree of files",
            "publish the tree as a tar archive, squashfs or erofs",
        ),
    };
    Failure::new(
        Class::Config,
        format!("{what} is in {name} format, which {wrong}"),
    )
    .hint(hint)
}

/// How a download is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) codec: Codec,
    means: Means,
    /// For frames or members that are decoded side by side.
    plan: Option<frames::Plan>,
}

impl Way {
    /// The way for a download of format `codec` that begins with `head`.
    pub(super) fn of(codec: Codec, head: &[u8], means: Means) -> Way {
        Way {
            codec,
            means,
            plan: frames::Plan::of(codec, head, means.threads),
        }
    }

    /// How many blocks of decoded content may exist.
    pub(super) fn blocks(&self) -> usize {
        match self.plan {
            None => BLOCKS,
            Some(_) => BLOCKS_PARALLEL,
        }
    }

    /// A decoder over `chunks`; `None` for raw, which needs none.
    pub(super) fn decoder(
        &self,
        chunks: Chunks,
        cancel: &Cancel,
    ) -> io::Result<Option<Box<dyn Decoder>>> {
        if let Some(plan) = self.plan {
            let parallel = parallel::Parallel::new(plan, chunks, cancel.clone())?;
            return Ok(Some(Box::new(parallel)));
        }
        Ok(match self.codec {
            // The second pass of qcow2 has a reader of its own.
            Codec::Raw | Codec::Qcow2 => None,
            Codec::Gzip => Some(Box::new(gzip::Gzip::new(chunks))),
            Codec::Zstd => Some(Box::new(zstd::Zstd::new(chunks)?)),
            Codec::Xz => Some(Box::new(xz::Xz::new(chunks, self.means))),
            Codec::Bzip2 => Some(Box::new(bzip2::Bzip2::new(chunks))),
            Codec::Lz4 => Some(Box::new(lz4::Lz4::new(chunks))),
        })
    }
}

/// What a decoder says of bytes that its format does not allow.
fn damaged(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// What a decoder says when its source ends too early.
fn cut_short() -> io::Error {
    io::Error::from(io::ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formats_by_magic() {
        let of = |head: &[u8]| sniff("x", head, Purpose::Disk).map(|s| s.codec);
        assert_eq!(of(b"\x1f\x8b\x08 ...").unwrap(), Codec::Gzip);
        assert_eq!(of(b"\xfd7zXZ\0 ...").unwrap(), Codec::Xz);
        assert_eq!(of(b"\x28\xb5\x2f\xfd\x00\x58......").unwrap(), Codec::Zstd);
        assert_eq!(of(b"\x50\x2a\x4d\x18....").unwrap(), Codec::Zstd);
        assert_eq!(of(&[0; HEAD]).unwrap(), Codec::Raw);
        assert_eq!(of(b"\xeb\x63\x90").unwrap(), Codec::Raw);
    }

    #[test]
    fn what_must_not_be_written_as_it_is_is_refused_by_name() {
        for format in FORMATS {
            let mut head = vec![0; HEAD];
            head[format.offset..format.offset + format.magic.len()].copy_from_slice(format.magic);
            if let Handling::OnlyRoot = format.handling {
                assert!(sniff("x", &head, Purpose::Root).is_ok());
                assert!(check_content("x", &head, Purpose::Root).is_ok());
            }
            if let Handling::Refuse | Handling::OnlyRoot = format.handling {
                let failure = sniff("x", &head, Purpose::Disk).unwrap_err();
                assert_eq!(failure.class(), Class::Config);
                assert!(failure.to_string().contains(format.name), "{failure}");
            }
            assert_eq!(
                check_content("x", &head, Purpose::Disk)
                    .unwrap_err()
                    .class(),
                Class::Config
            );
            assert!(format.offset + format.magic.len() <= HEAD);
        }
        assert!(check_content("x", &[0; HEAD], Purpose::Disk).is_ok());
    }

    #[test]
    fn a_download_cut_inside_its_magic_is_not_taken_for_a_raw_image() {
        for head in [&b""[..], b"\x1f", b"\x28\xb5", b"\xfd7zXZ", b"Q"] {
            assert_eq!(
                sniff("x", head, Purpose::Disk).unwrap_err().class(),
                Class::Integrity
            );
        }
    }

    proptest! {
        #[test]
        fn any_head_is_judged_without_a_panic(head in proptest::collection::vec(any::<u8>(), 0..64), magic in 0..FORMATS.len()) {
            let _ = sniff("x", &head, Purpose::Disk);
            let mut with_magic = FORMATS[magic].magic.to_vec();
            with_magic.extend_from_slice(&head);
            let _ = sniff("x", &with_magic, Purpose::Root);
        }
    }
}
