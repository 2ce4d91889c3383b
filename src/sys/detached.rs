//! Mounts that are made before they have a place, and that get it by descriptor: fsopen(2), fsconfig(2),
//! fsmount(2), open_tree(2), move_mount(2), mount_setattr(2) (Linux: include/uapi/linux/mount.h).
//!
//! A path into a foreign root can be led anywhere by its symbolic links; a descriptor cannot. And the file
//! system says itself why it refuses, where mount(2) only has a number.

use std::ffi::{CStr, CString};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::units::Bytes;

/// The flags of one mount. Each is stated: what is false is cleared, whatever the mount's source had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // They are the kernel's flags, one for one.
pub struct Flags {
    /// No writing through this mount.
    pub read_only: bool,
    /// Set-user-ID bits and file capabilities have no effect.
    pub nosuid: bool,
    /// Device nodes cannot be opened.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
}

impl Flags {
    /// A root file system: everything in it works.
    pub const ROOT: Flags = Flags {
        read_only: false,
        nosuid: false,
        nodev: false,
        noexec: false,
    };

    /// A file system that only ironroot reads, such as the layer below an overlay.
    pub const LAYER: Flags = Flags {
        read_only: true,
        ..Flags::ROOT
    };

    fn bits(self, wanted: bool) -> u64 {
        [
            (self.read_only, libc::MOUNT_ATTR_RDONLY),
            (self.nosuid, libc::MOUNT_ATTR_NOSUID),
            (self.nodev, libc::MOUNT_ATTR_NODEV),
            (self.noexec, libc::MOUNT_ATTR_NOEXEC),
        ]
        .into_iter()
        .filter(|(is, _)| *is == wanted)
        .fold(0, |all, (_, bit)| all | bit)
    }
}

/// When reading counts as a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Once a day, and after a change.
    Relative,
    /// Never.
    Never,
    /// Always.
    Always,
}

/// A mount without a place. Dropping it undoes it.
#[derive(Debug)]
pub struct Detached {
    fd: OwnedFd,
    /// What it is, for messages.
    what: String,
}

impl AsFd for Detached {
    /// Its root directory, for the *at functions and for openat2(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Detached {
    /// A mount of its own of what `source` (an O_PATH descriptor will do) is: a directory or a file. With
    /// `recursive`, what is mounted below it comes along.
    pub fn copy_of(source: BorrowedFd<'_>, what: &str, recursive: bool) -> Result<Detached> {
        let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | AT_EMPTY_PATH;
        if recursive {
            flags |= AT_RECURSIVE;
        }
        // SAFETY: the descriptor is open and the empty string ends with a zero; both live until the call
        // returns.
        let result =
            unsafe { libc::syscall(libc::SYS_open_tree, source.as_raw_fd(), c"".as_ptr(), flags) };
        let fd = owned(result).context(Class::Media, || format!("copying the mount of {what}"))?;
        Ok(Detached {
            fd,
            what: what.to_owned(),
        })
    }

    /// Sets or clears each of `flags` (mount_setattr(2), Linux 5.12); with `recursive`, on all mounts below as
    /// well.
    pub fn set_flags(&self, flags: Flags, recursive: bool) -> Result<()> {
        set_flags(self.as_fd(), &self.what, flags, recursive)
    }

    /// States when reading counts as a use; with `nodiratime`, reading a directory never does.
    pub fn set_atime(&self, atime: Atime, nodiratime: bool) -> Result<()> {
        let (mut set, mut clear) = (
            match atime {
                Atime::Relative => libc::MOUNT_ATTR_RELATIME,
                Atime::Never => libc::MOUNT_ATTR_NOATIME,
                Atime::Always => libc::MOUNT_ATTR_STRICTATIME,
            },
            // The three are one field, which has to be cleared as a whole.
            libc::MOUNT_ATTR__ATIME,
        );
        *if nodiratime { &mut set } else { &mut clear } |= libc::MOUNT_ATTR_NODIRATIME;
        set_attributes(self.as_fd(), set, clear, AT_EMPTY_PATH).context(Class::Media, || {
            format!("setting {atime:?} of {}", self.what)
        })
    }

