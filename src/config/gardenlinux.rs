//! Garden Linux's own kernel arguments (`gl.url=`, `gl.ovl=`, `gl.live=`) as a boot config: a session from memory,
//! as its live initrd makes one.
//!
//! What differs on purpose: the image is held once instead of twice, what is written has a tmpfs of its own
//! instead of a share of /run, and a broken download goes on.

use std::path::Path;

use super::cmdline::Cmdline;
use crate::error::{Class, Context as _, Failure, Result, printable};

/// The image that an image builder puts into the initrd, and its checksum.
const EMBEDDED: &str = "/root.squashfs";
const CHECKSUM: &str = "/root.squashfs.sha256sum";

/// A line of a checksum file with its name is shorter.
const CHECKSUM_LIMIT: usize = 4096;

/// A boot config, and whether all of it is part of the initrd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The config.
    pub text: Vec<u8>,
    /// Nothing in it comes from the kernel command line alone.
    pub of_initrd: bool,
}

/// The config that the words of `cmdline` stand for; `None` where they ask for nothing. `root` is the initrd.
pub fn config(cmdline: &Cmdline, root: &Path) -> Result<Option<Made>> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let url = cmdline.get("gl.url").filter(|url| !url.is_empty());
    let live = cmdline
        .get("gl.live")
        .is_some_and(|v| v != "0" && v != "no");
    let url = match url {
        Some(url) => url.to_owned(),
        None if live && below(EMBEDDED).exists() => EMBEDDED.to_owned(),
        None => return Ok(None),
    };
    for entry in cmdline.get("gl.ovl").unwrap_or("").split(',') {
        overlay(entry.trim())?;
    }
    let baked = match std::fs::read_to_string(below(CHECKSUM)) {
        Ok(text) => Some(sha256_of(&text).ok_or_else(|| {
            Failure::new(
                Class::Config,
                format!("{CHECKSUM} in the initrd does not begin with a SHA-256 sum"),
            )
        })?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => {
            return Err(e).context(Class::Config, || {
                format!("reading {CHECKSUM} in the initrd")
            });
        }
    };
    let of_initrd = url == EMBEDDED;
    let digest = baked.or_else(|| layer_digest(&url));
    let text = serde_json::json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        // A server of a boot operator says by HTTP where the kernel is, too: less proof is not lost here.
        "image": { "url": url, "digest": digest.map(|d| format!("sha256:{d}")), "insecure": true },
        "memory": {},
    });
    Ok(Some(Made {
        text: serde_json::to_vec_pretty(&text)
            .map_err(|e| Failure::new(Class::Bug, "writing JSON").caused_by(e))?,
        of_initrd,
    }))
}

/// One `what:where` of `gl.ovl=`. Below an overlay over all of the root, one over a part changes nothing.
fn overlay(entry: &str) -> Result<()> {
    match entry.rsplit_once(':') {
        None if entry.is_empty() => Ok(()),
        Some((path, "tmpfs")) if path.starts_with('/') => Ok(()),
        _ => Err(Failure::new(
            Class::Config,
            format!(
                "kernel argument gl.ovl={}: only `PATH:tmpfs` is supported in this version",
                printable(entry)
            ),
        )
        .hint("give an ironroot config with `preserve` for what must outlive the session")),
    }
}

/// The sum in a line that sha256sum(1) wrote.
fn sha256_of(text: &str) -> Option<String> {
    let word = text
        .get(..CHECKSUM_LIMIT.min(text.len()))?
        .split_whitespace()
        .next()?;
    is_sha256(word).then(|| word.to_ascii_lowercase())
}

fn is_sha256(word: &str) -> bool {
    word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit())
}

/// boot-operator's image proxy names the blob in the query: `layerDigest=sha256%3A…`.
fn layer_digest(url: &str) -> Option<String> {
    let (_, query) = url.split_once('?')?;
    let value = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("layerDigest="))?;
    let lower = value.to_ascii_lowercase();
    let digest = lower
        .strip_prefix("sha256%3a")
        .or_else(|| lower.strip_prefix("sha256:"))?;
    is_sha256(digest).then(|| digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::config::request::{self, Goal};

    fn made(line: &str, root: &Path) -> Result<Option<Made>> {
        config(&Cmdline::parse(line), root)
    }

    fn request(made: &Made) -> request::Request {
        request::interpret(&parse::parse(&made.text).unwrap()).unwrap()
    }

    #[test]
    fn a_boot_operators_command_line_is_a_session_with_a_digest() {
        let root = tempfile::tempdir().unwrap();
        let digest = "ab".repeat(32);
        let line = format!(
            "initrd=initrd gl.ovl=/:tmpfs gl.url=http://svc:5000/image?imageName=ghcr.io%2Fx&layerDigest=sha256%3A{digest}&version=1 gl.live=1 ip=any"
        );
        let made = made(&line, root.path()).unwrap().unwrap();
        assert!(!made.of_initrd);
        let request = request(&made);
        assert!(matches!(request.goal, Goal::Memory(_)));
        let image = request.image().unwrap();
        assert_eq!(image.digest.as_ref().unwrap().hex(), digest);
        assert!(image.raw_url.ends_with("&version=1"));
    }

    #[test]
    fn the_initrds_own_image_and_its_checksum_count() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(made("gl.live=1 gl.ovl=/:tmpfs", root.path()).unwrap(), None);
        std::fs::write(root.path().join("root.squashfs"), "x").unwrap();
        assert_eq!(made("quiet", root.path()).unwrap(), None);
        let sum = "0F".repeat(32);
        std::fs::write(
            root.path().join("root.squashfs.sha256sum"),
            format!("{sum}  root.squashfs\n"),
        )
        .unwrap();
        let made = made("gl.live=1 gl.ovl=/:tmpfs,/etc:tmpfs", root.path())
            .unwrap()
            .unwrap();
        assert!(made.of_initrd);
        let request = request(&made);
        let image = request.image().unwrap();
        assert_eq!(image.raw_url, EMBEDDED);
        assert_eq!(image.digest.as_ref().unwrap().hex(), sum.to_lowercase());
    }

    #[test]
    fn what_would_be_silently_volatile_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for ovl in ["/:/dev/vda1", "/var:dir", "tmpfs"] {
            let failure = made(&format!("gl.url=/dev/vdb gl.ovl={ovl}"), root.path()).unwrap_err();
            assert_eq!(failure.class(), Class::Config, "{ovl}");
            assert!(failure.to_string().contains(ovl), "{failure}");
        }
        std::fs::write(root.path().join("root.squashfs.sha256sum"), "hello").unwrap();
        assert!(made("gl.url=http://h/x", root.path()).is_err());
    }
}
