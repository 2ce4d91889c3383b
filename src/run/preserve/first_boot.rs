//! The first boot of a machine that is installed begins when its disk boots, and not before: after a power cut on the way
//! there the installation is made again, and its system sees a first boot with the id that is kept.

use super::look_ahead::Place;
use super::machine_id;
use crate::error::{Class, Context as _, Result};
use crate::host::tables::TablePartition;
use crate::plan::preserve::{Binding, SourceDevice};
use crate::run::target_disk::TargetDisk;

/// Writes it beside the machine ids of `bindings`: on `disk`, which has these partitions, or elsewhere.
///
/// # Errors
/// Class preserve where it cannot be written: the next installation sees a first boot once more.
pub fn begin(
    (disk, partitions): (&TargetDisk, &[TablePartition]),
    sources: &[SourceDevice],
    bindings: &[Binding],
) -> Result<()> {
    for device in sources {
        let ids = bindings.iter().filter(|b| b.source == device.number);
        Place::of(device, disk, partitions)
            .and_then(|place| {
                place.write(device, |source| {
                    ids.into_iter()
                        .try_for_each(|id| machine_id::started(source, &id.subdir))
                })
            })
            .context(Class::Preserve, || {
                format!(
                    "writing on {} that a first boot begins, which the next installation would see again",
                    device.name
                )
            })?;
    }
    Ok(())
}