    /// Mounts it on what `target` is: a directory on a directory, a file on a file.
    pub fn attach(self, target: BorrowedFd<'_>, place: &str) -> Result<()> {
        // SAFETY: both descriptors are open and the empty strings end with a zero; all live until the call
        // returns.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_mount,
                self.fd.as_raw_fd(),
                c"".as_ptr(),
                target.as_raw_fd(),
                c"".as_ptr(),
                libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH,
            )
        };
        Errno::result(result).map(drop).context(Class::Media, || {
            format!("mounting {} at {place}", self.what)
        })
    }

    /// [`Detached::attach`] by a path of ours. A symbolic link at its end is refused.
    pub fn attach_at(self, target: &Path) -> Result<()> {
        let place = target.display().to_string();
        let fd = place_at(target).context(Class::Media, || {
            format!("mounting {} at {place}: opening it", self.what)
        })?;
        self.attach(fd.as_fd(), &place)
    }
}

/// A descriptor that stands for a place without opening what is there.
fn place_at(path: &Path) -> io::Result<OwnedFd> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .map(OwnedFd::from)
}

/// Sets or clears each of `flags` of the mount that `mount` is the root of (mount_setattr(2), Linux 5.12).
pub fn set_flags(mount: BorrowedFd<'_>, what: &str, flags: Flags, recursive: bool) -> Result<()> {
    let at = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    set_attributes(mount, flags.bits(true), flags.bits(false), at).context(Class::Media, || {
        format!("setting the mount flags of {what} to {flags:?}")
    })
}

fn set_attributes(mount: BorrowedFd<'_>, set: u64, clear: u64, at: u32) -> nix::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: clear,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open, the empty string ends with a zero, and `attributes` has the layout of
    // struct mount_attr and the size that is given; all live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            at,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(result).map(drop)
}

// The kernel takes these as unsigned (linux/fcntl.h).
const AT_EMPTY_PATH: u32 = 0x1000;
const AT_RECURSIVE: u32 = 0x8000;

