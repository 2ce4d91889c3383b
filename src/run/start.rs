//! Starting the installed system without the firmware, which takes minutes on a server: by switching to its root
//! in this kernel, or by loading its own kernel.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::Machine;
use super::installed::entry::{self, Bootable};
use super::installed::{Access, Installed, LOOK, fstab, quiet, volumes};
use super::partitions;
use crate::error::{Class, Context as _, Failure, Result, chain};
use crate::host::tables;
use crate::init::switch_root;
use crate::plan::step::{Handoff, Start, Switch, Target};
use crate::sys::beneath::{Root, Walk};
use crate::sys::mount::{self, Flags};
use crate::sys::{block, kexec};

/// The system to be started.
#[derive(Clone, Copy, Debug)]
pub struct System<'a> {
    /// The disk that it is on.
    pub target: &'a Target,
    /// Where its root is mounted for a switch.
    pub place: &'a Path,
    /// Its init.
    pub init: Option<&'a str>,
    /// Who switches.
    pub switch: Switch,
    /// Partitions that are no part of it.
    pub kept: &'a [u32],
}

/// An initrd is padded to this, as the kernel demands between two of them
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
const PADDING: u64 = 4;

/// How long udevd may look at the disk.
const LOCKED_WITHIN: Duration = Duration::from_secs(5);

/// Prepares the start. What comes back is the run's end.
///
/// # Errors
/// Class handover or media; the caller restarts the machine instead.
pub fn start(system: &System<'_>, start: Start, machine: &Machine<'_>) -> Result<Handoff> {
    let target = system.target;
    let dev = target.dev.ok_or_else(|| {
        Failure::new(
            Class::Handover,
            format!(
                "{} is a file: nothing is started from it",
                target.path.display()
            ),
        )
    })?;
    let failed = || format!("reading the table of {}", target.path.display());
    let mut file = File::open(&target.path).context(Class::Media, failed)?;
    if block::device_number(&file).context(Class::Media, failed)? != dev {
        return Err(Failure::new(
            Class::Media,
            format!("{} is not device {dev} any more", target.path.display()),
        ));
    }
    let table = tables::read(&mut file, target.size, target.sector);
    // To the end: udevd would take the partitions away for a moment. Whoever else holds it does not change them.
    let held = block::lock(file, LOCKED_WITHIN);
    let file: &File = match &held {
        Ok(file) => file,
        Err((file, _)) => file,
    };
    let nodes = partitions::known(file, dev, &partitions::places(&table))?;
    let nodes = partitions::without(&nodes, system.kept);
    if start == Start::Root {
        match root(system, &nodes, &table, machine) {
            Ok(handoff) => return Ok(handoff),
            Err(failure) => machine.reporter.warn(format!(
                "the installed system does not start in this kernel: {}; its own kernel is started instead",
                chain(&failure)
            )),
        }
    }
    let installed = Installed::mount(&nodes, &table, machine.arch, Access::Look, machine.reporter)?;
    let loaded = entry::find(&installed, machine.arch).and_then(|bootable| load(bootable, machine));
    installed.unmount()?;
    loaded?;
    Ok(Handoff::Kexec)
}

/// Loads a kernel; several initrds become one.
fn load(mut bootable: Bootable, machine: &Machine<'_>) -> Result<()> {
    entry::must_be_reasonable(&bootable)?;
    let name = bootable.name.clone();
    let failed = || format!("loading {name}");
    let memory = |what: &str| -> Result<File> {
        memfd_create(what, MFdFlags::MFD_CLOEXEC)
            .map(File::from)
            .context(Class::Handover, || format!("making room for the {what}"))
    };
    let mut kernel = memory("kernel")?;
    let length = bootable.kernel.length().0;
    copy(&mut bootable.kernel, &mut kernel).context(Class::Handover, failed)?;
    kernel
        .set_len(length)
        .and_then(|()| kernel.rewind())
        .context(Class::Handover, failed)?;
    let mut initrd = memory("initrd")?;
    join(&mut bootable.initrds, &mut initrd).context(Class::Handover, failed)?;
    let initrd = (!bootable.initrds.is_empty()).then_some(&initrd);
    kexec::load(&kernel, initrd, &bootable.options).map_err(|error| {
        Failure::new(Class::Handover, failed())
            .caused_by(error)
            .hint("a kernel without CONFIG_KEXEC_FILE, or one locked down by Secure Boot, does not load it")
    })?;
    machine.reporter.info(format!(
        "loaded {name}: {}",
        crate::error::printable(&bootable.options)
    ));
    Ok(())
}

