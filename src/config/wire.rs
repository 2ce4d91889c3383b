//! The boot config as it is written: syntax only, versioned, every unknown key an error. What it means is
//! [`super::request`]'s business. `ironroot schema` prints the JSON Schema of these types.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::{Amount, ByteSize, Comparison, HumanDuration, SizeText};
use crate::host::Transport;
use crate::units::Digest;

/// Version of the boot config format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiVersion {
    /// The only version so far.
    #[serde(rename = "ironroot.dev/v1alpha1")]
    V1Alpha1,
}

/// Kind of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    /// A boot config.
    BootConfig,
}

/// What a network-booted machine shall run, and from where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BootConfig {
    /// Version of this format.
    pub api_version: ApiVersion,
    /// Kind of this document.
    pub kind: Kind,
    /// Who this machine is and for whom it boots.
    #[serde(default)]
    pub metadata: Metadata,
    /// How often this machine network-boots into an installer.
    #[serde(default)]
    pub boot_policy: BootPolicy,
    /// The operating system image. Required unless `bootPolicy` is `None`.
    pub image: Option<Image>,
    /// Install on a disk. Exactly one of `disk` and `memory`, unless `bootPolicy` is `None`.
    pub disk: Option<Disk>,
    /// Run from memory, the disks untouched.
    pub memory: Option<Memory>,
    /// Paths that outlive a reboot or a reinstall.
    #[serde(default)]
    pub preserve: Vec<Preserve>,
    /// Ignition config for the installed system.
    pub ignition: Option<Ignition>,
    /// Network configuration of the session.
    pub network: Option<Network>,
    /// PEM certificates of further certificate authorities, for every fetch.
    #[serde(default)]
    pub ca: Vec<String>,
    /// Proxies for every fetch and report; where it is given, it replaces those of command line and environment.
    pub proxy: Option<Proxy>,
    /// Who is told how it went.
    pub report: Option<Report>,
    /// What happens after success. Default: `Reboot` for a disk, `Boot` for memory.
    pub then: Option<Then>,
    /// How long network errors are retried, and what happens when all is lost.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// How long disks and sources that are missing are waited for. Default: 30s in an initrd, else 0s.
    pub wait: Option<HumanDuration>,
}

/// Who this machine is and for whom it boots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Metadata {
    /// Name of this config, for people and reports.
    pub name: Option<String>,
    /// Who the machine is claimed by; part of the identity of an installation.
    pub claim: String,
    /// Raised to ask for a reinstall; part of the identity of an installation.
    pub generation: Option<u64>,
}

/// How often this machine network-boots into an installer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootPolicy {
    /// Install, then never again by itself: the same installation found on the disk is booted.
    #[default]
    NetworkBootOnce,
    /// Carry out the config at each network boot.
    NetworkBootAlways,
    /// Touch nothing.
    None,
}

/// The operating system image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// `https://…`, `http://…`, `oci://…`, `file:///…`, the path of a file or block device; or `live:`, the root that
    /// is running, which `ironroot install` copies.
    pub url: String,
    /// Other places of the same bytes, tried in order.
    #[serde(default)]
    pub mirrors: Vec<String>,
    /// Digest of what is downloaded: `sha256:…` or `sha512:…`.
    #[schemars(with = "Option<String>")]
    pub digest: Option<Digest>,
    /// Digest of the decoded content.
    #[schemars(with = "Option<String>")]
    pub content_digest: Option<Digest>,
    /// URL of a checksum file that names the image.
    pub checksums: Option<String>,
    /// Detached signature of what is downloaded, or of the checksum file.
    pub signature: Option<Signature>,
    /// What proves this machine to a server that asks for a certificate.
    pub client_certificate: Option<ClientCertificate>,
    /// Credentials for a registry: a docker `config.json`, its text or its path. Default: the initrd's
    /// `/etc/ironroot/docker-config.json`.
    pub credentials: Option<String>,
    /// The registry is spoken to without TLS.
    #[serde(default)]
    pub plain_http: bool,
    /// What the image is.
    #[serde(default)]
    pub kind: ImageKind,
    /// Length of what is downloaded, where it is known: room is demanded before the download.
    pub size: Option<ByteSize>,
    /// Length of the decoded content, where it is known.
    pub content_size: Option<ByteSize>,
    /// Headers of every request for the image.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Forgives a missing proof (no digest, no signature), never a wrong one.
    #[serde(default)]
    pub insecure: bool,
    /// Reads back what was written and compares, before the disk becomes bootable.
    #[serde(default)]
    pub verify_disk: bool,
}