/// A descriptor that a system call just returned.
fn owned(result: libc::c_long) -> nix::Result<OwnedFd> {
    let fd = libc::c_int::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A file system that is being described (fsopen(2)).
#[derive(Debug)]
pub struct Context {
    fd: OwnedFd,
    kind: String,
    /// What it is, for messages.
    what: String,
}

impl Context {
    /// Begins a file system of type `kind`; `what` names it in messages.
    pub fn new(kind: &str, what: impl Into<String>) -> Result<Context> {
        let what = what.into();
        let name = c_string(kind.as_bytes(), &what)?;
        // SAFETY: the string ends with a zero and lives until the call returns.
        let result =
            unsafe { libc::syscall(libc::SYS_fsopen, name.as_ptr(), libc::FSOPEN_CLOEXEC) };
        let fd = owned(result).map_err(|errno| {
            let failure = Failure::new(Class::Media, format!("mounting {what} as {kind}"));
            if errno == Errno::ENODEV {
                failure
                    .caused_by(io::Error::other("this kernel does not know the type"))
                    .hint(format!("add the kernel's module for {kind} to the initrd"))
            } else {
                failure.caused_by(errno)
            }
        })?;
        Ok(Context {
            fd,
            kind: kind.to_owned(),
            what,
        })
    }

    /// An option without a value, such as `ro`.
    pub fn flag(self, key: &str) -> Result<Context> {
        let name = c_string(key.as_bytes(), &self.what)?;
        let result = self.configure(libc::FSCONFIG_SET_FLAG, Some(&name), None);
        self.checked(result, || format!("option {key}"))
    }

    /// `key=value`.
    pub fn set(self, key: &str, value: &[u8]) -> Result<Context> {
        let result = self.try_set(key, value)?;
        self.checked(result, || {
            format!(
                "option {key}={}",
                printable(&String::from_utf8_lossy(value))
            )
        })
    }

    /// `key=value` where the kernel has the option, else without it. Whether it has.
    ///
    /// # Errors
    /// Where the kernel has the option and refuses the value.
    pub fn set_if_known(&self, key: &str, value: &[u8]) -> Result<bool> {
        let Err(errno) = self.try_set(key, value)? else {
            return Ok(true);
        };
        let said = self.messages();
        // Linux, fs/fs_context.c: `vfs_parse_fs_param`.
        if said.iter().any(|line| line.contains("Unknown parameter")) {
            return Ok(false);
        }
        let doing = format!(
            "option {key}={}",
            printable(&String::from_utf8_lossy(value))
        );
        Err(self.refusal(&doing, &said, errno))
    }

    /// `key=value` where the kernel takes it, else without it. Whether it does.
    pub fn set_if_taken(&self, key: &str, value: &[u8]) -> Result<bool> {
        let taken = self.try_set(key, value)?.is_ok();
        if !taken {
            // What it says of that is no reason for a later failure.
            drop(self.messages());
        }
        Ok(taken)
    }

    /// Makes the file system (or finds it, where it exists already) and a mount of it.
    pub fn mount(self, flags: Flags) -> Result<Detached> {
        let result = self.configure(libc::FSCONFIG_CMD_CREATE, None, None);
        let this = self.checked(result, || "creating it".to_owned())?;
        let attributes = u32::try_from(flags.bits(true)).map_err(|_| {
            Failure::new(Class::Bug, format!("mount flags {flags:?} have no place"))
        })?;
        // SAFETY: the descriptor is open until the call returns.
        let result = unsafe {
            libc::syscall(
                libc::SYS_fsmount,
                this.fd.as_raw_fd(),
                libc::FSMOUNT_CLOEXEC,
                attributes,
            )
        };
        match owned(result) {
            Ok(fd) => Ok(Detached {
                fd,
                what: this.what,
            }),
            Err(errno) => Err(this.refused("making the mount", errno)),
        }
    }

    fn try_set(&self, key: &str, value: &[u8]) -> Result<nix::Result<()>> {
        let name = c_string(key.as_bytes(), &self.what)?;
        let value = c_string(value, &self.what)?;
        Ok(self.configure(libc::FSCONFIG_SET_STRING, Some(&name), Some(&value)))
    }

    fn configure(
        &self,
        command: libc::c_uint,
        key: Option<&CStr>,
        value: Option<&CStr>,
    ) -> nix::Result<()> {
        let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the descriptor is open; the strings end with a zero and live until the call returns; a null
        // pointer stands where the command takes no string.
        let result = unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                self.fd.as_raw_fd(),
                command,
                pointer(key),
                pointer(value),
                0,
            )
        };
        Errno::result(result).map(drop)
    }

    fn checked(self, result: nix::Result<()>, doing: impl FnOnce() -> String) -> Result<Context> {
        match result {
            Ok(()) => Ok(self),
            Err(errno) => Err(self.refused(&doing(), errno)),
        }
    }

    /// The failure, with what the file system itself has to say.
    fn refused(&self, doing: &str, errno: Errno) -> Failure {
        self.refusal(doing, &self.messages(), errno)
    }

    fn refusal(&self, doing: &str, said: &[String], errno: Errno) -> Failure {
        let mut text = format!("mounting {} as {}: {doing}", self.what, self.kind);
        for line in said {
            text.push_str(": ");
            text.push_str(line);
        }
        Failure::new(Class::Media, text).caused_by(errno)
    }

    /// Errors and warnings that the kernel holds for whoever reads the descriptor, one a read: `e text`.
    fn messages(&self) -> Vec<String> {
        let mut lines = Vec::new();
        // The kernel keeps eight.
        for _ in 0..8 {
            let mut buffer = [0u8; 1024];
            let Ok(length) = nix::unistd::read(&self.fd, &mut buffer) else {
                break;
            };
            let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
            let text = text.trim_end();
            let text = text.strip_prefix("e ").or_else(|| text.strip_prefix("w "));
            lines.extend(text.map(printable));
        }
        lines
    }
}

fn c_string(bytes: &[u8], what: &str) -> Result<CString> {
    CString::new(bytes).context(Class::Bug, || {
        format!("mounting {what}: a text with a zero byte")
    })
}

