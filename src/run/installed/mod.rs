//! The installed system, mounted while the disk cannot boot yet: its root, and what it mounts below that by itself.
//! Everything is found among the partitions of the target's own table, and nowhere else.

pub mod arguments;
pub mod candidates;
pub mod entry;
pub mod files;
pub mod fstab;
pub mod ignition;
pub mod lasting;
pub mod quiet;
pub mod replace;
pub mod unified;
pub mod volumes;
pub mod words_added;

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use crate::config::request::SystemChanges;
use crate::config::request::system::NEVER;
use crate::error::{Class, Context as _, Failure, Result, chain};
use crate::host::tables::Table;
use crate::report::Reporter;
use crate::run::own_mounts::{self, When};
use crate::run::partitions::Node;
use crate::sys::beneath::{Root, Walk};
use crate::sys::mount::{Flags, Guard};
use quiet::Quiet;
use volumes::{RootByType, Volume};

/// Where the root is mounted meanwhile.
const PLACE: &str = "/run/ironroot/installed";
/// Where boot partitions are mounted that the system's fstab does not name.
const APART: &str = "/run/ironroot/installed-boot";

/// Nothing of the system is executed or opened as a device.
const FLAGS: Flags = Flags::MS_NOSUID
    .union(Flags::MS_NODEV)
    .union(Flags::MS_NOEXEC)
    .union(Flags::MS_NOATIME);

/// More mounts than any fstab asks for.
const MOUNTS: usize = 128;

/// And nothing is written.
pub(super) const LOOK: Flags = FLAGS.union(Flags::MS_RDONLY);

/// A larger file is no configuration.
const LIMIT: u64 = 4 << 20;

/// What the system is mounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To change it.
    Change,
    /// To read from it.
    Look,
}

/// A mounted system.
#[derive(Debug)]
pub struct Installed {
    /// The root, or why there is none: some images keep it where only they find it (ostree, LVM, encryption).
    root: std::result::Result<Root, String>,
    /// Boot partitions that are mounted apart, and what they are called.
    apart: Vec<Root>,
    /// Paths of the system on which something belongs that could not be mounted, and why.
    missing: Vec<(PathBuf, String)>,
    volumes: Vec<Volume>,
    /// The root that its own initrd would find.
    root_by_type: RootByType,
    /// In the order in which they were made.
    mounts: Vec<Guard>,
    /// Where nothing is to be changed; dropped after the mounts.
    quiet: Vec<Quiet>,
}

impl Installed {
    /// Mounts the system on `nodes`, which are the partitions of `table`.
    ///
    /// # Errors
    /// Class media where no partition, or more than one, holds a root.
    pub fn mount(
        nodes: &[Node],
        table: &Table,
        arch: &str,
        access: Access,
        reporter: &Reporter,
    ) -> Result<Installed> {
        let flags = match access {
            Access::Change => FLAGS,
            Access::Look => LOOK,
        };
        let volumes = volumes::of(nodes, table)?;
        let quiet = match access {
            Access::Change => Vec::new(),
            Access::Look => quiet::all(&volumes)?,
        };
        let root_by_type = volumes::root_by_type(table, &volumes, arch);
        let place = Path::new(PLACE);
        make_place(place)?;
        let mut mounted = Vec::new();
        let mut mounts = Vec::new();
        let root = match volumes::find_root(&volumes, arch, place, flags)? {
            Ok((number, guard)) => {
                reporter.info(format!("the installed system is on partition {number}"));
                mounted.push(number);
                mounts.push(guard);
                Ok(Root::open(place)?)
            }
            Err(why) => Err(why),
        };
        let mut this = Installed {
            root,
            apart: Vec::new(),
            missing: Vec::new(),
            volumes,
            root_by_type,
            mounts,
            quiet,
        };
        for entry in this.mounted_at_boot(reporter) {
            match this.mount_entry(&entry, flags) {
                Ok((number, guard)) => {
                    mounted.push(number);
                    this.mounts.push(guard);
                }
                Err(why) => this.missing.push((entry.target, why)),
            }
        }
        this.mount_apart(&mounted, flags, reporter)?;
        Ok(this)
    }

    /// Mounts what a line of fstab names, if that is on the target. Several subvolumes of one partition are several
    /// mounts.
    fn mount_entry(
        &self,
        entry: &fstab::Entry,
        flags: Flags,
    ) -> std::result::Result<(u32, Guard), String> {
        if self.mounts.len() >= MOUNTS {
            return Err("it mounts too much".to_owned());
        }
        let volume = self.volumes.iter().find(|v| v.is(&entry.spec));
        let volume = volume.ok_or_else(|| "it is none of the image's partitions".to_owned())?;
        self.root()
            .and_then(|root| below(root, volume, entry, flags))
            .map(|guard| (volume.number, guard))
            .map_err(|failure| chain(&failure))
    }

    /// Boot partitions that no line of fstab mounts: systemd finds them by their types.
    fn mount_apart(&mut self, mounted: &[u32], flags: Flags, reporter: &Reporter) -> Result<()> {
        let boot = self
            .volumes
            .iter()
            .filter(|v| v.is_boot && !mounted.contains(&v.number));
        for volume in boot {
            let place = Path::new(APART).join(volume.number.to_string());
            make_place(&place)?;
            match volume.attach(&place, flags, "") {
                Ok(guard) => {
                    self.apart.push(Root::open(&place)?);
                    self.mounts.push(guard);
                }
                Err(failure) => reporter.warn(format!(
                    "boot partition {} is not looked into: {}",
                    volume.number,
                    chain(&failure)
                )),
            }
        }
        Ok(())
    }

