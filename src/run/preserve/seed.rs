//! Fills a place from the image, once: a copy beside it, complete and on the medium, then a rename, then the record.
//! What was cut off is removed and begun again; what has content already is left as it is, for ever.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::sys::stat::{SFlag, fstat};

use super::patience;
use super::place::{self, Found};
use super::record::{self, Record, Stage, WALK};
use super::remove;
use super::source::Source;
use crate::config::request::preserve::HIDDEN;
use crate::error::{Class, Context as _, Failure, Result, describe};
use crate::image::tree::{self, Census};
use crate::plan::preserve::{Attach, Binding};
use crate::report::Reporter;
use crate::sys::beneath::{self, Root, Walk};
use crate::sys::xattr::{self, Of};
use crate::units::Bytes;

/// Where the copy for the place `path` is made.
fn waiting(path: &Path) -> PathBuf {
    Path::new(HIDDEN).join("seed").join(record::id(path))
}

/// Removes what an earlier attempt left for the place `path`.
pub fn discard(source: &Source, path: &Path) -> Result<()> {
    remove::any(source, &waiting(path))
}

/// Removes all copies that were cut off, so that they take no room from anything else. What is being moved to its place
/// already goes on there.
fn sweep(source: &Source) -> Result<()> {
    let directory = Path::new(HIDDEN).join("seed");
    let Found::Directory(copies) = place::look(source, &directory)? else {
        return Ok(());
    };
    let records = record::all(source)?;
    let moving: Vec<String> = records
        .iter()
        .filter(|record| record.stage == Stage::Placing)
        .map(|record| record::id(&record.path))
        .collect();
    let spare: Vec<&str> = moving.iter().map(String::as_str).collect();
    remove::children(&copies, &spare, &directory)
}

impl Source {
    /// Removes what sessions that were cut off left of their own; that it cannot be is no reason to stop.
    pub fn tidy(&self, reporter: &Reporter) {
        if self.read_only {
            return;
        }
        let removed = sweep(self).and_then(|()| remove::any(self, &Path::new(HIDDEN).join("new")));
        if let Err(failure) = removed {
            reporter.warn(format!(
                "what an earlier session left in {HIDDEN} on {} stays: {}",
                self.name,
                describe(&failure)
            ));
        }
    }
}

/// Fills the place of `binding` from `image`, unless that was done before.
pub fn fill(
    binding: &Binding,
    source: &Source,
    image: &Root,
    known: Option<Record>,
    reporter: &Reporter,
) -> Result<()> {
    let path = &binding.subdir;
    let record = known.unwrap_or_else(|| Record::new(path));
    if record.seeded {
        return Ok(());
    }
    let filled = fill_from(binding, source, image, record, reporter);
    if filled.is_err() {
        // It must not keep others from what is left of the room. A copy that is being moved is all there is.
        let moving = |r: &Record| r.path == *path && r.stage == Stage::Placing;
        if record::all(source).is_ok_and(|all| !all.iter().any(moving)) {
            let _ = discard(source, path);
        }
    }
    filled
}

fn fill_from(
    binding: &Binding,
    source: &Source,
    image: &Root,
    mut record: Record,
    reporter: &Reporter,
) -> Result<()> {
    let path = &binding.subdir;
    discard(source, path)?;
    if place::has_content(source, path)? {
        reporter.info(format!(
            "{}: the source has content already and is not filled from the image",
            binding.target.display()
        ));
        return done(source, record);
    }
    let wants_file = binding.attach == Attach::File;
    let Some(kind) = kind_in(image, &binding.target)? else {
        // Nothing to fill it with; a later image does not either. The record says of a place that it is there.
        let attributes = place::attributes(binding, image);
        drop(if wants_file {
            place::file(source, path, &attributes)?
        } else {
            place::directory(source, path, &attributes)?
        });
        return done(source, record);
    };
    if (kind == SFlag::S_IFREG) != wants_file {
        return Err(Failure::new(
            Class::Preserve,
            format!(
                "{} of the image is {}",
                binding.target.display(),
                if wants_file {
                    "no file"
                } else {
                    "no directory"
                }
            ),
        )
        .hint("correct `kind`"));
    }
    let copy = waiting(path);
    for part in [Path::new(HIDDEN), Path::new(HIDDEN).join("seed").as_path()] {
        source.root.make_directories(part, 0o700, WALK)?;
    }
    let written = AtomicU64::new(0);
    let state = || {
        let bytes = Bytes(written.load(Ordering::Relaxed));
        format!("{} written", bytes.short())
    };
    let what = format!("filling {} from the image", binding.target.display());
    let census = patience::telling(&what, state, reporter, || {
        tree::copy(image, &binding.target, &source.root, &copy, &written)
    })?;
    let made: OwnedFd = if wants_file {
        source.root.file(&copy, WALK)?.into()
    } else {
        source.root.directory(&copy, WALK)?
    };
    attributes(binding, &made, path)?;
    tell(binding, &census, reporter);
    nix::unistd::syncfs(&source.root.directory(Path::new(HIDDEN), WALK)?)
        .context(Class::Preserve, || format!("flushing {}", source.name))?;
    if path.as_os_str().is_empty() {
        // The root of a file system cannot be renamed: its entries are, and a cut-off goes on.
        record.stage = Stage::Placing;
        record::write(source, &record)?;
        spread(source, path)?;
    } else {
        move_into_place(source, &copy, path)?;
    }
    done(source, record)
}