/// A TLS client certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientCertificate {
    /// The certificate and those up to the server's CA, in PEM; or the path of such a file.
    pub certificate: String,
    /// The private key in PEM, not encrypted; or the path of such a file.
    pub private_key: String,
}

/// What an image is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImageKind {
    /// Found from its first bytes.
    #[default]
    Auto,
    /// A whole disk: partition table and all.
    Disk,
    /// A file tree: tar, squashfs, erofs.
    Tree,
}

/// A detached signature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signature {
    /// Kind of signature.
    #[serde(rename = "type")]
    pub kind: SignatureKind,
    /// The public key. Default: every key of that kind in the initrd's `/etc/ironroot/keys`.
    pub public_key: Option<String>,
    /// Where the signature is. Default: the URL of what it signs, with `.minisig` or `.sig` behind the path.
    pub url: Option<String>,
    /// What it is of.
    #[serde(default)]
    pub of: SignatureOf,
}

/// What a detached signature is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SignatureOf {
    /// The image as it is downloaded.
    #[default]
    Image,
    /// The file that `checksums` names.
    Checksums,
}

/// Kind of a detached signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SignatureKind {
    /// minisign.
    Minisign,
    /// OpenPGP.
    Openpgp,
}

/// Install on a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Disk {
    /// Which disks are allowed.
    pub select: Select,
    /// What to do when several disks are allowed.
    pub pick: Pick,
    /// What may be erased. Default: `IfBlank`, under `NetworkBootAlways` `IfOurs`.
    pub overwrite: Option<Overwrite>,
    /// Partitions that survive: labels (with `*` and `?`) or numbers. Default: none.
    pub keep: Vec<String>,
    /// How the old content goes. Default: `Signatures`.
    pub wipe: Wipe,
    /// Label or number of the image's partition that takes the free space behind it; with a tree the root, which does
    /// so by itself. Default: none.
    pub grow: Option<String>,
    /// Whether the disk carries the record of its installation.
    pub record: RecordPolicy,
    /// Further partitions, behind those of the image. Default: none.
    pub partitions: Vec<Partition>,
    /// Whether disk and partitions keep the GUIDs of the image.
    pub guids: Guids,
    /// Kind of the partition table that a tree's disk gets. Default: `gpt`.
    pub table: Option<TableKind>,
    /// How the system is made bootable.
    pub bootloader: Bootloader,
    /// Boot entries of UEFI firmware.
    pub efi: Efi,
    /// Kernel arguments of the installed system.
    pub kernel_arguments: KernelArguments,
    /// Files written into the installed system.
    pub files: Vec<InjectedFile>,
}

/// Which disks are allowed: all given keys must match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Select {
    /// Serial number, exactly.
    pub serial: Option<String>,
    /// World wide name, exactly, as sysfs (`naa.…`, `eui.…`) or udev (`0x…`) writes it.
    pub wwn: Option<String>,
    /// Model; `*` and `?` match as in a shell.
    pub model: Option<String>,
    /// Vendor, exactly.
    pub vendor: Option<String>,
    /// Size with a comparison: `>=200GiB`, `<2TB`, `=500GB`; or a range: `200GiB..2TB`.
    pub size: Option<Comparison>,
    /// Spins.
    pub rotational: Option<bool>,
    /// How the disk is attached.
    pub transport: Option<Transport>,
    /// Device node or one of its links; `*` and `?` match as in a shell.
    pub path: Option<String>,
    /// SCSI host:channel:target:lun.
    pub hctl: Option<String>,
}

/// What to do when several disks are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Pick {
    /// Refuse.
    #[default]
    Only,
    /// The smallest.
    Smallest,
    /// The largest.
    Largest,
    /// The first by kernel name.
    First,
}

/// What may be erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Overwrite {
    /// A blank disk only, or one on which this same installation was cut off.
    IfBlank,
    /// That, or any disk that ironroot installed.
    IfOurs,
    /// Whatever is there.
    Always,
}

/// How the old content goes. Signatures at head and tail of disk and old partitions go in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Wipe {
    /// Nothing but these.
    #[default]
    Signatures,
    /// The whole disk is discarded (TRIM): quick, and what is read afterwards is the disk's choice. A disk that
    /// cannot do that gets a warning.
    Discard,
    /// The whole disk is zeroed, by the disk itself where it can.
    Zero,
}

/// Whether the disk carries the record of its installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RecordPolicy {
    /// It does; an image that needs the room is refused.
    #[default]
    Required,
    /// It does not: the next network boot cannot see that this machine is installed.
    Skip,
}

