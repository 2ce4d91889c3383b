//! Preserved paths of an installed system: made ready on their sources, filled from the image, and mounted at each
//! of its boots by lines of its fstab(5), without ironroot.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::fstab::{self, escape};
use super::replace::{Like, replace};
use super::{Installed, LIMIT};
use crate::config::request::Named;
use crate::config::request::preserve::{Atime, MountFlags};
use crate::config::wire::Seed;
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::host::signatures;
use crate::host::tables::Table;
use crate::plan::preserve::lasting::is_mounted;
use crate::plan::preserve::{Attach, Binding, SourceDevice};
use crate::report::Reporter;
use crate::run::memory::mounts::Mounts;
use crate::run::own_mounts::When;
use crate::run::partitions::Node;
use crate::run::preserve::source::Source;
use crate::run::preserve::{attach, conflicts, may_all_be_used, source, tolerate};
use crate::sys::beneath::{Root, Walk};
use crate::sys::block;

/// Where the installed system mounts the sources: /run is there before any line of fstab, and no preserved path
/// hides it.
const STATE: &str = "/run/ironroot/state";

/// How long a boot waits for a disk without which it goes on: as long as `wait` in an initrd.
const OPTIONAL_SECONDS: u32 = 30;

const FSTAB: &str = "/etc/fstab";

/// Provides the paths of `bindings` on `sources` for the mounted `system`, whose disk has these partitions.
///
/// # Errors
/// Class preserve for a required path that cannot be provided.
pub fn keep(
    system: &Installed,
    (table, nodes): (&Table, &[Node]),
    sources: &[SourceDevice],
    bindings: &[Binding],
    reporter: &Reporter,
) -> Result<()> {
    let root = system.root()?;
    let mut made = Mounts::default();
    let mut open: Vec<(Source, SourceDevice)> = Vec::new();
    for device in sources {
        let opened = resolve(device, table, nodes)
            .and_then(|device| Ok((source::open(&device, &mut made, reporter)?, device)));
        match opened {
            Ok(both) => {
                both.0.tidy(reporter);
                open.push(both);
            }
            Err(failure) => tolerate(failure, &device.wanted, device.required, reporter)?,
        }
    }
    let open = nameable(open, reporter)?;
    // Before anything is erased for one of them.
    let sources: Vec<&Source> = open.iter().map(|(source, ..)| source).collect();
    may_all_be_used(&bindings.iter().collect::<Vec<_>>(), &sources)
        .and_then(|()| have_all_places(system, bindings))
        .or_else(|(binding, failure)| {
            let target = binding.target.display().to_string();
            tolerate(failure, &target, true, reporter)
        })?;
    let mut kept: Vec<&Binding> = Vec::new();
    let mut places: Vec<(PathBuf, &Binding)> = Vec::new();
    for binding in bindings {
        let Some((source, ..)) = open.iter().find(|(s, ..)| s.number == binding.source) else {
            // Its source is optional, or the run would have ended.
            continue;
        };
        let done = no_rival(system, binding)
            .and_then(|()| place_of(binding, root, &places))
            .and_then(|place| {
                attach::prepare(binding, source, root, reporter)?;
                Ok(place)
            });
        match done {
            Ok(place) => {
                kept.push(binding);
                places.extend(place.map(|place| (place, binding)));
            }
            Err(failure) => {
                let target = binding.target.display().to_string();
                tolerate(failure, &target, binding.required, reporter)?;
            }
        }
    }
    let lines = lines(&open, &kept);
    let text = root.read(Path::new(FSTAB), Walk::InRoot, LIMIT);
    let text = match text {
        Ok(bytes) => bytes,
        Err(error) if error.is_missing() => Vec::new(),
        Err(error) => return Err(error.of_class(Class::Preserve)),
    };
    let text = fstab::with_block(&text, &lines);
    replace(root, Path::new(FSTAB), &text, Like::Old)?;
    for (source, ..) in &open {
        let directory = source.root.directory(Path::new("."), Walk::InRoot)?;
        nix::unistd::syncfs(&directory)
            .context(Class::Preserve, || format!("flushing {}", source.name))?;
    }
    // Descriptors keep a mount busy.
    drop(open);
    made.unmount()?;
    reporter.info(format!(
        "{} preserved paths in the installed system's fstab",
        kept.iter().filter(|b| is_mounted(b)).count()
    ));
    Ok(())
}

/// The first of the required paths that has no place in the system, and why.
fn have_all_places<'a>(
    system: &Installed,
    bindings: &'a [Binding],
) -> Result<(), (&'a Binding, Failure)> {
    for binding in bindings.iter().filter(|binding| binding.required) {
        no_rival(system, binding)
            .and_then(|()| attach::has_place(binding, system.root()?))
            .map_err(|failure| (binding, failure))?;
    }
    Ok(())
}

