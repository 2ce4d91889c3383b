//! The record that says which installation a disk holds, and the mark that says that one is under way.
//!
//! Both fill the last 4 KiB before byte 1 MiB: behind every table, before the first partition. Pure: bytes
//! in, a verdict out. Writing them, and when, is the business of the disk writer.
//!
//! ```text
//!     0  16  magic
//!    16   2  format, little-endian: 1
//!    18   2  state: 01 00 mark, 02 00 record, 03 5a sealed record
//!    20   4  length of the payload, little-endian
//!    24      payload: JSON, at most 3584 bytes; then zeros
//!  4064  32  SHA-256 of everything before, the state of a sealed record taken as 02 00
//! ```
//!
//! The digest makes a torn write (some sectors new, some old) no record. So that none is torn, the first sector is
//! written alone before the others, and stands for a mark by itself as long as it is there:
//!
//! ```text
//!     0  16  magic
//!    16   2  format, little-endian: 1
//!    18   2  state: 04 a5
//!    20   4  length of the payload, little-endian
//!    24      payload: JSON without what is only told, at most 456 bytes; then zeros
//!   480  32  SHA-256 of everything before
//! ```
//!
//! Then come the other sectors, then the first, each on the medium before the next. A record and the same one sealed differ in
//! two bytes of one sector only, so that a torn write of the seal is one of both. The fields of format 1 are
//! frozen; a reader passes over fields that it does not know, so a later version may add some, and
//! raises the format when one changes its meaning.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{Class, Failure, Result, printable};
use crate::host::tables::Table;
use crate::host::{Disk, RecordFound, RecordIdentity, Sections, wwn};
use crate::units::{MIB, SectorSize};

/// Byte offset of the area on the disk.
pub const OFFSET: u64 = MIB - SIZE as u64;
/// Size of the area in bytes.
pub const SIZE: usize = 4096;

const MAGIC: &[u8; 16] = b"ironroot record\n";
const FORMAT: u16 = 1;
const STATE_AT: usize = 18;
const PAYLOAD_AT: usize = 24;
const PAYLOAD_LIMIT: usize = 3584;
const DIGEST_AT: usize = SIZE - 32;

/// What every disk writes as a whole or not at all; those with larger sectors as well.
pub const SECTOR: usize = 512;
const BEGUN: [u8; 2] = [4, 0xa5];
const BEGUN_LIMIT: usize = SECTOR - 32 - PAYLOAD_AT;

/// What the area says: that an installation is under way, or that it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Written before the first destructive write.
    Mark,
    /// Written with the table, before LBA 0.
    Record,
    /// The same, written again when LBA 0 was on the medium: the system was complete once.
    Sealed,
}

impl State {
    const fn bytes(self) -> [u8; 2] {
        match self {
            State::Mark => [1, 0],
            State::Record => [2, 0],
            State::Sealed => [3, 0x5a],
        }
    }
}

/// A mark or a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which of the two.
    pub state: State,
    /// Which installation.
    pub identity: RecordIdentity,
    /// On which disk.
    pub disk: DiskIdentity,
}

impl Record {
    /// The same, as long as LBA 0, which is written after the record and commits it, is not there: an
    /// installation that was cut off between the two is under way still, and may be finished like any other.
    /// Only a sector of zeros, as the installation made it, says so; one that was damaged does not. Nor does one
    /// beside a sealed record: somebody else has zeroed it since, and the rest may be in use.
    #[must_use]
    pub fn committed_by(self, lba0: &[u8]) -> Record {
        let cleared = !lba0.is_empty() && lba0.iter().all(|byte| *byte == 0);
        Record {
            state: match self.state {
                State::Record if cleared => State::Mark,
                state => state,
            },
            ..self
        }
    }
}

