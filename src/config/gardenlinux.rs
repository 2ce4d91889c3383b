//! Garden Linux's own kernel arguments (`gl.url=`, `gl.ovl=`, `gl.live=`) as a boot config: a session from memory,
//! as its live initrd makes one.
//!
//! What differs on purpose: the image is held once instead of twice, what is written has a tmpfs of its own
//! instead of a share of /run, and a broken download goes on.

use std::path::Path;

use serde_json::{Value, json};

use super::cmdline::Cmdline;
use super::request::preserve::forbidden;
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::host::named::unescaped;

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
    let layers = layers(cmdline.get("gl.ovl").unwrap_or(""))?;
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
    let Layers {
        upper,
        volatile,
        preserve,
    } = layers;
    let memory = match upper {
        // Below a tmpfs over all of the root, one over a part changes nothing.
        None => json!({}),
        Some(source) => json!({ "upper": { "source": source }, "volatile": volatile }),
    };
    let of_initrd = url == EMBEDDED && memory == json!({}) && preserve.is_empty();
    let digest = baked.or_else(|| layer_digest(&url));
    let text = json!({
        "apiVersion": "ironroot.dev/v1alpha1",
        "kind": "BootConfig",
        // A server of a boot operator says by HTTP where the kernel is, too: less proof is not lost here.
        "image": { "url": url, "digest": digest.map(|d| format!("sha256:{d}")), "insecure": true },
        "memory": memory,
        "preserve": preserve,
    });
    Ok(Some(Made {
        text: serde_json::to_vec_pretty(&text)
            .map_err(|e| Failure::new(Class::Bug, "writing JSON").caused_by(e))?,
        of_initrd,
    }))
}

/// What `gl.ovl=` keeps on disks.
#[derive(Debug, Default)]
struct Layers {
    /// The source of the root's upper layer; `None`: a tmpfs.
    upper: Option<Value>,
    /// Parts of the root with a tmpfs for what is written.
    volatile: Vec<String>,
    /// Entries of `preserve`: a part of the root with an upper layer of its own.
    preserve: Vec<Value>,
}

/// The meaning of `gl.ovl=`: a list of `PATH:tmpfs` and `PATH:DEVICE`. As there, an upper layer on a device is the
/// directory `upper` of its file system, with `work` beside it.
fn layers(list: &str) -> Result<Layers> {
    let mut layers = Layers::default();
    for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        let refuse = |why: &str| {
            Failure::new(
                Class::Config,
                format!("kernel argument gl.ovl={}: {why}", printable(entry)),
            )
        };
        // Names of devices have colons of their own.
        let (path, place) = entry
            .split_once(':')
            .filter(|(path, _)| path.starts_with('/'))
            .ok_or_else(|| refuse("not PATH:tmpfs and not PATH:DEVICE"))?;
        match (path, place) {
            ("/", "tmpfs") => {}
            (path, "tmpfs") => layers.volatile.push(path.to_owned()),
            (_, device) if !device.starts_with("/dev/") => {
                return Err(
                    refuse("only tmpfs and a device below /dev can take what is written").hint(
                        "give an ironroot config with `preserve` for what must outlive the session",
                    ),
                );
            }
            ("/", _) if layers.upper.is_some() => return Err(refuse("a second place for /")),
            ("/", device) => layers.upper = Some(source(device).map_err(refuse)?),
            (path, device) => {
                if let Some(why) = forbidden(Path::new(path)) {
                    return Err(refuse(why));
                }
                layers.preserve.push(json!({
                    "target": path,
                    "source": source(device).map_err(refuse)?,
                    "method": "overlay",
                    // A part of the root is as the root is.
                    "options": ["suid", "dev"],
                }));
            }
        }
    }
    Ok(layers)
}

