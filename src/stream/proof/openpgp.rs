//! OpenPGP signatures (RFC 9580, through rPGP): detached ones, armored or binary, and cleartext ones.
//!
//! A certificate is trusted because the operator put it there. What it says of itself counts: expired and
//! revoked keys vouch for nothing, and only keys that may sign data do.

use std::io::Read;

use pgp::composed::{
    CleartextSignedMessage, Deserializable as _, DetachedSignature, SignedPublicKey,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{PublicKey, PublicSubkey, Signature, SignatureType, SubpacketData};
use pgp::types::{Duration, KeyDetails, Tag, Timestamp};

use super::signature::SignedBy;

/// The first line of a file with a cleartext signature (RFC 9580 section 7).
const CLEARTEXT: &[u8] = b"-----BEGIN PGP SIGNED MESSAGE-----";

/// A file of signatures with more than that is refused.
const SIGNATURES_LIMIT: usize = 64;

/// A certificate: a primary key with its subkeys.
#[derive(Clone, Debug)]
pub(super) struct Key(SignedPublicKey);

/// Reads certificates: armored, binary, or binary in base64 on one line.
pub(super) fn keys(text: &[u8]) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for block in blocks(text) {
        let block = block?;
        let all = SignedPublicKey::from_bytes_many(block.as_slice()).map_err(one_line)?;
        for key in all {
            keys.push(Key(key.map_err(one_line)?));
        }
    }
    if keys.is_empty() {
        return Err("there is no OpenPGP public key in it".to_owned());
    }
    Ok(keys)
}

/// The binary packets of each armored block, or of the file as it is.
fn blocks(text: &[u8]) -> Vec<Result<Vec<u8>, String>> {
    // The first octet of a packet has its highest bit set, text has not (RFC 9580 section 4.2).
    if text.first().is_some_and(|first| first & 0x80 != 0) {
        return vec![Ok(text.to_vec())];
    }
    let start = b"-----BEGIN PGP ";
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(start.len()).position(|w| w == start) {
        let from = rest.get(at..).unwrap_or_default();
        let after = from.get(start.len()..).unwrap_or_default();
        let end = after
            .windows(start.len())
            .position(|w| w == start)
            .map_or(from.len(), |next| next.saturating_add(start.len()));
        let (block, next) = from.split_at_checked(end).unwrap_or((from, &[]));
        let mut bytes = Vec::new();
        let read = pgp::armor::Dearmor::new(block).read_to_end(&mut bytes);
        found.push(
            read.map(|_| bytes)
                .map_err(|e| format!("damaged armor: {e}")),
        );
        rest = next;
    }
    if found.is_empty() {
        let compact: Vec<u8> = text
            .iter()
            .copied()
            .filter(|b| !b.is_ascii_whitespace())
            .collect();
        if let Ok(bytes) = data_url::forgiving_base64::decode_to_vec(&compact)
            && bytes.first().is_some_and(|first| first & 0x80 != 0)
        {
            found.push(Ok(bytes));
        }
    }
    found
}

/// A signature of a key that may sign, and the bytes it is for still to come.
pub(super) struct Prepared {
    signature: Signature,
    signer: Signer,
}

/// A primary key or a subkey.
#[derive(Clone, Debug)]
enum Signer {
    Primary(PublicKey),
    Subkey(PublicSubkey),
}

impl Signer {
    fn details(&self) -> &dyn KeyDetails {
        match self {
            Signer::Primary(key) => key,
            Signer::Subkey(key) => key,
        }
    }
}

/// Reads a file of detached signatures, and takes the first that a usable key made.
pub(super) fn prepare(keys: &[Key], text: &[u8]) -> Result<(Prepared, SignedBy), String> {
    let mut signatures = Vec::new();
    for block in blocks(text) {
        let block = block?;
        let all = DetachedSignature::from_bytes_many(block.as_slice()).map_err(one_line)?;
        for signature in all.take(SIGNATURES_LIMIT) {
            signatures.push(signature.map_err(one_line)?.signature);
        }
    }
    choose(keys, signatures, SignatureType::Binary)
}

/// Whether a file carries its signature itself.
pub(super) fn is_cleartext(text: &[u8]) -> bool {
    text.strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(text)
        .starts_with(CLEARTEXT)
}

