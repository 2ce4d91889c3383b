//! Detached signatures: two kinds, one shape. A [`Verifier`] is made before the signed bytes come, so that
//! a signature by an unknown key or a revoked one is refused before anything is written.

use std::fmt;
use std::io::Read;

use super::keys::Keyring;
use super::{minisign, openpgp};
use crate::error::{Class, Failure, Result};

/// Kind of a detached signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureKind {
    /// minisign (Ed25519 over BLAKE2b).
    Minisign,
    /// OpenPGP (RFC 9580).
    OpenPgp,
}

impl SignatureKind {
    /// What the name of the signed file is followed by, where the config does not say where the signature is.
    pub const fn ending(self) -> &'static str {
        match self {
            SignatureKind::Minisign => ".minisig",
            SignatureKind::OpenPgp => ".sig",
        }
    }
}

impl fmt::Display for SignatureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SignatureKind::Minisign => "minisign",
            SignatureKind::OpenPgp => "OpenPGP",
        })
    }
}

/// The key that made a good signature, such as `minisign key E7620F1842B4E81F`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedBy(pub(super) String);

impl fmt::Display for SignedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A signature of a trusted key, ready to be compared with the bytes that it is for.
pub(in crate::stream) struct Verifier {
    work: Work,
    key: SignedBy,
    /// How messages name the signature and what it is for.
    signature: String,
    file: String,
}

enum Work {
    Minisign(Box<minisign::Prepared>),
    OpenPgp(Box<openpgp::Prepared>),
}

impl Verifier {
    /// Reads `text`, a signature file called `signature`, for the file called `file`. Fails with
    /// [`Class::Integrity`] when none of `keys` can have made it, or it is of a kind that is refused.
    pub(in crate::stream) fn prepare(
        kind: SignatureKind,
        keys: &Keyring,
        text: &[u8],
        signature: &str,
        file: &str,
    ) -> Result<Verifier> {
        let prepared = match kind {
            SignatureKind::Minisign => minisign::prepare(keys.minisign(), text)
                .map(|(prepared, key)| (Work::Minisign(Box::new(prepared)), key)),
            SignatureKind::OpenPgp => openpgp::prepare(keys.openpgp(), text)
                .map(|(prepared, key)| (Work::OpenPgp(Box::new(prepared)), key)),
        };
        let (work, key) = prepared.map_err(|why| {
            Failure::new(
                Class::Integrity,
                format!("{kind} signature {signature} of {file}: {why}"),
            )
            .hint("publish a signature by a key that this machine trusts, or give it that key")
        })?;
        Ok(Verifier {
            work,
            key,
            signature: signature.to_owned(),
            file: file.to_owned(),
        })
    }

    /// Reads `data` to its end and compares. Memory is bounded whatever its length. A failure to read is
    /// not told apart from a wrong signature: whoever reads from a pipe must know that it ended.
    pub(in crate::stream) fn verify(self, data: impl Read) -> Result<SignedBy> {
        let fits = match self.work {
            Work::Minisign(prepared) => prepared.verify(data),
            Work::OpenPgp(prepared) => prepared.verify(data),
        };
        match fits {
            Ok(()) => Ok(self.key),
            Err(why) => Err(Failure::new(
                Class::Integrity,
                format!(
                    "{} is not what {} signed in {}: {why}",
                    self.file, self.key, self.signature
                ),
            )
            .hint("the file and its signature are of two versions, or somebody changed the file")),
        }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verifier({} by {})", self.signature, self.key)
    }
}
