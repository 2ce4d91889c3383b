//! A session from memory: the steps, and, once the image's head has been read, what it is, how it becomes a
//! root and whether there is room.

pub mod identify;
mod unpacked;

use std::path::PathBuf;

use serde::Serialize;

use super::refusal::Refusal;
use super::step::{Handoff, Step};
use super::{Plan, identity, preserve};
use crate::config::quantity::Amount;
use crate::config::request::{MemorySession, Request};
use crate::config::wire::{ImageKind, MemoryMethod};
use crate::host::{Facts, Place};
use crate::image::superblock::FileSystem;
use crate::units::{Bytes, MIB};
use identify::identify;

pub use identify::RootImage;
pub use unpacked::unpacked;

/// Where the root of the session is made.
pub const ROOT: &str = "/run/ironroot/root";

/// What must stay free: the pipeline takes 64 MiB (invariant I7), and the new system has to start.
const RESERVE: Bytes = Bytes(128 * MIB);

/// The kernel's own default for a tmpfs: an inode for every two pages of memory.
const BYTES_FOR_AN_INODE: u64 = 8192;

/// Less is no room for any system.
const SMALLEST_SIZE: Bytes = Bytes(16 * MIB);

/// How much memory there is, and how much of it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Room {
    /// How much may be written: `memory.size`.
    pub size: Bytes,
    /// Whether the config says so itself.
    pub explicit: bool,
    /// How many files may be written.
    pub inodes: u64,
    /// What is available, less what must stay free.
    pub available: Bytes,
    /// All memory.
    pub total: Bytes,
    /// Whether pages are taken from all NUMA nodes in turn.
    pub interleave: bool,
}

/// The steps of a session, or why it cannot be.
pub fn session(request: &Request, session: &MemorySession, facts: &Facts) -> Result<Plan, Refusal> {
    let (place, handoff) = match &facts.place {
        Place::Init => {
            let root = PathBuf::from(ROOT);
            let handoff = Handoff::SwitchRoot {
                root: root.clone(),
                init: facts.init.clone(),
            };
            (root, handoff)
        }
        Place::Initrd { sysroot } => {
            let root = sysroot.clone();
            (root.clone(), Handoff::Sysroot { root })
        }
        Place::Running => return Err(Refusal::NotInAnInitrd),
    };
    let room = room(session, facts)?;
    let image = &session.image;
    let upper = session
        .upper
        .as_ref()
        .map(|entry| preserve::upper(entry, &request.preserve, facts))
        .transpose()?;
    let kept_on = upper
        .as_ref()
        .map(|u| format!("what is written stays on {}", u.source.path.display()));
    // Only an overlay has an upper layer.
    let method = match (&upper, session.method) {
        (Some(_), MemoryMethod::Auto) => MemoryMethod::Overlay,
        (_, method) => method,
    };
    let preserve::Decided {
        partitions,
        sources,
        bindings: mut mounts,
        notes,
    } = preserve::decide(request, facts)?;
    let mut steps = vec![
        Step::OpenRoot {
            locations: image.locations.iter().map(ToString::to_string).collect(),
            digest: image.digest.clone(),
            content_digest: image.content_digest.clone(),
            kind: image.kind,
            method,
            room,
        },
        Step::LoadRoot,
    ];
    // The image is proven, and nothing on the disk is in use yet.
    steps.extend(partitions);
    steps.push(Step::MountRoot {
        place: place.clone(),
        verity: session.verity.clone(),
        upper: upper.map(Box::new),
    });
    let kept = mounts.len();
    steps.extend(sources);
    mounts.extend(session.scratch.iter().map(|path| {
        let scratch = Step::Scratch {
            path: path.clone(),
            size: room.size,
            inodes: room.inodes,
        };
        (path.clone(), scratch)
    }));
    mounts.extend(session.volatile.iter().enumerate().map(|(number, path)| {
        let volatile = Step::Volatile {
            path: path.clone(),
            number,
            size: room.size,
            inodes: room.inodes,
        };
        (path.clone(), volatile)
    }));
    preserve::sort(&mut mounts);
    steps.extend(mounts.into_iter().map(|(_, step)| step));
    if let Some(zram) = session.zram {
        steps.push(Step::ZramSwap {
            size: share(zram, room.total),
        });
    }
    steps.push(Step::CheckRoot {
        place,
        init: facts.init.clone(),
    });
    steps.push(Step::Handoff(handoff));
    Ok(Plan {
        summary: match (kept, kept_on) {
            (0, None) => format!("run {} from memory: no disk is written", image.name()),
            (0, Some(place)) => format!("run {} from memory, {place}", image.name()),
            (1, None) => format!("run {} from memory, one path preserved", image.name()),
            (n, None) => format!("run {} from memory, {n} paths preserved", image.name()),
            (n, Some(place)) => format!(
                "run {} from memory, {place}, paths elsewhere: {n}",
                image.name()
            ),
        },
        identity: identity::identity(request, image),
        steps,
        notes,
        drift: Vec::new(),
    })
}

fn share(amount: Amount, whole: Bytes) -> Bytes {
    match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => Bytes((whole.0 / 100).saturating_mul(u64::from(percent))),
    }
}

