//! Whether a place is still what an earlier session made of it. What is missing, or is seen in another way, would come
//! up as an empty directory.

use std::path::Path;

use nix::sys::stat::fstatat;

use super::machine_id;
use super::place::{self, Found};
use super::record::{self, Record, Stage};
use super::remove;
use super::source::Source;
use crate::config::wire::Seed;
use crate::error::{Class, Context as _, Failure, Result};
use crate::plan::preserve::{Attach, Binding};

/// Refuses a place that was lost, and one that was made by another `method`. `own` is its record.
pub fn check(binding: &Binding, source: &Source, own: Option<&Record>) -> Result<()> {
    let path = &binding.subdir;
    let found = place::look(source, path)?;
    place::must_fit(binding.attach, &found, source, path)?;
    let made = match (binding.attach, &found) {
        (_, Found::Nothing) => false,
        (Attach::Overlay, Found::Directory(_)) => is_layered(source, path)?,
        (Attach::MachineId, Found::File(_)) => {
            machine_id::kept(source, path)?;
            true
        }
        (Attach::Directory | Attach::File | Attach::Overlay | Attach::MachineId, _) => true,
    };
    if let Found::Directory(directory) = &found {
        let mut names = remove::names(directory).context(Class::Preserve, || {
            format!("listing {} of {}", path.display(), source.name)
        })?;
        if path.as_os_str().is_empty() {
            names.retain(|name| !place::OWN.iter().any(|own| name == own));
        }
        names.sort();
        if binding.attach == Attach::Overlay && !made && !names.is_empty() {
            return Err(other_method(binding, source, "content", "overlay", "bind"));
        }
        // Nobody but ironroot makes the second one with this mode.
        let is_layer = names == ["upper", "work"]
            && fstatat(directory, "work", nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_mode == 0o040_700);
        if binding.attach == Attach::Directory && is_layer {
            let what = "the layers of an overlay";
            return Err(other_method(binding, source, what, "bind", "overlay"));
        }
    }
    let was_there = own.is_some_and(|r| r.stage == Stage::Ready && (r.seeded || r.used));
    if was_there && !made {
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

/// Writes down that the place of `binding` is there, where it belongs to a claim.
pub fn note(binding: &Binding, source: &Source) -> Result<()> {
    if !binding.claim_bound || source.read_only {
        return Ok(());
    }
    match record::of(source, &binding.subdir)? {
        Some(own) if !own.used => record::write(source, &Record { used: true, ..own }),
        _ => Ok(()),
    }
}