/// Checks a file that carries its signature itself. Returns the text that was signed, and nothing else of
/// the file: what stands around it nobody has vouched for.
pub(super) fn open_cleartext(keys: &[Key], text: &[u8]) -> Result<(Vec<u8>, SignedBy), String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (message, _) = CleartextSignedMessage::from_string(text).map_err(one_line)?;
    let signatures = message.signatures().to_vec();
    let (prepared, by) = choose(keys, signatures, SignatureType::Text)?;
    let signed = message.signed_text().into_bytes();
    prepared.verify(signed.as_slice())?;
    Ok((signed, by))
}

fn choose(
    keys: &[Key],
    signatures: Vec<Signature>,
    kind: SignatureType,
) -> Result<(Prepared, SignedBy), String> {
    if signatures.is_empty() {
        return Err("there is no OpenPGP signature in it".to_owned());
    }
    let now = now();
    let mut reasons: Vec<String> = Vec::new();
    for signature in signatures.into_iter().take(SIGNATURES_LIMIT) {
        match usable(keys, &signature, kind, now) {
            Ok(signer) => {
                let name = format!("OpenPGP key {:X}", signer.details().fingerprint());
                return Ok((Prepared { signature, signer }, SignedBy(name)));
            }
            Err(reason) => reasons.push(reason),
        }
    }
    reasons.dedup();
    reasons.truncate(4);
    Err(reasons.join("; "))
}

/// Seconds since 1970 by this machine's clock, which PID 1 has set to no earlier than when this was built.
fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// The key that made `signature`, if it may: everything but the comparison with the bytes.
fn usable(
    keys: &[Key],
    signature: &Signature,
    kind: SignatureType,
    now: u64,
) -> Result<Signer, String> {
    if signature.typ() != Some(kind) {
        return Err(format!(
            "it is a signature of another type, {:?}",
            signature.typ()
        ));
    }
    let hash = signature.hash_alg();
    if !hash.is_some_and(is_strong) {
        let name = hash.map_or_else(|| "an unknown hash".to_owned(), |h| h.to_string());
        return Err(format!(
            "it relies on {name}, which can be forged or is not known"
        ));
    }
    let created = u64::from(
        signature
            .created()
            .ok_or("it does not say when it was made")?
            .as_secs(),
    );
    if ended(
        created,
        signature.signature_expiration_time().map(Duration::as_secs),
        now,
    ) {
        return Err("the signature has expired".to_owned());
    }
    let made_by = |key: &dyn KeyDetails| {
        let (id, fingerprint) = (key.legacy_key_id(), key.fingerprint());
        signature.issuer_fingerprint().contains(&&fingerprint)
            || (signature.issuer_fingerprint().is_empty()
                && signature.issuer_key_id().contains(&&id))
    };
    for Key(certificate) in keys {
        let primary = &certificate.primary_key;
        let signer = if made_by(primary) {
            Signer::Primary(primary.clone())
        } else {
            match certificate.public_subkeys.iter().find(|s| made_by(&s.key)) {
                Some(subkey) => Signer::Subkey(subkey.key.clone()),
                None => continue,
            }
        };
        let named = format!("key {:X}", signer.details().fingerprint());
        may_sign(certificate, &signer, now).map_err(|why| format!("{named} {why}"))?;
        if created < u64::from(signer.details().created_at().as_secs()) {
            return Err(format!("it claims to be older than its {named}"));
        }
        return Ok(signer);
    }
    let made = signature
        .issuer_fingerprint()
        .first()
        .map(|f| format!("{f:X}"))
        .or_else(|| {
            signature
                .issuer_key_id()
                .first()
                .map(|id| id.to_string().to_uppercase())
        })
        .unwrap_or_else(|| "which it does not name".to_owned());
    let here: Vec<String> = keys
        .iter()
        .take(8)
        .map(|k| format!("{:X}", k.0.primary_key.fingerprint()))
        .collect();
    let here = if here.is_empty() {
        "none".to_owned()
    } else {
        here.join(", ")
    };
    Err(format!("it was made with key {made}, trusted are {here}"))
}

