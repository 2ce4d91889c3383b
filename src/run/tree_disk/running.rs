//! The root that is running becomes the one of a disk.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::rooted::Rooted;
use super::{kernels, uki};
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::image::tree::{self, EMPTIED, LEFT_OUT, Ledger, LeftOut};
use crate::plan::step::Target;
use crate::plan::tree_layout::NewTable;
use crate::plan::tree_root::{self, RunningRoot};
use crate::report::Reporter;
use crate::run::source_disk;
use crate::stream::Verified;
use crate::sys::beneath::{Root, Walk};
use crate::sys::detached::{Atime, Detached, Flags};
use crate::sys::mount;

/// What an initrd has (os-release(5)).
const INITRD: &str = "etc/initrd-release";

/// Mounts that are named one by one.
const NAMES: usize = 12;

/// A tree with more entries is not counted to its end: whether it fits shows then.
const INODES: u64 = 50_000_000;

/// The root that is running, by a mount of its own: what is mounted in it is not there, but what lies below.
#[derive(Debug)]
pub struct Running {
    // Closed before the mount goes.
    root: Root,
    _mount: Detached,
    left_out: LeftOut,
}

impl Running {
    /// Opens it, and sees that it is a system that can be on `target`. `machine` is where /sys is.
    pub fn open(
        machine: &Path,
        (target, table): (&Target, &NewTable),
        demanded: RunningRoot,
        reporter: &Reporter,
    ) -> Result<Running> {
        let opening = || "opening the root that is running";
        let top = File::open("/").context(Class::Media, opening)?;
        let mount = Detached::copy_of(top.as_fd(), "the root that is running", false)?;
        // Reading it is no use of it.
        mount.set_flags(Flags::LAYER, false)?;
        mount.set_atime(Atime::Never, true)?;
        let root = Root::of(&mount.as_fd(), "the root that is running")?;
        let others = other_mounts().context(Class::Media, opening)?;
        must_be_a_system(&root, demanded, &others)?;
        let left_out = LeftOut {
            files: source_disk::files_behind(machine, target)
                .iter()
                .map(|file| (file.dev(), file.ino()))
                .collect(),
        };
        let size = tree::measure_running(&root, INODES, &left_out)?;
        tree_root::adopt_running(size.bytes, target, table)?;
        reporter.info(format!(
            "image: the root that is running, {} in {} entries",
            size.bytes.short(),
            size.inodes
        ));
        if !others.is_empty() {
            reporter.warn(format!(
                "other file systems are mounted in the root that is running; what they hold is not copied, only the places where they are: {}",
                listed(&others)
            ));
        }
        reporter.info(format!(
            "not copied either: what is in {}; {}",
            EMPTIED.map(|name| format!("/{name}")).join(", "),
            LEFT_OUT.map(|name| format!("/{name}")).join(", ")
        ));
        Ok(Running {
            root,
            _mount: mount,
            left_out,
        })
    }

    /// Copies it.
    pub(super) fn copy(
        self,
        (rooted, ledger): (&Rooted, Option<&mut Ledger>),
        reporter: &Reporter,
    ) -> Result<Verified> {
        let progress = AtomicU64::new(0);
        let (to, left_out) = (rooted.root(), &self.left_out);
        let copied = tree::copy_running(&self.root, to, left_out, (&progress, ledger))?;
        for note in copied.census().notes() {
            reporter.warn(note);
        }
        if let Some(note) = copied.changes().note() {
            reporter.warn(note);
        }
        reporter.info(copied.census().summary());
        Ok(Verified::of_running(&copied))
    }
}

/// Places of what else is mounted, but for what the kernel and the session have.
fn other_mounts() -> std::io::Result<Vec<PathBuf>> {
    let mut places: Vec<PathBuf> = mount::mounted()?
        .into_iter()
        .map(|entry| entry.target)
        .filter(|place| {
            let inside = place.strip_prefix("/").unwrap_or(place);
            inside != Path::new("") && !EMPTIED.iter().any(|top| inside.starts_with(top))
        })
        .collect();
    places.sort();
    places.dedup();
    Ok(places)
}

fn listed(places: &[PathBuf]) -> String {
    let mut names: Vec<String> = places
        .iter()
        .take(NAMES)
        .map(|place| printable(&place.to_string_lossy()))
        .collect();
    if places.len() > NAMES {
        names.push(format!("… ({} in all)", places.len()));
    }
    names.join(", ")
}

/// Refuses what would be no system without what is mounted in it, before anything is written.
fn must_be_a_system(root: &Root, demanded: RunningRoot, others: &[PathBuf]) -> Result<()> {
    if root.exists(Path::new(INITRD), Walk::InRoot)? {
        return Err(Failure::new(
            Class::Refused,
            format!("the root that is running is that of an initrd: it has /{INITRD}"),
        )
        .hint(
            "start the system first, from memory for instance, and run `ironroot install` in it",
        ));
    }
    let refused = |what: &str| {
        let mounted = if others.is_empty() {
            String::new()
        } else {
            format!("; other file systems are mounted at {}", listed(others))
        };
        Failure::new(
            Class::Refused,
            format!("the root that is running has no {what} of its own{mounted}"),
        )
    };
    let has = |path: &str| root.file(Path::new(path), Walk::InRoot).is_ok();
    if !["sbin/init", "etc/init", "bin/init"].into_iter().any(has) {
        return Err(refused("/sbin/init").hint(
            "only one file system is copied: install from an image, or from a system whose /usr is in its root",
        ));
    }
    if demanded.needs_kernel && kernels::find(root)?.is_empty() && uki::find(root)?.is_empty() {
        return Err(refused("kernel").hint(format!(
            "looked for {}, {}: put kernel and initrd there, or set `disk.bootloader` to None",
            kernels::PLACES,
            uki::PLACES
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_mounts_are_counted() {
        let places: Vec<PathBuf> = (0..40).map(|n| format!("/snap/{n}").into()).collect();
        assert!(listed(&places).ends_with("/snap/11, … (40 in all)"));
        assert_eq!(listed(&places[..2]), "/snap/0, /snap/1");
    }

    #[test]
    fn a_root_without_its_own_init_or_kernel_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let root = Root::open(place.path()).unwrap();
        let others = ["/usr".into()];
        let kernel = RunningRoot { needs_kernel: true };
        let none = RunningRoot {
            needs_kernel: false,
        };
        // As a merged system has it.
        std::os::unix::fs::symlink("usr/sbin", place.path().join("sbin")).unwrap();
        let failure = must_be_a_system(&root, none, &others).unwrap_err();
        assert_eq!(failure.class(), Class::Refused);
        assert!(
            failure
                .to_string()
                .contains("no /sbin/init of its own; other file systems are mounted at /usr")
        );
        let put = |path: &str| {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        put("usr/sbin/init");
        must_be_a_system(&root, none, &others).unwrap();
        let failure = must_be_a_system(&root, kernel, &[]).unwrap_err();
        assert!(failure.to_string().ends_with("no kernel of its own"));
        put("boot/vmlinuz-6.1.0");
        must_be_a_system(&root, kernel, &[]).unwrap();
        put("etc/initrd-release");
        let failure = must_be_a_system(&root, kernel, &[]).unwrap_err();
        assert!(failure.to_string().contains("initrd"));
    }
}
