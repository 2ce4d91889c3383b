//! Hashing on a thread of its own, beside decoding and writing.

use std::sync::mpsc::Receiver;

use sha2::{Digest as _, Sha256, Sha512};

use super::buffer::Slab;
use super::cancel::Cancel;
use crate::units::{Digest, HashAlgorithm};

/// What goes through the channels between the stages: bytes in order, then exactly one end. A channel that
/// closes without it was cut off.
pub(super) enum Item {
    /// The next bytes.
    Data(Slab),
    /// All bytes were sent.
    End,
}

/// A hash function at work.
enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn new(algorithm: HashAlgorithm) -> Hasher {
        match algorithm {
            HashAlgorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            HashAlgorithm::Sha512 => Hasher::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Digest {
        match self {
            Hasher::Sha256(hasher) => Digest::from_bytes(HashAlgorithm::Sha256, &hasher.finalize()),
            Hasher::Sha512(hasher) => Digest::from_bytes(HashAlgorithm::Sha512, &hasher.finalize()),
        }
    }
}

/// Hashes what comes from `input`; `None` when it was cut off.
pub(super) fn run(
    algorithm: HashAlgorithm,
    input: &Receiver<Item>,
    cancel: &Cancel,
) -> Option<Digest> {
    let mut hasher = Hasher::new(algorithm);
    loop {
        match input.recv().ok()? {
            Item::Data(_) if cancel.is_cancelled() => return None,
            Item::Data(slab) => hasher.update(&slab),
            Item::End => return Some(hasher.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::buffer::Pool;
    use std::sync::mpsc::sync_channel;

    fn feed(items: &[&[u8]], end: bool, algorithm: HashAlgorithm) -> Option<Digest> {
        let (tx, rx) = sync_channel(8);
        let pool = Pool::new(4096, 8);
        for item in items {
            let mut buffer = pool.take().unwrap();
            buffer.space()[..item.len()].copy_from_slice(item);
            tx.send(Item::Data(buffer.share(item.len()))).unwrap();
        }
        if end {
            tx.send(Item::End).unwrap();
        }
        drop(tx);
        run(algorithm, &rx, &Cancel::default())
    }

    #[test]
    fn known_digests_and_none_without_an_end() {
        // FIPS 180-4 example: "abc".
        let sha256 = feed(&[b"a", b"bc"], true, HashAlgorithm::Sha256).unwrap();
        assert_eq!(
            sha256.hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let sha512 = feed(&[b"abc"], true, HashAlgorithm::Sha512).unwrap();
        assert!(sha512.hex().starts_with("ddaf35a193617abacc417349ae204131"));
        assert_eq!(feed(&[b"abc"], false, HashAlgorithm::Sha256), None);
    }
}
