//! /etc/machine-id (machine-id(5)). It is copied, not mounted: a systemd that finds its own file mounted takes the
//! mount for its temporary one, and a unit of it fails at each boot. A machine without an id gets one here, because
//! what systemd makes up in a root in memory is gone after the session.
//!
//! The first boot stays one. A root whose file is missing or says `uninitialized` keeps it that way, so that
//! systemd does what it does at a first boot; the id waits in /var/lib/dbus/machine-id, where every systemd looks
//! before it makes one up. It looks before it mounts anything: an installed system whose /var is a partition of its own
//! has that directory in its root, below that mount.

use std::io::{Read as _, Write as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::place;
use super::record::{self, Record, WALK};
use super::source::Source;
use crate::config::wire::Seed;
use crate::error::{Class, Context as _, Failure, Result, describe};
use crate::plan::preserve::{Attach, Binding};
use crate::report::Reporter;
use crate::sys::beneath::{Root, Walk};

/// Where systemd looks for an id before it makes one up; it takes a file and no link.
const DBUS: &str = "/var/lib/dbus/machine-id";

/// 32 digits and a newline; whoever edits the file by hand may leave blanks.
const LIMIT: u64 = 256;

/// A root that gets an id.
#[derive(Clone, Copy, Debug)]
pub struct Wanting<'a> {
    /// With what is mounted in it.
    pub root: &'a Root,
    /// Its own file system alone, where what is mounted in it is not there yet when systemd looks.
    pub bare: Option<&'a Root>,
}

/// Provides the machine id of `binding` in a root.
pub fn provide(
    binding: &Binding,
    source: &Source,
    image: &Root,
    root: Wanting<'_>,
    reporter: &Reporter,
) -> Result<()> {
    let in_image = image.read(&binding.target, Walk::InRoot, LIMIT).ok();
    let id_of_image = in_image.as_deref().and_then(parse);
    let kept = kept(source, &binding.subdir)?;
    // An image with an id, and one with an empty file, asks for no first boot.
    let is_empty = in_image
        .as_deref()
        .is_some_and(|text| text.trim_ascii().is_empty());
    let asks = !is_empty && id_of_image.is_none();
    let own = record::of(source, &binding.subdir)?;
    if let Some(id) = kept {
        // The first boot of this machine, where no session of it came as far as starting.
        let is_first = asks && own.is_some_and(|own| own.first_boot);
        return give(binding, root, is_first, &id, reporter);
    }
    let id = match &id_of_image {
        Some(id) if binding.seed == Seed::FromImageOnce => id.clone(),
        _ => fresh()?,
    };
    if asks {
        // Before the id: with an id and without this, it would be over.
        let own = own.unwrap_or_else(|| Record::new(&binding.subdir));
        let first_boot = true;
        record::write(source, &Record { first_boot, ..own })?;
    }
    keep(source, &binding.subdir, &id)?;
    reporter.info(format!(
        "{}: this machine has a new id",
        binding.target.display()
    ));
    give(binding, root, asks, &id, reporter)
}

/// Puts the id to where the system looks for it: at a first boot, beside the file, which stays as it is.
fn give(
    binding: &Binding,
    Wanting { root, bare }: Wanting<'_>,
    is_first: bool,
    id: &str,
    reporter: &Reporter,
) -> Result<()> {
    if is_first {
        // In both, as an initrd may mount it before.
        let mut places = bare.into_iter().chain([root]);
        match places.try_for_each(|place| put(place, Path::new(DBUS), id)) {
            Ok(()) => return Ok(()),
            // A wrong id would be worse than no first boot.
            Err(failure) => reporter.warn(format!(
                "{}: the system does not see that this is its first boot: {}",
                binding.target.display(),
                describe(&failure)
            )),
        }
    }
    put(root, &binding.target, id)
}

