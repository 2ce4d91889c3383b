//! The public keys that may vouch for an image or a boot config.

use std::path::Path;

use super::signature::SignatureKind;
use super::{minisign, openpgp};
use crate::error::{Class, Context as _, Failure, Result, printable};

/// Where an initrd carries the keys that it trusts: `*.pub` for minisign, `*.asc`, `*.gpg` and `*.pgp` for
/// OpenPGP.
pub const KEY_DIRECTORY: &str = "/etc/ironroot/keys";

/// More files are refused: each is tried, and nobody trusts that many.
const FILES_LIMIT: usize = 64;
/// A larger file is refused. Debian's keyring has 100 KiB.
const FILE_LIMIT: u64 = 1 << 20;

/// Public keys by kind.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    minisign: Vec<minisign::Key>,
    openpgp: Vec<openpgp::Key>,
}

impl Keyring {
    /// The keys of one kind in `text`: what a key file of that kind holds; for OpenPGP armored, or binary in
    /// base64. The error says what is wrong, for a message that names the place.
    pub fn parse(kind: SignatureKind, text: &[u8]) -> Result<Keyring, String> {
        let mut keyring = Keyring::default();
        match kind {
            SignatureKind::Minisign => keyring.minisign = minisign::keys(text)?,
            SignatureKind::OpenPgp => keyring.openpgp = openpgp::keys(text)?,
        }
        Ok(keyring)
    }

    /// The keys in [`KEY_DIRECTORY`] below `root`; none where it does not exist. Files with other endings
    /// are passed over. Fails with [`Class::Config`] on a key file that is none: whoever put it there
    /// expects it to be obeyed.
    pub fn read(root: &Path) -> Result<Keyring> {
        let directory = root.join(KEY_DIRECTORY.trim_start_matches('/'));
        let what = || format!("reading keys in {KEY_DIRECTORY}");
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Keyring::default()),
            Err(e) => return Err(e).context(Class::Config, what),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.context(Class::Config, what)?.path();
            let kind = match path.extension().and_then(|e| e.to_str()) {
                Some("pub") => SignatureKind::Minisign,
                Some("asc" | "gpg" | "pgp") => SignatureKind::OpenPgp,
                _ => continue,
            };
            paths.push((path, kind));
            if paths.len() > FILES_LIMIT {
                let text = format!("{KEY_DIRECTORY} has more than {FILES_LIMIT} key files");
                return Err(Failure::new(Class::Config, text));
            }
        }
        paths.sort_by(|a, b| a.0.cmp(&b.0));
        let mut all = Keyring::default();
        for (path, kind) in paths {
            let name = printable(&path.file_name().unwrap_or_default().to_string_lossy());
            let wrong = |why: String| {
                Failure::new(
                    Class::Config,
                    format!("key file {KEY_DIRECTORY}/{name}: {why}"),
                )
                .hint("put a public key of that kind there, or take the file away")
            };
            let length = std::fs::metadata(&path).map_or(0, |m| m.len());
            if length > FILE_LIMIT {
                return Err(wrong(format!("{length} bytes are too many")));
            }
            let bytes = std::fs::read(&path).context(Class::Config, || {
                format!("reading key file {KEY_DIRECTORY}/{name}")
            })?;
            let keys = Keyring::parse(kind, &bytes).map_err(wrong)?;
            all.minisign.extend(keys.minisign);
            all.openpgp.extend(keys.openpgp);
        }
        Ok(all)
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.minisign.is_empty() && self.openpgp.is_empty()
    }

    /// Whether there is a key of `kind`.
    pub fn has(&self, kind: SignatureKind) -> bool {
        match kind {
            SignatureKind::Minisign => !self.minisign.is_empty(),
            SignatureKind::OpenPgp => !self.openpgp.is_empty(),
        }
    }

    pub(super) fn minisign(&self) -> &[minisign::Key] {
        &self.minisign
    }

    pub(super) fn openpgp(&self) -> &[openpgp::Key] {
        &self.openpgp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "untrusted comment: x\nRWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n";

    #[test]
    fn keys_are_read_by_their_ending_and_a_broken_one_is_named() {
        let root = tempfile::tempdir().unwrap();
        assert!(Keyring::read(root.path()).unwrap().is_empty());
        let directory = root.path().join("etc/ironroot/keys");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("README"), "not a key").unwrap();
        assert!(Keyring::read(root.path()).unwrap().is_empty());
        std::fs::write(directory.join("a.pub"), KEY).unwrap();
        let keys = Keyring::read(root.path()).unwrap();
        assert!(keys.has(SignatureKind::Minisign) && !keys.has(SignatureKind::OpenPgp));
        for broken in ["b.pub", "b.asc", "b.gpg"] {
            let path = directory.join(broken);
            std::fs::write(&path, "hello").unwrap();
            let failure = Keyring::read(root.path()).unwrap_err();
            assert_eq!(failure.class(), Class::Config);
            assert!(failure.to_string().contains(broken), "{failure}");
            std::fs::remove_file(path).unwrap();
        }
        std::fs::write(directory.join("big.pub"), vec![b' '; (1 << 20) + 1]).unwrap();
        assert!(Keyring::read(root.path()).is_err());
    }
}