/// A further partition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Partition {
    /// GPT partition name.
    pub label: String,
    /// Size: bytes with a unit, a percentage of the free space, or `Rest`.
    pub size: SizeText,
    /// Type: `linux`, `home`, `srv`, `var`, `tmp`, `swap`, `lvm`, `raid`, or a GUID. Default: `linux`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// File system to make: `ext4`, `xfs`, `vfat`. Default: none, for a tree's root `ext4`.
    pub filesystem: Option<String>,
}

/// Whether disk and partitions keep the GUIDs of the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Guids {
    /// They do, so that `root=PARTUUID=` inside the image finds its partition.
    #[default]
    Keep,
    /// New random ones (for an MBR a new disk signature): two disks with one image can be told apart.
    New,
}

/// Kind of a partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// GUID partition table.
    Gpt,
    /// Master boot record.
    Mbr,
}

/// How a system is made bootable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Bootloader {
    /// A disk image brings its own; for a tree, what fits firmware and content.
    #[default]
    Auto,
    /// A unified kernel image in the ESP.
    Uki,
    /// systemd-boot.
    SystemdBoot,
    /// GRUB.
    Grub,
    /// The image's own script.
    ImageScript,
    /// None.
    None,
}

/// Boot entries of UEFI firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Efi {
    /// Make an entry for the installed system.
    pub entry: bool,
    /// Where that entry stands.
    pub boot_order: BootOrder,
    /// Boot it next, once.
    pub boot_next: bool,
}

impl Default for Efi {
    fn default() -> Efi {
        Efi {
            entry: true,
            boot_order: BootOrder::Unchanged,
            boot_next: true,
        }
    }
}

/// Where the entry of the installed system stands in the firmware's boot order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootOrder {
    /// Last, behind all that is there: a network-first machine stays one.
    #[default]
    Unchanged,
    /// First.
    DiskFirst,
    /// Behind every network entry, before all others.
    NetworkFirst,
}

/// Kernel arguments of the installed system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KernelArguments {
    /// Added.
    pub append: Vec<String>,
    /// Taken away.
    pub remove: Vec<String>,
}

/// A file written into the installed system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InjectedFile {
    /// Absolute path.
    pub path: String,
    /// Octal mode. Default: 0644.
    pub mode: Option<String>,
    /// Text of the file.
    pub contents: String,
}

/// Run from memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Memory {
    /// Size of the root's tmpfs: bytes with a unit, or a percentage of memory.
    pub size: Option<Amount>,
    /// Inodes of the root's tmpfs.
    pub inodes: Option<u64>,
    /// How the root is made.
    pub method: MemoryMethod,
    /// Paths that get a plain tmpfs of their own: container runtimes cannot work on an overlay.
    pub scratch: Vec<String>,
    /// Swap in compressed memory for the session: its size, or a percentage of memory.
    pub zram: Option<Amount>,
    /// dm-verity of a squashfs or erofs image whose hash tree is part of it.
    pub verity: Option<Verity>,
    /// A file system on a disk that takes what is written, so that it outlives the session. Default: none, memory
    /// takes it.
    pub upper: Option<Upper>,
    /// Paths that show what the root has, and what is written there stays in memory although `upper` keeps the rest.
    pub volatile: Vec<String>,
}

/// What is written in a session, kept on a file system that exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Upper {
    /// Where the file system is.
    pub source: PreserveSource,
    /// Directory in it that holds the overlay's directories `upper` and `work`. Default: its root.
    pub subdir: Option<String>,
}

/// dm-verity: every block is proven when it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verity {
    /// The root hash that `veritysetup format` printed.
    pub root_hash: String,
    /// Where the hash tree's superblock begins in the image (`--hash-offset`).
    pub hash_offset: ByteSize,
}

/// How an in-memory root is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemoryMethod {
    /// By the image's kind.
    #[default]
    Auto,
    /// The image read-only below a tmpfs.
    Overlay,
    /// The image unpacked into a tmpfs.
    Extract,
}

