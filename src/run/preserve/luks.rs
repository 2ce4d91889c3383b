//! Encrypted sources: cryptsetup opens the device by a key file of the initrd, under a name of ours, and what is
//! inside is looked at anew. A blank device gets a LUKS2 header that says "unfinished" until it has its file system,
//! so that what was cut off in between begins again.
//!
//! Nothing of the key is read here: cryptsetup gets the path of its file.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use crate::error::{Class, Context as _, Failure, Result};
use crate::host::{DevNum, signatures};
use crate::init::modules;
use crate::plan::preserve::{Inside, Luks, SourceDevice, Trouble, UNFINISHED, inside};
use crate::report::Reporter;
use crate::sys::tool::{self, Tool};
use crate::sys::{block, dm};

/// The function that makes a key of a passphrase is slow on purpose, and slower on a small machine.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// cryptsetup(8), "RETURN CODES".
mod code {
    pub const WRONG_KEY: i32 = 2;
    pub const NO_MEMORY: i32 = 3;
    pub const BUSY: i32 = 5;
}

/// cryptsetup reads no more of a key file (`DEFAULT_KEYFILE_SIZE_MAXKB`).
const KEY_LIMIT: u64 = 8 << 20;

/// Kernel modules that no kernel asks for by itself early enough.
const MODULES: [&str; 3] = ["dm_mod", "dm_crypt", "algif_skcipher"];

/// An opened device. Dropping it closes it as soon as its last user is gone; a session keeps it
/// ([`crate::run::memory::mounts::Mounts::keep_mapping`]).
#[derive(Debug)]
pub struct Mapping {
    name: String,
}

impl Mapping {
    /// Leaves it open, and answers its name.
    pub fn into_name(mut self) -> String {
        std::mem::take(&mut self.name)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            dm::remove_later(&self.name);
        }
    }
}

/// Fails where the key file or the program for it is not there: to be asked before an image is fetched.
pub fn can_be_opened(key_file: &Path, root: &Path) -> Result<()> {
    let place = root.join(key_file.strip_prefix("/").unwrap_or(key_file));
    let wrong = |what: &str| {
        Failure::new(
            Class::Preserve,
            format!("the key file {} {what}", key_file.display()),
        )
        .hint(
            "put it into the initrd, such as by an archive appended to it, and see `luks.keyFile`",
        )
    };
    match std::fs::metadata(&place) {
        Err(error) => return Err(wrong("cannot be read").caused_by(error)),
        Ok(found) if !found.is_file() => return Err(wrong("is no file")),
        Ok(found) if found.len() == 0 => return Err(wrong("is empty")),
        Ok(found) if found.len() > KEY_LIMIT => return Err(wrong("has more than 8 MiB")),
        Ok(_) => {}
    }
    Tool::Cryptsetup.require().map(drop).map_err(|failure| {
        let hint = failure.next().to_owned();
        Failure::new(Class::Preserve, "an encrypted source cannot be opened")
            .caused_by(failure)
            .hint(hint)
    })
}

/// Opens `device`, whose LUKS header is made where the plan says so; the device inside.
pub fn open(
    device: &SourceDevice,
    luks: &Luks,
    reporter: &Reporter,
) -> Result<(Mapping, SourceDevice)> {
    for name in MODULES {
        modules::want(name);
    }
    let path = device.path.to_string_lossy();
    let key = luks.key_file.to_string_lossy();
    if device.format.is_some() {
        reporter.info(format!("making a LUKS2 header on {device}"));
        let args = [
            "luksFormat",
            "--type",
            "luks2",
            "--batch-mode",
            "--label",
            UNFINISHED,
            "--key-file",
            &key,
            &path,
        ];
        call(&args, device, luks)?;
    }
    let mut args = vec!["open", "--type", "luks", "--batch-mode", "--key-file", &key];
    if device.read_only {
        args.push("--readonly");
    }
    args.extend([path.as_ref(), luks.name.as_str()]);
    let was_there = mapped(&luks.name).is_ok();
    call(&args, device, luks).inspect_err(|_| {
        // One that was ended because it took too long may have made it.
        if !was_there && mapped(&luks.name).is_ok() {
            dm::remove_later(&luks.name);
        }
    })?;
    let mapping = Mapping {
        name: luks.name.clone(),
    };
    let (dev, path) = mapped(&luks.name)?;
    let found = within(device, luks, dev, path)?;
    Ok((mapping, found))
}

