//! Which layers of an image are the disk or the root: index, manifest and media types (OCI image specification 1.1; the
//! IronCore types by ironcore-image's OCI-SPEC.md).

use serde::Deserialize;

use crate::error::printable;
use crate::stream::codec::{Codec, Purpose};
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

/// Layers that are a root as a file system. Current, then legacy.
const ROOTS: [&str; 3] = [
    "application/vnd.ironcore.image.squashfs",
    "application/vnd.ironcore.image.squashfs.v1alpha1.squashfs",
    "application/io.gardenlinux.squashfs",
];

/// The kernel of a root that carries none itself. Current, then legacy.
const KERNELS: [&str; 3] = [
    "application/vnd.ironcore.image.kernel",
    "application/vnd.ironcore.image.vmlinuz.v1alpha1.vmlinuz",
    "application/io.gardenlinux.kernel",
];

/// Its initrd. Current, then legacy.
const INITRDS: [&str; 3] = [
    "application/vnd.ironcore.image.initramfs",
    "application/vnd.ironcore.image.initramfs.v1alpha1.initramfs",
    "application/io.gardenlinux.initrd",
];

/// Layers that are a part of a tree: each changes what those before it made.
const TREES: [&str; 2] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
];

/// Docker's own types spell the suffix with a dot.
const TREE_SUFFIXES: [Suffix; 5] = [
    ("", None),
    ("+gzip", Some(Codec::Gzip)),
    ("+zstd", Some(Codec::Zstd)),
    (".gzip", Some(Codec::Gzip)),
    (".zstd", Some(Codec::Zstd)),
];

/// More layers than any builder makes.
const MOST_LAYERS: usize = 512;

/// What a media type ends with, and which compression that declares. Without one nothing is declared: compression is
/// found by the first bytes.
type Suffix = (&'static str, Option<Codec>);

const SUFFIXES: [Suffix; 4] = [
    ("", None),
    ("+gzip", Some(Codec::Gzip)),
    ("+zstd", Some(Codec::Zstd)),
    ("+xz", Some(Codec::Xz)),
];

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

/// A layer that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) digest: Digest,
    /// The compression that its media type declares.
    pub(super) packed: Option<Codec>,
}

/// What a document leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The manifest for this machine.
    Manifest(Digest),
    /// The layers, in the order in which they are taken; one but for a tree.
    Layers(Vec<Layer>),
}

/// Reads an index or a manifest. `arch` is as `uname -m` has it.
pub(super) fn read(text: &[u8], arch: &str, purpose: Purpose) -> Result<Next, String> {
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
        (None, Some(layers)) => match purpose {
            Purpose::Disk => disk(&layers).map(|layer| vec![layer]),
            Purpose::Root => root(&layers),
            // What is wrong with it as a disk is what people want to know.
            Purpose::DiskOrTree => match disk(&layers) {
                Ok(layer) => Ok(vec![layer]),
                Err(why) => with_boot_files(&layers).map_err(|_| why),
            },
            Purpose::Tree | Purpose::File => with_boot_files(&layers),
        }
        .map(Next::Layers),
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

fn kind(entry: &Entry) -> &str {
    entry.media_type.as_deref().unwrap_or_default()
}

/// Those of `layers` whose type is one of `types` with one of `suffixes`.
fn of_type<'a>(layers: &'a [Entry], types: &[&str], suffixes: &[Suffix]) -> Vec<&'a Entry> {
    let fits = |entry: &&Entry| {
        types.iter().any(|t| {
            kind(entry)
                .strip_prefix(t)
                .is_some_and(|rest| suffixes.iter().any(|(suffix, _)| *suffix == rest))
        })
    };
    layers.iter().filter(fits).collect()
}

fn shown(layers: &[Entry]) -> String {
    let kinds: Vec<String> = layers
        .iter()
        .take(QUOTED)
        .map(|e| printable(kind(e)))
        .collect();
    kinds.join(", ")
}

