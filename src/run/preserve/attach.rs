//! Attaches one place of a source to the root: by descriptor, with every flag stated, at a target that is looked up
//! inside the root.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use super::layer::{self, Layer};
use super::machine_id::Wanting;
use super::place;
use super::source::Source;
use super::{STATE, claim, earlier, machine_id, mount_id, seed};
use crate::config::request::preserve::{Atime, MountFlags, forbidden};
use crate::config::wire::Seed;
use crate::error::{Class, Context as _, Failure, Result};
use crate::init::modules;
use crate::plan::preserve::{Attach, Binding};
use crate::report::Reporter;
use crate::sys::beneath::{self, Root, Walk};
use crate::sys::detached::{Detached, Flags, Overlay};

/// Provides the path of `binding`; the id of the mount, where it is one.
pub fn attach(
    binding: &Binding,
    source: &Source,
    image: &Root,
    root: &Path,
    reporter: &Reporter,
) -> Result<Option<u64>> {
    let root = Root::open(root)?;
    if binding.attach == Attach::MachineId {
        claim::settle(binding, source, reporter)?;
        let wanting = Wanting {
            root: &root,
            bare: None,
        };
        machine_id::provide(binding, source, image, wanting, reporter)?;
        earlier::note(binding, source, reporter);
        return Ok(None);
    }
    let target = target(binding, &root)?;
    let known = claim::settle(binding, source, reporter)?;
    if binding.seed == Seed::FromImageOnce {
        seed::fill(binding, source, image, known, reporter)?;
    }
    let mount = match binding.attach {
        Attach::Directory | Attach::File => bind(binding, source, image)?,
        Attach::Overlay => overlay(binding, source, image)?,
        Attach::MachineId => return Ok(None),
    };
    earlier::note(binding, source, reporter);
    mount.set_atime(atime(binding.flags), binding.flags.nodiratime)?;
    let handle = mount
        .as_fd()
        .try_clone_to_owned()
        .context(Class::Preserve, || "keeping the mount's descriptor")?;
    let id = mount_id(&handle)?;
    mount.attach(target.as_fd(), &binding.target.display().to_string())?;
    Ok(Some(id))
}

fn flags(flags: MountFlags) -> Flags {
    Flags {
        read_only: flags.read_only,
        nosuid: flags.nosuid,
        nodev: flags.nodev,
        noexec: flags.noexec,
    }
}

fn atime(flags: MountFlags) -> crate::sys::detached::Atime {
    match flags.atime {
        Atime::Relatime => crate::sys::detached::Atime::Relative,
        Atime::Noatime => crate::sys::detached::Atime::Never,
        Atime::Strictatime => crate::sys::detached::Atime::Always,
    }
}

/// The target in the root, made where it is missing. Links of the image are followed inside the root, but not to
/// where nothing may be preserved; those of what is mounted there already are not.
fn target(binding: &Binding, root: &Root) -> Result<OwnedFd> {
    let path = &binding.target;
    only_the_images_links(root, path)?;
    let is_file = binding.attach == Attach::File;
    let handle = match root.handle(path, Walk::InRoot) {
        Ok(handle) => handle,
        Err(error) if error.errno == Errno::ENOENT => {
            make(root, path, is_file).map_err(|error| dangling(root, path, error))?;
            root.handle(path, Walk::InRoot)?
        }
        Err(error) => return Err(error.of_class(Class::Preserve)),
    };
    must_fit(binding, root, &handle)?;
    Ok(handle)
}

/// Refuses a way to `path` over a link in what is mounted in `root`: a preserved path above, whose users may have made
/// one to wherever they like.
fn only_the_images_links(root: &Root, path: &Path) -> Result<()> {
    let of_class = |error: beneath::Error| error.of_class(Class::Preserve);
    let image = mount_id(
        &root
            .handle(Path::new("/"), Walk::NoLinks)
            .map_err(of_class)?,
    )?;
    let mut trusts = |directory: &OwnedFd| mount_id(directory).is_ok_and(|id| id == image);
    match root.way(path, &mut trusts) {
        Ok(_) => Ok(()),
        Err(error) if error.errno == Errno::ELOOP => Err(error.of_class(Class::Preserve).hint(format!(
            "{} goes over a link that the image does not have: look who made it, and name the place itself as `target`",
            path.display()
        ))),
        Err(error) => Err(of_class(error)),
    }
}

