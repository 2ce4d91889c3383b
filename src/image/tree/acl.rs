//! POSIX ACLs: from the text that archives carry to the attribute that the kernel takes.
//!
//! The text has one entry for each line or comma: `TAG:QUALIFIER:rwx`, short tags too, and a fourth field
//! with the numeric id from star and libarchive (acl(5), "ACL TEXT FORMS"; star(4), `SCHILY.acl.access`).

/// Whose permissions an entry holds; the number is the tag of the binary form and gives the order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    UserObject,
    User(Who),
    GroupObject,
    Group(Who),
    Mask,
    Other,
}

/// A user or group, by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Id(u32),
    Name(Vec<u8>),
}

/// An ACL, with names that may still have to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl {
    entries: Vec<(Tag, u16)>,
}

/// Looks names up.
pub(super) trait Accounts {
    fn user(&self, name: &[u8]) -> Option<u32>;
    fn group(&self, name: &[u8]) -> Option<u32>;
}

/// `POSIX_ACL_XATTR_VERSION` (include/uapi/linux/posix_acl_xattr.h).
const VERSION: u32 = 2;
/// `ACL_UNDEFINED_ID`.
const NOBODY: u32 = u32::MAX;
/// An attribute of 64 KiB holds no more.
const MOST: usize = 8000;

impl Acl {
    /// Reads the text; blank lines, comments and the effective rights behind `#` are passed over.
    pub(super) fn parse(text: &[u8]) -> Result<Acl, String> {
        let mut entries = Vec::new();
        for line in text.split(|b| matches!(b, b'\n' | b',' | 0)) {
            let line = line
                .split(|b| *b == b'#')
                .next()
                .unwrap_or_default()
                .trim_ascii();
            if line.is_empty() {
                continue;
            }
            if entries.len() >= MOST {
                return Err("it has more entries than any ACL".into());
            }
            let line = line.strip_prefix(b"default:").unwrap_or(line);
            entries.push(entry(line).ok_or_else(|| {
                format!("{:?} is no entry of an ACL", String::from_utf8_lossy(line))
            })?);
        }
        Ok(Acl { entries })
    }

    /// Whether there is anything in it.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether names have to be looked up.
    pub(super) fn has_names(&self) -> bool {
        self.entries
            .iter()
            .any(|(tag, _)| matches!(tag, Tag::User(Who::Name(_)) | Tag::Group(Who::Name(_))))
    }

    /// The attribute's value, and how many entries were left out because nobody knows the name. What is left
    /// out grants nothing, while the mask keeps the group's bits of the mode from granting more.
    pub(super) fn encode(&self, accounts: &dyn Accounts) -> (Vec<u8>, u64) {
        let mut unknown = 0u64;
        let mut known: Vec<(u16, u32, u16)> = Vec::with_capacity(self.entries.len());
        for (tag, rights) in &self.entries {
            let (number, id) = match tag {
                Tag::UserObject => (0x01, Some(NOBODY)),
                Tag::User(Who::Id(id)) => (0x02, Some(*id)),
                Tag::User(Who::Name(name)) => (0x02, accounts.user(name)),
                Tag::GroupObject => (0x04, Some(NOBODY)),
                Tag::Group(Who::Id(id)) => (0x08, Some(*id)),
                Tag::Group(Who::Name(name)) => (0x08, accounts.group(name)),
                Tag::Mask => (0x10, Some(NOBODY)),
                Tag::Other => (0x20, Some(NOBODY)),
            };
            match id {
                Some(id) => known.push((number, id, *rights)),
                None => unknown = unknown.saturating_add(1),
            }
        }
        // The kernel wants the tags in this order.
        known.sort_unstable();
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, id, rights) in known {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&rights.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        (value, unknown)
    }
}

