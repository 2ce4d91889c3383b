//! Paths that outlive a session: what each is, where it lives, and what may be done to make it so.

pub mod options;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::memory::plain_path;
use super::{Problems, wire};
use crate::plan::target;
use crate::units::{Bytes, MIB};

pub use options::{Atime, MountFlags, MountOptions};

/// Where ironroot keeps what it knows of a source, in the root of the source's file system.
pub const HIDDEN: &str = ".ironroot";

/// A path that outlives the session.
#[derive(Clone, Debug, PartialEq)]
pub struct Preserved {
    /// The path in the new root.
    pub target: PathBuf,
    /// On which device it lives.
    pub source: Source,
    /// Where it lives in the device's file system, relative to its root; empty for the root itself.
    pub subdir: PathBuf,
    /// Directory or file.
    pub kind: wire::PreserveKind,
    /// How it is attached.
    pub method: wire::PreserveMethod,
    /// A blank device gets a file system.
    pub format: bool,
    /// Which one that is, and any other has to be.
    pub filesystem: Option<NewFileSystem>,
    /// The partition that is made where the source is missing.
    pub create: Option<Creation>,
    /// The device is encrypted, and this file of the initrd is its key.
    pub key_file: Option<PathBuf>,
    /// Whether the image's content fills it at first use.
    pub seed: wire::Seed,
    /// Mode of what is made.
    pub mode: Option<u32>,
    /// Owner and group of what is made.
    pub owner: Option<(u32, u32)>,
    /// Options of the mount and of the file system.
    pub options: MountOptions,
    /// Whether the boot stops without it.
    pub required: bool,
    /// The claim that it belongs to, where it belongs to one.
    pub claim: Option<String>,
    /// What happens to what another claim left.
    pub other_claim: wire::OtherClaim,
}

impl Preserved {
    /// All of the root, by an overlay on a file system that exists.
    pub(super) fn whole_root(source: Source, subdir: PathBuf) -> Preserved {
        Preserved {
            target: PathBuf::from("/"),
            source,
            subdir,
            kind: wire::PreserveKind::Dir,
            method: wire::PreserveMethod::Overlay,
            format: false,
            filesystem: None,
            create: None,
            key_file: None,
            seed: wire::Seed::None,
            mode: None,
            owner: None,
            options: MountOptions::default(),
            required: true,
            claim: None,
            other_claim: wire::OtherClaim::Refuse,
        }
    }
}

/// A partition that is made on free space where the source is missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Creation {
    /// Its name, which the source is looked for by.
    pub label: String,
    /// Its size.
    pub size: Bytes,
    /// On which disk; all that are fixed match an empty selector.
    pub disk: Box<wire::Select>,
}

/// One way of naming a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// By its name in a GPT.
    Partlabel(String),
    /// By its PARTUUID, in lower case.
    Partuuid(String),
    /// By the label of its file system.
    Label(String),
    /// By the UUID of its file system; case does not count.
    Uuid(String),
    /// By the disk, whole or a partition of it.
    Disk {
        /// Which disk.
        select: Box<wire::Select>,
        /// Which partition; `None` for the whole disk.
        partition: Option<u32>,
    },
}

impl Source {
    /// Whether both can mean one device: two names of one kind that differ do not.
    fn may_be(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Partlabel(a), Source::Partlabel(b)) | (Source::Label(a), Source::Label(b)) => {
                a == b
            }
            (Source::Partuuid(a), Source::Partuuid(b)) | (Source::Uuid(a), Source::Uuid(b)) => {
                a.eq_ignore_ascii_case(b)
            }
            _ => true,
        }
    }

    /// Whether a device without a file system can be meant.
    fn can_be_blank(&self) -> bool {
        match self {
            Source::Partlabel(_) | Source::Partuuid(_) | Source::Disk { .. } => true,
            Source::Label(_) | Source::Uuid(_) => false,
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let printable = crate::error::printable;
        match self {
            Source::Partlabel(name) => write!(f, "partlabel={}", printable(name)),
            Source::Partuuid(uuid) => write!(f, "partuuid={}", printable(uuid)),
            Source::Label(label) => write!(f, "label={}", printable(label)),
            Source::Uuid(uuid) => write!(f, "uuid={}", printable(uuid)),
            Source::Disk { select, partition } => {
                let disk = printable(&target::describe(select));
                match partition {
                    Some(number) => write!(f, "partition {number} of the disk {disk}"),
                    None => write!(f, "the disk {disk}"),
                }
            }
        }
    }
}