/// Whether `binding` has its place in `root`, or it can be made; nothing is.
pub fn has_place(binding: &Binding, root: &Root) -> Result<()> {
    let path = &binding.target;
    // The machine id is a file that is put there.
    let is_copied = binding.attach == Attach::MachineId;
    match root.handle(path, Walk::InRoot) {
        Ok(_) if is_copied => {}
        Ok(handle) => return must_fit(binding, root, &handle),
        Err(error) if error.errno == Errno::ENOENT => {}
        Err(error) => return Err(error.of_class(Class::Preserve)),
    }
    // The nearest that is there, and what is missing in it.
    for (missing, above) in path.ancestors().zip(path.ancestors().skip(1)) {
        let handle = match root.handle(above, Walk::InRoot) {
            Ok(handle) => handle,
            Err(error) if error.errno == Errno::ENOENT => continue,
            Err(error) => return Err(error.of_class(Class::Preserve)),
        };
        if !is_copied && root.entry(missing, Walk::InRoot).is_ok() {
            return Err(leads_nowhere(path, &root.real_path(path)?));
        }
        let kept = fstatvfs(&handle).context(Class::Preserve, || {
            format!("asking for the file system of {}", above.display())
        })?;
        if kept.flags().contains(FsFlags::ST_RDONLY) {
            return Err(Failure::new(
                Class::Preserve,
                format!(
                    "{} cannot be made: {} is on a file system that is read-only",
                    path.display(),
                    above.display()
                ),
            )
            .hint("make it in the image"));
        }
        break;
    }
    Ok(())
}

/// Refuses what is at the target of `binding` where it is of another kind, or where nothing may be preserved.
fn must_fit(binding: &Binding, root: &Root, handle: &OwnedFd) -> Result<()> {
    let path = &binding.target;
    let is_file = binding.attach == Attach::File;
    let stat =
        fstat(handle).context(Class::Preserve, || format!("looking at {}", path.display()))?;
    let kind = beneath::kind(&stat);
    let wanted = if is_file {
        SFlag::S_IFREG
    } else {
        SFlag::S_IFDIR
    };
    if kind != wanted {
        return Err(Failure::new(
            Class::Preserve,
            format!(
                "{} of the image is no {}",
                path.display(),
                if is_file { "file" } else { "directory" }
            ),
        )
        .hint("correct `kind` or `target`"));
    }
    let (base, real) = (place::path_of(root)?, place::path_of(handle)?);
    let inside = Path::new("/").join(real.strip_prefix(&base).map_err(|_| {
        Failure::new(
            Class::Preserve,
            format!(
                "{} leads to {}, which is not in the root",
                path.display(),
                real.display()
            ),
        )
    })?);
    if let Some(why) = forbidden(&inside) {
        return Err(Failure::new(
            Class::Preserve,
            format!(
                "{} leads to {} in the image: {why}",
                path.display(),
                inside.display()
            ),
        )
        .hint("name the place itself, not a link to it"));
    }
    Ok(())
}

fn make(root: &Root, path: &Path, is_file: bool) -> Result<(), beneath::Error> {
    if !is_file {
        return root.make_directories(path, 0o755, Walk::InRoot).map(drop);
    }
    if let Some(parent) = path.parent() {
        root.make_directories(parent, 0o755, Walk::InRoot)?;
    }
    root.create_file(path, 0o644, Walk::InRoot).map(drop)
}

/// What a link of the image leads to is the image's to make.
fn dangling(root: &Root, path: &Path, error: beneath::Error) -> Failure {
    let is_link = matches!(error.errno, Errno::ENOENT | Errno::EEXIST);
    match root.real_path(path) {
        Ok(real) if is_link && real != *path => leads_nowhere(path, &real),
        _ => error.of_class(Class::Preserve),
    }
}

fn leads_nowhere(path: &Path, real: &Path) -> Failure {
    Failure::new(
        Class::Preserve,
        format!(
            "{} leads to {} by a link of the image, and that is not there",
            path.display(),
            real.display()
        ),
    )
    .hint("make it in the image, or name the place itself in `target`")
}

