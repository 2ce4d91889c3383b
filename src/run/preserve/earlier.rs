//! Whether a place is still what an earlier session made of it. What is missing, or is seen in another way, would come
//! up as an empty directory.

use nix::sys::stat::fstatat;

use super::place::{self, Found};
use super::record::{self, Record, Stage};
use super::remove;
use super::source::Source;
use crate::error::{Class, Context as _, Failure, Result};
use crate::plan::preserve::{Attach, Binding};

/// Refuses a place that was lost, and one that was made by another `method`. `own` is its record.
pub fn check(binding: &Binding, source: &Source, own: Option<&Record>) -> Result<()> {
    let path = &binding.subdir;
    let found = place::look(source, path)?;
    let made = match (binding.attach, &found) {
        (_, Found::Nothing) => false,
        (Attach::Overlay, Found::Directory(_)) => {
            !matches!(place::look(source, &path.join("upper"))?, Found::Nothing)
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

fn other_method(
    binding: &Binding,
    source: &Source,
    what: &str,
    method: &str,
    other: &str,
) -> Failure {
    let place = if binding.subdir.as_os_str().is_empty() {
        "the root".to_owned()
    } else {
        binding.subdir.display().to_string()
    };
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
