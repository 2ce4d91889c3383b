//! The Debian packages: installed in a Debian 12 and a Debian 13, where the next initrd has ironroot in it and boots.
//!
//! Needs root, the trees of `scripts/images/initrds --all` and `scripts/packages`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/debian_tree.rs"]
mod debian_tree;
#[path = "support/initrd.rs"]
mod initrd;
#[path = "support/machine.rs"]
mod machine;

use debian_tree::{holds, holds_the_tools, on_a_debian};
use initrd::{Initrd, served};
use machine::project;

/// What a user of the packages finds, as `man` and the shells ask for it.
const READ: &str = r#"chroot "$TREE" sh -euc '
    for page in /usr/share/man/man1/ironroot*.1.gz; do
        # Debian 13 may leave manual pages out; where they are, they are whole.
        zcat "$page" | grep -q "^.TH ironroot" || { echo "no manual page: $page"; exit 1; }
    done
    bash -c "
        . /usr/share/bash-completion/completions/ironroot
        complete -p ironroot >/dev/null
        COMP_WORDS=(ironroot ins) COMP_CWORD=1
        _ironroot ironroot ins ironroot
        echo \"bash: \${COMPREPLY[*]}\""
    head -1 /usr/share/zsh/vendor-completions/_ironroot
    grep -c "complete -c ironroot" /usr/share/fish/vendor_completions.d/ironroot.fish' "#;

/// The line of docs/image-builders.md that installs them, for nobody who would be asked.
fn documented() -> String {
    let docs = std::fs::read_to_string(project().join("docs/image-builders.md")).unwrap();
    let (_, block) = docs.split_once("```sh packages\n").unwrap();
    let lines: Vec<&str> = block.split_once("```").unwrap().0.lines().collect();
    assert_eq!(lines[..2], ["scripts/build-static", "scripts/packages"]);
    let rest = lines[2].strip_prefix("apt install ").unwrap();
    assert_eq!(lines.len(), 3, "{lines:?}");
    format!("DEBIAN_FRONTEND=noninteractive apt -q -y install {rest}")
}

#[test]
fn matrix_with_the_packages_installed_the_next_initrd_has_ironroot_in_it() {
    let packages = project().join("target/packages");
    assert!(packages.exists(), "run scripts/packages first");
    let made = project().join("target/lab/initrd");
    let made = made.display();
    for (suite, initrds) in [
        ("bookworm", ["bookworm-packaged", "bookworm-packaged-tools"]),
        ("trixie", ["trixie-packaged", "trixie-packaged-tools"]),
    ] {
        let lines = format!(
            r#"mkdir -p "$TREE/target/packages"; mount --bind "{}" "$TREE/target/packages"
            {{ chroot "$TREE" sh -euc 'cd /; {}; dpkg -i target/packages/ironroot-initramfs-tools_*.deb'
            ironroot=$(chroot "$TREE" ironroot --version)
            chroot "$TREE" dracut --force --no-hostonly --add systemd-networkd /boot/by-dracut.img "$VERSION"; }} >&2
            cp "$TREE/boot/by-dracut.img" "{made}/{suite}-packaged.img"
            cp "$TREE/boot/initrd.img-$VERSION" "{made}/{suite}-packaged-tools.img"
            {READ}
            echo @@next; echo "$ironroot"; chroot "$TREE" lsinitramfs "/boot/initrd.img-$VERSION"
            echo @@next; chroot "$TREE" lsinitrd /boot/by-dracut.img
            chroot "$TREE" dpkg --purge ironroot ironroot-dracut ironroot-initramfs-tools >&2
            echo @@next; chroot "$TREE" lsinitramfs "/boot/initrd.img-$VERSION""#,
            packages.display(),
            documented()
        );
        let said = on_a_debian(suite, &lines);
        let mut parts = said.split("@@next\n");
        let read = parts.next().unwrap();
        holds(read, &["bash: install", "#compdef ironroot"]);
        let by_tools = parts.next().unwrap();
        assert!(by_tools.starts_with("ironroot "), "{by_tools}");
        holds(by_tools, &["usr/bin/ironroot", "scripts/ironroot"]);
        holds_the_tools(by_tools);
        let by_dracut = parts.next().unwrap();
        holds(
            by_dracut,
            &[
                "usr/bin/ironroot",
                "initrd-root-fs.target.requires/ironroot.service",
            ],
        );
        let purged = parts.next().unwrap();
        assert!(
            purged.contains("squashfs.ko") || purged.contains("bin/"),
            "{purged}"
        );
        assert!(!purged.contains("ironroot"), "{purged}");
        for name in initrds {
            let scenario = initrd::scenario(name);
            let words = served(&scenario, &initrd::config());
            Initrd(name).runs(&scenario, &words);
            initrd::disk_is_untouched(&scenario);
        }
    }
}