/// A file system that a blank source may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NewFileSystem {
    /// ext4.
    Ext4,
    /// xfs.
    Xfs,
    /// FAT.
    Vfat,
}

impl NewFileSystem {
    /// As kernel and libblkid call it.
    pub const fn name(self) -> &'static str {
        match self {
            NewFileSystem::Ext4 => "ext4",
            NewFileSystem::Xfs => "xfs",
            NewFileSystem::Vfat => "vfat",
        }
    }
}

/// Less holds no file system with something in it.
const SMALLEST_PARTITION: Bytes = Bytes(8 * MIB);

/// What the system itself is made of, or the kernel mounts: nothing of the sort is preserved.
const SYSTEM: [&str; 11] = [
    "/",
    "/etc",
    "/usr",
    "/boot",
    "/boot/efi",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
];

/// And nothing below these.
const SYSTEM_TREES: [&str; 10] = [
    "/proc", "/sys", "/dev", "/run", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// Why nothing can be preserved at `target`.
pub fn forbidden(target: &Path) -> Option<&'static str> {
    if SYSTEM.iter().any(|path| target == Path::new(path)) {
        Some("the system itself is there; name a directory below it")
    } else if SYSTEM_TREES.iter().any(|path| target.starts_with(path)) {
        Some("the system itself, or what the kernel mounts, is there")
    } else {
        None
    }
}

/// The meaning of `preserve`, sorted so that a parent comes before what is below it.
pub(super) fn read(config: &wire::BootConfig, problems: &mut Problems) -> Vec<Preserved> {
    let mut entries: Vec<(usize, Preserved)> = Vec::new();
    for (i, given) in config.preserve.iter().enumerate() {
        let path = format!("preserve[{i}]");
        let claim = given
            .claim_bound
            .then_some(config.metadata.claim.as_str())
            .inspect(|claim| {
                if claim.is_empty() {
                    problems.add(
                        &format!("{path}.claimBound"),
                        "`metadata.claim` is needed: it says to whom the path belongs",
                    );
                }
            });
        if config.disk.is_some() {
            only_for_sessions(given, &path, problems);
        }
        if let Some(entry) = entry(given, claim, &path, problems) {
            entries.push((i, entry));
        }
    }
    for (n, (i, one)) in entries.iter().enumerate() {
        let path = format!("preserve[{i}]");
        for (j, other) in entries.iter().take(n) {
            if one.target == other.target {
                problems.add(
                    &format!("{path}.target"),
                    format!("the same as preserve[{j}].target"),
                );
            }
            if one.source == other.source && one.key_file != other.key_file {
                problems.add(
                    &format!("{path}.luks"),
                    format!("preserve[{j}] names the same source with another `luks`"),
                );
            }
            if one.source == other.source && overlap(&one.subdir, &other.subdir) {
                problems.add(
                    &format!("{path}.subdir"),
                    format!(
                        "the same place on the same source as preserve[{j}], or one inside the other"
                    ),
                );
            } else if one.source == other.source
                && (is_fat(one.filesystem) || is_fat(other.filesystem))
                && overlap_folded(&one.subdir, &other.subdir)
            {
                problems.add(
                    &format!("{path}.subdir"),
                    format!("the same place as preserve[{j}], or one inside the other: FAT does not tell upper from lower case"),
                );
            }
        }
        let scratch = config.memory.iter().flat_map(|m| &m.scratch);
        for text in scratch {
            if plain_path(text).is_ok_and(|scratch| scratch == one.target) {
                problems.add(
                    &format!("{path}.target"),
                    "`memory.scratch` names it too: what is there cannot outlive the session",
                );
            }
        }
    }
    never_written(config, &entries, problems);
    let mut entries: Vec<Preserved> = entries.into_iter().map(|(_, entry)| entry).collect();
    // A mount over a parent would hide what was mounted below it.
    entries.sort_by(|a, b| depth(&a.target).cmp(&depth(&b.target)));
    entries
}

