//! Preserved paths: their devices opened, checked and mounted below [`STATE`], their content made ready, and the
//! paths attached to the root by descriptor. What is optional and fails is a warning; every entry stands alone.

pub mod attach;
mod check;
pub mod claim;
pub mod conflicts;
pub mod earlier;
pub mod first_boot;
pub mod layer;
pub mod look_ahead;
pub mod luks;
pub mod machine_id;
pub mod partition;
pub mod patience;
pub mod place;
pub mod record;
pub mod remove;
mod same_place;
pub mod seed;
pub mod source;
mod trusted;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use super::memory::mounts::Mounts;
use crate::error::{Class, Failure, Result, describe, printable};
use crate::plan::preserve::create::NewPartitions;
use crate::plan::preserve::{Binding, SourceDevice};
use crate::report::Reporter;
use crate::run::own_mounts::{OwnMount, When};
use crate::sys::beneath::{Root, Walk};
use crate::sys::detached::{Detached, Flags};
use partition::MadePartitions;
use source::Source;

/// Where the sources are mounted, each in a directory of its number. It travels with /run into the new system.
pub const STATE: &str = "/run/ironroot/state";

/// What a session preserves.
#[derive(Debug, Default)]
pub struct Preserving {
    made: Vec<MadePartitions>,
    sources: Vec<Source>,
    promises: Vec<Promise>,
    image: Option<Root>,
    judged: bool,
    /// Source and place of each.
    machine_ids: Vec<(usize, PathBuf)>,
}

/// A mount that has to be at its target when the system starts.
#[derive(Debug)]
struct Promise {
    target: PathBuf,
    mount: u64,
    required: bool,
}

/// All that will be mounted in the root.
#[derive(Debug, Default)]
pub struct Intended<'a> {
    /// What is preserved.
    pub bindings: Vec<&'a Binding>,
    /// Where that is, and where memory is mounted.
    pub mounted: Vec<&'a Path>,
}

/// Where the root is, and where the image's own content is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The root.
    pub root: &'a Path,
    /// The image below an overlay; `None` where the root itself is the image.
    pub lower: Option<&'a Path>,
}

impl Preserving {
    /// Makes partitions on one disk.
    pub fn add_partitions(&mut self, new: &NewPartitions, reporter: &Reporter) -> Result<()> {
        match partition::make(new, reporter) {
            Ok(made) => {
                self.made.push(made);
                Ok(())
            }
            Err(failure) if new.required => tolerate(
                failure,
                &format!("what was to be made on {}", new.target),
                true,
                reporter,
            ),
            Err(failure) => {
                reporter.warn(format!(
                    "no partition was made on {}: {}",
                    new.target,
                    describe(&failure)
                ));
                Ok(())
            }
        }
    }

    /// Opens, checks and mounts a source.
    pub fn open(
        &mut self,
        device: &SourceDevice,
        made: &mut Mounts,
        reporter: &Reporter,
    ) -> Result<()> {
        let opened = self
            .resolve(device)
            .and_then(|device| source::open(&device, made, reporter));
        match opened {
            Ok(source) => {
                source.tidy(reporter);
                self.sources.push(source);
                Ok(())
            }
            Err(failure) => tolerate(
                failure,
                &format!("source {} ({})", device.wanted, device.name),
                device.required,
                reporter,
            ),
        }
    }

    /// The device as the kernel knows it now.
    fn resolve(&self, device: &SourceDevice) -> Result<SourceDevice> {
        let Some(partuuid) = &device.made else {
            return Ok(device.clone());
        };
        let mut nodes = self.made.iter().flat_map(|made| &made.nodes);
        let (_, node) = nodes.find(|(uuid, _)| uuid == partuuid).ok_or_else(|| {
            Failure::new(
                Class::Preserve,
                format!("{} could not be made", device.name),
            )
            .hint("see the warning above")
        })?;
        Ok(SourceDevice {
            name: node.path.file_name().map_or_else(
                || device.name.clone(),
                |name| name.to_string_lossy().into_owned(),
            ),
            path: node.path.clone(),
            dev: node.dev,
            size: node.place.size,
            ..device.clone()
        })
    }

