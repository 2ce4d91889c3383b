//! The init of the new system: found inside its root, and looked at before anything is given up for it.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::{SFlag, fstat};

use super::elf;
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::sys::beneath;

/// Where an init is looked for when nobody names one, in this order: the kernel's own list (init/main.c,
/// `kernel_init`).
pub const USUAL: [&str; 4] = ["/sbin/init", "/etc/init", "/bin/init", "/bin/sh"];

/// A script may name a script as its interpreter, so often (fs/exec.c, `exec_binprm`).
const MAX_INTERPRETERS: u32 = 5;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Init {
    /// Paths inside the root. The first is the one to start; the others can stand in for it.
    pub paths: Vec<PathBuf>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// Finds the init of the system in `root`: `wanted` and no other, or the first of [`USUAL`] that is there.
/// Symbolic links are followed inside the root.
///
/// # Errors
/// Class handover: `wanted` is not there; there is none at all; or the one that is there cannot run on this
/// machine. (A lesser one does not take its place: a machine that came up with a shell instead of its services
/// would look as if it had started.)
pub fn find_init(root: &Path, wanted: Option<&str>) -> Result<Init> {
    let inside = Root::open(root)?;
    let mut init = Init {
        paths: Vec::new(),
        warnings: Vec::new(),
    };
    let broken = |path: &Path, why: &str| {
        Failure::new(
            Class::Handover,
            format!(
                "{} in {} cannot be started: {why}",
                shown(path),
                root.display()
            ),
        )
        .hint("the image is for another machine or lacks a file; correct it")
    };
    let wanted = wanted.filter(|w| !w.is_empty());
    if let Some(wanted) = wanted {
        let path = Path::new("/").join(wanted);
        match inside.check(&path) {
            Ok(warning) => {
                init.warnings.extend(warning);
                init.paths.push(path);
            }
            Err(Unfit::Missing(why)) => {
                let text = format!("init={} in {}: {why}", shown(&path), root.display());
                return Err(Failure::new(Class::Handover, text)
                    .hint("correct init= or leave it out: the usual places are searched then"));
            }
            Err(Unfit::Broken(why)) => return Err(broken(&path, &why)),
        }
    }
    let mut missing = Vec::new();
    for path in USUAL.map(Path::new) {
        match inside.check(path) {
            Ok(warning) => {
                if init.paths.is_empty() {
                    init.warnings.extend(warning);
                    if path == Path::new("/bin/sh") {
                        init.warnings.push(
                            "the image has no init; its /bin/sh is started instead".to_owned(),
                        );
                    }
                }
                if !init.paths.iter().any(|p| p == path) {
                    init.paths.push(path.to_owned());
                }
            }
            Err(Unfit::Missing(why)) => missing.push(format!("{}: {why}", path.display())),
            Err(Unfit::Broken(why)) if init.paths.is_empty() => return Err(broken(path, &why)),
            Err(Unfit::Broken(_)) => {}
        }
    }
    if init.paths.is_empty() {
        let text = format!("no init in {} ({})", root.display(), missing.join("; "));
        return Err(Failure::new(Class::Handover, text)
            .hint("use an image of a whole operating system, or name its init by init="));
    }
    Ok(init)
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// Why a program is not the init.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    /// There is no such file.
    Missing(String),
    /// It is there and cannot be started.
    Broken(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Missing(why) | Unfit::Broken(why) => f.write_str(why),
        }
    }
}

struct Root(OwnedFd);