/// A tmpfs of ours. Every field is said to the kernel: its defaults are half of the memory and mode 1777.
#[derive(Clone, Debug)]
pub struct Tmpfs {
    /// What it may hold.
    pub size: Bytes,
    /// How many inodes; 0 for no limit.
    pub inodes: u64,
    /// Mode of its root directory.
    pub mode: u32,
    /// Spread its pages over the memory of all NUMA nodes, where the kernel can.
    pub interleave: bool,
    /// Its name in the table of mounts.
    pub name: String,
}

impl Tmpfs {
    /// Makes it.
    pub fn mount(&self, flags: Flags) -> Result<Detached> {
        let what = format!("{} ({})", self.name, self.size.short());
        let context = Context::new("tmpfs", what)?
            .set("source", self.name.as_bytes())?
            .set("size", self.size.0.to_string().as_bytes())?
            .set("nr_inodes", self.inodes.to_string().as_bytes())?
            .set("mode", format!("{:o}", self.mode).as_bytes())?;
        if self.interleave {
            // A kernel without NUMA refuses the word; the memory of one node needs no spreading.
            context.set_if_taken("mpol", b"interleave")?;
        }
        context.mount(flags)
    }
}

/// An overlay of two directories (Documentation/filesystems/overlayfs.rst).
#[derive(Clone, Debug)]
pub struct Overlay<'a> {
    /// Below: only read.
    pub lower: &'a Path,
    /// Above: takes what is written.
    pub upper: &'a Path,
    /// An empty directory on the file system of `upper`.
    pub work: &'a Path,
    /// SELinux label of the overlay's root. A kernel whose SELinux has no policy yet takes none (Linux:
    /// security/selinux/hooks.c, `selinux_set_mnt_opts`), and the overlay is made without it.
    pub root_context: Option<&'a str>,
    /// Its name in the table of mounts.
    pub name: &'a str,
}

impl Overlay<'_> {
    /// Makes it. The optional features stay off: each of them writes into the upper layer what only a kernel
    /// with the same feature reads.
    pub fn mount(&self, flags: Flags) -> Result<Detached> {
        self.mount_with_label(flags).map(|(mount, _)| mount)
    }

    /// The same, and whether its root has the label of `root_context`.
    pub fn mount_with_label(&self, flags: Flags) -> Result<(Detached, bool)> {
        let mut context =
            Context::new("overlay", self.name)?.set("source", self.name.as_bytes())?;
        for (key, path) in [
            ("lowerdir", self.lower),
            ("upperdir", self.upper),
            ("workdir", self.work),
        ] {
            let bytes = path.as_os_str().as_bytes();
            // They have a meaning of their own here, and the paths are ours.
            if bytes.iter().any(|b| b":,\\".contains(b)) {
                let text = format!("{key} {} of an overlay", path.display());
                return Err(Failure::new(Class::Bug, text));
            }
            context = context.set(key, bytes)?;
        }
        for (key, value) in [
            ("index", "off"),
            ("metacopy", "off"),
            ("redirect_dir", "off"),
            ("xino", "off"),
        ] {
            // Said whatever the kernel's default is, which its builder and the module's parameters choose. What does
            // not know the option has not the feature either; what knows it and refuses is not used.
            context.set_if_known(key, value.as_bytes())?;
        }
        let labelled = match self.root_context {
            Some(label) => context.set_if_taken("rootcontext", label.as_bytes())?,
            None => false,
        };
        Ok((context.mount(flags)?, labelled))
    }
}

/// Mounts the file system of type `kind` (`squashfs`, `erofs`, `ext4`, `xfs`, `vfat`) that `device` holds,
/// without ever writing to it. `options` are its own: `noload` keeps ext4, `norecovery` xfs from replaying its
/// journal, which on a read-only device they refuse to do.
pub fn read_only(kind: &str, device: &Path, options: &[(&str, Option<&str>)]) -> Result<Detached> {
    let mut context = Context::new(kind, device.display().to_string())?
        .set("source", device.as_os_str().as_bytes())?
        .flag("ro")?;
    for (key, value) in options {
        context = match value {
            Some(value) => context.set(key, value.as_bytes())?,
            None => context.flag(key)?,
        };
    }
    context.mount(Flags::LAYER)
}