/// Hashes whose collisions nobody can make.
fn is_strong(hash: HashAlgorithm) -> bool {
    matches!(
        hash,
        HashAlgorithm::Sha256
            | HashAlgorithm::Sha384
            | HashAlgorithm::Sha512
            | HashAlgorithm::Sha224
            | HashAlgorithm::Sha3_256
            | HashAlgorithm::Sha3_512
    )
}

/// Whether a life of `seconds` from `created` is over; 0 and `None` are for ever (RFC 9580 section 5.2.3.13).
fn ended(created: u64, seconds: Option<u32>, now: u64) -> bool {
    seconds.is_some_and(|s| s > 0 && created.saturating_add(u64::from(s)) <= now)
}

/// Whether `signer` may vouch for data by what its certificate says now.
fn may_sign(certificate: &SignedPublicKey, signer: &Signer, now: u64) -> Result<(), String> {
    let primary = &certificate.primary_key;
    let details = &certificate.details;
    let revoked = details
        .revocation_signatures
        .iter()
        .any(|s| s.typ() == Some(SignatureType::KeyRevocation) && s.verify_key(primary).is_ok());
    if revoked {
        return Err("is revoked".to_owned());
    }
    // A certificate is taken from the operator, so that the hash of its own statements does not matter.
    let direct = details
        .direct_signatures
        .iter()
        .filter(|s| s.typ() == Some(SignatureType::Key) && s.verify_key(primary).is_ok());
    let of_users = details.users.iter().flat_map(|user| {
        user.signatures.iter().filter(|s| {
            s.is_certification()
                && s.verify_certification(primary, Tag::UserId, &user.id)
                    .is_ok()
        })
    });
    let about = direct
        .chain(of_users)
        .max_by_key(|s| s.created().map(Timestamp::as_secs))
        .ok_or("has no valid self-signature")?;
    let life = |s: &Signature| s.key_expiration_time().map(Duration::as_secs);
    if ended(u64::from(primary.created_at().as_secs()), life(about), now) {
        return Err("has expired".to_owned());
    }
    let Signer::Subkey(subkey) = signer else {
        // Keys from before there were flags may do anything.
        return match flagged_for_signing(about) {
            Some(false) => Err("is not for signing data".to_owned()),
            Some(true) | None => Ok(()),
        };
    };
    let bindings: Vec<&Signature> = certificate
        .public_subkeys
        .iter()
        .filter(|s| s.key == *subkey)
        .flat_map(|s| &s.signatures)
        .filter(|s| s.verify_subkey_binding(primary, subkey).is_ok())
        .collect();
    if bindings
        .iter()
        .any(|s| s.typ() == Some(SignatureType::SubkeyRevocation))
    {
        return Err("is revoked".to_owned());
    }
    let binding = bindings
        .into_iter()
        .max_by_key(|s| s.created().map(Timestamp::as_secs))
        .ok_or("is not bound to its primary key")?;
    if ended(u64::from(subkey.created_at().as_secs()), life(binding), now) {
        return Err("has expired".to_owned());
    }
    if flagged_for_signing(binding) != Some(true) {
        return Err("is not for signing data".to_owned());
    }
    // The subkey must have agreed, or anybody could claim the signatures of another's key.
    let agreed = binding
        .embedded_signature()
        .is_some_and(|back| back.verify_primary_key_binding(subkey, primary).is_ok());
    if agreed {
        Ok(())
    } else {
        Err("has not confirmed that it belongs to its primary key".to_owned())
    }
}

/// What the key flags say of signing data; `None` where there are none.
fn flagged_for_signing(signature: &Signature) -> Option<bool> {
    signature
        .config()?
        .hashed_subpackets()
        .find_map(|s| match &s.data {
            SubpacketData::KeyFlags(flags) => Some(flags.sign()),
            _ => None,
        })
}

impl Prepared {
    pub(super) fn verify(&self, data: impl Read) -> Result<(), String> {
        let fits = match &self.signer {
            Signer::Primary(key) => self.signature.verify(key, data),
            Signer::Subkey(key) => self.signature.verify(key, data),
        };
        fits.map_err(one_line)
    }
}

/// rPGP's errors may have several lines.
#[allow(clippy::needless_pass_by_value)] // for map_err
fn one_line(error: pgp::errors::Error) -> String {
    let text = crate::error::chain(&error);
    crate::error::printable(text.lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
