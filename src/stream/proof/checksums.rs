//! Checksum files in every form that is published: what `sha256sum` writes (GNU coreutils manual, "cksum
//! common options"), its `--tag` form, which BSD's digest tools and OpenSSL write as well, a bare hash, and
//! any of them inside an OpenPGP cleartext signature (RFC 9580 section 7).

use std::borrow::Cow;
use std::fmt;

use crate::error::printable;
use crate::units::{Digest, HashAlgorithm};

/// Names that a message quotes.
const QUOTED: usize = 5;

/// Why a checksum file gives no digest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoDigest {
    /// It gives two for the same file.
    Contradiction {
        name: String,
        one: Digest,
        other: Digest,
    },
    /// It gives none; `found` is what is there instead.
    Nothing { name: String, found: String },
}

impl fmt::Display for NoDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoDigest::Contradiction { name, one, other } => {
                write!(f, "gives two digests for {name:?}: {one} and {other}")
            }
            NoDigest::Nothing { name, found } => {
                write!(f, "has no SHA-256 or SHA-512 for {name:?}: {found}")
            }
        }
    }
}

/// The strongest digest that the file `text` gives for the file at `path`, the percent-decoded path of its
/// URL. The name in the list that shares the most trailing segments with the path counts, and it must
/// share the last. A file with nothing but one hash is about whatever one has.
pub(super) fn find(text: &[u8], path: &str) -> Result<Digest, NoDigest> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut closest = 0;
    let mut digests: Vec<Digest> = Vec::new();
    let mut bare: Vec<Digest> = Vec::new();
    let mut others = Others::default();
    for line in text_lines(text) {
        let line = String::from_utf8_lossy(line);
        match read_line(&line) {
            Line::Nothing => {}
            Line::Noise => others.noise(&line),
            Line::Bare(Hash::Strong(digest)) => bare.push(digest),
            Line::Bare(Hash::Other) => others.weak = true,
            Line::Named(listed, hash) => {
                let shared = shared_segments(&listed, path);
                match hash {
                    Hash::Strong(_) if shared == 0 || shared < closest => others.name(&listed),
                    Hash::Strong(digest) => {
                        if shared > closest {
                            closest = shared;
                            digests.clear();
                        }
                        digests.push(digest);
                    }
                    Hash::Other if shared > 0 => others.weak = true,
                    Hash::Other => others.name(&listed),
                }
            }
        }
    }
    if digests.is_empty() && others.names == 0 {
        digests = bare;
    }
    for algorithm in [HashAlgorithm::Sha512, HashAlgorithm::Sha256] {
        let mut of = digests.iter().filter(|d| d.algorithm() == algorithm);
        let Some(one) = of.next() else { continue };
        return match of.find(|other| *other != one) {
            None => Ok(one.clone()),
            Some(other) => Err(NoDigest::Contradiction {
                name: printable(name),
                one: one.clone(),
                other: other.clone(),
            }),
        };
    }
    Err(NoDigest::Nothing {
        name: printable(name),
        found: others.to_string(),
    })
}

/// What a file holds that was not looked for.
#[derive(Default)]
struct Others {
    names: usize,
    first: Vec<String>,
    /// A hash of another kind stands there for the right file.
    weak: bool,
    noise: Option<String>,
}

impl Others {
    fn name(&mut self, name: &str) {
        self.names += 1;
        if self.first.len() < QUOTED {
            self.first.push(short(name));
        }
    }

    fn noise(&mut self, line: &str) {
        self.noise.get_or_insert_with(|| short(line.trim()));
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.weak {
            f.write_str("only hashes of other kinds stand there for it")
        } else if self.names > 0 {
            let dots = if self.names > self.first.len() {
                ", …"
            } else {
                ""
            };
            write!(f, "it is about {}{dots}", self.first.join(", "))
        } else if let Some(noise) = &self.noise {
            write!(f, "no line is a checksum; the first is {noise:?}")
        } else {
            f.write_str("it is empty")
        }
    }
}

