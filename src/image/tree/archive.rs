//! Reads an archive as it comes: POSIX ustar and pax, GNU tar, star, and what came before them (GNU tar
//! manual, "Tar Internals"; FreeBSD's tar(5)). It gives one entry after the other and the bytes of its
//! content, holds no more than one entry's headers, and knows whether the archive is whole.

mod field;
mod holes;

use std::io::BufRead;

use nix::sys::stat::makedev;
use tar::Header;

use super::extended::Extended;
use super::limits::{EXTENDED_MAX, LONG_NAME_MAX, Limits};
use super::member::{Attributes, Kind, Member, Time};
use super::refusal::{integrity, shown};
use crate::error::{Class, Failure, Result};
use crate::units::Bytes;
use field::{checksum_is_right, header_name, kind_byte, signed, until_nul};

const BLOCK: usize = 512;

/// An archive that is being read.
pub(super) struct Archive<'a> {
    /// What it has ready is written to a file at once, without a copy.
    input: &'a mut dyn BufRead,
    limits: Limits,
    /// Bytes read so far.
    at: u64,
    /// Content of the last entry that was not taken yet, and the padding after it.
    left: u64,
    padding: u64,
    /// What global headers said so far.
    global: Extended,
}

/// What stands before an entry and describes it.
#[derive(Default)]
struct Described {
    extended: Option<Extended>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl<'a> Archive<'a> {
    pub(super) fn new(from: &'a mut dyn BufRead, limits: Limits) -> Archive<'a> {
        Archive {
            input: from,
            limits,
            at: 0,
            left: 0,
            padding: 0,
            global: Extended::default(),
        }
    }

    /// The next entry; what was not taken of the last one's content is passed over. `None` only after a
    /// whole end mark with nothing but zeros behind it.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let mut before = Described::default();
        loop {
            self.skip()?;
            let Some(block) = self.block()? else {
                return Err(self.cut_off("before its end mark"));
            };
            if block == [0; BLOCK] {
                if before.extended.is_some() || before.name.is_some() || before.link.is_some() {
                    return Err(self.damaged("it ends after the description of an entry"));
                }
                self.finish()?;
                return Ok(None);
            }
            let mut header = Header::new_old();
            header.as_mut_bytes().copy_from_slice(&block);
            if !checksum_is_right(&block) {
                return Err(self.damaged("the checksum of a header is wrong"));
            }
            if !self.describe(&header, &mut before)? {
                return self.member(&header, before).map(Some);
            }
        }
    }

    /// Up to `want` further bytes of the last entry's content; empty at its end. Call [`Archive::taken`]
    /// with how much was used.
    pub(super) fn content(&mut self, want: u64) -> Result<&[u8]> {
        let want = usize::try_from(want.min(self.left)).unwrap_or(usize::MAX);
        if want == 0 {
            return Ok(&[]);
        }
        // Looked at twice, as the borrow of the first look would last until the end.
        let got = fill(self.input, self.at)?.len().min(want);
        if got == 0 {
            return Err(self.cut_off("within the content of an entry"));
        }
        Ok(fill(self.input, self.at)?.get(..got).unwrap_or_default())
    }

    pub(super) fn taken(&mut self, count: usize) {
        self.consume(count);
        self.left = self
            .left
            .saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// A failure for what the archive says of an entry.
    pub(super) fn wrong(path: &[u8], what: &str) -> Failure {
        integrity(format!("the archive's entry {}: {what}", shown(path)))
    }

    /// Takes over a header that describes the next entry; `false` if it is the entry.
    fn describe(&mut self, header: &Header, before: &mut Described) -> Result<bool> {
        match kind_byte(header) {
            b'x' | b'X' => {
                let text = self.text(header, EXTENDED_MAX)?;
                let mut extended = self.global.clone();
                extended
                    .read(&text, &self.limits)
                    .map_err(|what| self.damaged(&format!("extended header: {what}")))?;
                if before.extended.replace(extended).is_some() {
                    return Err(self.damaged("one entry has two extended headers"));
                }
            }
            b'g' => {
                let text = self.text(header, EXTENDED_MAX)?;
                let mut global = std::mem::take(&mut self.global);
                global
                    .read(&text, &self.limits)
                    .map_err(|what| self.damaged(&format!("global header: {what}")))?;
                if global.names_one_entry() {
                    return Err(
                        self.damaged("a global header gives one name or size to all entries")
                    );
                }
                self.global = global;
            }
            b'L' => {
                let name = self.text(header, LONG_NAME_MAX)?;
                if before.name.replace(until_nul(&name).to_vec()).is_some() {
                    return Err(self.damaged("one entry has two long names"));
                }
            }
            b'K' => {
                let link = self.text(header, LONG_NAME_MAX)?;
                if before.link.replace(until_nul(&link).to_vec()).is_some() {
                    return Err(self.damaged("one entry has two long link names"));
                }
            }
            // The label of the archive (tar --label).
            b'V' => {
                self.text(header, LONG_NAME_MAX)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The text of a header that describes something.
    fn text(&mut self, header: &Header, most: u64) -> Result<Vec<u8>> {
        let size = self.unsigned("size", &header.as_old().size)?;
        if size > most {
            return Err(self.damaged(&format!(
                "a header of {}; at most {} are taken",
                Bytes(size),
                Bytes(most)
            )));
        }
        self.open_content(size);
        let mut text = Vec::new();
        loop {
            let piece = self.content(size)?;
            if piece.is_empty() {
                return Ok(text);
            }
            text.extend_from_slice(piece);
            let length = piece.len();
            self.taken(length);
        }
    }

    fn member(&mut self, header: &Header, before: Described) -> Result<Member> {
        let old = header.as_old();
        let extended = before.extended.unwrap_or_else(|| self.global.clone());
        let path = match (
            before.name,
            extended.sparse.name.clone(),
            extended.path.clone(),
        ) {
            (Some(_), None, Some(_)) | (Some(_), Some(_), _) => {
                return Err(self.damaged("one entry has a GNU long name and a POSIX one"));
            }
            (Some(name), None, None) | (None, Some(name), _) | (None, None, Some(name)) => name,
            (None, None, None) => header_name(header),
        };
        let link = match (before.link, extended.link.clone()) {
            (Some(_), Some(_)) => {
                return Err(self.damaged("one entry has a GNU long link name and a POSIX one"));
            }
            (Some(link), None) | (None, Some(link)) => link,
            (None, None) => until_nul(&old.linkname).to_vec(),
        };
        let size = match extended.size {
            Some(size) => size,
            None => self.unsigned("size", &old.size)?,
        };
        self.open_content(size);
        let attributes = self.attributes(header, &extended, &path)?;

        let mut stored = size;
        let mut map = None;
        let kind = match kind_byte(header) {
            b'0' | 0 if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' => {
                map = self.posix_map(&extended, &path)?;
                stored = self.left;
                Kind::File
            }
            b'S' => {
                map = Some(self.gnu_map(header, &path)?);
                Kind::File
            }
            b'1' => Kind::HardLink(link),
            b'2' => Kind::Symlink(link),
            b'3' => Kind::CharDevice(self.device(header)?),
            b'4' => Kind::BlockDevice(self.device(header)?),
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            // Of an incremental backup: its content is the list of what was in the directory.
            b'D' => {
                self.skip()?;
                stored = 0;
                Kind::Directory
            }
            b'M' => return Err(Self::wrong(&path, "it is a part of a multi-volume archive")),
            other => {
                return Err(Self::wrong(
                    &path,
                    &format!("its type {:?} is unknown", char::from(other)),
                )
                .hint("make the archive with `tar --format=pax`"));
            }
        };
        if kind != Kind::File && stored > 0 {
            // Programs disagree on whether content follows: each would see another archive.
            return Err(Self::wrong(
                &path,
                "it is no file, and has content all the same",
            ));
        }
        Ok(Member {
            path,
            kind,
            attributes,
            stored,
            sparse: map,
        })
    }

    fn attributes(&self, header: &Header, extended: &Extended, path: &[u8]) -> Result<Attributes> {
        let old = header.as_old();
        let id = |what: &str, said: Option<u64>, field: &[u8]| {
            let id = match said {
                Some(id) => id,
                None => self.unsigned(what, field)?,
            };
            // The largest means "leave as it is" to chown(2).
            u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| Self::wrong(path, &format!("nobody can have the {what} {id}")))
        };
        let mtime = match extended.mtime {
            Some(time) => time,
            None => Time {
                seconds: signed(&old.mtime)
                    .and_then(|n| i64::try_from(n).ok())
                    .ok_or_else(|| self.damaged("the time in a header is no number"))?,
                nanoseconds: 0,
            },
        };
        let mode =
            signed(&old.mode).ok_or_else(|| self.damaged("the mode in a header is wrong"))?;
        Ok(Attributes {
            uid: id("user id", extended.uid, &old.uid)?,
            gid: id("group id", extended.gid, &old.gid)?,
            // Some writers put the file's type above the twelve bits.
            mode: u32::try_from(mode & 0o7777).unwrap_or(0),
            mtime,
            atime: extended.atime,
            xattrs: extended.xattrs.clone(),
            acl_access: extended.acl_access.clone(),
            acl_default: extended.acl_default.clone(),
        })
    }

    fn device(&self, header: &Header) -> Result<nix::sys::stat::dev_t> {
        let (major, minor) = match (header.as_ustar(), header.as_gnu()) {
            (Some(ustar), _) => (&ustar.dev_major, &ustar.dev_minor),
            (None, Some(gnu)) => (&gnu.dev_major, &gnu.dev_minor),
            (None, None) => return Err(self.damaged("a device in a format that has none")),
        };
        let (major, minor) = (
            self.unsigned("major", major)?,
            self.unsigned("minor", minor)?,
        );
        // What the kernel can hold (include/linux/kdev_t.h): 12 and 20 bits.
        if major >= 1 << 12 || minor >= 1 << 20 {
            return Err(self.damaged(&format!("there is no device {major}:{minor}")));
        }
        Ok(makedev(major, minor))
    }

    fn unsigned(&self, what: &str, field: &[u8]) -> Result<u64> {
        signed(field)
            .and_then(|n| u64::try_from(n).ok())
            .ok_or_else(|| self.damaged(&format!("the {what} in a header is no number")))
    }

    fn open_content(&mut self, size: u64) {
        self.left = size;
        let over = size % BLOCK as u64;
        self.padding = if over == 0 {
            0
        } else {
            (BLOCK as u64).saturating_sub(over)
        };
    }

    fn skip(&mut self) -> Result<()> {
        let mut rest = u128::from(self.left) + u128::from(self.padding);
        (self.left, self.padding) = (0, 0);
        while rest > 0 {
            let got = fill(self.input, self.at)?.len();
            if got == 0 {
                return Err(self.cut_off("within the content of an entry"));
            }
            let step = got.min(usize::try_from(rest).unwrap_or(usize::MAX));
            self.consume(step);
            rest = rest.saturating_sub(step as u128);
        }
        Ok(())
    }

    /// One block; `None` where the stream ends before it.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut rest = &mut block[..];
        while !rest.is_empty() {
            let got = fill(self.input, self.at)?;
            let step = got.len().min(rest.len());
            if step == 0 {
                let nothing = rest.len() == BLOCK;
                return if nothing {
                    Ok(None)
                } else {
                    Err(self.cut_off("within a block"))
                };
            }
            let (now, later) = rest.split_at_mut(step);
            now.copy_from_slice(got.get(..step).unwrap_or_default());
            rest = later;
            self.consume(step);
        }
        Ok(Some(block))
    }

    /// After the first zero block: the second one, which makes the end mark, and zeros until the stream ends.
    fn finish(&mut self) -> Result<()> {
        match self.block()? {
            Some(block) if block == [0; BLOCK] => {}
            None => return Err(self.cut_off("within its end mark")),
            Some(block) => return Err(self.trailing(&block)),
        }
        loop {
            let got = fill(self.input, self.at)?;
            if got.is_empty() {
                return Ok(());
            }
            if got.iter().any(|byte| *byte != 0) {
                let start = got.len().min(BLOCK);
                let block = got.get(..start).unwrap_or_default().to_vec();
                return Err(self.trailing(&block));
            }
            let length = got.len();
            self.consume(length);
        }
    }

    fn consume(&mut self, count: usize) {
        self.input.consume(count);
        self.at = self
            .at
            .saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
    }

    fn trailing(&self, block: &[u8]) -> Failure {
        let failure = integrity(format!(
            "something follows the archive's end mark, at byte {} or after it",
            self.at
        ));
        if checksum_is_right(block) {
            failure.hint("two archives stand one after the other: make one of them")
        } else {
            failure
        }
    }

    fn damaged(&self, what: &str) -> Failure {
        integrity(format!(
            "the archive is damaged before byte {}: {what}",
            self.at
        ))
    }

    fn cut_off(&self, place: &str) -> Failure {
        integrity(format!(
            "the archive is cut off {place}, at byte {}",
            self.at
        ))
    }
}

/// What the stream has ready; empty at its end. A [`Failure`] inside the error goes on as it is.
fn fill(input: &mut dyn BufRead, at: u64) -> Result<&[u8]> {
    // Looked at first, as the borrow of what is returned would last over the loop.
    while let Err(e) = input.fill_buf() {
        if e.kind() != std::io::ErrorKind::Interrupted {
            return Err(unreadable(e, at));
        }
    }
    input.fill_buf().map_err(|e| unreadable(e, at))
}

fn unreadable(error: std::io::Error, at: u64) -> Failure {
    let class = match error.kind() {
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => Class::Integrity,
        _ => Class::Media,
    };
    match error.downcast::<Failure>() {
        Ok(failure) => failure,
        Err(error) => {
            Failure::new(class, format!("reading the archive at byte {at}")).caused_by(error)
        }
    }
}

#[cfg(test)]
mod tests;
