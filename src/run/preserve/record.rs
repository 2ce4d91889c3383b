//! What ironroot keeps of each place on a source, in the source itself: `.ironroot/records/ID.json`. It says to
//! whom the place belongs, whether it was filled, and what was cut off. Written by rename, so that a power cut
//! leaves the old one or the new one.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::source::Source;
use super::trusted::must_be_roots;
use crate::config::request::preserve::HIDDEN;
use crate::error::{Class, Context as _, Failure, Result};
use crate::sys::beneath::Walk;

/// Nothing in a source is reached through a link, and nothing is mounted in it.
pub const WALK: Walk = Walk::NoLinksOneFilesystem;

/// A record is a few hundred bytes.
const LIMIT: u64 = 64 << 10;

/// More places than anybody preserves.
const RECORDS: usize = 4096;

/// How far a place is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// Nothing is going on.
    #[default]
    Ready,
    /// Its content is being removed: what is left of it is nobody's.
    Erasing,
    /// The image's content is complete beside it and is being moved to its place.
    Placing,
}

/// The record of one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    /// Version of this format.
    pub format: u32,
    /// The place, relative to the root of the source's file system.
    pub path: PathBuf,
    /// To whom it belongs; `None` where it belongs to nobody in particular.
    pub claim: Option<String>,
    /// How far it is.
    pub stage: Stage,
    /// It was filled from an image, or had content of its own: never again.
    pub seeded: bool,
    /// It was there in a session: where it is missing, it was lost.
    #[serde(default, skip_serializing_if = "is_not")]
    pub used: bool,
    /// A machine id whose first boot has not begun.
    #[serde(default, skip_serializing_if = "is_not")]
    pub first_boot: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_not(it: &bool) -> bool {
    !it
}

const FORMAT: u32 = 1;

impl Record {
    /// A new one.
    pub fn new(path: &Path) -> Record {
        Record {
            format: FORMAT,
            path: path.to_owned(),
            ..Record::default()
        }
    }
}

/// The name under which ironroot keeps things of the place `path`.
pub fn id(path: &Path) -> String {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let digest = Sha256::digest(path.as_os_str().as_bytes());
    digest.iter().take(16).fold(String::new(), |mut id, byte| {
        let _ = write!(id, "{byte:02x}");
        id
    })
}

/// Where the records are.
fn directory() -> PathBuf {
    Path::new(HIDDEN).join("records")
}

/// Why a record is not read.
#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    /// It is whole, and of a version that this one does not know.
    Newer(u32),
    /// It says nothing.
    Damaged(String),
}

/// What every version of a record has.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// Reads one record.
fn parse(text: &[u8]) -> Result<Record, Unreadable> {
    let damaged = |error: serde_json::Error| Unreadable::Damaged(error.to_string());
    // The version first: a later one may have other keys.
    let Version { format } = serde_json::from_slice(text).map_err(damaged)?;
    match format {
        FORMAT => serde_json::from_slice(text).map_err(damaged),
        0 => Err(Unreadable::Damaged("its format is 0".to_owned())),
        later => Err(Unreadable::Newer(later)),
    }
}

/// The refusal of a record: it may say that the place is somebody else's.
fn refused(path: &Path, source: &str, why: &Unreadable) -> Failure {
    let path = path.display();
    match why {
        Unreadable::Newer(format) => Failure::new(
            Class::Preserve,
            format!("{path} on {source} is of format {format}, and this version knows {FORMAT}"),
        )
        .hint("use the newer ironroot that wrote it"),
        Unreadable::Damaged(why) => Failure::new(
            Class::Preserve,
            format!("{path} on {source} is damaged: {why}"),
        )
        .hint("if what the source holds may be used by this machine, remove that file"),
    }
}

/// Every record of `source`. One that cannot be read refuses: it may say that the place is somebody else's.
pub fn all(source: &Source) -> Result<Vec<Record>> {
    let directory = directory();
    let listing = match source.root.directory(&directory, WALK) {
        Ok(fd) => fd,
        Err(error) if error.errno == Errno::ENOENT => return Ok(Vec::new()),
        Err(error) => return Err(error.of_class(Class::Preserve)),
    };
    let hidden = source
        .root
        .handle(Path::new(HIDDEN), WALK)
        .map_err(|error| error.of_class(Class::Preserve))?;
    must_be_roots(&hidden, Path::new(HIDDEN), &source.name)?;
    must_be_roots(&listing, &directory, &source.name)?;
    let mut entries = Dir::from_fd(listing).context(Class::Preserve, || "listing the records")?;
    let mut records = Vec::new();
    for entry in entries.iter() {
        let entry = entry.context(Class::Preserve, || "listing the records")?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // What a cut-off write left behind.
        if Path::new(&name).extension().is_none_or(|e| e != "json") {
            continue;
        }
        let path = directory.join(&name);
        let of_class = |error: crate::sys::beneath::Error| error.of_class(Class::Preserve);
        let file = source.root.handle(&path, WALK).map_err(of_class)?;
        must_be_roots(&file, &path, &source.name)?;
        let text = source.root.read(&path, WALK, LIMIT).map_err(of_class)?;
        let record = parse(&text).map_err(|why| refused(&path, &source.name, &why))?;
        records.push(record);
        if records.len() > RECORDS {
            return Err(Failure::new(
                Class::Preserve,
                format!("more than {RECORDS} records on {}", source.name),
            )
            .hint("give each machine a source of its own, or remove the records of places that are gone from .ironroot/records"));
        }
    }
    Ok(records)
}