fn room(session: &MemorySession, facts: &Facts) -> Result<Room, Refusal> {
    let machine = &facts.machine;
    let total = machine.memory_total;
    let size = share(session.size.unwrap_or(Amount::Percent(50)), total);
    let available = Bytes(machine.memory_available.0.saturating_sub(RESERVE.0));
    let refuse = |what: &str, need, have| {
        Err(Refusal::NoRoom {
            what: what.to_owned(),
            need,
            have,
            more: "give the machine more memory",
        })
    };
    if size < SMALLEST_SIZE {
        return Err(Refusal::NoRoom {
            what: "any system".to_owned(),
            need: SMALLEST_SIZE,
            have: size,
            more: "raise `memory.size`",
        });
    }
    if available < SMALLEST_SIZE {
        let need = Bytes(SMALLEST_SIZE.0.saturating_add(RESERVE.0));
        return refuse("any system", need, machine.memory_available);
    }
    // What is declared needs no look at the image.
    if let Some(declared) = session.image.content_size.or(session.image.size)
        && declared > available
    {
        let need = Bytes(declared.0.saturating_add(RESERVE.0));
        return refuse(
            "the image, as it is declared,",
            need,
            machine.memory_available,
        );
    }
    Ok(Room {
        size,
        explicit: session.size.is_some(),
        inodes: session
            .inodes
            .unwrap_or((total.0 / BYTES_FOR_AN_INODE).max(1024)),
        available,
        total,
        interleave: machine.numa_nodes > 1,
    })
}

/// How an image becomes a root, and the limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RootLayout {
    /// What it is.
    pub image: RootImage,
    /// The image is kept as a file below an overlay, else unpacked.
    pub overlay: bool,
    /// The least that the content must have to be whole.
    pub at_least: Bytes,
    /// How much memory the image itself may take.
    pub hold: Bytes,
    /// How much may be written in the session; for an unpacked image, with the image.
    pub size: Bytes,
    /// What is worth a warning.
    pub note: Option<String>,
}

/// What is known of an image before it has been read to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// The content's length, where it is certain.
    pub exact: Option<Bytes>,
    /// No less than this, by what headers declare.
    pub at_least: Bytes,
    /// What the config declares.
    pub declared: Option<Bytes>,
}

/// What the image is that begins with `head`, and whether it fits. Nothing has been loaded when this refuses.
pub fn adopt(
    head: &[u8],
    lengths: Lengths,
    (kind, method): (ImageKind, MemoryMethod),
    arch: &str,
    room: &Room,
) -> Result<RootLayout, Refusal> {
    let image = identify(head, kind, arch)?;
    let overlay = match (&image, method) {
        (RootImage::Tar, MemoryMethod::Overlay) => {
            return Err(Refusal::NotARoot {
                why: "it is a tar archive, which cannot be mounted, and `memory.method` Overlay or `memory.upper` needs that"
                    .to_owned(),
            });
        }
        (RootImage::Tar, MemoryMethod::Auto) | (_, MemoryMethod::Extract) => false,
        (_, MemoryMethod::Auto | MemoryMethod::Overlay) => true,
    };
    let own = match &image {
        RootImage::FileSystem(fs) => fs.length().unwrap_or_default(),
        RootImage::Partition { start, size, .. } => Bytes(start.0.saturating_add(size.0)),
        RootImage::Tar => Bytes(0),
    };
    if let Some(exact) = lengths.exact
        && own > exact
    {
        return Err(Refusal::NotARoot {
            why: format!(
                "it is cut short: {image} of {} bytes, and it has {}",
                own.0, exact.0
            ),
        });
    }
    let content = lengths
        .exact
        .or(lengths.declared)
        .unwrap_or_default()
        .max(lengths.at_least)
        .max(own);
    let kept = match &image {
        RootImage::Partition { size, .. } => *size,
        RootImage::FileSystem(_) | RootImage::Tar => content,
    };
    let no_room = |need, have, more| {
        Err(Refusal::NoRoom {
            what: format!("the image ({image})"),
            need,
            have,
            more,
        })
    };
    // Holes of a disk image take no memory: what it really takes shows while it is loaded.
    let sure = match &image {
        RootImage::Partition { .. } | RootImage::FileSystem(FileSystem::Other { .. }) => Bytes(0),
        RootImage::FileSystem(_) | RootImage::Tar => kept,
    };
    if sure > room.available {
        return no_room(
            Bytes(sure.0.saturating_add(RESERVE.0)),
            Bytes(room.available.0.saturating_add(RESERVE.0)),
            if image.is_mounted() {
                "give the machine more memory"
            } else {
                "give the machine more memory, or publish the image as squashfs or erofs, which takes about half"
            },
        );
    }
    if overlay {
        let left = Bytes(room.available.0.saturating_sub(sure.0));
        let tight = room.size > left;
        let note = (tight && room.explicit).then(|| {
            format!(
                "`memory.size` allows {} to be written, and {} will be available beside the image",
                room.size.short(),
                left.short()
            )
        });
        return Ok(RootLayout {
            image,
            overlay,
            at_least: own,
            hold: room.available,
            size: if tight && !room.explicit {
                left.max(SMALLEST_SIZE)
            } else {
                room.size
            },
            note,
        });
    }
    if image.is_mounted() {
        // How large the tree is shows when the image is mounted: [`unpacked`].
        return Ok(RootLayout {
            image,
            overlay,
            at_least: own,
            hold: room.available,
            size: room.size,
            note: None,
        });
    }
    if kept > room.size {
        return no_room(kept, room.size, "raise `memory.size`");
    }
    Ok(RootLayout {
        image,
        overlay,
        at_least: own,
        hold: room.size.min(room.available),
        size: room.size,
        note: None,
    })
}

/// Only a tree can be in several layers.
pub fn must_be_layers(layout: &RootLayout) -> Result<(), Refusal> {
    match layout.image {
        RootImage::Tar => Ok(()),
        RootImage::FileSystem(_) | RootImage::Partition { .. } => Err(Refusal::NotARoot {
            why: format!("it has several layers, and the first is {}", layout.image),
        }),
    }
}

#[cfg(test)]
mod tests;
