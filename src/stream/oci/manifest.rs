//! Which blob of an image is the disk: index, manifest and media types (OCI image specification 1.1; the
//! IronCore types by ironcore-image's OCI-SPEC.md).

use serde::Deserialize;

use crate::error::printable;
use crate::units::Digest;

/// What an Accept header asks for, and what is understood.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// Layers that are a raw disk, perhaps compressed. Current, then that of the specification's text, then legacy.
const DISKS: [&str; 3] = [
    "application/vnd.ironcore.image.rootfs",
    "application/vnd.ironcore.image.disk.img",
    "application/vnd.ironcore.image.rootfs.v1alpha1.rootfs",
];

/// Compression is found by the first bytes, so that a suffix only has to be known.
const SUFFIXES: [&str; 4] = ["", "+gzip", "+zstd", "+xz"];

/// More entries than anybody has; the limit on the document's length bounds it anyway.
const QUOTED: usize = 8;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    media_type: Option<String>,
    manifests: Option<Vec<Entry>>,
    layers: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    media_type: Option<String>,
    digest: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: Option<String>,
    os: Option<String>,
}

/// What a document leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The manifest for this machine.
    Manifest(Digest),
    /// The disk.
    Blob(Digest),
}

/// Reads an index or a manifest. `arch` is as `uname -m` has it.
pub(super) fn read(text: &[u8], arch: &str) -> Result<Next, String> {
    let document: Document =
        serde_json::from_slice(text).map_err(|e| format!("it is no index and no manifest: {e}"))?;
    let is_index = document
        .media_type
        .as_deref()
        .is_some_and(|t| INDEXES.contains(&t));
    match (document.manifests, document.layers) {
        // A document that is both would be read by some as one and by others as the other.
        (Some(_), Some(_)) => Err("it is an index and a manifest at once".to_owned()),
        (Some(manifests), None) => for_machine(&manifests, arch).map(Next::Manifest),
        (None, Some(_)) if is_index => Err("its media type is not that of its content".to_owned()),
        (None, Some(layers)) => disk(&layers).map(Next::Blob),
        (None, None) => Err("it is no index and no manifest".to_owned()),
    }
}

/// The names of the Go compiler, which the specification demands.
fn go_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "i686" | "i586" | "i386" => "386",
        "armv7l" | "armv6l" => "arm",
        other => other,
    }
}

fn for_machine(manifests: &[Entry], arch: &str) -> Result<Digest, String> {
    let wanted = go_arch(arch);
    let fits = |entry: &&Entry| {
        entry.platform.as_ref().is_some_and(|p| {
            p.architecture.as_deref() == Some(wanted)
                && matches!(p.os.as_deref(), Some("linux") | None)
        })
    };
    let found = manifests.iter().find(fits).ok_or_else(|| {
        let there: Vec<String> = manifests
            .iter()
            .filter_map(|e| e.platform.as_ref()?.architecture.as_deref())
            .take(QUOTED)
            .map(printable)
            .collect();
        format!(
            "it has nothing for linux on {wanted}, but for: {}",
            there.join(", ")
        )
    })?;
    if found
        .media_type
        .as_deref()
        .is_some_and(|t| INDEXES.contains(&t))
    {
        return Err("it is an index of indexes".to_owned());
    }
    parse_digest(&found.digest)
}

fn disk(layers: &[Entry]) -> Result<Digest, String> {
    let kind = |entry: &Entry| entry.media_type.clone().unwrap_or_default();
    let is_disk = |kind: &str| {
        DISKS.iter().any(|disk| {
            kind.strip_prefix(disk)
                .is_some_and(|suffix| SUFFIXES.contains(&suffix))
        })
    };
    let disks: Vec<&Entry> = layers.iter().filter(|e| is_disk(&kind(e))).collect();
    match disks.as_slice() {
        [one] => return parse_digest(&one.digest),
        [] => {}
        _ => return Err("it has more than one disk".to_owned()),
    }
    let kinds: Vec<String> = layers
        .iter()
        .take(QUOTED)
        .map(|e| printable(&kind(e)))
        .collect();
    let why = if kinds.iter().any(|k| k.contains(".disk.qcow2")) {
        "a qcow2 disk is not supported in this version"
    } else if kinds
        .iter()
        .any(|k| k.contains(".layer.v1.tar") || k.contains(".rootfs.diff.tar"))
    {
        "a tree of files (tar layers) is not supported in this version"
    } else {
        "none of its layers is a disk"
    };
    Err(format!("{why}; its layers are: {}", kinds.join(", ")))
}

fn parse_digest(text: &str) -> Result<Digest, String> {
    text.parse()
        .map_err(|_| format!("{:?} is no digest that can be checked", printable(text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(c: &str) -> String {
        format!("sha256:{}", c.repeat(64))
    }

    fn layer(kind: &str, c: &str) -> String {
        format!(
            r#"{{"mediaType":"{kind}","digest":"{}","size":1}}"#,
            digest(c)
        )
    }

    fn manifest(layers: &[String]) -> Result<Next, String> {
        let text = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
        read(text.as_bytes(), "x86_64")
    }

    #[test]
    fn the_disk_is_found_among_the_layers_in_every_spelling() {
        for kind in [
            "application/vnd.ironcore.image.rootfs",
            "application/vnd.ironcore.image.disk.img",
            "application/vnd.ironcore.image.rootfs.v1alpha1.rootfs",
            "application/vnd.ironcore.image.rootfs+zstd",
        ] {
            let other = layer("application/vnd.ironcore.image.kernel", "b");
            let next = manifest(&[other, layer(kind, "a")]).unwrap();
            assert_eq!(next, Next::Blob(digest("a").parse().unwrap()), "{kind}");
        }
    }

    #[test]
    fn what_is_no_disk_is_refused_by_name() {
        let one = |kind: &str| manifest(&[layer(kind, "a")]).unwrap_err();
        assert!(
            one("application/vnd.ironcore.disk.qcow2.v1").contains("qcow2 disk is not supported")
        );
        for tar in [
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        ] {
            assert!(one(tar).contains("tree of files"), "{tar}");
        }
        assert!(one("application/vnd.ironcore.image.squashfs").contains("none of its layers"));
        let disk = "application/vnd.ironcore.image.rootfs";
        assert!(
            manifest(&[layer(disk, "a"), layer(disk, "b")])
                .unwrap_err()
                .contains("more than one")
        );
        for text in ["", "{}", "[]", r#"{"layers":[],"manifests":[]}"#, "<html>"] {
            assert!(read(text.as_bytes(), "x86_64").is_err(), "{text}");
        }
    }

    #[test]
    fn an_index_gives_the_manifest_of_this_machine() {
        let entry = |arch: &str, os: &str, c: &str| {
            format!(
                r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{}","size":1,"platform":{{"architecture":"{arch}","os":"{os}"}}}}"#,
                digest(c)
            )
        };
        let all = [
            entry("unknown", "unknown", "0"),
            entry("amd64", "windows", "1"),
            entry("amd64", "linux", "2"),
            entry("arm64", "linux", "3"),
        ];
        let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, all.join(","));
        for (arch, c) in [("x86_64", "2"), ("aarch64", "3")] {
            let next = read(text.as_bytes(), arch).unwrap();
            assert_eq!(next, Next::Manifest(digest(c).parse().unwrap()));
        }
        let failure = read(text.as_bytes(), "riscv64").unwrap_err();
        assert!(
            failure.contains("linux on riscv64") && failure.contains("arm64"),
            "{failure}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes, "x86_64");
        }
    }
}