fn done(source: &Source, record: Record) -> Result<()> {
    record::write(source, &filled(record))
}

fn filled(record: Record) -> Record {
    Record {
        stage: Stage::Ready,
        seeded: true,
        ..record
    }
}

/// Goes on with moving a complete copy to its place, where a cut ended that.
pub fn go_on(record: &mut Record, source: &Source, reporter: &Reporter) -> Result<()> {
    reporter.info(format!(
        "{}: filling what was filled in part goes on",
        source.name
    ));
    spread(source, &record.path)?;
    *record = filled(record.clone());
    record::write(source, record)
}

fn tell(binding: &Binding, census: &Census, reporter: &Reporter) {
    let target = binding.target.display();
    reporter.info(format!(
        "{target}: filled from the image, {}",
        census.summary()
    ));
    for note in census.notes() {
        reporter.warn(format!("{target}: {note}"));
    }
}

/// What the config says wins over what the image has.
fn attributes(binding: &Binding, fd: &OwnedFd, path: &Path) -> Result<()> {
    if binding.mode.is_none() && binding.owner.is_none() {
        return Ok(());
    }
    let stat = fstat(fd).context(Class::Preserve, || format!("looking at {}", path.display()))?;
    let mode = binding.mode.unwrap_or(stat.st_mode & 0o7777);
    let (user, group) = binding.owner.unwrap_or((stat.st_uid, stat.st_gid));
    place::give(fd, (mode, user, group), path)
}

fn kind_in(image: &Root, target: &Path) -> Result<Option<SFlag>> {
    match image.stat(target, Walk::InRoot) {
        Ok(stat) => Ok(Some(beneath::kind(&stat))),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.of_class(Class::Preserve)),
    }
}

fn move_into_place(source: &Source, copy: &Path, path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        source.root.make_directories(parent, 0o755, WALK)?;
    }
    let (from, from_name) = source.root.parent(copy, WALK)?;
    let (to, to_name) = source.root.parent(path, WALK)?;
    // An empty directory or file that is there is replaced.
    renameat(&from, from_name, &to, to_name).context(Class::Preserve, || {
        format!("moving the copy to {} on {}", path.display(), source.name)
    })
}

/// Moves what is in the copy into the root of the file system, and gives the root its attributes.
fn spread(source: &Source, path: &Path) -> Result<()> {
    let copy = waiting(path);
    let Found::Directory(from) = place::look(source, &copy)? else {
        // All of it was moved, and only the record is missing.
        return Ok(());
    };
    let what = || format!("moving the copy into the root of {}", source.name);
    let root = source.root.directory(Path::new(""), WALK)?;
    for name in remove::names(&from).context(Class::Preserve, what)? {
        // A name of the file system's own cannot be given away.
        if place::OWN.iter().any(|own| name == *own) {
            continue;
        }
        match renameat(&from, name.as_os_str(), &root, name.as_os_str()) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(Failure::new(Class::Preserve, what()).caused_by(errno)),
        }
    }
    let stat = fstat(&from).context(Class::Preserve, what)?;
    place::give(
        &root
            .as_fd()
            .try_clone_to_owned()
            .context(Class::Preserve, what)?,
        (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid),
        Path::new(""),
    )?;
    // ACLs and labels, which a later session does not bring either. After the mode: an ACL is a part of it.
    for name in xattr::list(Of::Open(from.as_fd())).context(Class::Preserve, what)? {
        let value = xattr::get(Of::Open(from.as_fd()), &name).context(Class::Preserve, what)?;
        if let Some(value) = value {
            xattr::set(Of::Open(root.as_fd()), &name, &value).context(Class::Preserve, || {
                format!("setting attributes of the root of {}", source.name)
            })?;
        }
    }
    nix::unistd::syncfs(&root).context(Class::Preserve, what)?;
    discard(source, path)
}
