//! /lib/modules/VERSION as depmod(8) describes it: which modules exist, what they need, which names and
//! device ids they answer to. Pure over the texts; [`Tree::load`] reads them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::glob;

/// The largest index file that is read; a full Debian kernel's modules.alias has 1.5 MB.
const LARGEST_INDEX: u64 = 32 << 20;

/// How many modules one request may bring; far above any real chain.
const LONGEST_CHAIN: usize = 500;

/// A module in the order in which it is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name, with `_` for `-`.
    pub name: String,
    /// Its file, below the tree's directory.
    pub path: PathBuf,
}

/// The index files of one kernel's modules.
#[derive(Debug, Default)]
pub struct Tree {
    directory: PathBuf,
    files: HashMap<String, File>,
    before: HashMap<String, Vec<String>>,
    after: HashMap<String, Vec<String>>,
    builtin: HashSet<String>,
    aliases: Aliases,
}

#[derive(Debug)]
struct File {
    path: String,
    needs: Vec<String>,
}

impl Tree {
    /// Reads the tree of kernel `version` below `root`. `None` where there is none: a kernel may have all
    /// that it needs built in.
    pub fn load(root: &Path, version: &str) -> Option<Tree> {
        let directory = root.join("lib/modules").join(version);
        let dep = read(&directory.join("modules.dep"))?;
        let text = |name: &str| read(&directory.join(name)).unwrap_or_default();
        let mut tree = Tree::parse(
            &dep,
            &text("modules.alias"),
            &text("modules.softdep"),
            &text("modules.builtin"),
        );
        tree.directory = directory;
        Some(tree)
    }