/// The id that is at `path` of `source`; `None` where there is none yet.
pub fn kept(source: &Source, path: &Path) -> Result<Option<String>> {
    let found = place::look(source, path)?;
    place::must_fit(Attach::MachineId, &found, source, path)?;
    if matches!(found, place::Found::Nothing) {
        return Ok(None);
    }
    let kept = source.root.read(path, WALK, LIMIT)?;
    let id = parse(&kept);
    let waits = kept.iter().all(u8::is_ascii_whitespace) || kept.trim_ascii() == b"uninitialized";
    if id.is_some() || waits {
        return Ok(id);
    }
    Err(Failure::new(
        Class::Preserve,
        format!("{} on {} is no machine id", path.display(), source.name),
    )
    .hint("empty that file on the source; the machine gets a new id then"))
}

/// The first boot of the machine whose id is at `path` of `source` begins: what comes after it is none.
pub fn started(source: &Source, path: &Path) -> Result<()> {
    if source.read_only {
        return Ok(());
    }
    match record::of(source, path)? {
        Some(own) if own.first_boot => {
            let first_boot = false;
            record::write(source, &Record { first_boot, ..own })
        }
        Some(_) | None => Ok(()),
    }
}

/// The id in a file, as systemd reads it: 32 hexadecimal digits, not all zero.
fn parse(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let zero = text.bytes().all(|b| b == b'0');
    (digits && !zero).then(|| text.to_ascii_lowercase())
}

/// A random UUID of version 4, without dashes: that is what systemd makes.
fn fresh() -> Result<String> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context(Class::Preserve, || "reading /dev/urandom")?;
    let [.., version, _, variant, _, _, _, _, _, _, _] = &mut bytes;
    *version = (*version & 0x0f) | 0x40;
    *variant = (*variant & 0x3f) | 0x80;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Writes the id to the source: whole, on the medium, or not at all.
fn keep(source: &Source, path: &Path, id: &str) -> Result<()> {
    let what = || {
        format!(
            "writing the machine id to {} on {}",
            path.display(),
            source.name
        )
    };
    if let Some(parent) = path.parent() {
        source.root.make_directories(parent, 0o755, WALK)?;
    }
    let (directory, name) = source.root.parent(path, WALK)?;
    let mut fresh = name.to_owned();
    fresh.push(".new");
    replace(&directory, &fresh, what)?;
    let mut file = source
        .root
        .create_file(&path.with_file_name(&fresh), 0o444, WALK)?;
    file.write_all(format!("{id}\n").as_bytes())
        .and_then(|()| file.sync_all())
        .context(Class::Preserve, what)?;
    renameat(&directory, fresh.as_os_str(), &directory, name).context(Class::Preserve, what)?;
    nix::unistd::fsync(&directory).context(Class::Preserve, what)
}

/// Puts the id into a file of the root, which lives in memory; a link or another file that is there goes.
fn put(root: &Root, path: &Path, id: &str) -> Result<()> {
    let what = || format!("writing {} of the root", path.display());
    if let Some(parent) = path.parent() {
        root.make_directories(parent, 0o755, Walk::InRoot)?;
    }
    let (directory, name) = root.parent(path, Walk::InRoot)?;
    replace(&directory, name, what)?;
    let mut file = root.create_file(path, 0o444, Walk::InRoot)?;
    file.write_all(format!("{id}\n").as_bytes())
        .context(Class::Preserve, what)
}

fn replace(
    directory: &std::os::fd::OwnedFd,
    name: &std::ffi::OsStr,
    what: impl FnOnce() -> String,
) -> Result<()> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(Failure::new(Class::Preserve, what()).caused_by(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_what_systemd_takes_for_one() {
        let good = "0123456789abcdef0123456789abcdef";
        assert_eq!(parse(format!("{good}\n").as_bytes()).as_deref(), Some(good));
        assert_eq!(parse(good.to_uppercase().as_bytes()).as_deref(), Some(good));
        for bad in [
            "",
            "uninitialized\n",
            "0123",
            &"0".repeat(32),
            &"g".repeat(32),
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        let (one, two) = (fresh().unwrap(), fresh().unwrap());
        assert!(one != two && parse(one.as_bytes()).is_some());
        assert_eq!(one.as_bytes()[12], b'4');
        assert!(b"89ab".contains(&one.as_bytes()[16]), "{one}");
    }
}