fn short(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    printable(&short)
}

/// How many trailing segments of a listed name and of the path are the same.
fn shared_segments(listed: &str, path: &str) -> usize {
    let segments = |text| str::rsplit(text, '/').filter(|s| !matches!(*s, "" | "."));
    segments(listed)
        .zip(segments(path))
        .take_while(|(a, b)| a == b)
        .count()
}

/// The lines, without the wrapping of a cleartext signature.
fn text_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    #[derive(PartialEq)]
    enum At {
        Text,
        /// "Hash: …", up to an empty line.
        Headers,
        Signed,
        Signature,
    }
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut at = At::Text;
    text.split(|byte| *byte == b'\n').filter_map(move |line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let trimmed = line.trim_ascii_end();
        match (&at, trimmed) {
            (At::Text, b"-----BEGIN PGP SIGNED MESSAGE-----") => at = At::Headers,
            (At::Headers, b"") => at = At::Signed,
            (At::Headers, _) => {}
            (_, b"-----BEGIN PGP SIGNATURE-----") => at = At::Signature,
            (At::Signature, b"-----END PGP SIGNATURE-----") => at = At::Text,
            (At::Signature, _) => {}
            (At::Signed, _) => return Some(line.strip_prefix(b"- ").unwrap_or(line)),
            (At::Text, _) => return Some(line),
        }
        None
    })
}

/// A hash as it stands there.
#[derive(Debug, PartialEq, Eq)]
enum Hash {
    /// SHA-256 or SHA-512.
    Strong(Digest),
    /// Of a kind that proves nothing here.
    Other,
}

impl From<Option<Digest>> for Hash {
    fn from(digest: Option<Digest>) -> Hash {
        digest.map_or(Hash::Other, Hash::Strong)
    }
}

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    /// Empty, or a comment.
    Nothing,
    /// Not a checksum.
    Noise,
    Bare(Hash),
    Named(Cow<'a, str>, Hash),
}

fn read_line(line: &str) -> Line<'_> {
    let line = line.trim_start();
    if line.trim_end().is_empty() || line.starts_with(['#', ';']) {
        return Line::Nothing;
    }
    // coreutils escapes a name with a backslash or a line end in it, and says so by a leading backslash.
    let (escaped, line) = match line.strip_prefix('\\') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let name = |text| {
        if escaped {
            Cow::Owned(unescape(text))
        } else {
            Cow::Borrowed(text)
        }
    };
    if let Some((algorithm, listed, hash)) = tagged(line) {
        return Line::Named(name(listed), tagged_digest(algorithm, hash).into());
    }
    let (hash, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let Some(hash) = plain_hash(hash) else {
        return Line::Noise;
    };
    let listed = rest.trim_start_matches([' ', '\t']);
    // `*` marks binary mode, which is the same as text mode outside Windows.
    let listed = listed.strip_prefix('*').unwrap_or(listed);
    if listed.is_empty() {
        Line::Bare(hash)
    } else {
        Line::Named(name(listed), hash)
    }
}

/// `ALGORITHM (NAME) = HASH`, with or without the spaces.
fn tagged(line: &str) -> Option<(&str, &str, &str)> {
    let (before, hash) = line.rsplit_once('=')?;
    let (algorithm, listed) = before.trim_end().strip_suffix(')')?.split_once('(')?;
    let algorithm = algorithm.trim_end();
    let is_word = !algorithm.is_empty() && !algorithm.contains(char::is_whitespace);
    (is_word && is_hex(hash.trim())).then_some((algorithm, listed, hash.trim()))
}

/// A tag decides: other functions give as many digits (BLAKE2s, SHA3-256, SHA-512/256).
fn tagged_digest(tag: &str, hash: &str) -> Option<Digest> {
    let algorithm = match tag.to_ascii_lowercase().as_str() {
        "sha256" | "sha-256" | "sha2-256" => HashAlgorithm::Sha256,
        "sha512" | "sha-512" | "sha2-512" => HashAlgorithm::Sha512,
        _ => return None,
    };
    digest(algorithm, hash)
}