/// The device as the kernel knows it now.
fn resolve(device: &SourceDevice, table: &Table, nodes: &[Node]) -> Result<SourceDevice> {
    let Some(named) = &device.on_target else {
        return Ok(device.clone());
    };
    let lost = || {
        Failure::new(
            Class::Bug,
            format!("partition {named} of the target is not there"),
        )
        .hint("report this as a bug of ironroot")
    };
    let partition = table
        .partitions()
        .iter()
        .find(|p| match named {
            Named::Number(number) => p.number == *number,
            Named::Label(label) => p.name.as_ref() == Some(label),
        })
        .ok_or_else(lost)?;
    let node = nodes
        .iter()
        .find(|n| n.place.number == partition.number)
        .ok_or_else(lost)?;
    let mut found = SourceDevice {
        path: node.path.clone(),
        dev: node.dev,
        size: partition.size,
        partuuid: Some(partition.partuuid.clone()),
        ..device.clone()
    };
    // What was made a moment ago is what the plan meant.
    if found.format.is_none() && matches!(named, Named::Label(_)) {
        found.uuid = uuid_of(&node.path)?;
    }
    Ok(found)
}

fn uuid_of(path: &Path) -> Result<Option<String>> {
    let what = || format!("reading {}", path.display());
    let file = File::open(path).context(Class::Preserve, what)?;
    let size = block::size(&file).context(Class::Preserve, what)?;
    let contents = signatures::probe_one(&file, &path.display().to_string(), size);
    Ok(contents.found.into_iter().find_map(|c| c.uuid))
}

/// Refuses a path at which the image itself mounts something (of two lines, systemd takes the first), and one whose
/// content in the image cannot be seen.
fn no_rival(system: &Installed, binding: &Binding) -> Result<()> {
    if !is_mounted(binding) {
        // A copy is put there.
        return system.must_be_there(&binding.target);
    }
    if binding.seed == Seed::FromImageOnce {
        // What the image has there is read now.
        system.must_lead_there(&binding.target)?;
    }
    // Separators of overlayfs and of mount(8), which read them differently when they are escaped.
    let strange = |path: &Path| path.display().to_string().contains([':', ',', '\\']);
    if binding.attach == Attach::Overlay && (strange(&binding.target) || strange(&binding.subdir)) {
        return Err(Failure::new(
            Class::Preserve,
            "an overlay in fstab cannot have a colon, a comma or a backslash in its paths",
        )
        .hint("use `method` bind, or other names"));
    }
    match conflicts::at(system.root()?, &binding.target).first() {
        None => Ok(()),
        Some(own) => {
            let what = match own.when {
                When::Never => "keeps systemd from mounting anything at",
                When::AtBoot | When::OnDemand => "mounts something at",
            };
            Err(Failure::new(
                Class::Preserve,
                format!(
                    "{} of the image {what} {} itself",
                    printable(&own.file),
                    own.entry.target.display()
                ),
            )
            .hint("take the line or the unit out of the image"))
        }
    }
}

/// What fstab can name; what it cannot and is optional, is left out.
fn nameable(
    open: Vec<(Source, SourceDevice)>,
    reporter: &Reporter,
) -> Result<Vec<(Source, SourceDevice, String)>> {
    let mut named = Vec::new();
    for (source, device) in open {
        match spec(&device) {
            Ok(spec) => named.push((source, device, spec)),
            Err(failure) => tolerate(failure, &device.wanted, device.required, reporter)?,
        }
    }
    Ok(named)
}

/// Where `binding` is in the image, behind its links, for what is mounted: two lines for one place are one too many,
/// and of them systemd takes the first.
fn place_of(
    binding: &Binding,
    root: &Root,
    others: &[(PathBuf, &Binding)],
) -> Result<Option<PathBuf>> {
    if !is_mounted(binding) {
        return Ok(None);
    }
    let place = attach::real_target(binding, root)?;
    match others.iter().find(|(other, _)| *other == place) {
        Some((_, other)) => Err(Failure::new(
            Class::Preserve,
            format!(
                "in the image it is the same place as {}, which is preserved too",
                other.target.display()
            ),
        )
        .hint("leave one of them out of `preserve`, or take the link out of the image")),
        None => Ok(Some(place)),
    }
}

/// The lines of fstab(5): each source, then each path.
fn lines(open: &[(Source, SourceDevice, String)], kept: &[&Binding]) -> Vec<String> {
    let mut lines = Vec::new();
    if kept.iter().any(|b| is_mounted(b)) {
        // Whoever mounts makes directories that all can enter, and modes above a path protect it only there.
        lines.push(format!(
            "tmpfs {STATE} tmpfs rw,nosuid,nodev,noexec,mode=0700,size=64k,x-mount.mkdir 0 0"
        ));
    }
    for (source, device, spec) in open {
        let users: Vec<&&Binding> = kept
            .iter()
            .filter(|b| b.source == source.number && is_mounted(b))
            .collect();
        if users.is_empty() {
            continue;
        }
        let options = source_options(device, &users);
        // fsck(8) in the second round, for what has one that does something at boot.
        let pass = match device.filesystem.as_str() {
            "ext4" | "vfat" => 2,
            _ => 0,
        };
        lines.push(format!(
            "{spec} {STATE}/{} {} {} 0 {pass}",
            source.number,
            device.filesystem,
            options.join(",")
        ));
    }
    for binding in kept.iter().filter(|b| is_mounted(b)) {
        lines.push(line(binding));
    }
    lines
}