/// The source of `memory.upper` and `preserve` that the node or link `device` means; links are known without udev.
fn source(device: &str) -> std::result::Result<Value, &'static str> {
    if device.contains(['*', '?']) {
        return Err("a pattern names no device");
    }
    let link = device
        .strip_prefix("/dev/disk/")
        .and_then(|rest| rest.split_once('/'));
    Ok(match link {
        Some(("by-label", name)) => json!({ "label": unescaped(name) }),
        Some(("by-uuid", name)) => json!({ "uuid": unescaped(name) }),
        Some(("by-partlabel", name)) => json!({ "partlabel": unescaped(name) }),
        Some(("by-partuuid", name)) => json!({ "partuuid": unescaped(name) }),
        Some((kind, _)) => {
            let (disk, partition) = match part_number(device) {
                Some((disk, number)) => (disk, Some(number)),
                None => (device, None),
            };
            // udev's name for a virtio disk is its serial number; the other kinds need its links.
            let serial = disk.strip_prefix("/dev/disk/by-id/virtio-");
            let select = match serial {
                Some(serial) if kind == "by-id" => json!({ "serial": unescaped(serial) }),
                _ => json!({ "path": disk }),
            };
            json!({ "disk": select, "partition": partition })
        }
        None => json!({ "disk": { "path": device } }),
    })
}

/// udev's links below by-id and by-path name a partition by the disk's own name and `-partN`.
fn part_number(link: &str) -> Option<(&str, u32)> {
    let (disk, number) = link.rsplit_once("-part")?;
    Some((disk, number.parse().ok()?))
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
        for ovl in [
            "/var:dir",
            "tmpfs",
            "/:/dev/vd*",
            "/etc:/dev/vda1",
            "/:tmpfs:/dev/vda1",
            "var:/dev/vda1",
            "/:LABEL=state",
        ] {
            let failure = made(&format!("gl.url=/dev/vdb gl.ovl={ovl}"), root.path()).unwrap_err();
            assert_eq!(failure.class(), Class::Config, "{ovl}");
            assert!(failure.to_string().contains(ovl), "{failure}");
        }
        let both = made("gl.url=http://h/x gl.ovl=/:/dev/a,/:/dev/b", root.path());
        assert!(both.unwrap_err().to_string().contains("second place"));
        std::fs::write(root.path().join("root.squashfs.sha256sum"), "hello").unwrap();
        assert!(made("gl.url=http://h/x", root.path()).is_err());
    }

    #[test]
    fn devices_take_what_is_written_and_are_named_without_udev() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("root.squashfs"), "x").unwrap();
        let sources = |ovl: &str| {
            let made = made(&format!("gl.live=1 gl.ovl={ovl}"), root.path())
                .unwrap()
                .unwrap();
            // Whoever writes the command line chooses a disk.
            assert!(!made.of_initrd, "{ovl}");
            let request = request(&made);
            request.sources().cloned().collect::<Vec<_>>()
        };
        for (device, shown) in [
            ("/dev/vda1", "the disk path=/dev/vda1"),
            ("/dev/disk/by-label/MY\\x20STATE", "label=MY STATE"),
            ("/dev/disk/by-uuid/AB-12", "uuid=ab-12"),
            ("/dev/disk/by-partlabel/state", "partlabel=state"),
            ("/dev/disk/by-partuuid/AB", "partuuid=ab"),
            (
                "/dev/disk/by-path/pci-0000:00:1f.2-ata-1-part2",
                "partition 2 of the disk path=/dev/disk/by-path/pci-0000:00:1f.2-ata-1",
            ),
            (
                "/dev/disk/by-id/virtio-machineboot",
                "the disk serial=machineboot",
            ),
            (
                "/dev/disk/by-id/virtio-a-b-part3",
                "partition 3 of the disk serial=a-b",
            ),
        ] {
            let [upper] = &sources(&format!("/:{device}"))[..] else {
                panic!("{device}");
            };
            assert_eq!(upper.source.to_string(), shown);
            assert_eq!(upper.target, Path::new("/"));
            assert!(!upper.format && upper.required);
        }
        let parts = sources("/:tmpfs,/home:tmpfs,/var:/dev/vda1,/srv:/dev/disk/by-label/S");
        let both = made("gl.live=1 gl.ovl=/:/dev/vda1,/etc:tmpfs", root.path());
        let Goal::Memory(session) = request(&both.unwrap().unwrap()).goal else {
            panic!("no session");
        };
        assert_eq!(session.volatile, [Path::new("/etc")]);
        let targets: Vec<_> = parts.iter().map(|p| p.target.to_str().unwrap()).collect();
        assert_eq!(targets, ["/srv", "/var"]);
        assert!(parts.iter().all(|p| !p.options.flags.nosuid && !p.format));
    }
}
