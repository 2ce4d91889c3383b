//! What starts a tree's kernel is put onto the EFI system partition, the program that firmware looks for last.

use std::fs::File;
use std::path::Path;

use super::esp::{self, Esp};
use super::grub::{self, Core, Grub};
use super::image_script;
use super::kernels::{self, Kernel};
use super::loader_entry::{self, Entry};
use super::rooted::{self, Rooted};
use super::uki;
use crate::config::wire::Bootloader;
use crate::error::{Class, Failure, Result, printable};
use crate::image::boot::addon;
use crate::image::boot::arguments::words;
use crate::image::boot::grub_core::BootCode;
use crate::plan::tree_layout;
use crate::plan::tree_root::BootWish;
use crate::report::Reporter;
use crate::run::partitions::{Node, Shared};
use crate::sys::beneath::{Root, Walk};

/// systemd-boot of a tree, without what says for which architecture. Signed by the tree's maker, where it is.
const SYSTEMD_BOOT: &str = "usr/lib/systemd/boot/efi";

/// The kernel's words for kernel-install(8), before those that the distribution has for it.
const WORDS: &str = "etc/kernel/cmdline";

/// Larger files of text are none.
const TEXT: u64 = 1 << 20;

/// Seconds for which systemd-boot shows its menu: machines without a keyboard wait for nobody.
const LOADER_CONF: &str = "timeout 1\n";

/// Installs what `wish` asks for, as far as the tree in the root partition has it.
/// What of it stands in LBA 0 is the answer.
pub fn install(shared: &Shared, wish: &BootWish, reporter: &Reporter) -> Result<Option<BootCode>> {
    let rooted = Rooted::mount(shared.node(tree_layout::ROOT)?)?;
    let tree = Tree {
        root: rooted.root(),
        rooted: &rooted,
        shared,
        wish,
        reporter,
    };
    let mut code = None;
    match wish.bootloader {
        Bootloader::Auto => tree.what_there_is()?,
        Bootloader::Uki => {
            let found = uki::find(tree.root)?;
            let Some(path) = found.last() else {
                return Err(missing("no unified kernel image", uki::PLACES));
            };
            if let Some(why) = tree.cannot_add_to(path)? {
                return Err(Failure::new(
                    Class::Integrity,
                    format!("`disk.kernelArguments` cannot be added to {}: {why}", path.display()),
                )
                .hint("make the image with a newer systemd, put the words into it, or choose another `disk.bootloader`; the disk does not boot now"));
            }
            tree.unified(path)?;
        }
        Bootloader::SystemdBoot => tree.systemd_boot()?,
        Bootloader::None => reporter.warn(
            "no boot loader was installed, as `disk.bootloader` says: what boots this disk is up to you",
        ),
        Bootloader::Grub => code = tree.grub()?,
        Bootloader::ImageScript => code = tree.script()?,
    }
    rooted.finish()?;
    Ok(code)
}

fn missing(what: &str, places: &str) -> Failure {
    Failure::new(
        Class::Integrity,
        format!("the tree has {what}; looked for {places}"),
    )
    .hint("put a kernel and what starts it into the image, or choose another `disk.bootloader`; the disk does not boot now")
}

struct Tree<'a> {
    root: &'a Root,
    rooted: &'a Rooted,
    shared: &'a Shared,
    wish: &'a BootWish,
    reporter: &'a Reporter,
}

