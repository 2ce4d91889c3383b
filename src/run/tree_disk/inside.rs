//! The new root, as its own programs see it: with /proc, with a /dev in which the disk's new partitions are and the
//! disk itself is not, and with an empty /run. They are the image's own and have root's rights: this keeps them from
//! writing LBA 0 by mistake, not from meaning to.

use std::ffi::CStr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use nix::libc::dev_t;
use nix::sys::stat::{Mode, SFlag, makedev, mknodat};
use nix::unistd::symlinkat;

use super::rooted::{self, Rooted};
use crate::error::{Class, Context as _, Result};
use crate::run::partitions::{Node, Shared};
use crate::sys::beneath::{Root, Walk};
use crate::sys::chroot;
use crate::sys::detached::{self, Detached, Flags};
use crate::sys::tool::Output;

/// Device nodes that programs expect (Linux: Documentation/admin-guide/devices.txt).
const NODES: [(&str, u64, u64); 5] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
];

/// Links that shells and scripts expect (Linux: Documentation/admin-guide/devices.txt, "Compulsory links").
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// The mount of /proc is made where the program is started.
const PLACES: [&CStr; 3] = [c"/dev", c"/sys", c"/run"];

/// A root that is ready for its programs.
#[derive(Debug)]
pub struct Inside {
    root: Detached,
    /// In the order of [`PLACES`].
    mounts: [Detached; 3],
    run: Root,
}

impl Inside {
    /// The root on `node`, which is mounted as `rooted` already. The kernel's view of devices is there to be read.
    pub fn of(rooted: &Rooted, node: &Node, shared: &Shared) -> Result<Inside> {
        for place in ["dev", "proc", "sys", "run"] {
            rooted
                .root()
                .make_directories(Path::new(place), 0o755, Walk::InRoot)?;
        }
        let what = format!("partition {} for its programs", node.place.number);
        let root = rooted::mount(node, &what, Flags::ROOT)?;
        let quiet = Flags {
            nosuid: true,
            nodev: true,
            noexec: true,
            read_only: false,
        };
        let memory = |what: &str, flags| {
            detached::Context::new("tmpfs", what)?
                .set("mode", b"0755")?
                .mount(flags)
        };
        let dev = memory(
            "the /dev of the new root",
            Flags {
                nodev: false,
                ..quiet
            },
        )?;
        for (name, major, minor) in NODES {
            node_in(&dev, name, SFlag::S_IFCHR, 0o666, makedev(major, minor))?;
        }
        for node in shared.nodes() {
            let number = makedev(node.dev.major.into(), node.dev.minor.into());
            node_in(&dev, &name(node), SFlag::S_IFBLK, 0o600, number)?;
        }
        for (name, to) in LINKS {
            symlinkat(to, &dev, name).context(Class::Media, || {
                format!("making the link {name} for the new root")
            })?;
        }
        let sys = detached::Context::new("sysfs", "the /sys of the new root")?.mount(Flags {
            read_only: true,
            ..quiet
        })?;
        let run = memory("the /run of the new root", quiet)?;
        Ok(Inside {
            root,
            run: Root::of(&run.as_fd(), "/run of the new root")?,
            mounts: [dev, sys, run],
        })
    }

    /// Its /run.
    pub fn run_directory(&self) -> &Root {
        &self.run
    }

    /// Runs one program of the root.
    pub fn execute(
        self,
        program: &str,
        args: &[&str],
        more: &[(&str, String)],
        timeout: Duration,
    ) -> Result<(Output, ExitStatus, Root)> {
        let Inside { root, mounts, run } = self;
        let at: Vec<(&Detached, &'static CStr)> = mounts.iter().zip(PLACES).collect();
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let mut env = vec![
            ("PATH", path.to_owned()),
            ("LC_ALL", "C".to_owned()),
            ("HOME", "/root".to_owned()),
            // Nobody answers libdevmapper's questions in there.
            ("DM_DISABLE_UDEV", "1".to_owned()),
        ];
        env.extend_from_slice(more);
        let (output, status) = chroot::run(&root, &at, program, args, &env, timeout)?;
        Ok((output, status, run))
    }
}

/// The name of a partition's node, as it is in /dev.
pub fn name(node: &Node) -> String {
    let name = node.path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Where a partition's node is for a program of the root.
pub fn path(node: &Node) -> String {
    PathBuf::from("/dev")
        .join(name(node))
        .to_string_lossy()
        .into_owned()
}

fn node_in(dev: &Detached, name: &str, kind: SFlag, mode: u32, number: dev_t) -> Result<()> {
    mknodat(dev, name, kind, Mode::from_bits_truncate(mode), number).context(Class::Media, || {
        format!("making the node {name} for the new root")
    })
}