fn disk(layers: &[Entry]) -> Result<Layer, String> {
    match of_type(layers, &DISKS, &SUFFIXES).as_slice() {
        [one] => return taken(one),
        [] => {}
        _ => return Err("it has more than one disk".to_owned()),
    }
    let why = if layers.iter().any(|e| kind(e).contains(".disk.qcow2")) {
        "a qcow2 disk is not supported in this version"
    } else if !of_type(layers, &TREES, &TREE_SUFFIXES).is_empty() {
        "a tree of files (tar layers) is not supported for a disk in this version"
    } else {
        "none of its layers is a disk"
    };
    Err(format!("{why}; its layers are: {}", shown(layers)))
}

/// A root as a file system, and behind it its kernel and its initrd where the image has both; else the layers of a
/// tree. A disk is none.
fn with_boot_files(layers: &[Entry]) -> Result<Vec<Layer>, String> {
    let root = match of_type(layers, &ROOTS, &SUFFIXES).as_slice() {
        [one] => *one,
        [] => return tree(layers),
        _ => return Err("it has more than one root".to_owned()),
    };
    let kernels = of_type(layers, &KERNELS, &SUFFIXES);
    let initrds = of_type(layers, &INITRDS, &SUFFIXES);
    let mut found = vec![root];
    if let ([kernel], [initrd]) = (kernels.as_slice(), initrds.as_slice()) {
        found.extend([*kernel, *initrd]);
    }
    found.into_iter().map(taken).collect()
}

/// A file system before a disk before a tree: images for machines carry several forms of one system.
fn root(layers: &[Entry]) -> Result<Vec<Layer>, String> {
    for types in [&ROOTS[..], &DISKS] {
        match of_type(layers, types, &SUFFIXES).as_slice() {
            [one] => return taken(one).map(|layer| vec![layer]),
            [] => {}
            _ => return Err("it has more than one root".to_owned()),
        }
    }
    tree(layers)
}

/// All layers of a tree.
fn tree(layers: &[Entry]) -> Result<Vec<Layer>, String> {
    let tree = of_type(layers, &TREES, &TREE_SUFFIXES);
    if tree.is_empty() {
        return Err(format!(
            "none of its layers is a root; its layers are: {}",
            shown(layers)
        ));
    }
    // Half of a tree is no tree.
    if tree.len() < layers.len() {
        return Err(format!(
            "not all of its layers are parts of a tree: {}",
            shown(layers)
        ));
    }
    if tree.len() > MOST_LAYERS {
        return Err(format!("it has {} layers", tree.len()));
    }
    tree.into_iter().map(taken).collect()
}