/// What only a writer does, on a source that nothing of this config writes to. (What is only to be filled, or to be
/// somebody's, may have been made so by an earlier config.)
fn never_written(
    config: &wire::BootConfig,
    entries: &[(usize, Preserved)],
    problems: &mut Problems,
) {
    let reads = |entry: &Preserved| entry.options.flags.read_only;
    let added = |entry: &Preserved| {
        let mut added = config.disk.iter().flat_map(|disk| &disk.partitions);
        // It is made, and written to, by the installation.
        added.any(|p| entry.source == Source::Partlabel(p.label.clone()))
    };
    for (i, entry) in entries {
        let is_written = entries
            .iter()
            .any(|(_, other)| !reads(other) && entry.source.may_be(&other.source));
        if !reads(entry) || is_written || added(entry) {
            continue;
        }
        let why = "never with ro on all entries of the source: nothing is written to it";
        if entry.format {
            problems.add(&format!("preserve[{i}].format"), why);
        }
        if entry.other_claim == wire::OtherClaim::Erase {
            problems.add(&format!("preserve[{i}].otherClaim"), why);
        }
    }
}

/// What an installed system would have to do for itself at each of its boots, or `disk` does.
fn only_for_sessions(given: &wire::Preserve, path: &str, problems: &mut Problems) {
    if given.luks.is_some() {
        problems.add(
            &format!("{path}.luks"),
            "only with `memory`: an installed system would need a crypttab and the key on its own disk to open it at each boot; encrypt the source with the image's own means",
        );
    }
    if given.create.is_some() {
        problems.add(
            &format!("{path}.create"),
            "only with `memory`: with `disk`, name the partition in `disk.partitions`",
        );
    }
}

/// What mounts are sorted by: fewer components first.
pub fn depth(path: &Path) -> (usize, &Path) {
    (path.components().count(), path)
}

/// Whether one is the other, or lies in it.
pub fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// The same on a file system that does not tell upper from lower case.
pub fn overlap_folded(a: &Path, b: &Path) -> bool {
    let folded = |path: &Path| PathBuf::from(path.to_string_lossy().to_lowercase());
    overlap(&folded(a), &folded(b))
}

/// On FAT, `State` and `state` are one directory.
pub fn is_fat(filesystem: Option<NewFileSystem>) -> bool {
    filesystem == Some(NewFileSystem::Vfat)
}