/// Copies a part, padded with zeros to what may follow it.
fn copy(part: &mut entry::Part, to: &mut File) -> io::Result<()> {
    let length = part.length().0;
    let copied = io::copy(&mut part.reader()?, to)?;
    if copied != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    for _ in copied..copied.next_multiple_of(PADDING) {
        to.write_all(&[0])?;
    }
    Ok(())
}

/// Makes one initrd of several, in their order.
fn join(initrds: &mut [entry::Part], to: &mut File) -> io::Result<()> {
    for part in initrds {
        copy(part, to)?;
    }
    to.rewind()
}

/// Mounts the root as its own initrd would.
fn root(
    system: &System<'_>,
    nodes: &[partitions::Node],
    table: &tables::Table,
    machine: &Machine<'_>,
) -> Result<Handoff> {
    let all = volumes::of(nodes, table)?;
    std::fs::create_dir_all(system.place).context(Class::Handover, || {
        format!("making {}", system.place.display())
    })?;
    let find = |flags| {
        volumes::find_root(&all, machine.arch, system.place, flags)?
            .map_err(|why| Failure::new(Class::Handover, why))
    };
    // A journal is written back when it is certain that this system starts, no sooner.
    let quiet = quiet::all(&all)?;
    let (_, looked_at) = find(LOOK)?;
    let listed = {
        let root = Root::open(system.place)?;
        let text = root.read(Path::new("/etc/fstab"), Walk::InRoot, 1 << 20);
        fstab::parse(&String::from_utf8_lossy(&text.unwrap_or_default()))
    };
    let names = |path: &str| listed.iter().any(|e| e.target == Path::new(path));
    if names("/usr") {
        return Err(Failure::new(
            Class::Handover,
            "its /usr is a file system of its own, which its initrd mounts",
        ));
    }
    let found = switch_root::find_init(system.place, system.init)?;
    switch_root::check_directories(system.place)?;
    if let Ok(names) = nix::sys::utsname::uname() {
        let release = names.release().to_string_lossy();
        if let Some(missing) = switch_root::check_modules(system.place, &release) {
            return Err(Failure::new(Class::Handover, missing));
        }
    }
    drop(looked_at);
    drop(quiet);
    // A root that is checked and mounted for writing by its own system is read-only until then.
    let (number, guard) = find(Flags::MS_RDONLY)?;
    if !names("/") {
        // Nobody would make it writable.
        mount::remount_writable(system.place)?;
    }
    for warning in found.warnings {
        machine.reporter.warn(warning);
    }
    machine.reporter.info(format!(
        "the root of the installed system, partition {number} of {}, is at {}",
        system.target.path.display(),
        system.place.display()
    ));
    guard.keep();
    Ok(match system.switch {
        Switch::Ours => Handoff::SwitchRoot {
            root: system.place.to_owned(),
            init: system.init.map(str::to_owned),
        },
        Switch::Initrds => Handoff::Sysroot {
            root: system.place.to_owned(),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn several_initrds_become_one_in_their_order_each_at_a_multiple_of_four() {
        let mut parts: Vec<entry::Part> = ["early", "main", "overlay!!"]
            .into_iter()
            .map(|content| {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(content.as_bytes()).unwrap();
                entry::Part::whole(file).unwrap()
            })
            .collect();
        let mut to = tempfile::tempfile().unwrap();
        join(&mut parts, &mut to).unwrap();
        let mut joined = Vec::new();
        to.read_to_end(&mut joined).unwrap();
        assert_eq!(joined, b"early\0\0\0mainoverlay!!\0\0\0");
    }
}