/// The layer of an entry whose type is known.
fn taken(entry: &Entry) -> Result<Layer, String> {
    let declared = |(suffix, codec): &Suffix| codec.filter(|_| kind(entry).ends_with(suffix));
    Ok(Layer {
        digest: parse_digest(&entry.digest)?,
        packed: TREE_SUFFIXES.iter().chain(&SUFFIXES).find_map(declared),
    })
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

    /// The digests that a document leads to.
    fn digests(next: Next) -> Next {
        match next {
            Next::Layers(mut layers) => {
                for layer in &mut layers {
                    layer.packed = None;
                }
                Next::Layers(layers)
            }
            next @ Next::Manifest(_) => next,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is compared with a result")]
    fn found(all: &[&str]) -> Result<Next, String> {
        let layer = |c: &&str| Layer {
            digest: digest(c).parse().unwrap(),
            packed: None,
        };
        Ok(Next::Layers(all.iter().map(layer).collect()))
    }

    fn manifest(layers: &[String]) -> Result<Next, String> {
        let text = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
        read(text.as_bytes(), "x86_64", Purpose::Disk)
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
            assert_eq!(
                next,
                Next::Layers(vec![Layer {
                    digest: digest("a").parse().unwrap(),
                    packed: kind.ends_with("+zstd").then_some(Codec::Zstd),
                }]),
                "{kind}"
            );
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
            assert!(
                read(text.as_bytes(), "x86_64", Purpose::Disk).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_suffix_declares_the_compression() {
        for (kind, packed) in [
            ("application/vnd.oci.image.layer.v1.tar", None),
            (
                "application/vnd.oci.image.layer.v1.tar+gzip",
                Some(Codec::Gzip),
            ),
            (
                "application/vnd.oci.image.layer.v1.tar+zstd",
                Some(Codec::Zstd),
            ),
            (
                "application/vnd.docker.image.rootfs.diff.tar.gzip",
                Some(Codec::Gzip),
            ),
        ] {
            let text = format!(r#"{{"layers":[{}]}}"#, layer(kind, "a"));
            let Ok(Next::Layers(layers)) = read(text.as_bytes(), "x86_64", Purpose::Root) else {
                panic!("{kind}")
            };
            assert_eq!(layers[0].packed, packed, "{kind}");
        }
    }

    #[test]
    fn a_root_is_a_file_system_or_a_disk_or_all_layers_of_a_tree() {
        let root = |layers: &[String]| {
            let text = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
            read(text.as_bytes(), "x86_64", Purpose::Root).map(digests)
        };
        let squashfs = layer("application/vnd.ironcore.image.squashfs", "a");
        let kernel = layer("application/vnd.ironcore.image.kernel", "b");
        let disk = layer("application/vnd.ironcore.image.rootfs", "c");
        let one = layer("application/vnd.oci.image.layer.v1.tar+gzip", "d");
        let two = layer("application/vnd.docker.image.rootfs.diff.tar.gzip", "e");
        assert_eq!(
            root(&[kernel.clone(), disk.clone(), squashfs]),
            found(&["a"])
        );
        assert_eq!(root(&[disk, kernel.clone()]), found(&["c"]));
        assert_eq!(root(&[one.clone(), two.clone()]), found(&["d", "e"]));
        assert!(
            root(&[one, kernel.clone(), two])
                .unwrap_err()
                .contains("not all")
        );
        assert!(
            root(&[kernel])
                .unwrap_err()
                .contains("none of its layers is a root")
        );
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
            let next = read(text.as_bytes(), arch, Purpose::Disk).unwrap();
            assert_eq!(next, Next::Manifest(digest(c).parse().unwrap()));
        }
        let failure = read(text.as_bytes(), "riscv64", Purpose::Disk).unwrap_err();
        assert!(
            failure.contains("linux on riscv64") && failure.contains("arm64"),
            "{failure}"
        );
    }

    #[test]
    fn a_tree_for_a_disk_is_a_file_system_with_its_kernel_or_all_layers_and_never_a_disk() {
        let read = |layers: &[String]| {
            let text = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
            read(text.as_bytes(), "x86_64", Purpose::Tree).map(digests)
        };
        let squashfs = layer("application/vnd.ironcore.image.squashfs", "a");
        let kernel = layer("application/vnd.ironcore.image.kernel", "b");
        let initrd = layer("application/vnd.ironcore.image.initramfs", "c");
        let disk = layer("application/vnd.ironcore.image.rootfs", "d");
        let tar = layer("application/vnd.oci.image.layer.v1.tar+gzip", "e");
        assert_eq!(
            read(&[initrd, disk.clone(), kernel.clone(), squashfs.clone()]),
            found(&["a", "b", "c"])
        );
        assert_eq!(read(&[kernel, squashfs.clone()]), found(&["a"]));
        let either = |layers: &[String]| {
            let text = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
            super::read(text.as_bytes(), "x86_64", Purpose::DiskOrTree)
        };
        assert_eq!(either(&[squashfs.clone(), disk.clone()]), found(&["d"]));
        assert_eq!(either(&[squashfs]), found(&["a"]));
        assert!(
            either(&[])
                .unwrap_err()
                .contains("none of its layers is a disk")
        );
        assert_eq!(read(std::slice::from_ref(&tar)), found(&["e"]));
        assert!(
            read(&[disk])
                .unwrap_err()
                .contains("none of its layers is a root")
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes, "x86_64", Purpose::Root);
        }
    }
}
