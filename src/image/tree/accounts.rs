//! The accounts of the image itself, for ACLs that name users and groups: ids differ between systems, and an
//! initrd has no accounts at all.

use std::collections::HashMap;
use std::path::Path;

use super::acl::Accounts;
use crate::sys::beneath::{Root, Walk};

/// Enough for tens of thousands of accounts.
const MOST: u64 = 4 << 20;

/// Names and ids from `/etc/passwd` and `/etc/group` of a root.
#[derive(Debug, Default)]
pub(super) struct ImageAccounts {
    users: HashMap<Vec<u8>, u32>,
    groups: HashMap<Vec<u8>, u32>,
}

impl ImageAccounts {
    /// What cannot be read counts as empty: the names are then unknown, which is counted.
    pub(super) fn of(root: &Root) -> ImageAccounts {
        let read = |path: &str| {
            let text = root.read(Path::new(path), Walk::InRoot, MOST);
            table(&text.unwrap_or_default())
        };
        ImageAccounts {
            users: read("etc/passwd"),
            groups: read("etc/group"),
        }
    }
}

impl Accounts for ImageAccounts {
    fn user(&self, name: &[u8]) -> Option<u32> {
        self.users.get(name).copied()
    }

    fn group(&self, name: &[u8]) -> Option<u32> {
        self.groups.get(name).copied()
    }
}

/// Both files have the name in the first field and the id in the third (passwd(5), group(5)); the first line
/// with a name counts.
fn table(text: &[u8]) -> HashMap<Vec<u8>, u32> {
    let mut table = HashMap::new();
    for line in text.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b':');
        if let (Some(name), Some(_), Some(id)) = (fields.next(), fields.next(), fields.next())
            && let Some(id) = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok())
        {
            table.entry(name.to_vec()).or_insert(id);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_image() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        assert_eq!(ImageAccounts::of(&root).user(b"root"), None);
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let passwd = "root:x:0:0::/root:/bin/sh\n+nis\nlisa:x:1000:7\nlisa:x:5:5\nbad:x:y\n";
        std::fs::write(dir.path().join("etc/passwd"), passwd).unwrap();
        std::fs::write(dir.path().join("etc/group"), "adm:x:4:lisa\n").unwrap();
        let accounts = ImageAccounts::of(&root);
        assert_eq!(accounts.user(b"lisa"), Some(1000));
        assert_eq!(
            (accounts.group(b"adm"), accounts.group(b"lisa")),
            (Some(4), None)
        );
        assert_eq!(accounts.user(b"bad"), None);
    }
}