fn entry(line: &[u8]) -> Option<(Tag, u16)> {
    let mut fields = line.split(|b| *b == b':').map(<[u8]>::trim_ascii);
    let tag = fields.next()?;
    let second = fields.next()?;
    // `mask:rwx` and `other:rwx` are allowed for `mask::rwx` and `other::rwx`.
    let (name, rights) = match fields.next() {
        Some(third) => (second, third),
        None => (&b""[..], second),
    };
    let id = fields.next();
    let who = || {
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u32>().ok();
        match id.and_then(number).or_else(|| number(name)) {
            Some(NOBODY) => None,
            Some(id) => Some(Who::Id(id)),
            None => Some(Who::Name(name.to_vec())),
        }
    };
    let tag = match (tag, name.is_empty()) {
        (b"user" | b"u", true) => Tag::UserObject,
        (b"user" | b"u", false) => Tag::User(who()?),
        (b"group" | b"g", true) => Tag::GroupObject,
        (b"group" | b"g", false) => Tag::Group(who()?),
        (b"mask" | b"m", true) => Tag::Mask,
        (b"other" | b"o", true) => Tag::Other,
        _ => return None,
    };
    let mut bits = 0;
    for right in rights {
        bits |= match right {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    Some((tag, bits))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Two;
    impl Accounts for Two {
        fn user(&self, name: &[u8]) -> Option<u32> {
            (name == b"lisa").then_some(1000)
        }
        fn group(&self, name: &[u8]) -> Option<u32> {
            (name == b"adm").then_some(4)
        }
    }

    /// As getfattr shows what the kernel holds for u::rw-,u:1000:r--,g::r--,g:4:r-x,m::r-x,o::---.
    const BINARY: &str = "02000000 01000600ffffffff 02000400e8030000 04000400ffffffff \
        0800050004000000 10000500ffffffff 20000000ffffffff";

    fn hex(value: &[u8]) -> String {
        use std::fmt::Write as _;
        value.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }

    #[test]
    fn every_way_to_write_it_gives_the_same_attribute() {
        let wanted = BINARY.replace(' ', "");
        for text in [
            &b"user::rw-\nuser:lisa:r--\ngroup::r--\ngroup:adm:r-x\nmask::r-x\nother::---\n"[..],
            b"user::rw-,user:1000:r--,group::r--,group:4:r-x,mask::r-x,other::---",
            b"user::rw-,user:nobody:r--:1000,group::r--,group:x:r-x:4,mask::r-x,other::---",
            b"default:user::rw-,default:user:lisa:r--,default:group::r--,\
              default:group:adm:r-x,default:mask::r-x,default:other::---",
            b"# file\no:---\nm:rx\ng:adm:rx #effective:r-x\ng::r\nu:lisa:r\nu::rw\n\0",
        ] {
            let acl = Acl::parse(text).unwrap();
            assert_eq!(
                (hex(&acl.encode(&Two).0), acl.encode(&Two).1),
                (wanted.clone(), 0)
            );
        }
    }

    #[test]
    fn what_nobody_knows_is_left_out_and_counted() {
        let acl = Acl::parse(b"u::rwx,u:ghost:rwx,g::---,g:ghosts:rwx,m::rwx,o::---").unwrap();
        assert!(acl.has_names());
        let (value, unknown) = acl.encode(&Two);
        assert_eq!((value.len(), unknown), (4 + 8 * 4, 2));
        assert!(!Acl::parse(b"u::rwx,g::---,o::---").unwrap().has_names());
        assert!(Acl::parse(b"\n# nothing\n").unwrap().is_empty());
        for wrong in [
            &b"user"[..],
            b"user:a:rq",
            b"mask:a:r",
            b"who::r",
            b"u:4294967295:r",
        ] {
            assert!(Acl::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text: Vec<u8>) {
            if let Ok(acl) = Acl::parse(&text) {
                let (value, _) = acl.encode(&Two);
                prop_assert_eq!(value.len() % 8, 4);
            }
        }
    }
}