fn entry(
    given: &wire::Preserve,
    claim: Option<&str>,
    path: &str,
    problems: &mut Problems,
) -> Option<Preserved> {
    let wire::Preserve {
        target,
        source,
        subdir,
        kind,
        method,
        format,
        filesystem,
        create,
        luks,
        seed,
        mode,
        owner,
        options,
        required,
        claim_bound: _,
        other_claim,
    } = given;
    let key = |name: &str| format!("{path}.{name}");
    let mut source = source.clone();
    let create = create.and_then(|size| creation(size.0, &mut source, *format, &key, problems));
    let key_file = luks.as_ref().and_then(|luks| {
        plain_path(&luks.key_file)
            .map_err(|why| problems.add(&key("luks.keyFile"), why))
            .ok()
    });
    let target = match plain_path(target) {
        Ok(target) => match forbidden(&target) {
            None => Some(target),
            Some(why) => {
                problems.add(&key("target"), why);
                None
            }
        },
        Err(why) => {
            problems.add(&key("target"), why);
            None
        }
    };
    let source = source_of(&source, &key("source"), problems);
    let subdir = match subdir {
        Some(text) => match inner_path(text) {
            Ok(subdir) => Some(subdir),
            Err(why) => {
                problems.add(&key("subdir"), why);
                None
            }
        },
        None => Some(match (kind, &target) {
            (wire::PreserveKind::File, Some(target)) => {
                target.strip_prefix("/").unwrap_or(target).to_owned()
            }
            _ => PathBuf::new(),
        }),
    };
    let file = *kind == wire::PreserveKind::File;
    if file && *method != wire::PreserveMethod::Bind {
        problems.add(&key("method"), "a file can only be bound");
    }
    if *method == wire::PreserveMethod::Mount && given.subdir.is_some() {
        problems.add(
            &key("subdir"),
            "`method` mount attaches the file system itself; use bind for a part of it",
        );
    }
    if *method == wire::PreserveMethod::Overlay && *seed != wire::Seed::None {
        problems.add(
            &key("seed"),
            "an overlay shows the image's content without a copy of it",
        );
    }
    if claim.is_none() && *other_claim != wire::OtherClaim::Refuse {
        problems.add(&key("otherClaim"), "only with `claimBound`");
    }
    let format = *format == wire::PreserveFormat::IfBlank;
    if format && source.as_ref().is_some_and(|s| !s.can_be_blank()) {
        problems.add(
            &key("format"),
            "a blank source has neither label nor UUID: name it by partlabel, partuuid or disk",
        );
    }
    let filesystem = match filesystem.as_deref() {
        None => None,
        Some("ext4") => Some(NewFileSystem::Ext4),
        Some("xfs") => Some(NewFileSystem::Xfs),
        Some("vfat") => Some(NewFileSystem::Vfat),
        Some(_) => {
            problems.add(&key("filesystem"), "one of ext4, xfs and vfat is possible");
            None
        }
    };
    let mode = mode.as_deref().and_then(|text| {
        octal_mode(text)
            .map_err(|why| problems.add(&key("mode"), why))
            .ok()
    });
    let owner = owner.as_deref().and_then(|text| {
        numeric_owner(text)
            .map_err(|why| problems.add(&key("owner"), why))
            .ok()
    });
    let options = match options::parse(options) {
        Ok(options) => {
            if *method == wire::PreserveMethod::Overlay && options.flags.read_only {
                problems.add(
                    &key("options"),
                    "an overlay keeps what is written, and with ro nothing is",
                );
            }
            Some(options)
        }
        Err(wrong) => {
            for (i, why) in wrong {
                problems.add(&format!("{path}.options[{i}]"), why);
            }
            None
        }
    };
    Some(Preserved {
        target: target?,
        source: source?,
        subdir: subdir?,
        kind: *kind,
        method: *method,
        format,
        filesystem,
        create,
        key_file,
        seed: *seed,
        mode,
        owner,
        options: options?,
        required: *required,
        claim: claim.map(str::to_owned),
        other_claim: *other_claim,
    })
}

/// What `create` means. The disk, which belongs to it, is taken out of `source`.
fn creation(
    size: Bytes,
    source: &mut wire::PreserveSource,
    format: wire::PreserveFormat,
    key: &impl Fn(&str) -> String,
    problems: &mut Problems,
) -> Option<Creation> {
    let Some(label) = source.partlabel.clone() else {
        problems.add(
            &key("create"),
            "only with a source that is named by `partlabel`: the partition is found again by it",
        );
        return None;
    };
    if let Some(wrong) = super::disk::wrong_label(&label) {
        problems.add(&key("source.partlabel"), wrong);
    }
    if format != wire::PreserveFormat::IfBlank {
        problems.add(
            &key("format"),
            "IfBlank is needed with `create`: a new partition is blank",
        );
    }
    if size < SMALLEST_PARTITION {
        problems.add(
            &key("create"),
            format!(
                "at least {} are needed for a file system",
                SMALLEST_PARTITION.short()
            ),
        );
    }
    if source.partition.is_some() {
        problems.add(
            &key("source.partition"),
            "a partition that is made gets the lowest free number",
        );
        source.partition = None;
    }
    Some(Creation {
        label,
        size,
        disk: Box::new(source.disk.take().unwrap_or_default()),
    })
}

