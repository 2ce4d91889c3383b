//! The steps of a session from memory, as a chain of states: image opened, loaded and proven, mounted, handed
//! over. Whatever was mounted is gone again when a later step fails.

pub mod blocks;
pub mod extract;
pub mod hold;
pub mod lower;
pub mod mounts;
pub mod overlay;
pub mod selinux;
pub mod session;
pub mod tree;
pub mod zram;

use std::path::{Path, PathBuf};

use blocks::BlockReader;
use hold::Held;
use mounts::Mounts;
use overlay::Making;
use tree::Tree;

use super::image_source::{self, Parts, Source};
use super::preserve::{self, Intended, Preserving};
use crate::config::request::Verity;
use crate::config::wire::{ImageKind, MemoryMethod};
use crate::error::{Class, Failure, Result};
use crate::plan::memory_root::{self, Lengths, Room, RootLayout};
use crate::plan::preserve::create::NewPartitions;
use crate::plan::preserve::{Binding, SourceDevice, Upper};
use crate::report::Reporter;
use crate::stream::{Block, Budget, ImageStream, Location, Purpose, Verified};
use crate::units::Bytes;

/// How far a session is.
#[derive(Debug)]
pub enum Session {
    /// Nothing is open.
    Idle,
    /// The image's head is here, and there is room.
    Opened(Box<Opened>),
    /// All of it is in memory, and every proof was good.
    Loaded(Box<Loaded>),
    /// The root is mounted.
    Mounted(Box<Mounted>),
}

/// An image whose first block is here.
#[derive(Debug)]
pub struct Opened {
    stream: ImageStream,
    first: Block,
    /// What comes after it, where the image is in layers.
    parts: Parts,
    /// Whether it came from a registry.
    layered: bool,
    layout: RootLayout,
    room: Room,
}

/// An image in memory.
#[derive(Debug)]
pub struct Loaded {
    content: Content,
    proofs: Vec<Verified>,
    layout: RootLayout,
    room: Room,
    preserving: Preserving,
}

/// How an image lies in memory.
#[derive(Debug)]
enum Content {
    Held(Held),
    Tree(Tree),
}

/// A root.
#[derive(Debug)]
pub struct Mounted {
    mounts: Mounts,
    place: PathBuf,
    proofs: Vec<Verified>,
    layout: RootLayout,
    /// The device that takes what is written; `None`: memory.
    upper: Option<PathBuf>,
    preserving: Preserving,
}

/// What [`Session::open`] goes by.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What the config says the image is.
    pub kind: ImageKind,
    /// How it becomes a root.
    pub method: MemoryMethod,
    /// The limits.
    pub room: &'a Room,
}

impl Session {
    fn out_of_order(&self, step: &str) -> Failure {
        let state = match self {
            Session::Idle => "idle",
            Session::Opened(_) => "opened",
            Session::Loaded(_) => "loaded",
            Session::Mounted(_) => "mounted",
        };
        Failure::new(
            Class::Bug,
            format!("step {step} cannot follow the state {state:?} of a session"),
        )
        .hint("report this as a bug of ironroot")
    }

    /// Opens the image, finds out what it is and whether it fits.
    pub fn open(
        self,
        source: &Source<'_>,
        wanted: Wanted<'_>,
        budget: Budget,
        reporter: &Reporter,
    ) -> Result<Session> {
        let Session::Idle = self else {
            return Err(self.out_of_order("openRoot"));
        };
        let mut parts = source.parts(Purpose::Root, budget)?;
        let Some(mut stream) = parts.next_stream()? else {
            return Err(Failure::new(Class::Bug, "the image has no part"));
        };
        let first = source.first_block(&mut stream, reporter)?;
        let layout = memory_root::adopt(
            &first,
            Lengths {
                exact: stream.content_length().map(Bytes),
                at_least: Bytes(stream.content_at_least()),
                declared: source.image.content_size,
            },
            (wanted.kind, wanted.method),
            source.arch,
            wanted.room,
        )?;
        if let Some(note) = &layout.note {
            reporter.warn(note.clone());
        }
        if parts.count() > 1 {
            reporter.info(format!("the image has {} layers", parts.count()));
            memory_root::must_be_layers(&layout)?;
        }
        let layered = source
            .image
            .locations
            .iter()
            .any(|l| matches!(l, Location::Oci(_)));
        Ok(Session::Opened(Box::new(Opened {
            stream,
            first,
            parts,
            layered,
            layout,
            room: *wanted.room,
        })))
    }

    /// Brings the image into memory and checks every proof.
    pub fn load(self, reporter: &Reporter) -> Result<Session> {
        let Opened {
            mut stream,
            first,
            mut parts,
            layered,
            layout,
            room,
        } = match self {
            Session::Opened(opened) => *opened,
            other => return Err(other.out_of_order("loadRoot")),
        };
        let mut proofs = Vec::new();
        let content = if layout.image.is_mounted() {
            let mut reader = BlockReader::new(&mut stream, first, reporter);
            let held = hold::hold(&mut reader, &layout, &room)?;
            proofs.push(finish(stream, reporter)?);
            if layout.overlay {
                Content::Held(held)
            } else {
                Content::Tree(extract::unpack(held, &layout, &room, reporter)?)
            }
        } else {
            let tree = Tree::new(layout.hold, &room)?;
            let mut next = Some((stream, first));
            while let Some((mut stream, first)) = next {
                let mut reader = BlockReader::new(&mut stream, first, reporter);
                tree.add(&mut reader, layered, reporter)?;
                proofs.push(finish(stream, reporter)?);
                next = match parts.next_stream()? {
                    Some(mut stream) => stream.next_block()?.map(|first| (stream, first)),
                    None => None,
                };
            }
            if proofs.len() != parts.count() {
                return Err(Failure::new(
                    Class::Integrity,
                    "a layer of the image is empty",
                ));
            }
            Content::Tree(tree)
        };
        Ok(Session::Loaded(Box::new(Loaded {
            content,
            proofs,
            layout,
            room,
            preserving: Preserving::default(),
        })))
    }