    /// Makes a tree of the texts of modules.dep, modules.alias, modules.softdep and modules.builtin.
    pub fn parse(dep: &str, alias: &str, softdep: &str, builtin: &str) -> Tree {
        let mut tree = Tree {
            aliases: Aliases::parse(alias),
            builtin: builtin.lines().map(name_of_path).collect(),
            ..Tree::default()
        };
        for line in dep.lines() {
            let Some((path, needs)) = line.split_once(':') else {
                continue;
            };
            let file = File {
                path: path.to_owned(),
                needs: needs.split_whitespace().map(name_of_path).collect(),
            };
            tree.files.insert(name_of_path(path), file);
        }
        for line in softdep.lines() {
            let mut words = line.split_whitespace();
            let (Some("softdep"), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let name = normal(name);
            // Words before the first `pre:` or `post:` mean nothing (modprobe.d(5)).
            let mut post = None;
            for word in words {
                match (word, post) {
                    ("pre:", _) => post = Some(false),
                    ("post:", _) => post = Some(true),
                    (_, None) => {}
                    (other, Some(post)) => {
                        let list = if post {
                            &mut tree.after
                        } else {
                            &mut tree.before
                        };
                        list.entry(name.clone()).or_default().push(normal(other));
                    }
                }
            }
        }
        tree
    }

    /// How many modules there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The tree's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the kernel has this module built in.
    pub fn is_builtin(&self, name: &str) -> bool {
        self.builtin.contains(&normal(name))
    }

    /// The modules that `request` asks for: the one of that name, else all that answer to it as an alias or
    /// device id. `blacklist` takes out what is only found by alias, as modprobe's blacklist does.
    pub fn find(&self, request: &str, blacklist: &BTreeSet<String>) -> Vec<String> {
        let name = normal(request);
        if self.files.contains_key(&name) {
            return vec![name];
        }
        let mut found: Vec<String> = Vec::new();
        for module in self.aliases.find(request) {
            if !blacklist.contains(module) && !found.iter().any(|f| f == module) {
                found.push(module.to_owned());
            }
        }
        found
    }

    /// `name` and everything that it needs, in loading order: hard and soft dependencies before it, `post`
    /// ones after it. Unknown and built-in names bring nothing.
    pub fn order(&self, name: &str) -> Vec<Module> {
        // An explicit stack: a cycle or a long chain in the files must not overflow ours.
        enum Visit {
            Enter(String),
            Emit(String),
        }
        let mut order = Vec::new();
        let mut seen = HashSet::new();
        let mut stack = vec![Visit::Enter(normal(name))];
        while let Some(visit) = stack.pop() {
            if order.len() >= LONGEST_CHAIN || seen.len() >= LONGEST_CHAIN {
                break;
            }
            match visit {
                Visit::Enter(name) => {
                    if !seen.insert(name.clone()) {
                        continue;
                    }
                    let Some(file) = self.files.get(&name) else {
                        // Soft dependencies may be aliases, such as crypto-crc32c.
                        let found = self.aliases.find(&name);
                        stack.extend(found.into_iter().map(|m| Visit::Enter(m.to_owned())));
                        continue;
                    };
                    let soft = |of: &HashMap<String, Vec<String>>| {
                        of.get(&name).cloned().unwrap_or_default()
                    };
                    stack.extend(soft(&self.after).into_iter().rev().map(Visit::Enter));
                    stack.push(Visit::Emit(name.clone()));
                    // depmod lists the nearest dependency first; the farthest must be loaded first.
                    stack.extend(file.needs.iter().cloned().map(Visit::Enter));
                    stack.extend(soft(&self.before).into_iter().rev().map(Visit::Enter));
                }
                Visit::Emit(name) => {
                    if let Some(file) = self.files.get(&name) {
                        order.push(Module {
                            path: self.directory.join(&file.path),
                            name,
                        });
                    }
                }
            }
        }
        order
    }
}

/// `kernel/drivers/net/virtio_net.ko.xz` is the module `virtio_net`.
fn name_of_path(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    normal(file.split(".ko").next().unwrap_or(file))
}

/// Module names and aliases are compared with `_` for `-`; inside the brackets of a pattern `-` means a range.
pub(super) fn normal(text: &str) -> String {
    let mut depth = 0u32;
    text.chars()
        .map(|c| {
            match c {
                '[' => depth = depth.saturating_add(1),
                ']' => depth = depth.saturating_sub(1),
                '-' if depth == 0 => return '_',
                _ => {}
            }
            c
        })
        .collect()
}

fn read(path: &Path) -> Option<String> {
    let size = std::fs::metadata(path).ok()?.len();
    if size > LARGEST_INDEX {
        log::warn!(
            "{} is too large to be an index: {size} bytes",
            path.display()
        );
        return None;
    }
    let bytes = std::fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// modules.alias, by bus: device ids begin with it, and no machine has devices of every bus.
#[derive(Debug, Default)]
struct Aliases {
    by_bus: BTreeMap<String, Vec<(String, String)>>,
    /// Patterns whose bus itself has a wildcard (`acpi*:`), and aliases without a bus (`fs-ext4`).
    others: Vec<(String, String)>,
}

impl Aliases {
    fn parse(text: &str) -> Aliases {
        let mut aliases = Aliases::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some("alias"), Some(pattern), Some(module)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let pattern = normal(pattern);
            let entry = (pattern, normal(module));
            match bus(&entry.0) {
                Some(bus) => aliases
                    .by_bus
                    .entry(bus.to_owned())
                    .or_default()
                    .push(entry),
                None => aliases.others.push(entry),
            }
        }
        aliases
    }

    fn find(&self, text: &str) -> Vec<&str> {
        let text = normal(text);
        let of_bus = bus(&text).and_then(|b| self.by_bus.get(b));
        of_bus
            .into_iter()
            .flatten()
            .chain(&self.others)
            .filter(|(pattern, _)| glob::matches(pattern.as_bytes(), text.as_bytes()))
            .map(|(_, module)| module.as_str())
            .collect()
    }
}

fn bus(pattern: &str) -> Option<&str> {
    let (bus, _) = pattern.split_once(':')?;
    (!bus.contains(['*', '?', '['])).then_some(bus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines of Debian 12's linux-image-cloud-amd64 and linux-image-amd64.
    const DEP: &str = "\
kernel/drivers/net/virtio_net.ko: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko
kernel/net/core/failover.ko:
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/scsi/sd_mod.ko.xz: kernel/drivers/scsi/scsi_mod.ko.xz kernel/drivers/scsi/scsi_common.ko.xz
kernel/drivers/scsi/scsi_mod.ko.xz: kernel/drivers/scsi/scsi_common.ko.xz
kernel/drivers/scsi/scsi_common.ko.xz:
kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko
kernel/lib/crc16.ko:
kernel/fs/mbcache.ko:
kernel/fs/jbd2/jbd2.ko:
kernel/fs/btrfs/btrfs.ko:
kernel/arch/x86/crypto/crc32c-intel.ko:
kernel/crypto/crc32c_generic.ko:
kernel/drivers/vfio/vfio.ko:
kernel/drivers/vfio/vfio_iommu_type1.ko:
kernel/fs/nls/nls_ascii.ko:
";
    const ALIAS: &str = "\
# Aliases extracted from modules themselves.
alias virtio:d00000001v* virtio_net
alias scsi:t-0x14* sd_mod
alias scsi:t-0x00* sd_mod
alias fs-ext4 ext4
alias ext3 ext4
alias crypto-crc32c crc32c_intel
alias crypto-crc32c crc32c_generic
alias acpi*:PNP0C14:* wmi
alias pci:v00008086d0000100Esv*sd*bc*sc*i* e1000
alias nls_us-ascii nls_ascii
alias of:N*T*Cbrcm,bcm2835-mmcC* bcm2835_mmc
";
    const SOFTDEP: &str = "\
# Soft dependencies extracted from modules themselves.
softdep btrfs pre: crypto-crc32c
softdep vfio post: vfio_iommu_type1 vfio_iommu_spapr_tce
softdep ext4 pre: builtin-thing
";
    const BUILTIN: &str =
        "kernel/fs/binfmt_script.ko\nkernel/arch/x86/crypto/libblake2s-x86_64.ko\n";

    fn tree() -> Tree {
        Tree::parse(DEP, ALIAS, SOFTDEP, BUILTIN)
    }

    fn names(name: &str) -> Vec<String> {
        tree().order(name).into_iter().map(|m| m.name).collect()
    }

    fn found(request: &str) -> Vec<String> {
        tree().find(request, &BTreeSet::new())
    }

    #[test]
    fn what_a_module_needs_comes_before_it() {
        assert_eq!(
            names("virtio-net"),
            [
                "virtio_ring",
                "virtio",
                "failover",
                "net_failover",
                "virtio_net"
            ]
        );
        assert_eq!(names("sd_mod"), ["scsi_common", "scsi_mod", "sd_mod"]);
        assert_eq!(
            tree().order("scsi_common")[0].path,
            Path::new("kernel/drivers/scsi/scsi_common.ko.xz")
        );
        assert!(names("no_such_module").is_empty());
    }

    #[test]
    fn soft_dependencies_before_and_after_also_by_alias() {
        let order = names("btrfs");
        assert_eq!(order.last().map(String::as_str), Some("btrfs"));
        assert!(order.contains(&"crc32c_intel".to_owned()));
        assert_eq!(names("vfio"), ["vfio", "vfio_iommu_type1"]);
        assert_eq!(names("ext4"), ["jbd2", "mbcache", "crc16", "ext4"]);
    }

    #[test]
    fn device_ids_file_systems_and_code_pages_find_their_modules() {
        assert_eq!(found("virtio:d00000001v00001AF4"), ["virtio_net"]);
        assert_eq!(found("scsi:t-0x00"), ["sd_mod"]);
        assert_eq!(found("fs-ext4"), ["ext4"]);
        assert_eq!(found("acpi:PNP0C14:"), ["wmi"]);
        assert_eq!(found("nls_us_ascii"), ["nls_ascii"]);
        assert_eq!(found("crypto-crc32c"), ["crc32c_intel", "crc32c_generic"]);
        assert_eq!(found("of:NmmcT(null)Cbrcm,bcm2835-mmcCx"), ["bcm2835_mmc"]);
        assert_eq!(found("nls_ascii"), ["nls_ascii"]);
        assert!(found("pci:v00008086d00001533sv0sd0bc02sc00i00").is_empty());
    }

    #[test]
    fn the_blacklist_hides_what_an_alias_finds_not_what_is_named() {
        let blacklist = BTreeSet::from(["crc32c_intel".to_owned(), "ext4".to_owned()]);
        assert_eq!(tree().find("crypto-crc32c", &blacklist), ["crc32c_generic"]);
        assert_eq!(tree().find("ext4", &blacklist), ["ext4"]);
        assert!(tree().find("fs-ext4", &blacklist).is_empty());
    }

    #[test]
    fn built_in_modules_are_known() {
        assert!(tree().is_builtin("libblake2s-x86_64"));
        assert!(!tree().is_builtin("ext4"));
    }

    #[test]
    fn a_cycle_ends() {
        let tree = Tree::parse("a.ko: b.ko\nb.ko: a.ko\n", "", "softdep a pre: a b\n", "");
        let order: Vec<_> = tree.order("a").into_iter().map(|m| m.name).collect();
        assert_eq!(order, ["b", "a"]);
    }

    proptest! {
        #[test]
        fn any_texts_parse_without_a_panic(
            dep in "[a-c./: \\n]{0,80}", alias in "(alias [a-c:*\\[-]{0,5} [a-c]\\n){0,6}",
            softdep in "(softdep [a-c] (pre: |post: )?[a-c]\\n){0,6}",
        ) {
            let tree = Tree::parse(&dep, &alias, &softdep, "");
            for name in ["a", "b", "c"] {
                let order = tree.order(name);
                let distinct: HashSet<_> = order.iter().map(|m| m.name.clone()).collect();
                prop_assert_eq!(distinct.len(), order.len());
                let _ = tree.find(name, &BTreeSet::new());
            }
        }
    }
}
