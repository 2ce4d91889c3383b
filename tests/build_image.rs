//! What `scripts/build-image` makes, looked at without a machine, and the lines of docs/image-builders.md for it.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them; those of `matrix_*` with --all).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/layout.rs"]
mod layout;
#[path = "support/machine.rs"]
mod machine;
#[path = "support/registry.rs"]
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use layout::json;
use machine::{lab, project};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

fn sha256(path: &Path) -> String {
    let mut file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let read = std::io::Read::read(&mut file, &mut block).unwrap();
        if read == 0 {
            break;
        }
        hash.update(&block[..read]);
    }
    let bytes = hash.finalize();
    bytes
        .iter()
        .fold("sha256:".to_owned(), |hex, b| hex + &format!("{b:02x}"))
}

/// A command that works; what it prints.
#[track_caller]
fn tool(command: &mut Command) -> String {
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{command:?}: {said}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_manifest_says_what_the_files_and_the_layers_are() {
    let image = lab("image-bookworm");
    let told = json(&image.join("manifest.json"));
    let files = told["files"].as_object().unwrap();
    let names: BTreeSet<&str> = files.keys().map(String::as_str).collect();
    let wanted = [
        "disk.raw.zst",
        "initramfs",
        "packages.spdx.json",
        "root.erofs",
        "root.squashfs",
        "root.tar.zst",
        "uki.efi",
        "vmlinuz",
    ];
    assert_eq!(names, BTreeSet::from(wanted));
    for (name, about) in files {
        let path = image.join(name);
        assert_eq!(about["digest"], sha256(&path).as_str(), "{name}");
        assert_eq!(about["size"], fs::metadata(&path).unwrap().len(), "{name}");
    }
    let oci = image.join("oci");
    let manifest = layout::manifest(&oci, "amd64");
    for (kind, name) in [
        ("kernel", "vmlinuz"),
        ("initramfs", "initramfs"),
        ("squashfs", "root.squashfs"),
        ("uki", "uki.efi"),
        ("rootfs+zstd", "disk.raw.zst"),
        ("erofs", "root.erofs"),
        ("tar+zstd", "root.tar.zst"),
    ] {
        assert_eq!(
            files[name]["digest"],
            layout::layer(&manifest, kind).as_str()
        );
    }
    let config = &manifest["config"];
    assert_eq!(
        config["mediaType"],
        "application/vnd.ironcore.image.config.v1+json"
    );
    let config = json(&layout::blob(&oci, &config["digest"]));
    let words = told["commandLine"].as_str().unwrap();
    let (root, others) = words.split_once(' ').unwrap();
    assert!(root.starts_with("root=PARTUUID="), "{words}");
    assert_eq!(config["commandLine"], others);
    // What it says of itself, but for the index that it is in.
    let layer = layout::layer(&manifest, "manifest.v1+json");
    let mut inside = json(&layout::blob(&oci, &Value::String(layer)));
    assert_eq!(inside.get("oci"), None);
    inside["oci"] = told["oci"].clone();
    assert_eq!(inside, told);
    let top = json(&oci.join("index.json"));
    assert_eq!(top["manifests"][0]["digest"], told["oci"]["digest"]);
    assert!(
        told["ironroot"]
            .as_str()
            .unwrap()
            .starts_with(env!("CARGO_PKG_VERSION")),
        "{told}"
    );
}

#[test]
fn the_packages_are_told_as_spdx() {
    let document = json(&lab("image-bookworm").join("packages.spdx.json"));
    assert_eq!(document["spdxVersion"], "SPDX-2.3");
    let packages = document["packages"].as_array().unwrap();
    let mut known = BTreeSet::from(["SPDXRef-DOCUMENT"]);
    let mut versions = BTreeMap::new();
    for package in packages {
        let id = package["SPDXID"].as_str().unwrap();
        let is_idstring = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        assert!(
            id.strip_prefix("SPDXRef-")
                .unwrap()
                .chars()
                .all(is_idstring),
            "{id}"
        );
        assert!(known.insert(id), "{id} is there twice");
        let version = package["versionInfo"].as_str().unwrap();
        assert!(!version.is_empty(), "{package}");
        versions.insert(package["name"].as_str().unwrap(), version);
    }
    for name in ["ironroot", "systemd", "dracut-core", "libc6", "libstdc++6"] {
        assert!(versions.contains_key(name), "{name} in {versions:?}");
    }
    for relation in document["relationships"].as_array().unwrap() {
        for end in ["spdxElementId", "relatedSpdxElement"] {
            assert!(
                known.contains(relation[end].as_str().unwrap()),
                "{relation}"
            );
        }
    }
    let systemd = packages.iter().find(|p| p["name"] == "systemd").unwrap();
    let purl = systemd["externalRefs"][0]["referenceLocator"]
        .as_str()
        .unwrap();
    assert!(purl.starts_with("pkg:deb/debian/systemd@252"), "{purl}");
}

/// Small files in an image's place, for the program that makes layouts of them.
fn small_layout(folder: &Path, architecture: &str, others: &[&Path]) -> std::process::Output {
    fs::create_dir_all(folder).unwrap();
    for name in [
        "vmlinuz",
        "initramfs",
        "root.squashfs",
        "uki.efi",
        "disk.raw.zst",
        "root.erofs",
        "root.tar.zst",
        "manifest.json",
        "packages.spdx.json",
    ] {
        fs::write(folder.join(name), format!("{name} for {architecture}")).unwrap();
    }
    let mut command = Command::new(project().join("scripts/build-image.d/oci-layout"));
    command.args(["oci", architecture, "quiet"]);
    for other in others {
        command.arg("--add-platform").arg(other);
    }
    command.current_dir(folder).output().unwrap()
}

/// The last line of docs/image-builders.md's block, for a registry without TLS.
fn documented_publishing() -> String {
    let docs = fs::read_to_string(project().join("docs/image-builders.md")).unwrap();
    let (_, block) = docs.split_once("```sh image\n").unwrap();
    let lines: Vec<&str> = block.split_once("```").unwrap().0.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], "scripts/build-static");
    let (script, rest) = lines[2].split_once(' ').unwrap();
    assert_eq!(script, "scripts/publish-image");
    format!("{script} --plain-http {rest}")
}