/// The record of the place `path`.
pub fn of(source: &Source, path: &Path) -> Result<Option<Record>> {
    Ok(all(source)?.into_iter().find(|r| r.path == path))
}

/// Writes a record. When this returns it is on the medium, and so is everything that was done before.
pub fn write(source: &Source, record: &Record) -> Result<()> {
    let what = || {
        format!(
            "writing the record of {} on {}",
            record.path.display(),
            source.name
        )
    };
    if source.read_only {
        return Err(Failure::new(Class::Preserve, what())
            .caused_by(Errno::EROFS)
            .hint("leave the option ro away for the first session, which writes that down"));
    }
    let name = format!("{}.json", id(&record.path));
    let fresh = format!("{}.new", id(&record.path));
    source
        .root
        .make_directories(Path::new(HIDDEN), 0o700, WALK)?;
    let directory = source.root.make_directories(&directory(), 0o700, WALK)?;
    match unlinkat(&directory, fresh.as_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(Failure::new(Class::Preserve, what()).caused_by(errno)),
    }
    let place = self::directory().join(&fresh);
    let mut file = source.root.create_file(&place, 0o600, WALK)?;
    let mut text = serde_json::to_vec_pretty(record).context(Class::Bug, what)?;
    text.push(b'\n');
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .context(Class::Preserve, what)?;
    // The content that the record speaks of, before the record.
    nix::unistd::syncfs(&directory).context(Class::Preserve, what)?;
    renameat(
        &directory,
        OsStr::new(&fresh),
        &directory,
        OsStr::new(&name),
    )
    .context(Class::Preserve, what)?;
    nix::unistd::fsync(&directory).context(Class::Preserve, what)
}

/// Writes `marker`, which says that its place is being erased. A source that is full to the last block has no room for a
/// file: what is there of the records of the place and below it, `old`, is changed where it is then.
pub fn mark(source: &Source, marker: &Record, old: &[&Record]) -> Result<()> {
    match write(source, marker) {
        Err(failure) if is_no_space(&failure) => {
            for record in old {
                overwrite(
                    source,
                    &Record {
                        stage: Stage::Erasing,
                        seeded: false,
                        ..(*record).clone()
                    },
                )?;
            }
            Ok(())
        }
        written => written,
    }
}

fn is_no_space(failure: &Failure) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(failure);
    while let Some(error) = next {
        let of_io = || {
            let code = error.downcast_ref::<std::io::Error>()?.raw_os_error()?;
            Some(Errno::from_raw(code))
        };
        let errno = error.downcast_ref::<Errno>().copied().or_else(of_io);
        if matches!(errno, Some(Errno::ENOSPC | Errno::EDQUOT)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Changes a record in the blocks that it has. One that is torn by a power cut cannot be read, and refuses.
fn overwrite(source: &Source, record: &Record) -> Result<()> {
    let what = || {
        format!(
            "changing the record of {} on {}",
            record.path.display(),
            source.name
        )
    };
    let place = directory().join(format!("{}.json", id(&record.path)));
    let (parent, name) = source.root.parent(&place, WALK)?;
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = openat(&parent, name, flags, Mode::empty())
        .map(std::fs::File::from)
        .context(Class::Preserve, what)?;
    let length = file.metadata().context(Class::Preserve, what)?.len();
    // In one line it is shorter than it was; blanks are no part of it.
    let mut text = serde_json::to_vec(record).context(Class::Bug, what)?;
    text.resize(
        text.len()
            .max(usize::try_from(length.min(LIMIT)).unwrap_or_default()),
        b' ',
    );
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .context(Class::Preserve, what)
}

/// Removes a record; one that is not there is no error.
pub fn remove(source: &Source, record: &Record) -> Result<()> {
    let what = || {
        format!(
            "removing the record of {} on {}",
            record.path.display(),
            source.name
        )
    };
    let directory = source.root.directory(&directory(), WALK)?;
    let name = format!("{}.json", id(&record.path));
    match unlinkat(&directory, name.as_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Failure::new(Class::Preserve, what()).caused_by(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_of_another_format_is_not_read() {
        let text = serde_json::to_string(&Record::new(Path::new("a"))).unwrap();
        assert_eq!(parse(text.as_bytes()).unwrap(), Record::new(Path::new("a")));
        let later = text.replace("\"format\":1", "\"format\":2,\"more\":[]");
        assert_eq!(parse(later.as_bytes()), Err(Unreadable::Newer(2)));
        for text in ["", "{}", "{\"format\":0}", "{\"format\":1}", "[1]"] {
            assert!(
                matches!(parse(text.as_bytes()), Err(Unreadable::Damaged(_))),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn what_is_written_is_read(path in "[a-z/ü]{0,20}", claim in proptest::option::of("\\PC{0,20}"), seeded: bool) {
            let record = Record { claim, seeded, ..Record::new(Path::new(&path)) };
            prop_assert_eq!(parse(&serde_json::to_vec(&record).unwrap()), Ok(record));
        }
    }

    #[test]
    fn different_places_have_different_names() {
        // Replacing slashes by dashes would make one of these two.
        assert_ne!(id(Path::new("var/lib-foo")), id(Path::new("var/lib/foo")));
    }
}