/// What ties a record to its disk, so that a copy of the disk is not taken for an installation. A field
/// that the disk does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskIdentity {
    /// Disk GUID of the GPT that was installed, lower case. Absent in a mark.
    pub disk_guid: Option<String>,
    /// Disk signature of the MBR that was installed, eight hexadecimal digits. Absent in a mark.
    pub mbr_signature: Option<String>,
    /// World wide name, as [`Disk::wwn`] has it.
    pub wwn: Option<String>,
    /// Serial number, as [`Disk::serial`] has it.
    pub serial: Option<String>,
}

impl DiskIdentity {
    /// The identity of `disk` for a mark: what no write changes.
    pub fn of(disk: &Disk) -> DiskIdentity {
        DiskIdentity {
            disk_guid: None,
            mbr_signature: None,
            wwn: disk.wwn.clone(),
            serial: disk.serial.clone(),
        }
    }

    /// The same with what `table`, as it is being installed, adds.
    #[must_use]
    pub fn with_table(mut self, table: &Table) -> DiskIdentity {
        match table {
            Table::Gpt(gpt) => self.disk_guid = Some(gpt.disk_guid.clone()),
            Table::Mbr(mbr) => self.mbr_signature = Some(mbr.signature.clone()),
            Table::None | Table::Damaged { .. } => {}
        }
        self
    }
}

/// The payload of format 1. Frozen; readers tolerate more.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Payload {
    identity: String,
    claim: String,
    image: String,
    version: String,
    time: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<u32>,
    /// What the `disk` section said, a digest for each key.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<Sections>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_guid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mbr_signature: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wwn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
}

/// Why an area that begins as ours is neither a mark nor a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The area ends early.
    #[error("the record area is {0} bytes long instead of {SIZE}")]
    Short(usize),
    /// Torn or decayed.
    #[error("the record is damaged: its checksum does not match")]
    Checksum,
    /// Made by a later ironroot.
    #[error("the record has format {0}; this ironroot reads format {FORMAT}")]
    Format(u16),
    /// The checksum is right and the content is not: made by something else.
    #[error("the record makes no sense: {0}")]
    Content(String),
}

/// The first sector of an area that is about to become `mark`, or the record of the same installation: a mark by
/// itself. `None` where the names of the disk and what is kept leave no room for it.
pub fn begun(mark: &Record) -> Result<Option<Vec<u8>>> {
    let of = |claim: &str| {
        let payload = Payload {
            identity: mark.identity.identity.clone(),
            claim: claim.to_owned(),
            kept: mark.identity.kept.clone(),
            wwn: mark.disk.wwn.clone(),
            serial: mark.disk.serial.clone(),
            ..Payload::default()
        };
        serde_json::to_vec(&payload).map_err(|e| {
            Failure::new(Class::Bug, "writing the installation mark as JSON").caused_by(e)
        })
    };
    let fits = |json: &Vec<u8>| json.len() <= BEGUN_LIMIT;
    let json = [of(&mark.identity.claim)?, of("")?].into_iter().find(fits);
    Ok(json.map(|json| sum(BEGUN, &json, SECTOR - 32)))
}

/// Header, payload, zeros and the digest of all that.
fn sum(state: [u8; 2], json: &[u8], digest_at: usize) -> Vec<u8> {
    let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
    let mut content = Vec::with_capacity(SIZE);
    content.extend_from_slice(MAGIC);
    content.extend_from_slice(&FORMAT.to_le_bytes());
    content.extend_from_slice(&state);
    content.extend_from_slice(&length.to_le_bytes());
    content.extend_from_slice(json);
    content.resize(digest_at, 0);
    let digest = Sha256::digest(&content);
    content.extend_from_slice(&digest);
    content
}

