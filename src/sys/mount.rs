//! Mounts: mount(2) and umount2(2) with errors that name the place, a guard that undoes, and the table of
//! what is mounted.

use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, mount, umount2};

pub use nix::mount::MsFlags as Flags;

use crate::error::{Class, Context as _, Result};

/// How often, and after which time each, a busy mount is asked again.
const ATTEMPTS: usize = 50;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// One line of /proc/PID/mountinfo (Documentation/filesystems/proc.rst, section 3.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Mount id.
    pub id: u64,
    /// Id of the mount that this one is mounted on.
    pub parent: u64,
    /// Device number as `st_dev` shows it: major, minor.
    pub dev: (u32, u32),
    /// The directory of the file system that forms the root of this mount.
    pub root: PathBuf,
    /// Where it is mounted, relative to the process's root.
    pub target: PathBuf,
    /// Options of this mount: `rw,nosuid,…`.
    pub options: String,
    /// Type of the file system, `type` or `type.subtype`.
    pub kind: String,
    /// What was mounted; a device node, or any text.
    pub source: PathBuf,
}

/// Reads mountinfo text. Lines that do not have its form are passed over: the kernel writes none.
pub fn parse_mountinfo(text: &str) -> Vec<Entry> {
    text.lines().filter_map(entry).collect()
}

fn entry(line: &str) -> Option<Entry> {
    // The optional fields in the middle vary in number; a lone `-` ends them.
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ');
    let id = front.next()?.parse().ok()?;
    let parent = front.next()?.parse().ok()?;
    let (major, minor) = front.next()?.split_once(':')?;
    let root = path(front.next()?);
    let target = path(front.next()?);
    let options = front.next()?.to_owned();
    let mut back = back.split(' ');
    Some(Entry {
        id,
        parent,
        dev: (major.parse().ok()?, minor.parse().ok()?),
        root,
        target,
        options,
        kind: back.next()?.to_owned(),
        source: path(back.next()?),
    })
}

/// The kernel writes blank, tab, newline, backslash and `#` as `\` and three octal digits
/// (fs/proc_namespace.c, `mangle`).
fn path(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'\\'
            && let Some((&digits, after)) = tail.split_first_chunk::<3>()
            && let Some(value) = octal(digits)
        {
            out.push(value);
            rest = after;
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

fn octal(digits: [u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

/// Everything that is mounted in the namespace of this thread.
pub fn mounted() -> io::Result<Vec<Entry>> {
    Ok(parse_mountinfo(&std::fs::read_to_string(
        "/proc/thread-self/mountinfo",
    )?))
}

/// What is mounted at exactly `target`; where several are stacked, the topmost.
pub fn at<'a>(entries: &'a [Entry], target: &Path) -> Option<&'a Entry> {
    entries.iter().rev().find(|e| e.target == target)
}

/// Mounts `source` of type `kind` at `target` with the file system's own `options`.
///
/// # Errors
/// Class media; the message names all four.
pub fn attach(source: &Path, target: &Path, kind: &str, flags: Flags, options: &str) -> Result<()> {
    let options = Some(options).filter(|o| !o.is_empty());
    mount(Some(source), target, Some(kind), flags, options).context(Class::Media, || {
        format!(
            "mounting {} ({kind}{}) at {}",
            source.display(),
            options.map(|o| format!(", {o}")).unwrap_or_default(),
            target.display()
        )
    })
}

/// Makes the tree at `source` visible at `target` too.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(
        Some(source),
        target,
        None::<&str>,
        Flags::MS_BIND,
        None::<&str>,
    )
    .context(Class::Media, || {
        format!("bind-mounting {} at {}", source.display(), target.display())
    })
}

/// Sets the flags (read-only, nosuid, …) of one mount, not of its file system. A bind mount takes over the
/// flags of its source, so whoever binds says them again here.
pub fn set_flags(target: &Path, flags: Flags) -> Result<()> {
    mount(
        None::<&str>,
        target,
        None::<&str>,
        Flags::MS_BIND | Flags::MS_REMOUNT | flags,
        None::<&str>,
    )
    .context(Class::Media, || {
        format!(
            "setting the mount flags of {} to {flags:?}",
            target.display()
        )
    })
}

/// Sets how much the tmpfs at `target` may hold; its mount flags stay. What is there already must fit.
pub fn resize(target: &Path, size: crate::units::Bytes) -> Result<()> {
    let page = super::swap::page_size();
    let size = size.0.div_ceil(page).saturating_mul(page);
    let flags = at(&mounted().unwrap_or_default(), target)
        .map_or(Flags::empty(), |entry| flags_of(&entry.options));
    mount(
        None::<&str>,
        target,
        None::<&str>,
        Flags::MS_REMOUNT | flags,
        Some(format!("size={size}").as_str()),
    )
    .context(Class::Media, || {
        format!("setting the size of {} to {size} bytes", target.display())
    })
}

/// Makes the file system at `target` writable, without any flags.
pub fn remount_writable(target: &Path) -> Result<()> {
    mount(
        None::<&str>,
        target,
        None::<&str>,
        Flags::MS_REMOUNT,
        None::<&str>,
    )
    .context(Class::Media, || {
        format!("making {} writable", target.display())
    })
}

/// The flags that mountinfo shows of a mount, as far as mount(2) would clear them.
fn flags_of(options: &str) -> Flags {
    options.split(',').fold(Flags::empty(), |all, option| {
        all | match option {
            "ro" => Flags::MS_RDONLY,
            "nosuid" => Flags::MS_NOSUID,
            "nodev" => Flags::MS_NODEV,
            "noexec" => Flags::MS_NOEXEC,
            "noatime" => Flags::MS_NOATIME,
            "relatime" => Flags::MS_RELATIME,
            _ => Flags::empty(),
        }
    })
}

