//! Whether what is on a disk may be overwritten.

use super::super::refusal::{Refusal, summary};
use super::super::{keep, target};
use crate::config::wire::Overwrite;
use crate::host::tables::TablePartition;
use crate::host::{Disk, RecordFound};

/// Refuses what `overwrite` does not allow.
/// `kept`: what is kept; `None` where that is refused, which says more.
pub(super) fn may_overwrite(
    overwrite: Overwrite,
    disk: &Disk,
    identity: &str,
    kept: Option<&[TablePartition]>,
) -> Result<(), Refusal> {
    let refuse = |found: Vec<String>, allow| {
        Err(Refusal::NotBlank {
            disk: disk.name.clone(),
            found,
            allow,
        })
    };
    if overwrite == Overwrite::Always {
        return Ok(());
    }
    match &disk.record {
        RecordFound::Mark(_) | RecordFound::Installed(_) if overwrite == Overwrite::IfOurs => {
            return Ok(());
        }
        RecordFound::Mark(mark) if target::is_cut_off(disk, identity) => {
            let Some(kept) = kept.filter(|kept| keep::forgets_one(&disk.table, mark, kept)) else {
                return Ok(());
            };
            let mut found = vec![
                "this installation was cut off here while it kept partitions that `disk.keep` does not name any more".to_owned(),
            ];
            let lost = disk.table.partitions().iter().filter(|p| !kept.contains(p));
            found.extend(lost.map(keep::describe));
            return refuse(found, "IfOurs");
        }
        RecordFound::Mark(mark) if mark.identity == identity => {
            let mut found = summary(&disk.contents);
            found.push(
                "this installation was cut off here, and the disk was changed since".to_owned(),
            );
            return refuse(found, "IfOurs");
        }
        RecordFound::Mark(mark) => {
            return refuse(
                vec![format!(
                    "another installation was cut off here (claim {:?})",
                    mark.claim
                )],
                "IfOurs",
            );
        }
        RecordFound::Installed(found) => {
            return refuse(
                vec![format!(
                    "an installation by ironroot (claim {:?})",
                    found.claim
                )],
                "IfOurs",
            );
        }
        RecordFound::None | RecordFound::Foreign { .. } => {}
    }
    if let Some(why) = &disk.unreadable {
        return refuse(vec![format!("it could not be read ({why})")], "Always");
    }
    let mut found = summary(&disk.contents);
    if let RecordFound::Foreign { why, .. } = &disk.record {
        found.push(format!(
            "a record of ironroot that does not count here: {why}"
        ));
    }
    if found.is_empty() {
        Ok(())
    } else {
        refuse(found, "Always")
    }
}