    /// Attaches a path, one of `all`.
    pub fn attach(
        &mut self,
        binding: &Binding,
        all: &Intended<'_>,
        places: Places<'_>,
        made: &mut Mounts,
        reporter: &Reporter,
    ) -> Result<()> {
        self.judge(all, places.root, reporter)?;
        let attached = self
            .image(places, made)
            .and_then(|()| self.try_attach(binding, places, reporter));
        match attached {
            Ok(None) => {
                self.machine_ids
                    .push((binding.source, binding.subdir.clone()));
                Ok(())
            }
            Ok(Some(mount)) => {
                self.promises.push(Promise {
                    target: binding.target.clone(),
                    mount,
                    required: binding.required,
                });
                Ok(())
            }
            Err(failure) => tolerate(
                failure,
                &binding.target.display().to_string(),
                binding.required,
                reporter,
            ),
        }
    }

    /// Before anything is erased for one path: every other that is required may be used too, and has its place in the
    /// root.
    fn judge(&mut self, all: &Intended<'_>, root: &Path, reporter: &Reporter) -> Result<()> {
        if std::mem::replace(&mut self.judged, true) {
            return Ok(());
        }
        may_all_be_used(&all.bindings, &self.sources.iter().collect::<Vec<_>>())
            .and_then(|()| have_all_places(all, root))
            .or_else(|(binding, failure)| {
                let target = binding.target.display().to_string();
                tolerate(failure, &target, true, reporter)
            })
    }

    /// The session starts: first boots of machines with a new id are not repeated.
    pub fn started(&self, reporter: &Reporter) {
        for (number, path) in &self.machine_ids {
            let source = self.sources.iter().find(|s| s.number == *number);
            let told = source.map_or(Ok(()), |source| machine_id::started(source, path));
            if let Err(failure) = told {
                reporter.warn(format!(
                    "the next boot will be a first one again: {}",
                    describe(&failure)
                ));
            }
        }
    }

    fn try_attach(
        &self,
        binding: &Binding,
        places: Places<'_>,
        reporter: &Reporter,
    ) -> Result<Option<u64>> {
        let source = self.sources.iter().find(|s| s.number == binding.source);
        let source = source.ok_or_else(|| {
            Failure::new(Class::Preserve, "its source could not be mounted")
                .hint("see the warning above")
        })?;
        let image = self
            .image
            .as_ref()
            .ok_or_else(|| Failure::new(Class::Bug, "the image's content is nowhere to be seen"))?;
        attach::attach(binding, source, image, places.root, reporter)
    }

    /// The image's own content, whatever is mounted over it in the root.
    fn image(&mut self, places: Places<'_>, made: &mut Mounts) -> Result<()> {
        if self.image.is_some() {
            return Ok(());
        }
        let image = if let Some(lower) = places.lower {
            Root::open(lower)?
        } else {
            let root = Root::open(places.root)?;
            let copy = Detached::copy_of(root.as_fd(), "the image", false)?;
            copy.set_flags(Flags::LAYER, false)?;
            let place = Path::new(STATE).join("image");
            made.attach(copy, &place)?;
            Root::open(&place)?
        };
        self.image = Some(image);
        Ok(())
    }

