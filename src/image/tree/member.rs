//! One entry of an archive, as it is meant.

use nix::sys::stat::dev_t;

use super::sparse::Map;

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    /// With its text.
    Symlink(Vec<u8>),
    /// To the entry of this name.
    HardLink(Vec<u8>),
    CharDevice(dev_t),
    BlockDevice(dev_t),
    Fifo,
}

/// A point in time: seconds since 1970, which may be negative, and the nanoseconds after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) seconds: i64,
    pub(super) nanoseconds: u32,
}

/// An extended attribute: name and value.
pub(super) type Xattr = (Vec<u8>, Vec<u8>);

/// What is said of an entry beside its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The lower twelve bits.
    pub(super) mode: u32,
    pub(super) mtime: Time,
    pub(super) atime: Option<Time>,
    pub(super) xattrs: Vec<Xattr>,
    /// ACLs in their textual form.
    pub(super) acl_access: Option<Vec<u8>>,
    pub(super) acl_default: Option<Vec<u8>>,
}

/// An entry; its content follows in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// As the archive writes it.
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) attributes: Attributes,
    /// Bytes of content in the archive.
    pub(super) stored: u64,
    /// Where those bytes go, for a file with holes.
    pub(super) sparse: Option<Map>,
}
