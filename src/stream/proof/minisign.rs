//! minisign signatures (jedisct1.github.io/minisign, "Signature format").

use std::fmt;
use std::io::Read;

use minisign_verify::{Error, PublicKey, Signature};

use super::signature::SignedBy;

/// A public key and the name that minisign prints for it.
#[derive(Clone, Debug)]
pub(super) struct Key {
    key: PublicKey,
    id: KeyId,
}

/// A key id: 8 bytes, shown as the little-endian number that minisign shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyId([u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads the keys of a `.pub` file: an untrusted comment and a line of base64, or that line alone.
pub(super) fn keys(text: &[u8]) -> Result<Vec<Key>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    let mut keys = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with("untrusted comment:") {
            continue;
        }
        let key = PublicKey::from_base64(line)
            .map_err(|e| format!("not a minisign public key (it begins with RW): {e}"))?;
        let id = key_id(line).ok_or("not base64")?;
        keys.push(Key { key, id });
    }
    if keys.is_empty() {
        return Err("there is no minisign public key in it".to_owned());
    }
    Ok(keys)
}

/// Bytes 2 to 10 of a key and of a signature are the key's id.
fn key_id(line: &str) -> Option<KeyId> {
    let bytes = data_url::forgiving_base64::decode_to_vec(line.as_bytes()).ok()?;
    bytes.get(2..10)?.try_into().ok().map(KeyId)
}

/// A signature of a trusted key.
pub(super) struct Prepared {
    key: PublicKey,
    signature: Signature,
}

pub(super) fn prepare(keys: &[Key], text: &[u8]) -> Result<(Prepared, SignedBy), String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    let signature =
        Signature::decode(text).map_err(|e| format!("it is not a minisign signature: {e}"))?;
    let id = text
        .lines()
        .nth(1)
        .and_then(key_id)
        .ok_or("it is not a minisign signature")?;
    let Some(found) = keys.iter().find(|key| key.id == id) else {
        let here: Vec<String> = keys.iter().map(|key| key.id.to_string()).collect();
        return Err(format!(
            "it was made with key {id}, trusted are {}",
            if here.is_empty() {
                "none".to_owned()
            } else {
                here.join(", ")
            }
        ));
    };
    let prepared = Prepared {
        key: found.key.clone(),
        signature,
    };
    match prepared.key.verify_stream(&prepared.signature) {
        Ok(_) => {}
        Err(Error::UnsupportedLegacyMode) => {
            return Err(format!(
                "it was made with key {id} in the legacy way, without hashing first, which cannot be checked while the file streams: sign it with minisign 0.10 or later, or with -H"
            ));
        }
        Err(other) => return Err(other.to_string()),
    }
    Ok((prepared, SignedBy(format!("minisign key {id}"))))
}

impl Prepared {
    pub(super) fn verify(&self, mut data: impl Read) -> Result<(), String> {
        let mut verifier = self
            .key
            .verify_stream(&self.signature)
            .map_err(|e| e.to_string())?;
        let mut piece = vec![0; 64 << 10];
        loop {
            let count = match data.read(&mut piece) {
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
            };
            match piece.get(..count) {
                None | Some([]) => break,
                Some(bytes) => verifier.update(bytes),
            }
        }
        // Both the signature of the file and that of the trusted comment.
        verifier.finalize().map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // The example of minisign's own test: content "test".
    const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    const LEGACY: &str = "untrusted comment: signature from minisign secret key
RWQf6LRCGA9i59SLOFxz6NxvASXDJeRtuZykwQepbDEGt87ig1BNpWaVWuNrm73YiIiJbq71Wi+dP9eKL8OC351vwIasSSbXxwA=
trusted comment: timestamp:1555779966\tfile:test
QtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==";
    const HASHED: &str = "untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1556193335\tfile:test
y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==";

    fn verify(text: &str, data: &[u8]) -> Result<SignedBy, String> {
        let (prepared, by) = prepare(&keys(KEY.as_bytes()).unwrap(), text.as_bytes())?;
        prepared.verify(data).map(|()| by)
    }

    #[test]
    fn a_key_is_read_with_and_without_its_comment_and_named_as_minisign_names_it() {
        let with = format!("untrusted comment: minisign public key\r\n{KEY}\r\n");
        for text in [KEY.to_owned(), with] {
            let all = keys(text.as_bytes()).unwrap();
            assert_eq!(all[0].id.to_string(), "E7620F1842B4E81F");
        }
        for text in [
            "",
            "untrusted comment: x",
            "ssh-ed25519 AAAA x@y",
            "RWQf6LRCGA9i5",
        ] {
            assert!(keys(text.as_bytes()).is_err(), "{text}");
        }
        assert!(keys(b"\xff").is_err());
    }

    #[test]
    fn a_right_signature_names_the_key_and_a_changed_byte_anywhere_is_wrong() {
        assert_eq!(
            verify(HASHED, b"test").unwrap().to_string(),
            "minisign key E7620F1842B4E81F"
        );
        assert!(verify(HASHED, b"Test").is_err());
        assert!(verify(HASHED, b"").is_err());
        // The trusted comment is signed as well.
        assert!(verify(&HASHED.replace("1556193335", "1556193336"), b"test").is_err());
    }

    #[test]
    fn unknown_keys_and_legacy_signatures_are_refused_by_name() {
        let legacy = verify(LEGACY, b"test").unwrap_err();
        assert!(
            legacy.contains("legacy") && legacy.contains("E7620F1842B4E81F"),
            "{legacy}"
        );
        let failure = prepare(&[], HASHED.as_bytes()).err().unwrap();
        assert!(
            failure.contains("key E7620F1842B4E81F, trusted are none"),
            "{failure}"
        );
        for text in ["", "<html>", "untrusted comment: x\nAAAA\n"] {
            assert!(
                verify(text, b"test")
                    .unwrap_err()
                    .contains("not a minisign signature")
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = keys(&bytes);
            let _ = prepare(&keys(KEY.as_bytes()).unwrap(), &bytes);
        }

        #[test]
        fn a_signature_with_a_changed_byte_never_verifies(at in 58usize..HASHED.len(), to in 0x20u8..0x7f) {
            let mut bytes = HASHED.as_bytes().to_vec();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            let text = String::from_utf8(bytes).unwrap();
            // The last character of base64 may carry bits that are not used; then nothing has changed.
            let same = Signature::decode(&text).is_ok_and(|s| {
                let one = Signature::decode(HASHED).unwrap();
                s.trusted_comment() == one.trusted_comment()
            }) && text.lines().zip(HASHED.lines()).all(|(a, b)| {
                let raw = |l: &str| data_url::forgiving_base64::decode_to_vec(l.as_bytes()).ok();
                a == b || (raw(a).is_some() && raw(a) == raw(b))
            });
            prop_assert!(same || verify(&text, b"test").is_err());
        }
    }
}