#[test]
fn another_machines_build_is_merged_into_the_index_and_published_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let arm = folder.path().join("arm");
    assert!(small_layout(&arm, "arm64", &[]).status.success());
    // A colon in a directory's name is no tag.
    let (amd, arm) = (folder.path().join("of: amd"), arm.join("oci"));
    assert!(small_layout(&amd, "amd64", &[&arm]).status.success());
    let both = amd.join("oci");
    let registry = server::Registry::start("");
    let name = registry.reference("os/both:v1");
    let name = name.trim_start_matches("oci://");
    let said = tool(
        Command::new("sh")
            .args(["-euc", &documented_publishing()])
            .env("DIR", &amd)
            .env("REPOSITORY", name)
            .current_dir(project()),
    );
    let top = json(&both.join("index.json"));
    let digest = top["manifests"][0]["digest"].as_str().unwrap();
    assert_eq!(said.trim(), format!("oci://{name}@{digest}"));
    // What comes back is what was there, for each machine.
    let back = folder.path().join("back");
    tool(
        Command::new("skopeo")
            .args([
                "copy",
                "--all",
                "--insecure-policy",
                "--src-tls-verify=false",
            ])
            .args([
                format!("docker://{name}"),
                format!("oci:{}:latest", back.display()),
            ]),
    );
    for architecture in ["amd64", "arm64"] {
        let layer = layout::layer(&layout::manifest(&back, architecture), "squashfs");
        let content = fs::read_to_string(layout::blob(&back, &Value::String(layer))).unwrap();
        assert_eq!(content, format!("root.squashfs for {architecture}"));
    }
    // The order of the builds makes no difference.
    let second = folder.path().join("second");
    assert!(small_layout(&second, "amd64", &[]).status.success());
    let later = folder.path().join("later");
    assert!(
        small_layout(&later, "arm64", &[&second.join("oci")])
            .status
            .success()
    );
    assert_eq!(json(&later.join("oci/index.json")), top);

    let twice = small_layout(&folder.path().join("twice"), "arm64", &[&arm]);
    let said = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(!twice.status.success() && said.contains("is for"), "{said}");
    let kernel = layout::layer(&layout::manifest(&arm, "arm64"), "kernel");
    let kernel = layout::blob(&arm, &Value::String(kernel));
    fs::remove_file(&kernel).unwrap();
    fs::write(&kernel, "another one").unwrap();
    let damaged = small_layout(&folder.path().join("damaged"), "amd64", &[&arm]);
    let said = String::from_utf8_lossy(&damaged.stderr).into_owned();
    assert!(
        !damaged.status.success() && said.contains("is not what its name says"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_built_or_published_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    for (script, args, says) in [
        (
            "build-image",
            &["--suite", "potato"][..],
            "unknown suite: potato",
        ),
        ("build-image", &["--size", "1G"], "unknown argument: --size"),
        (
            "build-image",
            &["--binary", "/no/ironroot"],
            "no program at /no/ironroot",
        ),
        (
            "publish-image",
            &[place, "127.0.0.1:1/os:v1"],
            "no OCI image layout in",
        ),
        (
            "publish-image",
            &["--plain-http", place, "registry.example/os:v1"],
            "is for a registry on this machine",
        ),
        (
            "publish-image",
            &["--plain-http", place, "127.0.0.1.registry.example/os:v1"],
            "is for a registry on this machine",
        ),
        (
            "publish-image",
            &["--plain-http", place, "localhost:1/os:v1"],
            "no OCI image layout in",
        ),
        (
            "publish-image",
            &[place],
            "a directory and a reference are needed",
        ),
    ] {
        let script = project().join("scripts").join(script);
        let out = Command::new(script).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && said.contains(says),
            "{args:?}: {said}"
        );
    }
}