/// The bytes of `record`. Fails where claim and image are too long to fit.
pub fn encode(record: &Record) -> Result<[u8; SIZE]> {
    let RecordIdentity {
        identity,
        claim,
        image,
        version,
        time,
        kept,
        sections,
    } = record.identity.clone();
    let DiskIdentity {
        disk_guid,
        mbr_signature,
        wwn,
        serial,
    } = record.disk.clone();
    let mut payload = Payload {
        identity,
        claim,
        image,
        version,
        time,
        kept,
        disk: sections,
        disk_guid,
        mbr_signature,
        wwn,
        serial,
    };
    let text = |payload: &Payload| {
        serde_json::to_vec(payload).map_err(|e| {
            Failure::new(Class::Bug, "writing the installation record as JSON").caused_by(e)
        })
    };
    let mut json = text(&payload)?;
    if json.len() > PAYLOAD_LIMIT {
        // Only what is reported about it later is lost.
        payload.disk = None;
        json = text(&payload)?;
    }
    if json.len() > PAYLOAD_LIMIT {
        return Err(Failure::new(
            Class::Config,
            format!(
                "the installation record takes {} bytes and has room for {PAYLOAD_LIMIT}: claim ({} bytes) or \
                 image ({} bytes) is too long",
                json.len(),
                payload.claim.len(),
                payload.image.len()
            ),
        )
        .hint("shorten metadata.claim, or give image.digest, which is then recorded instead of the URL"));
    }
    let digested = match record.state {
        State::Mark => State::Mark,
        State::Record | State::Sealed => State::Record,
    };
    let mut content = sum(digested.bytes(), &json, DIGEST_AT);
    set_state(&mut content, record.state);
    content
        .try_into()
        .map_err(|_| Failure::new(Class::Bug, "the installation record has the wrong size"))
}

fn set_state(content: &mut [u8], state: State) {
    let place = content.get_mut(STATE_AT..).unwrap_or_default();
    for (to, from) in place.iter_mut().zip(state.bytes()) {
        *to = from;
    }
}

/// Reads an area; `None` where it does not begin as ours.
pub fn decode(area: &[u8]) -> Result<Option<Record>, Unreadable> {
    if !area.starts_with(MAGIC) {
        return Ok(None);
    }
    if area.len() < SIZE {
        return Err(Unreadable::Short(area.len()));
    }
    let begun = area.get(STATE_AT..STATE_AT + 2) == Some(&BEGUN);
    let end = if begun { SECTOR } else { SIZE };
    let (content, digest) = area
        .get(..end)
        .and_then(|area| area.split_at_checked(end.checked_sub(32)?))
        .ok_or(Unreadable::Short(area.len()))?;
    let sealed = content.get(STATE_AT..STATE_AT + 2) == Some(&State::Sealed.bytes());
    let mut content = content.to_vec();
    if sealed {
        set_state(&mut content, State::Record);
    }
    if Sha256::digest(&content).as_slice() != digest {
        return Err(Unreadable::Checksum);
    }
    let wrong = |what: &str| Unreadable::Content(what.to_owned());
    let header = content
        .get(MAGIC.len()..PAYLOAD_AT)
        .ok_or(Unreadable::Checksum)?;
    let &[format_low, format_high, state, _, l0, l1, l2, l3] = header else {
        return Err(wrong("header"));
    };
    let format = u16::from_le_bytes([format_low, format_high]);
    if format != FORMAT {
        return Err(Unreadable::Format(format));
    }
    let state = match state {
        1 => State::Mark,
        _ if begun => State::Mark,
        2 if sealed => State::Sealed,
        2 => State::Record,
        _ => return Err(wrong("neither a mark nor a record")),
    };
    let json = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3]))
        .ok()
        .and_then(|length| content.get(PAYLOAD_AT..PAYLOAD_AT.checked_add(length)?))
        .ok_or_else(|| wrong("its length"))?;
    let Payload {
        identity,
        claim,
        image,
        version,
        time,
        kept,
        disk,
        disk_guid,
        mbr_signature,
        wwn,
        serial,
    } = serde_json::from_slice(json).map_err(|e| Unreadable::Content(e.to_string()))?;
    Ok(Some(Record {
        state,
        identity: RecordIdentity {
            identity,
            claim,
            image,
            version,
            time,
            kept,
            sections: disk,
        },
        disk: DiskIdentity {
            disk_guid,
            mbr_signature,
            wwn,
            serial,
        },
    }))
}

