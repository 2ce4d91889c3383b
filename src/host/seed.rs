//! Randomness for GUIDs: read once, before anything is planned, so that the planner stays a function.

use std::fs::File;
use std::io::Read as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::error::{Class, Context as _, Result};
use crate::units::hex;

/// The kernel's generator; unlike getrandom(2) it never waits (random(4)).
const SOURCE: &str = "/dev/urandom";

/// What GUIDs are made of: 32 random bytes in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(String);

impl Seed {
    /// A new one.
    pub fn random() -> Result<Seed> {
        let mut bytes = [0u8; 32];
        File::open(SOURCE)
            .and_then(|mut file| file.read_exact(&mut bytes))
            .context(Class::Refused, || {
                format!("reading random bytes from {SOURCE}")
            })?;
        Ok(Seed(hex(&bytes)))
    }

    /// The GUID for a purpose, version 4: always the same for the same seed and purpose.
    pub fn guid(&self, purpose: &str) -> Uuid {
        guid_of("ironroot-guid", &[&self.0, purpose])
    }
}

/// A GUID that is made of texts: the same ones give the same.
pub fn guid_of(kind: &str, texts: &[&str]) -> Uuid {
    let mut hash = Sha256::new();
    for text in std::iter::once(&kind).chain(texts) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    let mut bytes = [0u8; 16];
    for (to, from) in bytes.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_a_seed_gives_each_purpose_one_guid() {
        let (a, b) = (Seed::random().unwrap(), Seed::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.guid("disk"), a.guid("disk"));
        assert_ne!(a.guid("disk"), a.guid("partition 1"));
        assert_ne!(a.guid("disk"), b.guid("disk"));
        assert_eq!(a.guid("disk").get_version_num(), 4);
    }
}
