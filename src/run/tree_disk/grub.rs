//! The tree's own GRUB: its core is made by the tree's grub-mkimage out of the tree's modules, and put where the
//! firmware finds it. grub-install would write LBA 0 itself; that is held back here.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use super::inside::Inside;
use super::kernels::Kernel;
use super::loader_entry::{SKIP, grub_cfg};
use super::rooted::{self, Rooted};
use crate::config::wire::TableKind;
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::image::boot::arguments::Edit;
use crate::image::boot::grub;
use crate::image::boot::grub_core::{self, BootCode, Platform};
use crate::plan::tree_layout;
use crate::run::partitions::{Node, Shared};
use crate::sys::beneath::{Root, Walk};
use crate::sys::block;
use crate::units::{Bytes, SectorSize};

/// The program that makes a core, and the directory of GRUB's files that goes with it. Debian and most others; Fedora
/// and SUSE.
const MAKERS: [(&str, &str); 4] = [
    ("usr/bin/grub-mkimage", "boot/grub"),
    ("usr/bin/grub2-mkimage", "boot/grub2"),
    ("usr/sbin/grub-mkimage", "boot/grub"),
    ("usr/sbin/grub2-mkimage", "boot/grub2"),
];

/// Where the modules are, but for the platform.
const MODULE_FOLDERS: [&str; 3] = ["usr/lib/grub", "usr/share/grub2", "usr/lib/grub2"];

/// What a tree must have for GRUB, as messages say it.
pub const PLACES: &str = "/usr/bin/grub-mkimage or grub2-mkimage, and /usr/lib/grub/PLATFORM or /usr/share/grub2/PLATFORM";

/// What finds grub.cfg and starts Linux. With these in the core nothing else has to be read to boot.
const REQUIRED: [&str; 4] = ["normal", "linux", "configfile", "search"];

/// What else a grub.cfg uses, where the tree has it.
const OPTIONAL: [&str; 9] = [
    "part_msdos",
    "search_fs_uuid",
    "search_label",
    "echo",
    "test",
    "minicmd",
    "gzio",
    "serial",
    "all_video",
];

/// Making a core takes a second.
const MAKE: Duration = Duration::from_secs(300);

/// Cores have some hundred KiB; for UEFI with all modules some MiB.
const CORE: u64 = 16 << 20;

/// Larger files are no modules.
const MODULE: u64 = 8 << 20;

const DEFAULTS: &str = "etc/default/grub";
const TEXT: u64 = 1 << 20;

/// GRUB in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grub {
    /// The program that makes a core.
    maker: &'static str,
    /// Where its files are at boot.
    directory: &'static str,
    /// The modules.
    modules: PathBuf,
    platform: Platform,
}

/// What a core is started from.
#[derive(Debug)]
pub enum Core {
    /// It is in the BIOS boot partition, and this code in LBA 0 loads it.
    Bios(BootCode),
    /// A program that firmware starts.
    Efi(Vec<u8>),
}

impl Grub {
    /// The one that a tree has for `platform`.
    pub fn find(root: &Root, platform: Platform) -> Option<Grub> {
        let (maker, directory) = MAKERS
            .into_iter()
            .find(|(program, _)| rooted::is_file(root, Path::new(program)))?;
        let modules = MODULE_FOLDERS
            .iter()
            .map(|place| Path::new(place).join(platform.name()))
            .find(|place| rooted::is_file(root, &place.join("moddep.lst")))?;
        Some(Grub {
            maker,
            directory,
            modules,
            platform,
        })
    }