impl Root {
    fn open(root: &Path) -> Result<Root> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        nix::fcntl::open(root, flags, nix::sys::stat::Mode::empty())
            .map(Root)
            .context(Class::Handover, || {
                format!("opening the new root {}", root.display())
            })
    }

    /// Whether the program can be started, as far as that can be told without starting it; a warning where it
    /// cannot be told for certain.
    fn check(&self, path: &Path) -> Result<Option<String>, Unfit> {
        let mut path = path.to_owned();
        for level in 0..MAX_INTERPRETERS {
            let file = self.regular(&path).map_err(|why| {
                if level == 0 {
                    why
                } else {
                    Unfit::Broken(format!("its interpreter {}: {why}", shown(&path)))
                }
            })?;
            let mut start = [0u8; 256];
            let length = elf::read_up_to(&file, &mut start, 0).unwrap_or(0);
            let start = start.get(..length).unwrap_or_default();
            match script_interpreter(start) {
                Some(next) => path = next,
                None => return self.check_elf(&file, &path),
            }
        }
        Err(Unfit::Broken(
            "its interpreters are scripts without an end".to_owned(),
        ))
    }

    fn check_elf(&self, file: &File, path: &Path) -> Result<Option<String>, Unfit> {
        let Some(program) = elf::read(file) else {
            return Err(Unfit::Broken(format!(
                "{} is neither an ELF program nor a script with #!",
                shown(path)
            )));
        };
        let mut warning = None;
        if let Some(ours) = elf::OURS
            && program.machine != ours
        {
            let name = elf::machine_name(program.machine);
            let text = format!(
                "{} is a program for {name}, and this machine is {}",
                shown(path),
                elf::machine_name(ours)
            );
            if !elf::may_run(ours, program.machine) {
                return Err(Unfit::Broken(text));
            }
            warning = Some(format!("{text}: it needs the kernel's 32-bit support"));
        }
        if let Some(linker) = &program.interpreter {
            let what = |why: &dyn fmt::Display| {
                Unfit::Broken(format!("its dynamic linker {}: {why}", shown(linker)))
            };
            let file = self.regular(linker).map_err(|why| what(&why))?;
            let found = elf::read(&file).ok_or_else(|| what(&"no ELF program"))?;
            if found.machine != program.machine {
                return Err(what(&format!(
                    "a program for {}",
                    elf::machine_name(found.machine)
                )));
            }
        }
        Ok(warning)
    }

    /// Opens an executable file inside the root.
    fn regular(&self, path: &Path) -> Result<File, Unfit> {
        let missing = |errno: Errno| {
            Unfit::Missing(match errno {
                Errno::ENOENT => "there is no such file".to_owned(),
                other => other.desc().to_owned(),
            })
        };
        // Looked at before it is opened: opening a device node or a fifo has effects.
        let place = inside(self.0.as_fd(), path, OFlag::O_PATH).map_err(missing)?;
        let stat = fstat(&place).map_err(missing)?;
        if stat.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
            return Err(Unfit::Missing("not a regular file".to_owned()));
        }
        if stat.st_mode & 0o111 == 0 {
            return Err(Unfit::Broken(format!("{} is not executable", shown(path))));
        }
        inside(self.0.as_fd(), path, OFlag::O_RDONLY)
            .map(File::from)
            .map_err(|errno| Unfit::Broken(format!("opening {}: {}", shown(path), errno.desc())))
    }
}

/// Opens `path` as if `root` were `/` (openat2(2), Linux 5.6).
fn inside(root: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    beneath::patiently(root, path, how)
}

/// Whether there is a directory at `path` inside `root`.
pub(super) fn has_directory(root: &Path, path: &Path) -> bool {
    Root::open(root)
        .is_ok_and(|root| inside(root.0.as_fd(), path, OFlag::O_PATH | OFlag::O_DIRECTORY).is_ok())
}

