//! Trees of files: [`unpack`] an archive while it streams, [`copy`] from one file system to another, and
//! [`remove`]. All three keep everything that a file is (owner, mode, times to the nanosecond, extended
//! attributes, ACLs, hard links, holes, devices), stay inside the directories that they are given, whatever
//! an archive or a symbolic link says, and use no recursion.
//!
//! The `tar` crate gives the headers' layout. Its reader is not used: it splits extended records at each
//! newline, which binary attributes and ACLs contain, it knows neither all sparse formats nor the end mark,
//! and it holds a name as long as the archive says.

mod accounts;
mod acl;
mod archive;
mod attributes;
mod census;
mod copy;
mod extended;
mod later;
mod ledger;
mod limits;
mod measure;
mod member;
mod names;
mod parents;
mod place;
mod refusal;
mod remove;
mod sparse;
mod unpack;
mod whiteout;

pub use census::Census;
pub use copy::running::{EMPTIED, LEFT_OUT, LeftOut, RunningCopy, copy_running};
pub use copy::{copy, copy_remembering};
pub use ledger::{Compared, Content, Ledger, Listing};
pub use limits::Limits;
pub use measure::{Size, measure, measure_running};
pub use remove::{Removed, remove_children, unlink};
pub use unpack::{Options, unpack, unpack_remembering};