pub(super) fn source_of(
    given: &wire::PreserveSource,
    path: &str,
    problems: &mut Problems,
) -> Option<Source> {
    let wire::PreserveSource {
        partlabel,
        partuuid,
        label,
        uuid,
        disk,
        partition,
    } = given;
    if partition.is_some() && disk.is_none() {
        problems.add(&format!("{path}.partition"), "only with `disk`");
        return None;
    }
    if *partition == Some(0) {
        problems.add(&format!("{path}.partition"), "partitions count from 1");
        return None;
    }
    let lower = |text: &String| text.to_ascii_lowercase();
    let mut ways: Vec<Source> = [
        partlabel.clone().map(Source::Partlabel),
        partuuid.as_ref().map(lower).map(Source::Partuuid),
        label.clone().map(Source::Label),
        uuid.as_ref().map(lower).map(Source::Uuid),
        disk.clone().map(|select| Source::Disk {
            select: Box::new(select),
            partition: *partition,
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    let empty = |way: &Source| match way {
        Source::Partlabel(text)
        | Source::Partuuid(text)
        | Source::Label(text)
        | Source::Uuid(text) => text.is_empty(),
        // Any disk at all is no way of naming one.
        Source::Disk { select, .. } => **select == wire::Select::default(),
    };
    if ways.iter().any(empty) {
        problems.add(path, "names nothing");
        return None;
    }
    if ways.len() != 1 {
        problems.add(
            path,
            "exactly one of `partlabel`, `partuuid`, `label`, `uuid` and `disk` is needed",
        );
        return None;
    }
    ways.pop()
}

/// A path inside a file system, relative to its root.
pub(super) fn inner_path(text: &str) -> Result<PathBuf, &'static str> {
    let absolute = plain_path(&format!("/{}", text.trim_start_matches('/')))
        .map_err(|_| "`.`, `..` and control characters are not allowed")?;
    let inner = absolute.strip_prefix("/").unwrap_or(&absolute);
    let first = inner.components().next().map(|c| c.as_os_str().to_owned());
    // In whatever case: there are file systems that do not tell it.
    let is_taken = |name: &str| [HIDDEN, "lost+found"].contains(&name);
    if first.is_some_and(|first| is_taken(&first.to_string_lossy().to_ascii_lowercase())) {
        return Err("this name is taken");
    }
    Ok(inner.to_owned())
}

/// `0750`: octal.
fn octal_mode(text: &str) -> Result<u32, &'static str> {
    const WRONG: &str = "not an octal mode, such as 0750";
    // from_str_radix would take a sign.
    if text.starts_with('+') {
        return Err(WRONG);
    }
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or(WRONG)
}

/// `0:0`: numbers, because the names are in the image, and the image changes.
fn numeric_owner(text: &str) -> Result<(u32, u32), &'static str> {
    const WRONG: &str = "not two numbers, such as 0:0";
    let number = |text: &str| {
        if text.bytes().all(|b| b.is_ascii_digit()) {
            // The largest stands for "leave it" in chown(2).
            text.parse().ok().filter(|n| *n != u32::MAX)
        } else {
            None
        }
    };
    let (user, group) = text.split_once(':').ok_or(WRONG)?;
    Ok((number(user).ok_or(WRONG)?, number(group).ok_or(WRONG)?))
}

#[cfg(test)]
mod tests;