/// Moves the mount at `from`, with all that is mounted below it, to `to`.
pub fn shift(from: &Path, to: &Path) -> Result<()> {
    mount(Some(from), to, None::<&str>, Flags::MS_MOVE, None::<&str>).context(Class::Media, || {
        format!("moving the mount {} to {}", from.display(), to.display())
    })
}

/// Makes `target` and all mounts below it private, so that nothing done here shows elsewhere.
pub fn make_private(target: &Path) -> Result<()> {
    mount(
        None::<&str>,
        target,
        None::<&str>,
        Flags::MS_REC | Flags::MS_PRIVATE,
        None::<&str>,
    )
    .context(Class::Media, || {
        format!("making the mounts below {} private", target.display())
    })
}

/// Gives this thread, and those that it starts, a namespace of mounts of their own, in which mounts of others still come
/// and go. To be called before any other thread is there.
///
/// # Errors
/// Class media where that is not allowed.
pub fn own_namespace() -> Result<()> {
    let what = || "making a mount namespace";
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).context(Class::Media, what)?;
    let flags = Flags::MS_REC | Flags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).context(Class::Media, what)
}

/// Unmounts `target`; a symbolic link is not followed.
pub fn detach(target: &Path) -> Result<()> {
    umount2(target, MntFlags::UMOUNT_NOFOLLOW)
        .context(Class::Media, || format!("unmounting {}", target.display()))
}

/// [`detach`], with a few seconds for whoever looks into it for a moment.
pub fn detach_soon(target: &Path) -> Result<()> {
    for _ in 1..ATTEMPTS {
        match umount2(target, MntFlags::UMOUNT_NOFOLLOW) {
            Err(nix::errno::Errno::EBUSY) => std::thread::sleep(PAUSE),
            Ok(()) => return Ok(()),
            Err(_) => break,
        }
    }
    detach(target)
}

/// Takes `target` out of the tree at once; the file system itself is let go when its last user is gone.
pub fn detach_lazily(target: &Path) -> Result<()> {
    umount2(target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)
        .context(Class::Media, || format!("detaching {}", target.display()))
}

/// A mount that is undone when this value goes out of scope, also on the way out of an error.
#[derive(Debug)]
pub struct Guard {
    target: Option<PathBuf>,
}

impl Guard {
    /// [`attach`], guarded.
    pub fn attach(
        source: &Path,
        target: &Path,
        kind: &str,
        flags: Flags,
        options: &str,
    ) -> Result<Guard> {
        attach(source, target, kind, flags, options)?;
        Ok(Guard {
            target: Some(target.to_owned()),
        })
    }

    /// [`bind`], guarded.
    pub fn bind(source: &Path, target: &Path) -> Result<Guard> {
        bind(source, target)?;
        Ok(Guard {
            target: Some(target.to_owned()),
        })
    }

    /// Where it is mounted.
    pub fn target(&self) -> &Path {
        self.target.as_deref().unwrap_or(Path::new(""))
    }

    /// Unmounts now, with the error that dropping would swallow. A mount that stays busy for seconds is named.
    pub fn unmount(mut self) -> Result<()> {
        match self.target.take() {
            Some(target) => detach_soon(&target).inspect_err(|_| {
                let _ = detach_lazily(&target);
            }),
            None => Ok(()),
        }
    }

    /// Leaves it mounted for good.
    pub fn keep(mut self) -> PathBuf {
        self.target.take().unwrap_or_default()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(target) = self.target.take()
            && detach(&target).is_err()
            && let Err(error) = detach_lazily(&target)
        {
            log::warn!("{}", crate::error::chain(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mountinfo_with_optional_fields_and_octal_escapes() {
        let text = "\
22 1 0:2 / / rw - rootfs rootfs rw\n\
36 35 98:0 /mnt1 /mnt2/a\\040b\\134c rw,noatime master:1 propagate_from:2 - ext3 /dev/ro\\011ot rw,errors=continue\n\
nonsense\n\
40 22 0:30 / /run rw,nosuid,nodev - tmpfs tmpfs rw,size=1k\n\
41 22 0:31 / /run rw - tmpfs second rw\n";
        let entries = parse_mountinfo(text);
        assert_eq!(entries.len(), 4);
        let second = &entries[1];
        assert_eq!((second.id, second.parent, second.dev), (36, 35, (98, 0)));
        assert_eq!(second.root, Path::new("/mnt1"));
        assert_eq!(second.target, Path::new("/mnt2/a b\\c"));
        assert_eq!(second.source, Path::new("/dev/ro\tot"));
        assert_eq!(second.kind, "ext3");
        assert_eq!(
            at(&entries, Path::new("/run")).unwrap().source,
            Path::new("second")
        );
        assert_eq!(at(&entries, Path::new("/ru")), None);
    }

    #[test]
    fn this_process_has_a_root() {
        assert!(at(&mounted().unwrap(), Path::new("/")).is_some());
    }

    proptest! {
        #[test]
        fn any_text_parses_without_a_panic(text in "[ -~\\n\\\\]*") {
            let _ = parse_mountinfo(&text);
        }

        #[test]
        fn what_the_kernel_escapes_comes_back(name in "[a-z \\t\\\\#\\n]{0,20}") {
            let escaped: String = name.bytes().map(|b| match b {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{b:03o}"),
                b => char::from(b).to_string(),
            }).collect();
            prop_assert_eq!(path(&escaped), PathBuf::from(name));
        }
    }
}