impl Tree<'_> {
    /// A unified kernel image before systemd-boot; but it carries its own words, and not each takes more.
    fn what_there_is(&self) -> Result<()> {
        let unified = uki::find(self.root)?;
        let newest = unified.last().map(|path| (path, self.cannot_add_to(path)));
        match newest {
            Some((_, Err(failure))) => Err(failure),
            Some((path, Ok(None))) => self.unified(path),
            _ if self.loader().is_some() => self.systemd_boot(),
            Some((path, Ok(Some(why)))) => Err(missing(
                &format!(
                    "a unified kernel image, {}, whose words `disk.kernelArguments` cannot change ({why}), and no systemd-boot",
                    path.display()
                ),
                &self.loader_places(),
            )),
            None => Err(missing(
                "neither a unified kernel image nor systemd-boot",
                &format!("{}; {}", uki::PLACES, self.loader_places()),
            )),
        }
    }

    /// Why the words that the config asks for cannot be added to those of a unified kernel image.
    fn cannot_add_to(&self, path: &Path) -> Result<Option<String>> {
        let arguments = &self.wish.arguments;
        if arguments.is_empty() {
            return Ok(None);
        }
        if !arguments.removed().is_empty() {
            return Ok(Some("nothing takes away what is in it".to_owned()));
        }
        if self.wish.secure_boot {
            return Ok(Some("with Secure Boot an addon must be signed".to_owned()));
        }
        uki::takes_no_words(self.root, path)
    }

    /// Name of the program that firmware looks for, such as `BOOTX64.EFI`.
    fn fallback(&self) -> Result<&str> {
        let path = self.wish.fallback.as_deref().unwrap_or_default();
        path.rsplit('\\')
            .next()
            .filter(|name| !name.is_empty())
            .ok_or_else(|| Failure::new(Class::Bug, "the plan names no boot program"))
    }

    fn unified(&self, path: &Path) -> Result<()> {
        let line = uki::command_line(self.root, path)?;
        let words = words(&line);
        let root = words.iter().rev().find_map(|w| w.strip_prefix("root="));
        let expected = format!("PARTUUID={}", self.wish.root);
        match root {
            Some("gpt-auto" | "gpt-auto-force") => {}
            Some(root) if root.eq_ignore_ascii_case(&expected) => {}
            Some(root) => self.reporter.warn(format!(
                "the unified kernel image {} starts with root={}, and the root is PARTUUID={}: it boots only if that leads there",
                path.display(),
                printable(root),
                self.wish.root
            )),
            None => self.reporter.info(format!(
                "the unified kernel image {} names no root: its initrd has to find it by the partition's type",
                path.display()
            )),
        }
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .ok_or_else(|| Failure::new(Class::Bug, "a unified kernel image without a name"))?;
        let (file, node) = self.esp()?;
        let mut esp = self.fill(&file, node)?;
        self.copy(&mut esp, path, &format!("EFI/Linux/{name}"))?;
        self.copy(&mut esp, path, &format!("EFI/BOOT/{}", self.fallback()?))?;
        let more = self.wish.arguments.apply("");
        if !more.is_empty() {
            let addon = uki::addon_for(self.root, path, &more)?;
            esp.add(addon::PLACE, &mut addon.as_slice())?;
        }
        esp.finish()?;
        self.remember_words()?;
        let with = if more.is_empty() {
            String::new()
        } else {
            format!(", with {} in an addon", printable(&more))
        };
        self.reporter
            .info(format!("boots by its unified kernel image {name}{with}"));
        Ok(())
    }

    fn systemd_boot(&self) -> Result<()> {
        let (loader, name) = self
            .loader()
            .ok_or_else(|| missing("no systemd-boot", &self.loader_places()))?;
        let kernel = &self.newest_kernel()?;
        let token = self.token()?;
        let (partition, node) = self.esp()?;
        let mut esp = self.fill(&partition, node)?;
        let entry = self.kernel(&mut esp, kernel, &token)?;
        esp.add("loader/loader.conf", &mut LOADER_CONF.as_bytes())?;
        let file = format!("loader/entries/{token}-{}.conf", kernel.version);
        esp.add(&file, &mut entry.text().as_bytes())?;
        self.copy(&mut esp, &loader, &format!("EFI/systemd/{name}"))?;
        self.copy(&mut esp, &loader, &format!("EFI/BOOT/{}", self.fallback()?))?;
        esp.finish()?;
        self.remember_words()?;
        self.reporter.info(format!(
            "boots by systemd-boot: kernel {}, {}",
            kernel.version,
            printable(&entry.options)
        ));
        Ok(())
    }

    fn grub(&self) -> Result<Option<BootCode>> {
        let platform = self
            .wish
            .platform
            .ok_or_else(|| Failure::new(Class::Bug, "the plan does not say for what GRUB is"))?;
        let grub = Grub::find(self.root, platform)
            .ok_or_else(|| missing(&format!("no GRUB for {}", platform.name()), grub::PLACES))?;
        let kernel = self.newest_kernel()?;
        let options = self.options()?;
        grub.files(self.root, &self.title()?, &kernel, &options)?;
        grub::remember(self.root, &self.wish.arguments)?;
        self.remember_words()?;
        let node = self.shared.node(tree_layout::ROOT)?;
        let code = match grub.core(self.rooted, node, self.shared)? {
            Core::Bios(code) => Some(code),
            Core::Efi(program) => {
                let (file, node) = self.esp()?;
                let mut esp = self.fill(&file, node)?;
                let path = format!("EFI/BOOT/{}", self.fallback()?);
                esp.add(&path, &mut program.as_slice())?;
                esp.finish()?;
                None
            }
        };
        self.reporter.info(format!(
            "boots by GRUB for {}: kernel {}, {}",
            platform.name(),
            kernel.version,
            printable(&options)
        ));
        Ok(code)
    }

    fn script(&self) -> Result<Option<BootCode>> {
        if !image_script::is_there(self.rooted) {
            let place = format!("/{}", image_script::SCRIPT);
            return Err(missing("no script that installs a boot loader", &place));
        }
        let options = self.options()?;
        let code = image_script::run(self.rooted, self.shared, self.wish, &options, self.reporter)?;
        self.reporter.info("boots by what its own script installed");
        Ok(code)
    }

    /// The kernel's words, of a tree that keeps its own for kernel-install(8) or for GRUB.
    fn options(&self) -> Result<String> {
        let own = match self.kernel_install_words()? {
            Some(words) => words,
            None => grub::own_words(self.root)?.unwrap_or_default(),
        };
        Ok(loader_entry::options(
            &self.wish.root,
            &own,
            &self.wish.arguments,
        ))
    }

    /// The newest kernel that has an initrd; without one only a kernel with all drivers in it boots.
    fn newest_kernel(&self) -> Result<Kernel> {
        let kernels = kernels::find(self.root)?;
        let newest = kernels
            .iter()
            .rfind(|k| k.initrd.is_some())
            .or(kernels.last());
        let kernel = newest
            .cloned()
            .ok_or_else(|| missing("no kernel", kernels::PLACES))?;
        if kernel.initrd.is_none() {
            self.reporter.warn(format!(
                "kernel {} of the tree has no initrd: it must have every driver for its root in it",
                kernel.version
            ));
        }
        Ok(kernel)
    }

    /// The kernel's words that the tree has for kernel-install(8).
    fn kernel_install_words(&self) -> Result<Option<String>> {
        [WORDS, "usr/lib/kernel/cmdline"]
            .into_iter()
            .find_map(|path| rooted::text(self.root, Path::new(path), TEXT).transpose())
            .transpose()
    }

    /// Has the tree's next kernel started as this one is: with the words of the machine that the tree was made on,
    /// kernel-install(8) and ukify(1) would have it look for that one's root.
    fn remember_words(&self) -> Result<()> {
        let Some(own) = self.kernel_install_words()? else {
            return Ok(());
        };
        let wish = self.wish;
        let options = loader_entry::options(&wish.root, &own, &wish.arguments);
        rooted::write(
            self.root,
            Path::new(WORDS),
            format!("{options}\n").as_bytes(),
        )
    }

    fn title(&self) -> Result<String> {
        let name = self.os("PRETTY_NAME")?;
        Ok(name.unwrap_or_else(|| "Linux".to_owned()))
    }

    /// Puts a kernel and its initrd onto the partition; the entry that starts them.
    fn kernel(&self, esp: &mut Esp<'_>, kernel: &Kernel, token: &str) -> Result<Entry> {
        let place = format!("{token}/{}", kernel.version);
        self.copy(esp, &kernel.file, &format!("{place}/linux"))?;
        if let Some(initrd) = &kernel.initrd {
            self.copy(esp, initrd, &format!("{place}/initrd"))?;
        }
        let own = self.kernel_install_words()?.unwrap_or_default();
        let wish = self.wish;
        Ok(Entry {
            title: self.title()?,
            version: kernel.version.clone(),
            linux: format!("/{place}/linux"),
            initrd: kernel.initrd.is_some().then(|| format!("/{place}/initrd")),
            options: loader_entry::options(&wish.root, &own, &wish.arguments),
        })
    }

    /// The name of the tree's directory on the partition, as kernel-install(8) finds it.
    fn token(&self) -> Result<String> {
        let said = rooted::text(self.root, Path::new("etc/kernel/entry-token"), TEXT)?;
        let candidates = [
            said.map(|text| text.trim().to_owned()),
            self.os("IMAGE_ID")?,
            self.os("ID")?,
        ];
        Ok(candidates
            .into_iter()
            .flatten()
            .find(|token| loader_entry::is_token(token))
            .unwrap_or_else(|| "Default".to_owned()))
    }

    fn os(&self, key: &str) -> Result<Option<String>> {
        for path in ["etc/os-release", "usr/lib/os-release"] {
            if let Some(text) = rooted::text(self.root, Path::new(path), TEXT)? {
                return Ok(loader_entry::os_release(&text, key));
            }
        }
        Ok(None)
    }

    /// systemd-boot in the tree, and its name.
    fn loader(&self) -> Option<(std::path::PathBuf, String)> {
        let name = self.loader_name()?;
        [format!("{name}.signed"), name.clone()]
            .into_iter()
            .map(|file| Path::new(SYSTEMD_BOOT).join(file))
            .find(|path| rooted::is_file(self.root, path))
            .map(|path| (path, name))
    }

    /// `BOOTX64.EFI` is `systemd-bootx64.efi`.
    fn loader_name(&self) -> Option<String> {
        Some(format!("systemd-{}", self.fallback().ok()?.to_lowercase()))
    }

    fn loader_places(&self) -> String {
        format!("/{SYSTEMD_BOOT}/{}", self.loader_name().unwrap_or_default())
    }

    fn esp(&self) -> Result<(File, &Node)> {
        let node = self.shared.node(tree_layout::ESP)?;
        Ok((esp::open(node)?, node))
    }

    fn fill<'f>(&self, file: &'f File, node: &Node) -> Result<Esp<'f>> {
        let sector = self.shared.disk()?.target().sector;
        Esp::new(file, node, sector, &self.wish.esp)
    }

    fn copy(&self, esp: &mut Esp<'_>, from: &Path, to: &str) -> Result<()> {
        let mut file = self.root.file(from, Walk::InRoot)?;
        let length = esp.add(to, &mut file)?;
        if length == 0 {
            return Err(Failure::new(
                Class::Integrity,
                format!("{} of the tree is empty", from.display()),
            ));
        }
        Ok(())
    }
}