/// What the area of `disk` is worth, given the `table` that stands on the same disk.
///
/// A mark counts where serial and wwn are those of the disk: its table is being replaced. A record counts
/// only while, besides, the table is whole (LBA 0 included, which commits it) and is the one that was
/// installed. Of wwn and serial number, one that was recorded must fit and none may contradict: a kernel may name a
/// disk in another way than the one that installed it, and leave out what it does not ask for. What was not recorded
/// is not asked for.
pub fn judge(found: Result<Option<Record>, Unreadable>, table: &Table, disk: &Disk) -> RecordFound {
    let record = match found {
        Ok(Some(record)) => record,
        Ok(None) => return RecordFound::None,
        Err(error) => {
            return RecordFound::Foreign {
                why: error.to_string(),
                of: None,
            };
        }
    };
    let DiskIdentity {
        disk_guid,
        mbr_signature,
        wwn: name,
        serial,
    } = &record.disk;
    let (guid_now, signature_now) = match table {
        Table::Gpt(gpt) => (Some(&gpt.disk_guid), None),
        Table::Mbr(mbr) => (None, Some(&mbr.signature)),
        Table::None | Table::Damaged { .. } => (None, None),
    };
    let mut misfit = another_disk((name.as_ref(), serial.as_ref()), disk);
    // Its own table, and not whole: a system that was damaged. Another table is somebody's who uses the disk now.
    let is_left = misfit.is_none()
        && match table {
            Table::Gpt(gpt) => disk_guid.as_ref() == Some(&gpt.disk_guid),
            Table::Damaged { .. } => true,
            Table::None | Table::Mbr(_) => false,
        };
    if record.state != State::Mark {
        let sector = disk.sector.unwrap_or(SectorSize::S512);
        misfit = misfit
            .or_else(|| table.why_not_whole(sector))
            .or_else(|| differs("disk GUID", disk_guid.as_ref(), guid_now))
            .or_else(|| differs("disk signature", mbr_signature.as_ref(), signature_now))
            .or_else(|| {
                (disk_guid.is_none() && mbr_signature.is_none())
                    .then(|| "it names no partition table".to_owned())
            });
    }
    match (misfit, record.state) {
        (Some(why), State::Mark) => RecordFound::Foreign {
            why: format!("the mark of an unfinished installation does not count: {why}"),
            of: None,
        },
        (Some(why), State::Record | State::Sealed) => RecordFound::Foreign {
            why: format!("the record does not count: {why}"),
            of: is_left.then(|| Box::new(record.identity)),
        },
        (None, State::Mark) => RecordFound::Mark(record.identity),
        (None, State::Record | State::Sealed) => RecordFound::Installed(record.identity),
    }
}

/// Why `disk` is not the one with these names.
fn another_disk((name, serial): (Option<&String>, Option<&String>), disk: &Disk) -> Option<String> {
    let (name_now, serial_now) = (disk.wwn.as_ref(), disk.serial.as_ref());
    let contradicts = name
        .zip(name_now)
        .is_some_and(|(was, is)| wwn::contradict(was, is));
    if contradicts {
        return differs("wwn", name, name_now);
    }
    let other_serial = serial.zip(serial_now).is_some_and(|(was, is)| was != is);
    if other_serial {
        return differs("serial number", serial, serial_now);
    }
    let fits = serial.is_some() && serial == serial_now
        || name
            .zip(name_now)
            .is_some_and(|(was, is)| wwn::bare(was) == wwn::bare(is));
    if fits {
        return None;
    }
    differs("wwn", name, name_now).or_else(|| differs("serial number", serial, serial_now))
}

fn differs(what: &str, recorded: Option<&String>, now: Option<&String>) -> Option<String> {
    let recorded = recorded?;
    match now {
        Some(now) if now == recorded => None,
        Some(now) => Some(format!(
            "it was written for {what} {}, this disk has {}",
            printable(recorded),
            printable(now)
        )),
        None => Some(format!(
            "it was written for {what} {}, this disk has none",
            printable(recorded)
        )),
    }
}

#[cfg(test)]
mod tests;
