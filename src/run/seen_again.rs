//! The locked disk is looked at once more: between the plan and the lock lie fetches that may take minutes, in
//! which another disk can have got its name, or somebody can have written to it.

use std::path::Path;

use crate::error::{Class, Failure, Result};
use crate::host::{Disk, Named, NamedKind, contents, disks, named};
use crate::plan::step::{Seen, Target};

/// Refuses a disk that is not as it was `seen` when the plan was made. The caller holds the lock.
pub fn must_be_as_planned(root: &Path, target: &Target, seen: &Seen) -> Result<()> {
    let difference = match look(root, target)? {
        Some(disk) => seen.difference(&Seen::of(&disk)),
        None => Some("/sys/block does not list it any more".to_owned()),
    };
    match difference {
        None => Ok(()),
        Some(why) => Err(Failure::new(
            Class::Refused,
            format!(
                "target {} is not as it was when the plan was made: {why}; nothing was written",
                target.path.display()
            ),
        )
        .hint("run again: the choice is made anew with what is there now")),
    }
}

fn look(root: &Path, target: &Target) -> Result<Option<Disk>> {
    let Some(dev) = target.dev else {
        let file = Named {
            path: target.path.clone(),
            what: NamedKind::RegularFile { size: target.size },
        };
        return Ok(named::file_as_disk(root, &file, &[]));
    };
    let all = disks::list(root)?;
    let mut found: Vec<Disk> = all.into_iter().filter(|d| d.dev == dev).collect();
    contents::read_all(root, &mut found);
    Ok(found.into_iter().next())
}