/// Whether the header of `device` says, as it is now, that its file system has not been made.
pub fn is_unfinished(device: &SourceDevice) -> Result<bool> {
    let what = || format!("looking at the header of the encrypted {device}");
    let file = open_node(&device.path, false).context(Class::Preserve, what)?;
    let contents = signatures::probe_one(&file, &device.name, device.size);
    if let Some(why) = contents.unreadable {
        return Err(Failure::new(Class::Preserve, why));
    }
    let mut labels = contents.found.iter().map(|c| c.label.as_deref());
    Ok(labels.any(|label| label == Some(UNFINISHED)))
}

/// The file system inside has been made: says so in the header of `device`.
pub fn finish(device: &SourceDevice, luks: &Luks, inner: &SourceDevice) -> Result<()> {
    let what = || format!("flushing {}", inner.path.display());
    let file = open_node(&inner.path, true).context(Class::Preserve, what)?;
    block::flush(&file).context(Class::Preserve, what)?;
    drop(file);
    let path = device.path.to_string_lossy();
    call(
        &["config", "--batch-mode", "--label", "", &path],
        device,
        luks,
    )
}

fn call(args: &[&str], device: &SourceDevice, luks: &Luks) -> Result<()> {
    let good = [0, code::WRONG_KEY, code::NO_MEMORY, code::BUSY];
    let output = tool::run_expecting(Tool::Cryptsetup, args, PATIENCE, &good)?;
    let failed = |what: String, hint: &str| {
        let said = output.stderr.trim();
        let said: String = said.chars().take(300).collect();
        Err(Failure::new(Class::Preserve, what)
            .caused_by(std::io::Error::other(crate::error::printable(&said)))
            .hint(hint.to_owned()))
    };
    match output.code {
        Some(code::WRONG_KEY) => failed(
            format!(
                "the key file {} does not open the encrypted {device}",
                luks.key_file.display()
            ),
            "use the key file that it was made with; all of its bytes count, a newline at the end too",
        ),
        Some(code::NO_MEMORY) => failed(
            format!("there is not enough memory to open the encrypted {device}"),
            "give the machine more memory, or lower what the key slot needs with `cryptsetup luksConvertKey --pbkdf-memory`",
        ),
        Some(code::BUSY) => failed(
            format!(
                "the encrypted {device} is in use, or the name {} is",
                luks.name
            ),
            "see `ironroot disks` for what holds it",
        ),
        _ => Ok(()),
    }
}

fn open_node(path: &Path, write: bool) -> std::io::Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

/// The device that has this name: without udev there may be no link to it.
fn mapped(name: &str) -> Result<(DevNum, PathBuf)> {
    let what = || format!("looking for the mapped device {name}");
    let entries = std::fs::read_dir("/sys/block").context(Class::Preserve, what)?;
    let text = |path: PathBuf| {
        std::fs::read_to_string(path)
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    for entry in entries.flatten() {
        let dir = entry.path();
        if text(dir.join("dm/name")) != name {
            continue;
        }
        let dev = text(dir.join("dev"));
        let numbers = dev.split_once(':').and_then(|(major, minor)| {
            Some(DevNum {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            })
        });
        if let Some(dev) = numbers {
            let path = Path::new("/dev").join(entry.file_name());
            dm::node(&path, dev).context(Class::Preserve, what)?;
            return Ok((dev, path));
        }
    }
    Err(Failure::new(
        Class::Preserve,
        format!("{}: sysfs does not list it", what()),
    ))
}

fn within(device: &SourceDevice, luks: &Luks, dev: DevNum, path: PathBuf) -> Result<SourceDevice> {
    let what = || format!("looking into the encrypted {device}");
    let file = open_node(&path, false).context(Class::Preserve, what)?;
    let size = block::size(&file).context(Class::Preserve, what)?;
    let inner = SourceDevice {
        name: format!("{} on {}", luks.name, device.name),
        path,
        dev,
        size,
        luks: None,
        ..device.clone()
    };
    if device.format.is_some() {
        // What a new key makes of what is there is noise.
        let filesystem = device.format.map_or("", |fs| fs.name()).to_owned();
        return Ok(SourceDevice {
            filesystem,
            ..inner
        });
    }
    let contents = signatures::probe_one(&file, &luks.name, size);
    if let Some(why) = contents.unreadable {
        return Err(Failure::new(Class::Preserve, why));
    }
    let Inside { format, .. } = luks.inside;
    let content = inside(
        &inner.name,
        device.partuuid.as_deref(),
        &contents.found,
        !contents.blank.is_empty(),
        Inside {
            format: format && !device.read_only,
            ..luks.inside
        },
    )
    .map_err(|trouble: Trouble| {
        let hint = trouble.next();
        Failure::new(Class::Preserve, format!("{}: {trouble}", what())).hint(hint)
    })?;
    Ok(SourceDevice {
        filesystem: content.filesystem,
        uuid: content.uuid,
        format: content.format,
        ..inner
    })
}