/// A hash without a tag, by its length; `None` for what is no hash.
fn plain_hash(hash: &str) -> Option<Hash> {
    for (prefix, algorithm) in [
        ("sha256:", HashAlgorithm::Sha256),
        ("sha512:", HashAlgorithm::Sha512),
    ] {
        if let Some(hash) = hash.strip_prefix(prefix) {
            return digest(algorithm, hash).map(Hash::Strong);
        }
    }
    // CRC-32 and Adler-32 have 8 digits, MD5 32; anything shorter is a number or a word like "deadbeef".
    if hash.len() < 8 || !is_hex(hash) {
        return None;
    }
    let by_length =
        digest(HashAlgorithm::Sha256, hash).or_else(|| digest(HashAlgorithm::Sha512, hash));
    Some(by_length.into())
}

fn digest(algorithm: HashAlgorithm, hash: &str) -> Option<Digest> {
    let prefix = match algorithm {
        HashAlgorithm::Sha256 => "sha256",
        HashAlgorithm::Sha512 => "sha512",
    };
    format!("{prefix}:{}", hash.to_ascii_lowercase())
        .parse()
        .ok()
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some('r')) => out.push('\r'),
            ('\\', Some(other)) => out.push(other),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const B: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn found(text: &str) -> String {
        find(text.as_bytes(), "/images/x.raw").unwrap().to_string()
    }

    fn wrong(text: &str) -> String {
        find(text.as_bytes(), "/images/x.raw")
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn every_form_gives_the_digest_of_the_named_file() {
        for text in [
            A.to_owned(),
            format!("{A}\n"),
            format!("{A} \r\n"),
            format!("\u{feff}{A}\n"),
            format!("sha256:{A}\n"),
            A.to_uppercase(),
            format!("{A}  x.raw\n"),
            format!("{A} *x.raw\r\n"),
            format!("{A} x.raw"),
            format!("{A}\tx.raw"),
            format!("{A}  ./x.raw\n"),
            format!("{A}  /build/images/x.raw\n"),
            format!("SHA256 (x.raw) = {A}\n"),
            format!("SHA2-256(x.raw)= {A}\r\n"),
            format!("# x.raw: 12 bytes\n; old style\n\n{B}  y.raw\n{A}  x.raw\n"),
            format!("{B}  x.raw.zst\n{B}  ax.raw\n{A}  x.raw\n{A}  x.raw\n"),
            // A hash of another kind beside it, tagged and by its length.
            format!("d41d8cd98f00b204e9800998ecf8427e  x.raw\n{A}  x.raw\n"),
            format!("SHA3-256 (x.raw) = {B}\nSHA256 (x.raw) = {A}\n"),
        ] {
            assert_eq!(found(&text), format!("sha256:{A}"), "{text:?}");
        }
    }

    #[test]
    fn the_strongest_of_several_wins() {
        let long = A.repeat(2);
        for text in [
            format!("{A}  x.raw\n{long}  x.raw\n"),
            format!("SHA512 (x.raw) = {long}\nSHA256 (x.raw) = {A}\n"),
            format!("{long}\n{A}\n"),
        ] {
            assert_eq!(found(&text), format!("sha512:{long}"), "{text:?}");
        }
    }

    #[test]
    fn the_closest_path_wins_and_two_of_the_same_refuse() {
        let text = format!("{B}  ./other/x.raw\n{A}  images/x.raw\n{B}  x.raw\n");
        assert_eq!(found(&text), format!("sha256:{A}"));
        for text in [
            format!("{A}  amd64/x.raw\n{B}  arm64/x.raw\n"),
            format!("{A}  x.raw\nSHA256 (x.raw) = {B}\n"),
            format!("{A}\n{B}\n"),
        ] {
            assert!(
                wrong(&text).contains("two digests for \"x.raw\""),
                "{text:?}"
            );
        }
    }

    #[test]
    fn escaped_and_odd_names() {
        let of = |text: String, path: &str| find(text.as_bytes(), path).map(|d| d.hex().to_owned());
        assert_eq!(of(format!("\\{A}  a\\\\b\\nc"), "/a\\b\nc").unwrap(), A);
        assert_eq!(
            of(format!("SHA256 (a (1).raw) = {A}"), "/a (1).raw").unwrap(),
            A
        );
        assert_eq!(of(format!("{A}  a b.raw"), "/a b.raw").unwrap(), A);
    }

    #[test]
    fn a_cleartext_signature_is_passed_over() {
        let text = format!(
            "-----BEGIN PGP SIGNED MESSAGE-----\r\nHash: SHA256\r\n\r\n# x.raw: 5 bytes\r\n- SHA256 (x.raw) = {A}\r\n-----BEGIN PGP SIGNATURE-----\r\n\r\n{B}\r\n-----END PGP SIGNATURE-----\r\n"
        );
        assert_eq!(found(&text), format!("sha256:{A}"));
    }

    #[test]
    fn nothing_found_says_what_is_there() {
        for (text, part) in [
            (String::new(), "it is empty"),
            (
                "<!DOCTYPE html>\n<html>".to_owned(),
                "the first is \"<!DOCTYPE html>\"",
            ),
            (
                format!("{A}  y.raw\n{A}  z.raw\n"),
                "it is about y.raw, z.raw",
            ),
            (
                "d41d8cd98f00b204e9800998ecf8427e *x.raw".to_owned(),
                "hashes of other kinds",
            ),
            (format!("SHA512/256 (x.raw) = {A}"), "hashes of other kinds"),
            (format!("SHA512 (x.raw) = {A}"), "hashes of other kinds"),
            (
                "d41d8cd98f00b204e9800998ecf8427e".to_owned(),
                "hashes of other kinds",
            ),
            // A bare hash beside names is about none of them.
            (format!("{B}\n{A}  y.raw"), "it is about y.raw"),
        ] {
            let failure = wrong(&text);
            assert!(failure.contains(part), "{failure}");
        }
        let many: Vec<String> = (0..50).map(|i| format!("{A}  n{i}")).collect();
        assert!(wrong(&many.join("\n")).ends_with("n4, …"));
    }

    proptest! {
        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), path in "\\PC*") {
            let _ = find(&bytes, &path);
        }

        #[test]
        fn what_is_written_is_found_among_others(
            name in "[a-zA-Z0-9._+-]{1,20}",
            others in proptest::collection::vec("[a-z]{1,8}", 0..5),
            form in 0usize..4,
            crlf: bool,
            hash in "[0-9a-f]{64}",
        ) {
            prop_assume!(!matches!(name.as_str(), "." | ".."));
            let mut lines: Vec<String> = others.iter().map(|n| format!("{A}  {n}.other")).collect();
            lines.push(match form {
                0 => format!("{hash}  {name}"),
                1 => format!("{hash} *{name}"),
                2 => format!("SHA256 ({name}) = {hash}"),
                _ => format!("{hash}  ./{name}"),
            });
            prop_assume!(!others.iter().any(|n| format!("{n}.other") == name));
            let text = lines.join(if crlf { "\r\n" } else { "\n" });
            let digest = find(text.as_bytes(), &format!("/some/where/{name}")).unwrap();
            prop_assert_eq!(digest.hex(), hash);
        }

        #[test]
        fn a_changed_digit_is_another_digest(hash in "[0-9a-f]{64}", at in 0usize..64) {
            let mut other = hash.clone().into_bytes();
            other[at] = if other[at] == b'0' { b'1' } else { b'0' };
            let other = String::from_utf8(other).unwrap();
            let text = format!("{hash}  x\n{other}  x\n");
            let is_contradiction = matches!(find(text.as_bytes(), "/x"), Err(NoDigest::Contradiction { .. }));
            prop_assert!(is_contradiction);
        }
    }
}