    /// Makes partitions for preserved content.
    pub fn add_partitions(self, new: &NewPartitions, reporter: &Reporter) -> Result<Session> {
        match self {
            Session::Loaded(mut loaded) => {
                loaded.preserving.add_partitions(new, reporter)?;
                Ok(Session::Loaded(loaded))
            }
            other => Err(other.out_of_order("addPartitions")),
        }
    }

    /// Makes the root at `place`.
    pub fn mount(
        self,
        place: &Path,
        verity: Option<&Verity>,
        upper: Option<&Upper>,
        reporter: &Reporter,
    ) -> Result<Session> {
        let Loaded {
            content,
            proofs,
            layout,
            room,
            preserving,
        } = match self {
            Session::Loaded(loaded) => *loaded,
            other => return Err(other.out_of_order("mountRoot")),
        };
        let mut mounts = Mounts::default();
        match content {
            Content::Held(held) => {
                let making = Making {
                    layout: &layout,
                    room: &room,
                    verity,
                    upper,
                };
                overlay::mount(held, place, making, &mut mounts, reporter)?;
            }
            Content::Tree(tree) => tree.place(place, &room, &mut mounts)?,
        }
        Ok(Session::Mounted(Box::new(Mounted {
            mounts,
            place: place.to_owned(),
            proofs,
            layout,
            upper: upper.map(|upper| upper.source.path.clone()),
            preserving,
        })))
    }

    /// Opens a device with preserved content.
    pub fn open_source(self, source: &SourceDevice, reporter: &Reporter) -> Result<Session> {
        match self {
            Session::Mounted(mut mounted) => {
                mounted
                    .preserving
                    .open(source, &mut mounted.mounts, reporter)?;
                Ok(Session::Mounted(mounted))
            }
            other => Err(other.out_of_order("openSource")),
        }
    }

    /// Attaches a preserved path, one of `all`, to the root.
    pub fn preserve(
        self,
        binding: &Binding,
        all: &Intended<'_>,
        reporter: &Reporter,
    ) -> Result<Session> {
        match self {
            Session::Mounted(mut mounted) => {
                let places = preserve::Places {
                    root: &mounted.place,
                    lower: mounted.layout.overlay.then_some(Path::new(overlay::LOWER)),
                };
                mounted
                    .preserving
                    .attach(binding, all, places, &mut mounted.mounts, reporter)?;
                Ok(Session::Mounted(mounted))
            }
            other => Err(other.out_of_order("preserve")),
        }
    }

    /// A tmpfs at `path` of the root.
    pub fn scratch(self, path: &Path, size: Bytes, inodes: u64) -> Result<Session> {
        match self {
            Session::Mounted(mut mounted) => {
                session::scratch(&mounted.place, path, size, inodes, &mut mounted.mounts)?;
                Ok(Session::Mounted(mounted))
            }
            other => Err(other.out_of_order("scratch")),
        }
    }

    /// At `path` of the root: what it has, and what is written stays in memory.
    pub fn volatile(self, path: &Path, number: usize, limits: (Bytes, u64)) -> Result<Session> {
        match self {
            Session::Mounted(mut mounted) => {
                session::volatile(&mounted.place, path, number, limits, &mut mounted.mounts)?;
                Ok(Session::Mounted(mounted))
            }
            other => Err(other.out_of_order("volatile")),
        }
    }

    /// Checks that the root can be started.
    pub fn check(self, init: Option<&str>, reporter: &Reporter) -> Result<Session> {
        match self {
            Session::Mounted(mounted) => {
                session::check(&mounted.place, init, mounted.layout.overlay, reporter)?;
                mounted.preserving.verify(&mounted.place, reporter)?;
                Ok(Session::Mounted(mounted))
            }
            other => Err(other.out_of_order("checkRoot")),
        }
    }

    /// Leaves the root mounted, and tells the new system what it is.
    pub fn hand_over(self, told: &session::Told<'_>, reporter: &Reporter) -> Result<Session> {
        match self {
            Session::Mounted(mounted) => {
                let Mounted {
                    mounts,
                    proofs,
                    layout,
                    upper,
                    preserving,
                    ..
                } = *mounted;
                session::tell(told, &proofs, &layout, upper.as_deref())?;
                preserving.started(reporter);
                mounts.keep();
                Ok(Session::Idle)
            }
            // A run without a session.
            Session::Idle => Ok(Session::Idle),
            other => Err(other.out_of_order("handoff")),
        }
    }
}

/// The verdict on one part.
fn finish(stream: ImageStream, reporter: &Reporter) -> Result<Verified> {
    let proof = stream.finish()?;
    image_source::tell(&proof, reporter);
    Ok(proof)
}
