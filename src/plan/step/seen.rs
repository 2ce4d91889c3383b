//! What the choice of a disk was made on, so that it can be asked again when the disk is locked.

use crate::error::printable;
use crate::host::tables::Table;
use crate::host::{Content, Disk, RecordFound};
use crate::image::record::DiskIdentity;

/// What decided that a disk may be written. A plan is a function of what was seen: as long as this is the same, so
/// is the decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// [`Disk::diskseq`].
    diskseq: Option<u64>,
    identity: DiskIdentity,
    table: Table,
    record: RecordFound,
    contents: Vec<Content>,
    readable: bool,
}

impl Seen {
    /// What `disk` shows.
    pub fn of(disk: &Disk) -> Seen {
        Seen {
            diskseq: disk.diskseq,
            identity: DiskIdentity::of(disk),
            table: disk.table.clone(),
            record: disk.record.clone(),
            contents: disk.contents.clone(),
            readable: disk.unreadable.is_none(),
        }
    }

    /// What is not as it was when the plan was made, in words; `None` where `now` is the same disk with the same
    /// on it.
    pub fn difference(&self, now: &Seen) -> Option<String> {
        let name = |name: &Option<String>| name.as_deref().map_or("none".to_owned(), printable);
        let (was, is) = (&self.identity, &now.identity);
        if was.serial != is.serial {
            let (was, is) = (name(&was.serial), name(&is.serial));
            return Some(format!("its serial number is {is}, planned was {was}"));
        }
        if was.wwn != is.wwn {
            let (was, is) = (name(&was.wwn), name(&is.wwn));
            return Some(format!("its wwn is {is}, planned was {was}"));
        }
        if self.diskseq != now.diskseq {
            return Some("another disk has its name now (diskseq)".to_owned());
        }
        if self.readable != now.readable {
            let word = if now.readable { "can" } else { "cannot" };
            return Some(format!("it {word} be read now"));
        }
        if self.record != now.record {
            return Some("its mark or record of an installation has changed".to_owned());
        }
        if self.table != now.table {
            return Some("its partition table has changed".to_owned());
        }
        let new = |c: &&Content| !self.contents.contains(c);
        match now.contents.iter().find(new) {
            Some(content) => Some(format!("it has {content} now")),
            None if self.contents != now.contents => {
                Some("something that was on it is gone".to_owned())
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::RecordIdentity;

    type Change = fn(&mut Disk);

    #[test]
    fn whatever_the_decision_hangs_on_is_compared() {
        let disk = Disk {
            name: "sda".to_owned(),
            diskseq: Some(7),
            serial: Some("S1".to_owned()),
            ..Disk::default()
        };
        let planned = Seen::of(&disk);
        assert_eq!(planned.difference(&Seen::of(&disk)), None);
        let changed: [(&str, Change); 7] = [
            ("diskseq", |d| d.diskseq = Some(8)),
            ("serial number is S2", |d| d.serial = Some("S2".to_owned())),
            ("wwn is naa.1, planned was none", |d| {
                d.wwn = Some("naa.1".to_owned());
            }),
            ("cannot be read", |d| {
                d.unreadable = Some("dead".to_owned());
            }),
            ("mark or record", |d| {
                d.record = RecordFound::Installed(RecordIdentity::default());
            }),
            ("partition table", |d| {
                d.table = Table::Damaged {
                    why: "half".to_owned(),
                };
            }),
            ("it has ext4 on sda now", |d| {
                d.contents.push(Content {
                    device: "sda".to_owned(),
                    what: "ext4".to_owned(),
                    label: None,
                    uuid: None,
                });
            }),
        ];
        for (part, change) in changed {
            let mut now = disk.clone();
            change(&mut now);
            let said = planned.difference(&Seen::of(&now)).unwrap();
            assert!(said.contains(part), "{said}");
            // The other way round as well: what is gone has been taken by somebody.
            assert!(Seen::of(&now).difference(&planned).is_some(), "{part}");
        }
    }
}