    /// Checks that each promised mount is what is at its target, and looks for what in the image claims the same
    /// place.
    pub fn verify(&self, root: &Path, reporter: &Reporter) -> Result<()> {
        if self.promises.is_empty() {
            return Ok(());
        }
        let root = Root::open(root)?;
        for promise in &self.promises {
            let found = root
                .handle(&promise.target, Walk::InRoot)
                .map_err(Failure::from)
                .and_then(|fd| mount_id(&fd));
            let target = promise.target.display();
            let failure = match found {
                Ok(id) if id == promise.mount => continue,
                Ok(id) => Failure::new(
                    Class::Preserve,
                    format!(
                        "something else is mounted there: mount {id}, not {}",
                        promise.mount
                    ),
                ),
                Err(failure) => failure,
            };
            tolerate(failure, &target.to_string(), promise.required, reporter)?;
        }
        let targets: Vec<&Path> = self.promises.iter().map(|p| p.target.as_path()).collect();
        for (at, own) in conflicts::above(&root, &targets) {
            if let Some(promise) = self.promises.get(at) {
                hidden(promise, &own, reporter)?;
            }
        }
        for warning in conflicts::find(&root, &targets) {
            reporter.warn(warning);
        }
        Ok(())
    }
}

/// The first of the required paths that may not be used, and why.
pub fn may_all_be_used<'a>(
    all: &[&'a Binding],
    sources: &[&Source],
) -> Result<(), (&'a Binding, Failure)> {
    for binding in all.iter().filter(|binding| binding.required) {
        // Where it is not open, that is said when its turn comes.
        let source = sources.iter().find(|s| s.number == binding.source);
        if let Some(source) = source {
            claim::may_use(binding, source).map_err(|failure| (*binding, failure))?;
        }
    }
    Ok(())
}

/// The first of the required paths that has no place in the root, and why. What will be mounted first brings its own.
fn have_all_places<'a>(all: &Intended<'a>, root: &Path) -> Result<(), (&'a Binding, Failure)> {
    for binding in all.bindings.iter().filter(|binding| binding.required) {
        let target = binding.target.as_path();
        let is_above = |path: &&&Path| target != **path && target.starts_with(path);
        if all.mounted.iter().any(|path| is_above(&path)) {
            continue;
        }
        Root::open(root)
            .map_err(Failure::from)
            .and_then(|root| attach::has_place(binding, &root))
            .map_err(|failure| (*binding, failure))?;
    }
    Ok(())
}

/// What the image mounts above a path, which then shows that and not what is preserved.
fn hidden(promise: &Promise, own: &OwnMount, reporter: &Reporter) -> Result<()> {
    let (target, file) = (promise.target.display(), printable(&own.file));
    let place = own.entry.target.display();
    if own.when == When::AtBoot && promise.required {
        let failure = Failure::new(
            Class::Preserve,
            format!("{file} of the image mounts something at {place}, which hides it"),
        )
        .hint(format!(
            "take that out of the image, or preserve {place} or make it a `memory.scratch`: systemd leaves alone what is mounted"
        ));
        return tolerate(failure, &target.to_string(), true, reporter);
    }
    let how = match own.when {
        When::AtBoot => "mounts something at",
        When::OnDemand | When::Never => "has a mount, which nothing starts by itself, for",
    };
    reporter.warn(format!(
        "{file} of the image {how} {place}: {target}, which is preserved, is hidden by that; take it out of the image"
    ));
    Ok(())
}

/// What is required ends the run, with the code of preserved paths whatever went wrong; the rest warns.
pub fn tolerate(failure: Failure, what: &str, required: bool, reporter: &Reporter) -> Result<()> {
    if required {
        let outer = Failure::new(Class::Preserve, format!("{what} cannot be preserved"));
        // What other classes advise in general does not fit here.
        let outer = if failure.next() == failure.class().advice() {
            outer
        } else {
            let hint = failure.next().to_owned();
            outer.hint(hint)
        };
        return Err(outer.caused_by(failure));
    }
    reporter.warn(format!(
        "{what} is not preserved and shows the image's content: {}",
        describe(&failure)
    ));
    Ok(())
}

/// The id of the mount that `fd` is in (proc_pid_fdinfo(5), `mnt_id`), as mountinfo has it.
fn mount_id(fd: &OwnedFd) -> Result<u64> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Failure::new(Class::Preserve, format!("reading {path}")).caused_by(error)
    })?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
        .ok_or_else(|| Failure::new(Class::Preserve, format!("{path} names no mount")))
}