    /// Makes the core, and puts it where it is started from as far as that is no file of the EFI system partition.
    pub fn core(
        &self,
        rooted: &Rooted,
        (node, table): (&Node, TableKind),
        shared: &Shared,
    ) -> Result<Core> {
        let root = rooted.root();
        let has =
            |module: &&str| rooted::is_file(root, &self.modules.join(format!("{module}.mod")));
        let own: &[&str] = if self.platform.is_efi() {
            &["fat"]
        } else {
            &["biosdisk"]
        };
        let (reader, scheme) = match table {
            TableKind::Gpt => ("part_gpt", "gpt"),
            TableKind::Mbr => ("part_msdos", "msdos"),
        };
        // Of its drivers the one for ext2 reads ext4.
        let driver = match rooted::kind(node)? {
            "xfs" => "xfs",
            _ => "ext2",
        };
        let own = own.iter().chain(&REQUIRED).chain([&reader, &driver]);
        let required: Vec<&str> = own.copied().collect();
        if let Some(missing) = required.iter().find(|module| !has(module)) {
            return Err(Failure::new(
                Class::Integrity,
                format!("the tree's GRUB has no module {missing}"),
            )
            .hint("put all of GRUB into the image; the disk does not boot now"));
        }
        let modules = format!("/{}", self.modules.display());
        // On the disk that the firmware started from, whatever else is in the machine.
        let root_number = tree_layout::root(table);
        let prefix = format!("(,{scheme}{root_number})/{}", self.directory);
        let out = "/run/core.img";
        let mut args = vec![
            "-O",
            self.platform.name(),
            "-d",
            &modules,
            "-o",
            out,
            "-p",
            &prefix,
        ];
        args.extend(&required);
        args.extend(
            OPTIONAL
                .iter()
                .filter(|module| **module != reader && has(module)),
        );
        let inside = Inside::of(rooted, node, shared)?;
        let program = format!("/{}", self.maker);
        let (output, status, run) = inside.execute(&program, &args, &[], MAKE)?;
        if !status.success() {
            return Err(Failure::new(
                Class::Media,
                format!(
                    "{program} of the tree failed ({status}): {}",
                    printable(output.stderr.trim())
                ),
            )
            .hint("check the GRUB of the image; the disk does not boot now"));
        }
        let core = run.read(Path::new("core.img"), Walk::NoLinks, CORE)?;
        if self.platform.is_efi() {
            return Ok(Core::Efi(core));
        }
        let boot = self.modules.join("boot.img");
        let boot = root.read(&boot, Walk::InRoot, MODULE)?;
        let wrong = |why| {
            Failure::new(Class::Integrity, format!("the tree's GRUB: {why}"))
                .hint("check the GRUB of the image; the disk does not boot now")
        };
        match table {
            TableKind::Gpt => {
                let node = shared.node(tree_layout::BIOS_BOOT)?;
                let placed = grub_core::place(&boot, &core, node.place.start);
                let (start, core) = placed.map_err(wrong)?;
                embed(node, core)?;
                Ok(Core::Bios(start))
            }
            // Between the table and the first partition, which is written with the table.
            TableKind::Mbr => {
                let placed = grub_core::place(&boot, &core, Bytes(SectorSize::S512.get()));
                let (start, core) = placed.map_err(wrong)?;
                Ok(Core::Bios(start.with_core(core).map_err(wrong)?))
            }
        }
    }

    /// Puts GRUB's files into the root: modules for what a later grub.cfg asks for, and the grub.cfg.
    pub fn files(&self, root: &Root, title: &str, kernel: &Kernel, options: &str) -> Result<()> {
        let directory = Path::new(self.directory).join(self.platform.name());
        root.make_directories(&directory, 0o755, Walk::InRoot)?;
        for name in rooted::names(root, &self.modules)? {
            let kind = Path::new(&name).extension().and_then(|e| e.to_str());
            if matches!(kind, Some("mod" | "lst")) {
                let content = root.read(&self.modules.join(&name), Walk::InRoot, MODULE)?;
                rooted::write(root, &directory.join(&name), &content)?;
            }
        }
        let path = |path: &Path| format!("/{}", path.display());
        let initrd = kernel.initrd.as_deref().map(path);
        let text = grub_cfg(title, &path(&kernel.file), initrd.as_deref(), options);
        let config = Path::new(self.directory).join("grub.cfg");
        rooted::write(root, &config, text.as_bytes())
    }
}

/// Writes a core into the BIOS boot partition, the rest of which is zero then.
fn embed(node: &Node, mut core: Vec<u8>) -> Result<()> {
    let what = || format!("writing GRUB's core to {}", node.path.display());
    let length = usize::try_from(node.place.size.0).context(Class::Bug, what)?;
    if core.len() > length {
        return Err(Failure::new(
            Class::Space,
            format!(
                "the core of the tree's GRUB has {} bytes, and the BIOS boot partition {length}",
                core.len()
            ),
        ));
    }
    core.resize(length, 0);
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(&node.path)
        .context(Class::Media, what)?;
    block::write_at(&file, &core, Bytes::ZERO).context(Class::Media, what)?;
    block::flush(&file).context(Class::Media, what)
}

/// The kernel's words of a tree whose GRUB has them.
pub fn own_words(root: &Root) -> Result<Option<String>> {
    let text = rooted::text(root, Path::new(DEFAULTS), TEXT)?;
    Ok(text.map(|text| grub::defaults(&text)))
}

/// Has the tree's next kernel started with the same words.
pub fn remember(root: &Root, change: &Edit) -> Result<()> {
    let Some(text) = rooted::text(root, Path::new(DEFAULTS), TEXT)? else {
        return Ok(());
    };
    let mut append = change.appended().to_vec();
    if append.iter().all(|word| word != SKIP) {
        append.push(SKIP.to_owned());
    }
    let text = grub::edit_defaults(&text, &Edit::new(&append, change.removed()));
    rooted::write(root, Path::new(DEFAULTS), text.as_bytes())
}