    /// What the running system mounts below its root, by fstab or by units.
    fn mounted_at_boot(&self, reporter: &Reporter) -> Vec<fstab::Entry> {
        let Ok(root) = &self.root else {
            return Vec::new();
        };
        let mut entries: Vec<fstab::Entry> = Vec::new();
        let own = own_mounts::of(root);
        if let Some(why) = own.unread {
            reporter.warn(why);
        }
        for own in own.all {
            let is_new = entries.iter().all(|e| e.target != own.entry.target);
            if own.when == When::AtBoot && is_new {
                entries.push(own.entry);
            }
        }
        // Parents before what is mounted on them, by whatever link they are named.
        entries.sort_by_cached_key(|e| seen_at(root, &e.target).components().count());
        entries
    }

    /// The root.
    ///
    /// # Errors
    /// Class media where none was found.
    pub fn root(&self) -> Result<&Root> {
        self.root.as_ref().map_err(|why| {
            Failure::new(Class::Media, format!("the image's root was not found: {why}")).hint(
                "ext4, xfs, btrfs and f2fs roots are looked into, encrypted ones, LVM and ostree are not",
            )
        })
    }

    /// All that boot loaders read from: the root, and boot partitions that are mounted apart.
    fn roots(&self) -> impl Iterator<Item = &Root> {
        self.root.as_ref().ok().into_iter().chain(&self.apart)
    }

    /// Refuses a file whose file system is not mounted: what is written there would be hidden in the running
    /// system. Links on the way are followed as that system follows them; one in its place is replaced.
    fn must_be_there(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(path);
        let mut real = self.root()?.real_path(parent)?;
        real.extend(path.file_name());
        self.must_be_seen(path, &real)
    }

    /// The same for what `path` leads to.
    fn must_lead_there(&self, path: &Path) -> Result<()> {
        let real = self.root()?.real_path(path)?;
        self.must_be_seen(path, &real)
    }

    fn must_be_seen(&self, path: &Path, real: &Path) -> Result<()> {
        let root = self.root()?;
        if let Some(at) = NEVER.iter().find(|at| real.starts_with(at)) {
            return Err(Failure::new(
                Class::Media,
                format!(
                    "{} leads to {}, and what is in {at} of the image is hidden in the running system",
                    path.display(),
                    real.display()
                ),
            )
            .hint("choose another path"));
        }
        for (at, why) in &self.missing {
            if real.starts_with(seen_at(root, at)) {
                return Err(Failure::new(
                    Class::Media,
                    format!(
                        "{} lies below {}, which could not be mounted: {why}",
                        path.display(),
                        at.display()
                    ),
                )
                .hint("add the file system's kernel module to the initrd, name the partition by UUID or PARTUUID in the image's fstab, or choose another path"));
            }
        }
        Ok(())
    }

    /// Makes the changes.
    ///
    /// # Errors
    /// Class media where one of them cannot be made.
    pub fn change(
        &self,
        changes: &SystemChanges,
        ignition: Option<&[u8]>,
        secure_boot: bool,
        reporter: &Reporter,
    ) -> Result<()> {
        for file in &changes.files {
            self.must_be_there(&file.path)?;
            files::write(self.root()?, file)?;
        }
        if !changes.arguments.is_empty() {
            arguments::change(self, &changes.arguments, secure_boot, reporter)?;
        }
        if let Some(config) = ignition {
            ignition::place(self, config, reporter)?;
        }
        Ok(())
    }

    /// Flushes and unmounts everything.
    ///
    /// # Errors
    /// Class media where a write failed late, or something still uses the system.
    pub fn unmount(mut self) -> Result<()> {
        for root in self.roots() {
            let directory = root.directory(Path::new("."), Walk::InRoot)?;
            nix::unistd::syncfs(&directory).context(Class::Media, || {
                format!("flushing {}", root.name().display())
            })?;
        }
        let mounts = std::mem::take(&mut self.mounts);
        let quiet = std::mem::take(&mut self.quiet);
        // Descriptors keep a mount busy.
        drop(self);
        for guard in mounts.into_iter().rev() {
            guard.unmount()?;
        }
        drop(quiet);
        Ok(())
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        while let Some(guard) = self.mounts.pop() {
            drop(guard);
        }
    }
}

/// Where a path leads; one that leads nowhere (links in a circle) is taken as it is written, and hides nothing else.
fn seen_at(root: &Root, path: &Path) -> PathBuf {
    root.real_path(path)
        .unwrap_or_else(|_| path.components().collect())
}

fn make_place(place: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(place)
        .context(Class::Media, || format!("making {}", place.display()))
}

/// Mounts a volume where the system's fstab wants it. The target is resolved inside the system.
fn below(root: &Root, volume: &Volume, entry: &fstab::Entry, flags: Flags) -> Result<Guard> {
    let target = root.directory(&entry.target, Walk::InRoot)?;
    let link = format!("/proc/self/fd/{}", target.as_fd().as_raw_fd());
    let place = std::fs::read_link(&link).context(Class::Media, || format!("reading {link}"))?;
    volume.attach(
        &place,
        flags,
        entry.subvolume().as_deref().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests;