/// A path that outlives a reboot or a reinstall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preserve {
    /// Absolute path in the new root.
    pub target: String,
    /// Where the content lives.
    pub source: PreserveSource,
    /// Directory (or file) in the source's file system. Default: its root; for a file, the target's own path.
    pub subdir: Option<String>,
    /// Directory or file.
    #[serde(default)]
    pub kind: PreserveKind,
    /// How it is attached.
    #[serde(default)]
    pub method: PreserveMethod,
    /// Whether a blank source gets a file system.
    #[serde(default)]
    pub format: PreserveFormat,
    /// Which file system a blank source gets, and any other must have: `ext4`, `xfs`, `vfat`. Default: ext4 for
    /// a blank one, any for another.
    pub filesystem: Option<String>,
    /// Size of the partition that is made on free space where no partition has the source's `partlabel`. `source.disk`
    /// says on which disk; default: the only one. Default: none is made.
    pub create: Option<ByteSize>,
    /// How an encrypted source is opened. Default: it is not encrypted.
    pub luks: Option<Luks>,
    /// Whether the image's content fills it at first use.
    #[serde(default)]
    pub seed: Seed,
    /// Octal mode of a directory or file that is made. Default: that of the image's.
    pub mode: Option<String>,
    /// `uid:gid` of a directory or file that is made. Default: that of the image's.
    pub owner: Option<String>,
    /// Mount options.
    #[serde(default)]
    pub options: Vec<String>,
    /// Whether the boot stops without it.
    #[serde(default = "yes")]
    pub required: bool,
    /// Whether it belongs to one claim.
    #[serde(default)]
    pub claim_bound: bool,
    /// What happens to what another claim left.
    #[serde(default)]
    pub other_claim: OtherClaim,
}

/// What happens to what another claim left in a preserved path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OtherClaim {
    /// The boot is refused.
    #[default]
    Refuse,
    /// It is erased.
    Erase,
}

/// How an encrypted source is opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Luks {
    /// Path of the key file in the initrd. All of its bytes are the key, a newline at the end too.
    pub key_file: String,
}

fn yes() -> bool {
    true
}

/// Where preserved content lives: exactly one way of naming it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PreserveSource {
    /// GPT partition name.
    pub partlabel: Option<String>,
    /// GPT partition GUID.
    pub partuuid: Option<String>,
    /// File system label.
    pub label: Option<String>,
    /// File system UUID.
    pub uuid: Option<String>,
    /// Selector of a disk.
    pub disk: Option<Select>,
    /// Partition number on that disk.
    pub partition: Option<u32>,
}

/// What a preserved path is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PreserveKind {
    /// A directory.
    #[default]
    Dir,
    /// A file.
    File,
}

/// How preserved content is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PreserveMethod {
    /// A bind mount.
    #[default]
    Bind,
    /// An overlay over the image's content.
    Overlay,
    /// The file system itself.
    Mount,
}

/// Whether a blank source gets a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreserveFormat {
    /// Never.
    #[default]
    Never,
    /// When nothing at all is there.
    IfBlank,
}

/// Whether the image's content fills a preserved path at first use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Seed {
    /// No.
    #[default]
    None,
    /// Once.
    FromImageOnce,
}

/// Ignition config for the installed system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ignition {
    /// Where it is.
    pub url: String,
}

/// Network configuration of the session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Network {}

/// Proxies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Proxy {
    /// The proxy for `http://` URLs: `http://[user:password@]host:port`.
    pub http: Option<String>,
    /// The proxy for `https://` URLs.
    pub https: Option<String>,
    /// Hosts, domains, addresses and CIDR blocks that are reached without one; `*` is all.
    pub no_proxy: Vec<String>,
}

/// Who is told how it went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Report {
    /// Gets one POST of `{"status":"Success"|"Failure","error":"…","systemUUID":"…"}` when the run ends.
    pub url: Option<String>,
    /// metal-operator's registry: gets `{"systemUUID":"…","booted":true}` after success.
    pub bootstate: Option<String>,
    /// Headers of every report.
    pub headers: BTreeMap<String, String>,
    /// Every event goes to `url`, not only the last.
    pub events: bool,
}

/// What happens after success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Then {
    /// Run the new system from here.
    Boot,
    /// Restart the machine.
    Reboot,
    /// Start the installed kernel without the firmware.
    Kexec,
    /// Power off.
    PowerOff,
    /// Stay and do nothing.
    Park,
}

/// How long network errors are retried, and what happens when all is lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OnFailure {
    /// How long network errors are retried without progress. Default: 30m in an initrd, else 1m.
    pub retry_for: Option<HumanDuration>,
    /// What PID 1 does in the end.
    pub then: OnFailureThen,
}

/// What PID 1 does after a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailureThen {
    /// Stay, the reason on the console.
    #[default]
    Park,
    /// Power off.
    PowerOff,
    /// Restart the machine.
    Reboot,
}

/// The JSON Schema of the boot config, pretty-printed.
pub fn schema() -> String {
    let schema = schemars::schema_for!(BootConfig);
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}
