//! Whether a place is still what an earlier session made of it. What is missing, or is seen in another way, would come
//! up as an empty directory.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::place::{self, Found};
use super::record::{self, Record, Stage};
use super::source::Source;
use super::{layer, machine_id, remove};
use crate::config::wire::Seed;
use crate::error::{Class, Context as _, Failure, Result, describe};
use crate::plan::preserve::{Attach, Binding};
use crate::report::Reporter;

/// Refuses a place that was lost, and one that was made by another `method`. `own` is its record.
pub fn check(binding: &Binding, source: &Source, own: Option<&Record>) -> Result<()> {
    let path = &binding.subdir;
    let found = place::look(source, path)?;
    place::must_fit(binding.attach, &found, source, path)?;
    let was_used = own.is_some_and(|r| r.stage == Stage::Ready && (r.seeded || r.used));
    if let Found::Directory(directory) = &found {
        must_be_of_this_method(binding, source, directory, was_used)?;
    }
    let made = match (binding.attach, &found) {
        (_, Found::Nothing) => false,
        (Attach::Overlay, Found::Directory(_)) => is_layered(source, path)?,
        (Attach::MachineId, Found::File(_)) => {
            machine_id::kept(source, path)?;
            true
        }
        (Attach::Directory | Attach::File | Attach::Overlay | Attach::MachineId, _) => true,
    };
    if was_used && !made {
        return Err(Failure::new(
            Class::Preserve,
            format!(
                "{} was on {} in an earlier session and is not there any more",
                path.display(),
                source.name
            ),
        )
        .hint(format!(
            "look for it in lost+found of the source; to begin afresh, remove .ironroot/records/{}.json there",
            record::id(path)
        )));
    }
    Ok(())
}

/// Refuses a `directory` with content that the method of `binding` would not show.
fn must_be_of_this_method(
    binding: &Binding,
    source: &Source,
    directory: &OwnedFd,
    was_used: bool,
) -> Result<()> {
    let path = &binding.subdir;
    let has_layers = layer::is_marked(directory)?;
    match binding.attach {
        Attach::Directory if has_layers && is_layered(source, path)? => {
            let what = "the layers of an overlay";
            Err(other_method(binding, source, what, "bind", "overlay"))
        }
        Attach::Overlay if !has_layers => {
            let mut names = remove::names(directory).context(Class::Preserve, || {
                format!("listing {} of {}", path.display(), source.name)
            })?;
            if path.as_os_str().is_empty() {
                names.retain(|name| !place::OWN.iter().any(|own| name == own));
            }
            // Two directories of these names may have been put there for an overlay, unless they were shown as they are.
            let are_layers = names.iter().all(|name| name == "upper" || name == "work");
            if names.is_empty() || (are_layers && !was_used) {
                return Ok(());
            }
            Err(other_method(binding, source, "content", "overlay", "bind"))
        }
        Attach::Directory | Attach::File | Attach::Overlay | Attach::MachineId => Ok(()),
    }
}

/// Whether the directory at `path` has an upper layer.
fn is_layered(source: &Source, path: &Path) -> Result<bool> {
    let [upper, work] = ["upper", "work"].map(|name| path.join(name));
    let found = place::look(source, &upper)?;
    place::must_fit(Attach::Overlay, &found, source, &upper)?;
    if matches!(found, Found::Nothing) {
        return Ok(false);
    }
    place::must_fit(Attach::Overlay, &place::look(source, &work)?, source, &work)?;
    Ok(true)
}

/// Refuses a place in which something would have to be made or written down, on a source that is mounted read-only.
/// `own` is its record.
pub fn needs_no_write(binding: &Binding, source: &Source, own: Option<&Record>) -> Result<()> {
    let path = &binding.subdir;
    let missing = match (binding.attach, place::look(source, path)?) {
        (_, Found::Nothing) => Some("is not there"),
        (Attach::MachineId, Found::File(_)) => machine_id::kept(source, path)?
            .is_none()
            .then_some("holds no machine id"),
        (Attach::Directory | Attach::File | Attach::Overlay | Attach::MachineId, _) => None,
    };
    let is_filled = own.is_some_and(|own| own.seeded);
    let is_owned = own.is_some_and(|own| own.claim.is_some());
    let missing = missing
        .or((binding.seed == Seed::FromImageOnce && !is_filled).then_some("was never filled"))
        .or((binding.claim_bound && !is_owned).then_some("belongs to no claim yet"));
    match missing {
        None => Ok(()),
        Some(what) => Err(Failure::new(
            Class::Preserve,
            format!("{} {what}, and {} is read-only", shown(path), source.name),
        )
        .hint("leave the option ro away for the first session, which makes it")),
    }
}

fn shown(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        "the root".to_owned()
    } else {
        path.display().to_string()
    }
}

fn other_method(
    binding: &Binding,
    source: &Source,
    what: &str,
    method: &str,
    other: &str,
) -> Failure {
    let place = shown(&binding.subdir);
    Failure::new(
        Class::Preserve,
        format!(
            "{place} of {} holds {what}, which `method` {method} would not show",
            source.name
        ),
    )
    .hint(format!(
        "set `method` to {other} as before, move what is there to where {method} looks for it, or name another `subdir`"
    ))
}

/// Writes down that the place of `binding` is there: where it is missing later, it was lost. A source without room for
/// that is no reason to stop.
pub fn note(binding: &Binding, source: &Source, reporter: &Reporter) {
    // An id that somebody removes is made anew.
    let is_told = binding.attach != Attach::MachineId || binding.claim_bound;
    if source.read_only || !is_told {
        return;
    }
    let noted = record::of(source, &binding.subdir).and_then(|own| {
        let own = own.unwrap_or_else(|| Record::new(&binding.subdir));
        if own.used {
            return Ok(());
        }
        record::write(source, &Record { used: true, ..own })
    });
    if let Err(failure) = noted {
        reporter.warn(format!(
            "{}: whether it is lost one day will not be known: {}",
            binding.target.display(),
            describe(&failure)
        ));
    }
}