/// The interpreter that the first line names (fs/binfmt_script.c).
fn script_interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?;
    let line = line.split(|b| *b == b'\n').next()?;
    let name = line
        .split(|b| matches!(b, b' ' | b'\t' | 0))
        .find(|part| !part.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::super::elf::tests::program;
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    const FOREIGN: u16 = if cfg!(target_arch = "aarch64") {
        62
    } else {
        183
    };

    fn ours() -> u16 {
        elf::OURS.expect("a machine with a number")
    }

    fn put(root: &Path, path: &str, bytes: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn paths(init: &Init) -> Vec<&str> {
        init.paths.iter().map(|p| p.to_str().unwrap()).collect()
    }

    #[test]
    fn links_are_followed_inside_the_root_and_the_kernels_order_holds() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        put(
            root,
            "usr/lib/systemd/systemd",
            &program(ours(), Some("/lib64/ld.so"), true, false),
        );
        put(
            root,
            "usr/lib64/ld-2.so",
            &program(ours(), None, true, false),
        );
        symlink("/usr/lib64", root.join("lib64")).unwrap();
        symlink("ld-2.so", root.join("usr/lib64/ld.so")).unwrap();
        fs::create_dir_all(root.join("usr/sbin")).unwrap();
        symlink("usr/sbin", root.join("sbin")).unwrap();
        // An absolute link, and one that climbs out of the root: `..` of the root is the root.
        symlink(
            "/../../../usr/lib/systemd/systemd",
            root.join("usr/sbin/init"),
        )
        .unwrap();
        put(root, "bin/sh", b"#!/usr/lib/systemd/systemd --mode=sh\n");
        let init = find_init(root, None).unwrap();
        assert_eq!(paths(&init), ["/sbin/init", "/bin/sh"]);
        assert!(init.warnings.is_empty());
        let init = find_init(root, Some("bin/sh")).unwrap();
        assert_eq!(paths(&init), ["/bin/sh", "/sbin/init"]);
        assert!(init.warnings.is_empty());
        assert_eq!(paths(&find_init(root, Some("")).unwrap())[0], "/sbin/init");
    }

    #[test]
    fn a_missing_init_is_named() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let failure = find_init(root, None).unwrap_err();
        assert_eq!(failure.class(), Class::Handover);
        for path in USUAL {
            assert!(failure.to_string().contains(path), "{failure}");
        }
        put(root, "bin/sh", &program(ours(), None, true, false));
        // A directory of that name, as upstart had it, and a link to nowhere are no init.
        fs::create_dir_all(root.join("etc/init")).unwrap();
        fs::create_dir_all(root.join("sbin")).unwrap();
        symlink("/lib/systemd/systemd", root.join("sbin/init")).unwrap();
        let init = find_init(root, None).unwrap();
        assert_eq!(paths(&init), ["/bin/sh"]);
        assert!(init.warnings[0].contains("no init"));
        let failure = find_init(root, Some("/opt/init")).unwrap_err();
        assert!(failure.to_string().contains("init=/opt/init"), "{failure}");
        assert!(find_init(&root.join("nothing"), None).is_err());
    }

    #[test]
    fn an_init_that_cannot_run_here_is_refused_and_says_why() {
        let cases: [(&str, Vec<u8>, &str); 7] = [
            (
                "arch",
                program(FOREIGN, None, true, false),
                "is a program for",
            ),
            (
                "linker",
                program(ours(), Some("/lib/ld.so"), true, false),
                "dynamic linker /lib/ld.so: there is no such file",
            ),
            (
                "foreign linker",
                program(ours(), Some("/foreign"), true, false),
                "dynamic linker /foreign: a program for",
            ),
            ("text", b"echo hello\n".to_vec(), "neither an ELF program"),
            ("empty", vec![], "neither an ELF program"),
            (
                "script",
                b"#! /bin/bash -e\n".to_vec(),
                "interpreter /bin/bash: there is no such file",
            ),
            ("loop", b"#!/sbin/init\n".to_vec(), "without an end"),
        ];
        for (name, bytes, wanted) in cases {
            let root = tempfile::tempdir().unwrap();
            let root = root.path();
            put(root, "sbin/init", &bytes);
            put(root, "foreign", &program(FOREIGN, None, true, false));
            // It does not take the place of an init that is there and broken.
            put(root, "bin/sh", &program(ours(), None, true, false));
            let failure = find_init(root, None).unwrap_err();
            assert_eq!(failure.class(), Class::Handover, "{name}");
            assert!(failure.to_string().contains(wanted), "{name}: {failure}");
        }
        let root = tempfile::tempdir().unwrap();
        put(
            root.path(),
            "sbin/init",
            &program(ours(), None, true, false),
        );
        let plain = fs::Permissions::from_mode(0o644);
        fs::set_permissions(root.path().join("sbin/init"), plain).unwrap();
        let failure = find_init(root.path(), None).unwrap_err();
        assert!(failure.to_string().contains("not executable"), "{failure}");
    }

    #[test]
    fn a_fifo_in_the_place_of_init_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sbin")).unwrap();
        nix::unistd::mkfifo(
            &root.path().join("sbin/init"),
            nix::sys::stat::Mode::S_IRWXU,
        )
        .unwrap();
        let failure = find_init(root.path(), None).unwrap_err();
        assert!(
            failure.to_string().contains("not a regular file"),
            "{failure}"
        );
    }

    #[test]
    fn the_first_line_of_a_script() {
        for (line, wanted) in [
            ("#!/bin/sh\nexit", Some("/bin/sh")),
            ("#! \t/usr/bin/env python", Some("/usr/bin/env")),
            ("#!\n/bin/sh", None),
            ("#/bin/sh", None),
            ("", None),
        ] {
            let found = script_interpreter(line.as_bytes());
            assert_eq!(found.as_deref(), wanted.map(Path::new), "{line:?}");
        }
    }
}