/// The target of `binding` in `root`, behind the links on the way; made where it is missing.
pub fn real_target(binding: &Binding, root: &Root) -> Result<PathBuf> {
    let handle = target(binding, root)?;
    place::path_of(&handle)
}

/// Makes ready what `binding` mounts, and mounts nothing: for a system that mounts it itself at each of its boots.
pub fn prepare(
    binding: &Binding,
    source: &Source,
    system: &Root,
    reporter: &Reporter,
) -> Result<()> {
    if binding.attach == Attach::MachineId {
        claim::settle(binding, source, reporter)?;
        let bare = Detached::copy_of(system.as_fd(), "the installed root", false)?;
        let wanting = Wanting {
            root: system,
            bare: Some(&Root::of(&bare, system.name())?),
        };
        machine_id::provide(binding, source, system, wanting, reporter)?;
        earlier::note(binding, source, reporter);
        return Ok(());
    }
    drop(target(binding, system)?);
    let known = claim::settle(binding, source, reporter)?;
    if binding.seed == Seed::FromImageOnce {
        seed::fill(binding, source, system, known, reporter)?;
    }
    match binding.attach {
        Attach::Directory | Attach::File => drop(content(binding, source, system)?),
        Attach::Overlay => drop(layer::directories(
            source,
            &binding.subdir,
            &place::attributes(binding, system),
        )?),
        Attach::MachineId => {}
    }
    earlier::note(binding, source, reporter);
    Ok(())
}

fn bind(binding: &Binding, source: &Source, image: &Root) -> Result<Detached> {
    let from = content(binding, source, image)?;
    let what = format!("{} of {}", binding.subdir.display(), source.name);
    let mount = Detached::copy_of(from.as_fd(), &what, false)?;
    mount.set_flags(flags(binding.flags), false)?;
    Ok(mount)
}

/// The directory or file on the source, made where it is missing.
fn content(binding: &Binding, source: &Source, image: &Root) -> Result<OwnedFd> {
    let wanted = place::attributes(binding, image);
    let path = &binding.subdir;
    if binding.attach == Attach::File {
        place::file(source, path, &wanted)
    } else {
        let fresh = path.as_os_str().is_empty()
            && (binding.mode.is_some() || binding.owner.is_some())
            && !source.read_only
            && !place::has_content(source, path)?;
        let fd = place::directory(source, path, &wanted)?;
        if fresh {
            // The root of a file system is never made here, and yet is as good as new.
            place::dress(&fd, &wanted, path)?;
        }
        Ok(fd)
    }
}

/// An overlay of the image's directory and, for whatever image, one upper layer on the source.
fn overlay(binding: &Binding, source: &Source, image: &Root) -> Result<Detached> {
    modules::want("overlay");
    let Layer { upper, work } =
        layer::directories(source, &binding.subdir, &place::attributes(binding, image))?;
    let lower = match image.directory(&binding.target, Walk::InRoot) {
        Ok(lower) => lower,
        Err(error) if error.is_missing() => nothing()?,
        Err(error) => return Err(error.of_class(Class::Preserve)),
    };
    // A descriptor cannot be led anywhere, and has no characters that mean something to the kernel here.
    let path = |fd: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    Overlay {
        lower: &path(&lower),
        upper: &path(&upper),
        work: &path(&work),
        root_context: None,
        name: "ironroot-preserve",
    }
    .mount(flags(binding.flags))
    .map_err(|failure| {
        Failure::new(
            Class::Preserve,
            format!(
                "the changes of {} cannot be kept beside the image, on {}",
                binding.target.display(),
                source.name
            ),
        )
        .caused_by(failure)
        .hint("an overlay needs a source with ext4, xfs, btrfs or f2fs; bind takes others too")
    })
}

/// An empty directory, for an image that has nothing there.
fn nothing() -> Result<OwnedFd> {
    let run = Root::open(Path::new("/run"))?;
    let path = Path::new(STATE)
        .strip_prefix("/run")
        .map(|state| state.join("nothing"))
        .unwrap_or_default();
    Ok(run.make_directories(&path, 0o755, Walk::NoLinks)?)
}
