//! Kernel modules without udev: a driver for every device that is there or comes, and an answer when the
//! kernel itself asks for a module.
//!
//! Own code, because no crate fits: `kmod` binds the C library libkmod, which a static binary would carry with
//! its decompressors, and `kmod-loader` states no licence. What is needed is small: three text files of
//! depmod(8), a pattern matcher and one system call. To change which modules are loaded without being asked
//! for, see [`coldplug::ALWAYS`].

pub mod coldplug;
pub mod glob;
pub mod load;
pub mod serve;
pub mod settings;
pub mod tree;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::libc;

use settings::Settings;
use tree::Tree;

use crate::error::printable;

/// The kernel modules that this program asks for by name or by a mount, whatever the hardware: what initrd builders embed
/// beside drivers. Those that others depend on follow by themselves; ciphers and hashes do not, the kernel looks for
/// them when they are used.
pub const WANTED: [&str; 25] = [
    "overlay",
    "squashfs",
    "erofs",
    "loop",
    "zram",
    "lzo-rle",
    "zstd",
    "ext4",
    "xfs",
    "btrfs",
    "vfat",
    "efivarfs",
    "crc32c",
    "crc32",
    "dm_mod",
    "dm_verity",
    "dm_crypt",
    "algif_skcipher",
    "xts",
    "essiv",
    "cbc",
    "ecb",
    "aes_generic",
    "sha256_generic",
    "sha512_generic",
];

/// Loads modules by name, alias or device id, each once, from several threads.
#[derive(Debug)]
pub struct Loader {
    tree: Tree,
    settings: Settings,
    tried: Mutex<BTreeSet<String>>,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Modules that the kernel took now.
    pub loaded: Vec<String>,
    /// Those that it did not, with why, for people.
    pub failed: Vec<String>,
    /// Whether a module of that name or alias exists, or is built in.
    pub known: bool,
}

impl Loader {
    /// Loads from `tree` as `settings` allow.
    pub fn new(tree: Tree, settings: Settings) -> Loader {
        Loader {
            tree,
            settings,
            tried: Mutex::default(),
        }
    }

    /// The modules to choose from.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The modules that `request` would load, before their dependencies.
    pub fn find(&self, request: &str) -> Vec<String> {
        self.tree.find(request, &self.settings.blacklist)
    }

    /// Loads what `request` (a module name, an alias, a modalias) asks for, dependencies first.
    pub fn request(&self, request: &str) -> Outcome {
        let mut outcome = Outcome {
            known: self.tree.is_builtin(request),
            ..Outcome::default()
        };
        for name in self.find(request) {
            outcome.known = true;
            self.load(&name, &mut outcome);
        }
        outcome
    }

    fn load(&self, name: &str, outcome: &mut Outcome) {
        for module in self.tree.order(name) {
            if self.lock().contains(&module.name) {
                continue;
            }
            // Marked only afterwards: another thread that needs this one as well asks the kernel again, which
            // lets it wait until the first load is through.
            let result = load::insert(&module.path, &self.settings.parameters(&module.name));
            self.lock().insert(module.name.clone());
            match result {
                Ok(true) => outcome.loaded.push(module.name),
                Ok(false) => {}
                Err(error) if is_no_fault(&error) => {
                    log::debug!("module {}: {error}", module.name);
                }
                Err(error) => outcome.failed.push(explain(&module.name, &error)),
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Loads the module `name` where it is neither loaded nor built in, for what no kernel asks for by itself. Fails
/// silently: whoever needs it says better what is missing.
pub fn want(name: &str) {
    if Path::new("/sys/module").join(name).exists() {
        return;
    }
    let version = nix::sys::utsname::uname()
        .map(|names| names.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    if let Some(tree) = Tree::load(Path::new("/"), &version) {
        let outcome = Loader::new(tree, Settings::of(&super::cmdline())).request(name);
        for line in &outcome.failed {
            log::warn!("{line}");
        }
    }
}

/// A driver that finds no hardware of its own, or finds it taken, says so by these; a name on the kernel's
/// module_blacklist= gets EPERM.
fn is_no_fault(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ENXIO | libc::EBUSY | libc::EOPNOTSUPP | libc::EPERM)
    )
}

fn explain(module: &str, error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            ": its file is missing, or it needs a symbol that nothing loaded has (dmesg names it)"
        }
        Some(libc::ENOEXEC) => ": it was built for another kernel",
        Some(libc::EKEYREJECTED | libc::ENOKEY) => {
            ": its signature is not of a key that this kernel trusts (Secure Boot)"
        }
        _ => "",
    };
    format!(
        "kernel module {} was not loaded: {error}{why}",
        printable(module)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that are given to [`want`] in `folder`, and the lists of names that are.
    fn asked_for(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                asked_for(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for part in text.split("want(\"").skip(1) {
                found.insert(part.split('"').next().unwrap().to_owned());
            }
            if let Some(list) = text.split("const MODULES: [").nth(1) {
                let list = list.split('=').nth(1).unwrap().split(']').next().unwrap();
                found.extend(list.split('"').skip(1).step_by(2).map(str::to_owned));
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_in_the_list_for_builders_and_in_those_of_the_initramfs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found = BTreeSet::new();
        asked_for(&root.join("src/run"), &mut found);
        for some in ["overlay", "dm_verity", "algif_skcipher"] {
            assert!(found.contains(some), "{some} in {found:?}");
        }
        for name in &found {
            assert!(WANTED.contains(&name.as_str()), "{name} is not in WANTED");
        }
        let plain = |name: &str| name.replace('-', "_");
        for list in ["modules.list", "modules-vm.list"] {
            let text = std::fs::read_to_string(root.join("initramfs").join(list)).unwrap();
            let lines: Vec<String> = text
                .lines()
                .filter_map(|line| Some(plain(line.split('#').next()?.trim())))
                .collect();
            for name in &found {
                assert!(
                    lines
                        .iter()
                        .any(|line| glob::matches(line.as_bytes(), plain(name).as_bytes())),
                    "{name} is not in {list}"
                );
            }
        }
    }

    #[test]
    fn a_request_that_nothing_answers_is_unknown() {
        let tree = Tree::parse("", "", "", "kernel/fs/ext4/ext4.ko\n");
        let loader = Loader::new(tree, Settings::default());
        assert!(loader.request("ext4").known);
        assert_eq!(loader.request("fs-zzz"), Outcome::default());
    }

    #[test]
    fn a_module_that_cannot_be_loaded_is_named_once() {
        let tree = Tree::parse("kernel/none/such.ko:\n", "alias x-y such\n", "", "");
        let loader = Loader::new(tree, Settings::default());
        let first = loader.request("x-y");
        assert!(first.known && first.loaded.is_empty());
        assert_eq!(first.failed.len(), 1, "{first:?}");
        assert!(first.failed[0].starts_with("kernel module such was not loaded"));
        assert!(loader.request("such").failed.is_empty());
    }
}
