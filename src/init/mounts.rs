//! The mounts that every program expects, made as systemd's initrd interface wants to find them
//! (systemd.io/INITRD_INTERFACE), and the standard streams.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::libc;

use crate::error::{Class, Context as _, Failure, Result};
use crate::sys::mount::{self, Flags};

/// What only this program and root may read, kept for the new system.
pub const RUN: &str = "/run/ironroot";

struct Wanted {
    kind: &'static str,
    target: &'static str,
    flags: Flags,
    options: &'static str,
}

const fn wanted(
    kind: &'static str,
    target: &'static str,
    flags: Flags,
    options: &'static str,
) -> Wanted {
    Wanted {
        kind,
        target,
        flags,
        options,
    }
}

const PLAIN: Flags = Flags::MS_NOSUID
    .union(Flags::MS_NODEV)
    .union(Flags::MS_NOEXEC);

/// In this order. Every tmpfs says its mode: the kernel's default is 1777 whatever the umask.
const EARLY: [Wanted; 6] = [
    wanted("proc", "/proc", PLAIN, ""),
    wanted("sysfs", "/sys", PLAIN, ""),
    wanted("devtmpfs", "/dev", Flags::MS_NOSUID, "mode=0755"),
    wanted(
        "devpts",
        "/dev/pts",
        Flags::MS_NOSUID.union(Flags::MS_NOEXEC),
        "mode=0620,gid=5,ptmxmode=0666",
    ),
    wanted(
        "tmpfs",
        "/dev/shm",
        Flags::MS_NOSUID.union(Flags::MS_NODEV),
        "mode=1777,size=10%",
    ),
    // The size and inodes are systemd's for /run: it keeps this very mount when it starts in the new system.
    wanted(
        "tmpfs",
        "/run",
        Flags::MS_NOSUID
            .union(Flags::MS_NODEV)
            .union(Flags::MS_STRICTATIME),
        "mode=0755,size=20%,nr_inodes=800k",
    ),
];

const EFIVARS: &str = "/sys/firmware/efi/efivars";

/// Makes the early mounts and [`RUN`]. What is mounted already stays as it is. Returns what went wrong: PID 1
/// goes on with what it has, and says so once it has a console.
pub fn early() -> Vec<Failure> {
    let mut failures: Vec<Failure> = EARLY.iter().filter_map(|w| make(w).err()).collect();
    failures.extend(directory(Path::new(RUN), 0o700).err());
    failures.extend(directory(Path::new("/tmp"), 0o1777).err());
    // What devtmpfs does not make and programs use.
    for (name, to) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        let _ = std::os::unix::fs::symlink(to, name);
    }
    failures
}

/// Mounts the EFI variables where the firmware has them. Called again once modules can be loaded, since
/// efivarfs often is one.
///
/// # Errors
/// Class media where the firmware is UEFI and they cannot be mounted.
pub fn efi_variables() -> Result<()> {
    // The directory is there exactly where the kernel has EFI runtime services.
    if !Path::new(EFIVARS).is_dir() {
        return Ok(());
    }
    make(&wanted("efivarfs", EFIVARS, PLAIN, "")).map_err(|f| {
        f.hint("boot entries stay as they are; load efivarfs by adding it to the initramfs")
    })
}

fn make(wanted: &Wanted) -> Result<()> {
    let target = Path::new(wanted.target);
    if target != Path::new(EFIVARS) {
        directory(target, 0o755)?;
    }
    // Without /proc nothing is known; then the kernel's EBUSY says the same for all but tmpfs.
    let mounted = mount::mounted().unwrap_or_default();
    if mount::at(&mounted, target).is_some() {
        return Ok(());
    }
    mount::attach(
        Path::new(wanted.kind),
        target,
        wanted.kind,
        wanted.flags,
        wanted.options,
    )
}

fn directory(path: &Path, mode: u32) -> Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        // Again, because mkdir(2) takes away what the umask says.
        Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .context(Class::Media, || {
                format!("setting the mode of {}", path.display())
            }),
        Err(error) => Err(Failure::new(
            Class::Media,
            format!("making the directory {}", path.display()),
        )
        .caused_by(error)),
    }
}

/// Points the standard streams at /dev/console, where the kernel started us without one: Rust has put
/// /dev/null there. Never blocks: a dead serial line loses text, not the machine.
pub fn standard_streams() {
    let options = || {
        let mut options = OpenOptions::new();
        options.custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK);
        options
    };
    if let Ok(null) = options().read(true).open("/dev/null") {
        // Nobody types at this program; a read must not hang.
        let _ = nix::unistd::dup2_stdin(&null);
    }
    let out = options()
        .write(true)
        .open("/dev/console")
        .or_else(|_| options().write(true).open("/dev/null"));
    if let Ok(out) = out {
        let _ = nix::unistd::dup2_stdout(&out);
        let _ = nix::unistd::dup2_stderr(&out);
    }
}
