//! Words for the unified kernel images of an installed system: an addon on each partition that has some. It counts for all
//! images there, later ones too.

use super::replace::{Like, replace};
use super::unified::Place;
use crate::error::Result;
use crate::image::boot::addon;
use crate::image::boot::arguments::Edit;
use crate::run::tree_disk::uki;

/// Why the change cannot be made to one of `images`; `None` where addons make it.
///
/// # Errors
/// Class media where one cannot be read.
pub fn cannot_be(images: &[Place<'_>], edit: &Edit, secure_boot: bool) -> Result<Option<String>> {
    for image in images {
        let why = if !edit.removed().is_empty() {
            Some("and nothing takes away the arguments in it".to_owned())
        } else if secure_boot {
            Some(
                "and with Secure Boot the addon that adds words would have to be signed".to_owned(),
            )
        } else {
            uki::takes_no_words(image.root, &image.path)?
        };
        if let Some(why) = why {
            return Ok(Some(format!("{}: {why}", image.path.display())));
        }
    }
    Ok(None)
}

/// Adds the words; the files that were written.
///
/// # Errors
/// Class media or integrity where an addon cannot be made or written.
pub fn to(images: &[Place<'_>], edit: &Edit) -> Result<Vec<String>> {
    let line = edit.apply("");
    let mut written = Vec::new();
    let mut done: Vec<(*const crate::sys::beneath::Root, &std::path::Path)> = Vec::new();
    for image in images {
        let partition = (std::ptr::from_ref(image.root), image.base.as_path());
        if line.is_empty() || done.contains(&partition) {
            continue;
        }
        done.push(partition);
        let bytes = uki::addon_for(image.root, &image.path, &line)?;
        let path = image.base.join(addon::PLACE);
        replace(image.root, &path, &bytes, Like::Old)?;
        written.push(path.display().to_string());
    }
    Ok(written)
}