fn source_options(device: &SourceDevice, users: &[&&Binding]) -> Vec<String> {
    let mut options = vec![if device.read_only { "ro" } else { "rw" }.to_owned()];
    // What a path needs, its file system has to allow.
    if users.iter().all(|b| b.flags.nosuid) {
        options.push("nosuid".to_owned());
    }
    if users.iter().all(|b| b.flags.nodev) {
        options.push("nodev".to_owned());
    }
    if device.filesystem == "ext4" {
        // As in a session, and whatever the image's own lines have: damage that shows later must not grow.
        options.push("errors=remount-ro".to_owned());
    }
    options.extend(device.options.iter().cloned());
    if !device.required {
        options.push("nofail".to_owned());
        // The paths on it are there before local-fs.target, which waits that long for a disk that has gone, and
        // not systemd's 90 s.
        options.push(format!("x-systemd.device-timeout={OPTIONAL_SECONDS}s"));
    }
    // For who mounts by fstab and is no systemd: below /run nobody has made it.
    options.push("x-mount.mkdir".to_owned());
    options
}

/// How fstab names the device.
fn spec(device: &SourceDevice) -> Result<String> {
    if let Some(partuuid) = &device.partuuid {
        return Ok(format!("PARTUUID={partuuid}"));
    }
    let uuid = match &device.uuid {
        Some(uuid) => Some(uuid.clone()),
        None => uuid_of(&device.path)?,
    };
    uuid.map(|uuid| format!("UUID={uuid}")).ok_or_else(|| {
        Failure::new(
            Class::Preserve,
            format!("{device} has neither a PARTUUID nor a UUID that fstab could name"),
        )
        .hint("give it a file system with a UUID, or a partition table")
    })
}

fn line(binding: &Binding) -> String {
    let place = Path::new(STATE).join(binding.source.to_string());
    let content = place.join(&binding.subdir);
    let target = escape(&binding.target.display().to_string());
    let shown = |path: PathBuf| escape(&path.display().to_string());
    let mut options: Vec<String> = Vec::new();
    let (what, kind) = match binding.attach {
        Attach::Overlay => {
            options.extend([
                format!("lowerdir={target}"),
                format!("upperdir={}", shown(content.join("upper"))),
                format!("workdir={}", shown(content.join("work"))),
            ]);
            // As in a session from memory: one upper layer for all images.
            for feature in ["index", "metacopy", "redirect_dir", "xino"] {
                options.push(format!("{feature}=off"));
            }
            ("overlay".to_owned(), "overlay")
        }
        Attach::Directory | Attach::File | Attach::MachineId => {
            options.push("bind".to_owned());
            (shown(content), "none")
        }
    };
    options.extend(flags(binding.flags));
    options.push(format!("x-systemd.requires-mounts-for={}", shown(place)));
    if !binding.required {
        options.push("nofail".to_owned());
        // `nofail` takes the order away too (systemd: fstab-generator): what a service has written in the image's own
        // directory would be hidden.
        options.push("x-systemd.before=local-fs.target".to_owned());
    }
    format!("{what} {target} {kind} {} 0 0", options.join(","))
}

/// Every flag is stated: a bind mount would take over those of its source.
fn flags(flags: MountFlags) -> Vec<String> {
    let pick = |set: bool, yes: &str, no: &str| if set { yes } else { no }.to_owned();
    let mut all = vec![
        pick(flags.read_only, "ro", "rw"),
        pick(flags.nosuid, "nosuid", "suid"),
        pick(flags.nodev, "nodev", "dev"),
        pick(flags.noexec, "noexec", "exec"),
        match flags.atime {
            Atime::Relatime => "relatime",
            Atime::Noatime => "noatime",
            Atime::Strictatime => "strictatime",
        }
        .to_owned(),
    ];
    if flags.nodiratime {
        all.push("nodiratime".to_owned());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::DevNum;
    use crate::image::record::DiskIdentity;
    use crate::units::Bytes;

    #[test]
    fn a_boot_waits_for_an_optional_disk_but_not_long() {
        let optional = SourceDevice {
            number: 0,
            name: "sdb1".to_owned(),
            path: "/dev/sdb1".into(),
            dev: DevNum::default(),
            size: Bytes(1 << 30),
            disk: DiskIdentity::default(),
            wanted: "partlabel=state".to_owned(),
            filesystem: "ext4".to_owned(),
            uuid: None,
            partuuid: None,
            on_target: None,
            made: None,
            format: None,
            luks: None,
            read_only: false,
            options: Vec::new(),
            required: false,
        };
        let required = SourceDevice {
            required: true,
            ..optional.clone()
        };
        let words = |device| source_options(device, &[]).join(",");
        assert_eq!(
            words(&optional),
            "rw,nosuid,nodev,errors=remount-ro,nofail,x-systemd.device-timeout=30s,x-mount.mkdir"
        );
        assert_eq!(
            words(&required),
            "rw,nosuid,nodev,errors=remount-ro,x-mount.mkdir"
        );
    }
}
