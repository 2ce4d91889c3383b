//! The switch itself. Up to the moment in which the root changes every step is undone where a later one fails;
//! after it there is only the new system.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::reboot::set_cad_enabled;
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};

use super::Ready;
use super::root::API;
use super::{delete, leave};
use crate::error::{Class, Context as _, Failure, Result, chain};
use crate::report::Reporter;
use crate::sys::exec;
use crate::sys::mount;

/// The new root stands here while /run, below which it may have been mounted, moves into it: no mount can move
/// below itself.
const PLACE: &str = "/.ironroot-new-root";

/// Starts the new system in the place of this process. Returns only where that fails: the initrd is intact if
/// the failure came before the root changed, and otherwise gone.
pub fn go(ready: &Ready, reporter: &Reporter) -> Failure {
    match change_root(&ready.root, reporter) {
        Ok(old) => {
            if let Some(old) = old {
                let deleted = delete::children(old);
                log::debug!("the initrd is deleted: {deleted:?}");
            }
            start(ready, reporter)
        }
        Err(failure) => failure,
    }
}

/// Mounts that were moved, for the way back.
#[derive(Debug, Default)]
struct Moves(Vec<(PathBuf, PathBuf)>);

impl Moves {
    fn shift(&mut self, from: &Path, to: &Path) -> Result<()> {
        mount::shift(from, to)?;
        self.0.push((from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn undo(self) {
        for (from, to) in self.0.into_iter().rev() {
            if let Err(failure) = mount::shift(&to, &from) {
                log::error!("{}", chain(&failure));
            }
        }
        let _ = std::fs::remove_dir(PLACE);
    }
}

/// Makes `root` the root of all processes. Returns the old one where its files are still to be deleted.
fn change_root(root: &Path, reporter: &Reporter) -> Result<Option<OwnedFd>> {
    let mut moves = Moves::default();
    let changed = move_in(root, &mut moves, reporter).and_then(|()| turn());
    match changed {
        Ok(old) => Ok(old),
        Err(failure) => {
            let _ = std::env::set_current_dir("/");
            moves.undo();
            let text = format!("switching to the new root {}", root.display());
            Err(Failure::new(Class::Handover, text)
                .caused_by(failure)
                .hint("the initrd's files are all there; the kernel's log may say more"))
        }
    }
}

fn move_in(root: &Path, moves: &mut Moves, reporter: &Reporter) -> Result<()> {
    // A shared mount cannot be moved.
    mount::make_private(Path::new("/"))?;
    let place = Path::new(PLACE);
    match std::fs::create_dir(place) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        result => result.context(Class::Handover, || format!("making the directory {PLACE}"))?,
    }
    moves.shift(root, place)?;
    let mounted = mount::mounted().context(Class::Handover, || "reading the table of mounts")?;
    leave::unmount_others(place, &mounted, reporter);
    for name in API {
        let from = Path::new("/").join(name);
        if mount::at(&mounted, &from).is_some() {
            moves.shift(&from, &place.join(name))?;
        }
    }
    Ok(())
}

/// Makes [`PLACE`] the root. From here on nothing is undone, except that the first step of each way either
/// happens or does not.
fn turn() -> Result<Option<OwnedFd>> {
    let old: OwnedFd = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC)
        .open("/")
        .map(File::into)
        .context(Class::Handover, || "opening the initrd's root")?;
    std::env::set_current_dir(PLACE).context(Class::Handover, || format!("entering {PLACE}"))?;
    // Since Linux 7.0 an initrd is not the very first mount and can be left like any other. Before, EINVAL.
    if nix::unistd::pivot_root(".", ".").is_ok() {
        // The old root lies on top of the new one now.
        let gone = mount::detach_lazily(Path::new("."));
        let _ = std::env::set_current_dir("/");
        if let Err(failure) = gone {
            log::warn!("{}", chain(&failure));
        }
        return Ok(None);
    }
    mount::shift(Path::new("."), Path::new("/"))?;
    nix::unistd::chroot(".").context(Class::Handover, || "entering the new root")?;
    let _ = std::env::set_current_dir("/");
    Ok(Some(old))
}

/// Becomes the new init: as the kernel would have started it.
fn start(ready: &Ready, reporter: &Reporter) -> Failure {
    console();
    // The kernel's defaults: PID 1 had changed them for itself.
    let _ = std::fs::write("/proc/self/oom_score_adj", "0");
    let _ = set_cad_enabled(true);
    let _ = nix::unistd::setsid();
    umask(Mode::from_bits_truncate(0o022));
    let mask = SigSet::thread_get_mask();
    exec::default_signals();
    let _ = SigSet::empty().thread_set_mask();
    exec::close_on_exec_from(3);

    let mut errors = Vec::new();
    for path in &ready.init {
        let Ok(program) = CString::new(path.as_os_str().as_bytes()) else {
            continue;
        };
        let mut arguments = vec![program.clone()];
        arguments.extend(ready.inheritance.arguments.iter().cloned());
        let Err(errno) = nix::unistd::execve(&program, &arguments, &ready.inheritance.environment);
        let text = format!("{}: {}", path.display(), errno.desc());
        reporter.warn(format!("starting the new system's init {text}"));
        errors.push(text);
    }

    // This program is PID 1 still, and goes on hearing its signals.
    if let Ok(mask) = mask {
        let _ = mask.thread_set_mask();
    }
    let _ = set_cad_enabled(false);
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let text = format!(
        "no init of the new system could be started: {}",
        errors.join("; ")
    );
    Failure::new(Class::Handover, text)
        .hint("the initrd is gone: start the machine again, with an image that suits it")
}

/// Points the standard streams at the new system's console. Where there is none, the old ones stay.
fn console() {
    // Opening a serial line may wait for its carrier; the new init then expects one that waits, as usual.
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
        .open("/dev/console");
    match opened {
        Ok(console) => {
            let _ = fcntl(&console, FcntlArg::F_SETFL(OFlag::O_RDWR));
            let _ = nix::unistd::dup2_stdin(&console);
            let _ = nix::unistd::dup2_stdout(&console);
            let _ = nix::unistd::dup2_stderr(&console);
        }
        Err(_) => {
            for result in [
                fcntl(std::io::stdin(), FcntlArg::F_SETFL(OFlag::empty())),
                fcntl(std::io::stdout(), FcntlArg::F_SETFL(OFlag::empty())),
                fcntl(std::io::stderr(), FcntlArg::F_SETFL(OFlag::empty())),
            ] {
                let _ = result;
            }
        }
    }
}