/// What a function of `scripts/build-image.d/system.sh` says of `tree`, in a working directory with an initrd.
fn of_the_system(call: &str, tree: &Path, files: &str) -> std::process::Output {
    let script = r#"set -euo pipefail
        ROOT=$1 TREE=$2 FILES=$3 PARTS=$1/scripts/build-image.d
        for part in lib/log lib/packages build-image.d/system; do . "$ROOT/scripts/$part.sh"; done
        SUITE=bookworm ARCH=amd64 SOURCE_DATE_EPOCH=1 WORDS=quiet BINARY=/bin/true
        cd "$TREE""#;
    Command::new("bash")
        .args(["-c", &format!("{script}\n{call}"), "bash"])
        .args([project(), tree])
        .arg(files)
        .output()
        .unwrap()
}

/// Links of the image lead to its own files, never to those of the machine that builds it.
#[test]
fn files_go_into_the_tree_whatever_its_links_say() {
    let folder = tempfile::tempdir().unwrap();
    let (tree, files) = (folder.path().join("tree"), folder.path().join("files"));
    let outside = folder.path().join("outside");
    let made = tool(Command::new("sh").args(["-euc", r#"
        mkdir -p "$1/proc" "$1/dev" "$1/tmp" "$1/etc" "$1/usr/bin" "$1/usr/lib" "$2/etc" "$2/bin" "$2/srv/new" "$3"
        ln -s usr/bin "$1/bin"; ln -s usr/lib "$1/lib"; ln -s usr/lib "$1/lib64"
        for program in sh tar; do
            path=$(readlink -f "$(command -v $program)"); cp "$path" "$1/usr/bin/$program"
            ldd "$path" | sed -n 's|^[^/]*\(/[^ ]*\) .*|\1|p' | while read -r library; do cp -L "$library" "$1/usr/lib/"; done
        done
        echo host >"$3/UTC"; ln -s "$3/UTC" "$1/etc/localtime"; ln -s ../run/none "$1/etc/resolv.conf"; ln -s "$3" "$1/etc/away"
        echo mine >"$2/etc/localtime"; echo mine >"$2/etc/resolv.conf"; echo mine >"$2/bin/tool"; chmod 750 "$2/bin/tool"
        echo mine >"$2/srv/new/file"; chmod 700 "$2" "$2/etc"; chmod 711 "$2/srv/new"; chmod 755 "$1" "$1/etc""#, "sh"])
        .args([&tree, &files, &outside]));
    assert_eq!(made, "");
    let call = ". \"$ROOT/scripts/lib/chroot.sh\"; put_files \"$TREE\"";
    let out = of_the_system(call, &tree, files.to_str().unwrap());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let seen = tool(Command::new("sh").args(["-euc", r#"
        cat "$2/UTC"; cd "$1"; stat -c '%N %a %u' etc/localtime etc/resolv.conf usr/bin/tool srv/new srv/new/file etc .
        cat etc/localtime; readlink bin"#, "sh"])
        .args([&tree, &outside]));
    assert_eq!(
        seen,
        "host\n'etc/localtime' 644 0\n'etc/resolv.conf' 644 0\n'usr/bin/tool' 750 0\n'srv/new' 711 0\n\
         'srv/new/file' 644 0\n'etc' 755 0\n'.' 755 0\nmine\nusr/bin\n"
    );
}

#[test]
fn several_kernels_are_refused_by_name() {
    let tree = tempfile::tempdir().unwrap();
    let call = "kernel_version \"$TREE\"";
    let none = of_the_system(call, tree.path(), "");
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(said.contains("no kernel in the image"), "{said}");
    let info = tree.path().join("var/lib/dpkg/info");
    fs::create_dir_all(&info).unwrap();
    for (version, good) in [
        ("6.1.0-50-amd64", true),
        ("6.1.0-51-cloud-amd64", false),
        ("6.1.0-52-amd64", false),
    ] {
        fs::create_dir_all(tree.path().join("lib/modules").join(version)).unwrap();
        // The package need not have the version's name. `apt-mark manual` is told it.
        let package = format!("linux-image-{version}-unsigned");
        let status = format!(
            "Package: {package}\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\nMaintainer: a <a@b.c>\nDescription: a\n"
        );
        fs::write(tree.path().join("var/lib/dpkg/status"), status).unwrap();
        let list = format!("/.\n/boot\n/boot/vmlinuz-{version}\n");
        fs::write(info.join(format!("{package}.list")), list).unwrap();
        // What customizes the system asks first, and in this way.
        let first = "package=$(kernel_package \"$TREE\")\necho \"is $package\"";
        for (call, says) in [(call, version), (first, &package)] {
            let out = of_the_system(call, tree.path(), "");
            let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
            assert_eq!(out.status.success(), good, "{said}");
            let says = if good { says } else { "several kernels" };
            assert!(said.contains(says) && said.contains(version), "{said}");
        }
    }
}

#[test]
fn updates_come_from_where_the_packages_came_from() {
    let tree = tempfile::tempdir().unwrap();
    let out = of_the_system("sources", tree.path(), "");
    let text = String::from_utf8(out.stdout).unwrap();
    let expected = "deb http://deb.debian.org/debian bookworm main non-free-firmware
deb http://deb.debian.org/debian bookworm-updates main non-free-firmware
deb http://security.debian.org/debian-security bookworm-security main non-free-firmware
";
    assert_eq!(text, expected);
}

/// With a mmdebstrap that fails.
#[test]
fn a_build_takes_away_only_what_it_made_itself() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    fs::create_dir_all(place("image.work")).unwrap();
    fs::write(place("image.work/of-somebody"), "").unwrap();
    fs::create_dir(place("bin")).unwrap();
    let fails = "#!/bin/sh\nmkdir -p \"$PWD/../root\"; echo mmdebstrap-is-called >&2; exit 1\n";
    fs::write(place("bin/mmdebstrap"), fails).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place("bin/mmdebstrap"), mode).unwrap();
    let path = std::env::var("PATH").unwrap();
    let out = Command::new(project().join("scripts/build-image"))
        .args(["--binary", "/bin/true", "--output"])
        .arg(place("image"))
        .env("PATH", format!("{}:{path}", place("bin").display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{said}");
    assert!(said.contains("mmdebstrap-is-called"), "{said}");
    let mut left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["bin", "image.work"]);
    assert!(place("image.work/of-somebody").exists());
}

/// What the GUIDs are made of.
#[test]
fn another_package_or_file_makes_another_identity() {
    let tree = tempfile::tempdir().unwrap();
    let (dpkg, files) = (tree.path().join("var/lib/dpkg"), tree.path().join("files"));
    fs::create_dir_all(&dpkg).unwrap();
    fs::create_dir_all(&files).unwrap();
    let status = |version: &str| {
        let text = format!(
            "Package: one\nStatus: install ok installed\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: a\n"
        );
        fs::write(dpkg.join("status"), text).unwrap();
    };
    fs::write(tree.path().join("initramfs"), "first").unwrap();
    let mut seen = BTreeSet::new();
    let mut identity = |new: bool| {
        let out = of_the_system("identity \"$TREE\"", tree.path(), files.to_str().unwrap());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(text.trim().len(), 64, "{text}");
        assert_eq!(seen.insert(text.clone()), new, "{text}");
    };
    status("1");
    identity(true);
    identity(false);
    status("2");
    identity(true);
    fs::write(files.join("motd"), "hello").unwrap();
    identity(true);
    fs::write(files.join("motd"), "hullo").unwrap();
    identity(true);
    fs::write(tree.path().join("initramfs"), "second").unwrap();
    identity(true);
    identity(false);
}

/// Built twice by `scripts/images/metal`, the second time as docs/image-builders.md says.
#[test]
fn matrix_two_builds_give_the_same_bytes() {
    let first = json(&lab("image-bookworm").join("manifest.json"));
    let second = json(&lab("image-again").join("manifest.json"));
    for (name, about) in first["files"].as_object().unwrap() {
        assert_eq!(&second["files"][name], about, "{name}");
    }
    assert_eq!(second, first);
}

/// By the validator of the SPDX project.
#[test]
fn matrix_the_list_of_packages_is_valid_spdx() {
    for suite in ["bookworm", "trixie"] {
        tool(
            Command::new("python3")
                .args(["-m", "spdx_tools.spdx.clitools.pyspdxtools", "-i"])
                .arg(lab(&format!("image-{suite}")).join("packages.spdx.json"))
                .env("PYTHONPATH", lab("spdx-tools")),
        );
    }
}
