//! What a boot config means: no text that is a URL, no key that is not carried out. Every problem is
//! reported with its JSON path; what this version does not do is refused by name, never ignored.

use std::path::PathBuf;
use std::time::Duration;

use super::parse::Problem;
use super::wire;
use crate::stream::{
    HttpUrl, Keyring, Location, Proxies, RegistryAccess, SignatureKind, SignatureOf,
};
use crate::units::Digest;

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Request {
    /// `metadata.name`.
    pub name: Option<String>,
    /// `metadata.claim`.
    pub claim: String,
    /// `metadata.generation`.
    pub generation: u64,
    /// `bootPolicy`.
    pub policy: wire::BootPolicy,
    /// What to do; `None` only under [`wire::BootPolicy::None`].
    pub install: Option<DiskInstall>,
    /// PEM certificates for every fetch.
    pub ca: Vec<String>,
    /// Proxies for every fetch; `None`: those of command line and environment.
    pub proxies: Option<Proxies>,
    /// Who is told.
    pub report: Report,
    /// What happens after success.
    pub then: Then,
    /// How long network errors are retried without progress; `None`: the default of the place.
    pub retry_for: Option<Duration>,
    /// What PID 1 does after a failure.
    pub on_failure: wire::OnFailureThen,
    /// How long missing disks are waited for; `None`: the default of the place.
    pub wait: Option<Duration>,
}

/// Install an image on a disk.
#[derive(Clone, Debug)]
pub struct DiskInstall {
    /// The image.
    pub image: Image,
    /// Which disks are allowed.
    pub select: wire::Select,
    /// What to do when several are.
    pub pick: wire::Pick,
    /// What may be erased.
    pub overwrite: wire::Overwrite,
    /// Whether the disk carries its record.
    pub record: wire::RecordPolicy,
    /// Boot entries.
    pub efi: wire::Efi,
}

/// An image and its proof.
#[derive(Clone, Debug)]
pub struct Image {
    /// The URL, then the mirrors.
    pub locations: Vec<Location>,
    /// Digest of the download.
    pub digest: Option<Digest>,
    /// Digest of the content.
    pub content_digest: Option<Digest>,
    /// A file of checksums that names the image.
    pub checksums: Option<Location>,
    /// A detached signature.
    pub signature: Option<Signature>,
    /// Headers. They may be secrets.
    pub headers: Vec<(String, String)>,
    /// What proves this machine to the image's servers.
    pub client_certificate: Option<ClientCertificate>,
    /// Credentials for a registry: a docker config.
    pub credentials: Option<Text>,
    /// A missing proof is forgiven.
    pub insecure: bool,
    /// What was written is read back.
    pub verify_disk: bool,
    /// The URL as it was written; it may hold secrets and is never shown.
    pub raw_url: String,
}

impl Image {
    /// What the identity of an installation is made of: the digest, else the whole URL. Only ever hashed.
    pub fn identity_source(&self) -> String {
        match (&self.digest, &self.content_digest) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(digest)) => format!("content {digest}"),
            (None, None) => self.raw_url.clone(),
        }
    }

    /// Every place that is read for it.
    pub fn all_locations(&self) -> impl Iterator<Item = &Location> {
        let signature = self.signature.iter().flat_map(|s| &s.location);
        self.locations
            .iter()
            .chain(&self.checksums)
            .chain(signature)
    }

    /// What names this image to people: its digest, else its URL without secrets.
    pub fn name(&self) -> String {
        match (&self.digest, &self.content_digest) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(digest)) => format!("content {digest}"),
            (None, None) => self
                .locations
                .first()
                .map(ToString::to_string)
                .unwrap_or_default(),
        }
    }
}

/// A TLS client certificate.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The certificates.
    pub chain: Text,
    /// The private key.
    pub key: Text,
}

/// A text that the config holds, or the file that does. It may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Text {
    /// The text itself.
    Inline(String),
    /// A file of the initrd.
    File(PathBuf),
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Text::Inline(_) => f.write_str("Inline(…)"),
            Text::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

/// A demanded signature.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Kind of signature.
    pub kind: SignatureKind,
    /// The keys that the config gives; `None`: those of the initrd.
    pub keys: Option<Keyring>,
    /// Where it is; `None`: beside what it signs.
    pub location: Option<Location>,
    /// What it is of.
    pub of: SignatureOf,
}

/// Who is told.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The final status goes here.
    pub url: Option<HttpUrl>,
    /// Headers. They may be secrets.
    pub headers: Vec<(String, String)>,
}

/// What happens after success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Restart the machine.
    Reboot,
    /// Power off.
    PowerOff,
    /// Stay.
    Park,
}

/// Collects problems.
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, path: &str, message: impl Into<String>) {
        self.0.push(Problem {
            path: path.to_owned(),
            line: 0,
            message: message.into(),
        });
    }

    fn unsupported(&mut self, path: &str, given: bool) {
        if given {
            self.add(path, "not supported in this version");
        }
    }

    fn location(&mut self, path: &str, text: &str) -> Option<Location> {
        text.parse()
            .map_err(|e: crate::error::Failure| self.add(path, crate::error::chain(&e)))
            .ok()
    }
}

/// The meaning of `config`, or every problem with it.
pub fn interpret(config: &wire::BootConfig) -> Result<Request, Vec<Problem>> {
    let mut problems = Problems(Vec::new());
    refuse_unsupported(config, &mut problems);
    let nothing = config.boot_policy == wire::BootPolicy::None;
    let install = match (nothing, &config.disk, &config.memory) {
        (false, Some(_), Some(_)) => {
            problems.add(
                "memory",
                "both `disk` and `memory` are given: exactly one is needed",
            );
            None
        }
        (false, None, None) => {
            problems.add("", "one of `disk` and `memory` is needed");
            None
        }
        (false, Some(disk), None) => disk_install(config, disk, &mut problems),
        (true, _, _) | (false, None, Some(_)) => None,
    };
    if !nothing && config.image.is_none() {
        problems.add("", "`image` is needed");
    }
    if config.metadata.claim.len() > 512 {
        problems.add(
            "metadata.claim",
            "at most 512 bytes fit into the record of an installation",
        );
    }
    let report = Report {
        url: config
            .report
            .as_ref()
            .and_then(|r| r.url.as_ref())
            .and_then(|text| {
                text.parse()
                    .map_err(|e| problems.add("report.url", crate::error::chain(&e)))
                    .ok()
            }),
        headers: config
            .report
            .iter()
            .flat_map(|r| r.headers.clone())
            .collect(),
    };
    let proxies = config.proxy.as_ref().and_then(|proxy| {
        Proxies::new(
            proxy.http.as_deref(),
            proxy.https.as_deref(),
            &proxy.no_proxy,
        )
        .map_err(|wrong| {
            for (key, why) in wrong {
                problems.add(&format!("proxy.{key}"), why);
            }
        })
        .ok()
    });
    let then = match config.then {
        None | Some(wire::Then::Reboot) => Then::Reboot,
        Some(wire::Then::PowerOff) => Then::PowerOff,
        Some(wire::Then::Park) => Then::Park,
        Some(wire::Then::Boot | wire::Then::Kexec) => {
            problems.add(
                "then",
                "not supported in this version for `disk`: use Reboot, PowerOff or Park",
            );
            Then::Park
        }
    };
    if !problems.0.is_empty() {
        return Err(problems.0);
    }
    Ok(Request {
        name: config.metadata.name.clone(),
        claim: config.metadata.claim.clone(),
        generation: config.metadata.generation.unwrap_or(1),
        policy: config.boot_policy,
        install,
        ca: config.ca.clone(),
        proxies,
        report,
        then,
        retry_for: config.on_failure.retry_for.map(|d| d.0),
        on_failure: config.on_failure.then,
        wait: config.wait.map(|d| d.0),
    })
}

/// Every key that has a meaning and is not carried out yet. The destructuring without `..` makes the
/// compiler ask about each new key.
fn refuse_unsupported(config: &wire::BootConfig, problems: &mut Problems) {
    let wire::BootConfig {
        api_version: _,
        kind: _,
        metadata: _,
        boot_policy: _,
        image,
        disk,
        memory,
        preserve,
        ignition,
        network,
        ca: _,
        proxy: _,
        report,
        then: _,
        on_failure: _,
        wait: _,
    } = config;
    problems.unsupported("memory", memory.is_some() && disk.is_none());
    problems.unsupported("preserve", !preserve.is_empty());
    problems.unsupported("ignition", ignition.is_some());
    problems.unsupported("network", network.is_some());
    if let Some(image) = image {
        let wire::Image {
            url: _,
            mirrors: _,
            digest: _,
            content_digest: _,
            checksums: _,
            signature: _,
            kind,
            headers: _,
            client_certificate: _,
            credentials: _,
            plain_http: _,
            insecure: _,
            verify_disk: _,
        } = image;
        problems.unsupported("image.kind", *kind == wire::ImageKind::Tree);
    }
    if let Some(disk) = disk {
        let wire::Disk {
            select: _,
            pick: _,
            overwrite: _,
            keep,
            wipe,
            grow,
            record: _,
            partitions,
            table,
            bootloader,
            efi: _,
            kernel_arguments,
            files,
        } = disk;
        problems.unsupported("disk.keep", !keep.is_empty());
        problems.unsupported("disk.wipe", *wipe != wire::Wipe::Signatures);
        problems.unsupported("disk.grow", grow.is_some());
        problems.unsupported("disk.partitions", !partitions.is_empty());
        problems.unsupported("disk.table", table.is_some());
        problems.unsupported("disk.bootloader", *bootloader != wire::Bootloader::Auto);
        problems.unsupported(
            "disk.kernelArguments",
            *kernel_arguments != wire::KernelArguments::default(),
        );
        problems.unsupported("disk.files", !files.is_empty());
    }
    if let Some(report) = report {
        let wire::Report {
            url: _,
            bootstate,
            headers: _,
            events,
        } = report;
        problems.unsupported("report.bootstate", bootstate.is_some());
        problems.unsupported("report.events", *events);
    }
}

fn disk_install(
    config: &wire::BootConfig,
    disk: &wire::Disk,
    problems: &mut Problems,
) -> Option<DiskInstall> {
    let image = config.image.as_ref()?;
    let url = problems.location("image.url", &image.url);
    let mut locations = Vec::new();
    for (i, mirror) in image.mirrors.iter().enumerate() {
        locations.extend(problems.location(&format!("image.mirrors[{i}]"), mirror));
    }
    locations.splice(0..0, [url?]);
    let credentials = registry_keys(image, &mut locations, problems);
    let checksums = image
        .checksums
        .as_ref()
        .and_then(|text| problems.location("image.checksums", text));
    let signature = image
        .signature
        .as_ref()
        .map(|s| read_signature(s, checksums.is_some(), problems));
    // Whoever can change the image on its way can change a checksum file on the same kind of way.
    let proven = image.digest.is_some()
        || image.content_digest.is_some()
        || signature.is_some()
        || checksums.as_ref().is_some_and(|c| !c.is_plain_http());
    if !proven && !image.insecure && locations.iter().any(Location::is_plain_http) {
        problems.add(
            "image",
            "an image over plain HTTP needs a proof that does not come over plain HTTP: give `digest`, `contentDigest` or `signature`, `checksums` over https, use https for the image, or accept whatever arrives with `insecure`: true",
        );
    }
    for (i, pem) in config.ca.iter().enumerate() {
        if !pem.contains("-----BEGIN CERTIFICATE-----") {
            problems.add(&format!("ca[{i}]"), "not a certificate in PEM form");
        }
    }
    let always = config.boot_policy == wire::BootPolicy::NetworkBootAlways;
    let default = if always {
        wire::Overwrite::IfOurs
    } else {
        wire::Overwrite::IfBlank
    };
    Some(DiskInstall {
        image: Image {
            locations,
            digest: image.digest.clone(),
            content_digest: image.content_digest.clone(),
            checksums,
            signature,
            headers: image.headers.clone().into_iter().collect(),
            client_certificate: image
                .client_certificate
                .as_ref()
                .and_then(|c| client_certificate(c, problems)),
            credentials,
            insecure: image.insecure,
            verify_disk: image.verify_disk,
            raw_url: image.url.clone(),
        },
        select: disk.select.clone(),
        pick: disk.pick,
        overwrite: disk.overwrite.unwrap_or(default),
        record: disk.record,
        efi: disk.efi,
    })
}

fn client_certificate(
    given: &wire::ClientCertificate,
    problems: &mut Problems,
) -> Option<ClientCertificate> {
    let mut read = |key: &str, text: &str| {
        if text.starts_with('/') {
            return Some(Text::File(text.into()));
        }
        if text.contains("-----BEGIN ") {
            return Some(Text::Inline(text.to_owned()));
        }
        let path = format!("image.clientCertificate.{key}");
        problems.add(&path, "neither PEM nor an absolute path");
        None
    };
    let chain = read("certificate", &given.certificate);
    let key = read("privateKey", &given.private_key);
    Some(ClientCertificate {
        chain: chain?,
        key: key?,
    })
}

/// What concerns registries only: how they are spoken to, and the credentials.
fn registry_keys(
    image: &wire::Image,
    locations: &mut [Location],
    problems: &mut Problems,
) -> Option<Text> {
    let in_registry = locations.iter().any(|l| matches!(l, Location::Oci(_)));
    for location in &mut *locations {
        if let Location::Oci(reference) = location
            && image.plain_http
        {
            *reference = reference.clone().over_plain_http();
        }
    }
    if let Some((first, mirrors)) = locations.split_first_mut() {
        for (i, mirror) in mirrors.iter_mut().enumerate() {
            let as_mirror = match (&*first, &*mirror) {
                (Location::Oci(image), Location::Oci(mirror)) => mirror
                    .clone()
                    .as_mirror_of(image)
                    .map(|reference| Some(Location::Oci(reference))),
                (Location::Oci(_), _) | (_, Location::Oci(_)) => {
                    Err("either all are oci://, `image.url` and its mirrors, or none is")
                }
                (Location::Http(_) | Location::File(_), _) => Ok(None),
            };
            match as_mirror {
                Ok(Some(location)) => *mirror = location,
                Ok(None) => {}
                Err(why) => problems.add(&format!("image.mirrors[{i}]"), why),
            }
        }
    }
    let beside = image
        .signature
        .as_ref()
        .is_some_and(|s| s.url.is_none() && s.of == wire::SignatureOf::Image);
    if in_registry && beside {
        problems.add(
            "image.signature.url",
            "needed with oci://: nothing is beside an image in a registry",
        );
    }
    if !in_registry && image.plain_http {
        problems.add(
            "image.plainHttp",
            "only for oci://: elsewhere the URL says it",
        );
    }
    let text = image.credentials.as_ref()?;
    if !in_registry {
        problems.add("image.credentials", "only for oci://");
    }
    if text.starts_with('/') {
        return Some(Text::File(text.into()));
    }
    if let Err(why) = RegistryAccess::check_docker_config(text.as_bytes()) {
        let text = format!("neither an absolute path nor the text of a file: {why}");
        problems.add("image.credentials", text);
    }
    Some(Text::Inline(text.clone()))
}

fn read_signature(
    signature: &wire::Signature,
    checksums: bool,
    problems: &mut Problems,
) -> Signature {
    let kind = match signature.kind {
        wire::SignatureKind::Minisign => SignatureKind::Minisign,
        wire::SignatureKind::Openpgp => SignatureKind::OpenPgp,
    };
    let keys = signature.public_key.as_ref().and_then(|text| {
        Keyring::parse(kind, text.as_bytes())
            .map_err(|why| problems.add("image.signature.publicKey", why))
            .ok()
    });
    let location = signature
        .url
        .as_ref()
        .and_then(|text| problems.location("image.signature.url", text));
    let of = match signature.of {
        wire::SignatureOf::Image => SignatureOf::Image,
        wire::SignatureOf::Checksums => {
            if !checksums {
                problems.add("image.signature.of", "`Checksums` needs `image.checksums`");
            }
            SignatureOf::Checksums
        }
    };
    Signature {
        kind,
        keys,
        location,
        of,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> Result<Request, Vec<String>> {
        let text =
            format!(r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig",{json}}}"#);
        let config = super::super::parse::parse(text.as_bytes()).unwrap();
        interpret(&config).map_err(|all| all.iter().map(ToString::to_string).collect())
    }

    const IMAGE: &str = r#""image":{"url":"https://example.org/a.raw"}"#;

    #[test]
    fn defaults_are_the_careful_ones() {
        let request = request(&format!(r#"{IMAGE},"disk":{{}}"#)).unwrap();
        let install = request.install.unwrap();
        assert_eq!(install.overwrite, wire::Overwrite::IfBlank);
        assert_eq!(install.pick, wire::Pick::Only);
        assert_eq!(request.then, Then::Reboot);
        assert_eq!(request.generation, 1);
    }

    #[test]
    fn what_is_not_carried_out_is_refused_by_name() {
        let all = request(&format!(
            r#"{IMAGE},"disk":{{"keep":["data"],"grow":"root","wipe":"Zero","files":[{{"path":"/a","contents":""}}]}},"preserve":[{{"target":"/a","source":{{}}}}]"#
        ))
        .unwrap_err();
        for key in [
            "preserve",
            "disk.keep",
            "disk.grow",
            "disk.wipe",
            "disk.files",
        ] {
            assert!(
                all.iter()
                    .any(|p| p == &format!("{key}: not supported in this version")),
                "{key}: {all:?}"
            );
        }
    }

    #[test]
    fn plain_http_needs_a_digest() {
        let http = r#""image":{"url":"http://h/a.raw"EXTRA},"disk":{}"#;
        assert!(request(&http.replace("EXTRA", "")).unwrap_err()[0].contains("plain HTTP"));
        let digest = format!(r#","digest":"sha256:{}""#, "0".repeat(64));
        assert!(request(&http.replace("EXTRA", &digest)).is_ok());
        assert!(request(&http.replace("EXTRA", r#","insecure":true"#)).is_ok());
        for (checksums, enough) in [
            ("https://h/SUMS", true),
            ("file:///etc/SUMS", true),
            ("http://h/SUMS", false),
        ] {
            let checksums = format!(r#","checksums":"{checksums}""#);
            let read = request(&http.replace("EXTRA", &checksums));
            assert_eq!(read.is_ok(), enough, "{checksums}");
        }
        let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
        let signed = format!(r#","signature":{{"type":"minisign","publicKey":"{key}"}}"#);
        assert!(request(&http.replace("EXTRA", &signed)).is_ok());
        let wrong = signed.replace(key, "hello");
        assert!(
            request(&http.replace("EXTRA", &wrong)).unwrap_err()[0]
                .starts_with("image.signature.publicKey: not a minisign public key")
        );
        let of = r#","signature":{"type":"openpgp","of":"Checksums"}"#;
        assert!(
            request(&http.replace("EXTRA", of)).unwrap_err()[0]
                .starts_with("image.signature.of: `Checksums` needs")
        );
        let mirror = r#""image":{"url":"https://h/a.raw","mirrors":["http://m/a.raw"]},"disk":{}"#;
        assert!(request(mirror).is_err());
    }

    #[test]
    fn keys_of_registries_are_for_registries() {
        let with = |url: &str, more: &str| {
            request(&format!(r#""image":{{"url":"{url}"{more}}},"disk":{{}}"#))
        };
        let oci = "oci://h/os:v1";
        assert!(with(oci, "").is_ok());
        let pinned = format!("{oci}@sha256:{}", "a".repeat(64));
        assert!(with(&pinned, r#","plainHttp":true"#).is_ok());
        // A pinned image pins its mirrors, over whatever they come.
        let mirrored = r#","mirrors":["oci://m/os:v1"],"plainHttp":true"#;
        let read = with(&pinned, mirrored).unwrap().install.unwrap();
        assert!(read.image.locations[1].to_string().contains("@sha256:aaaa"));
        let other = format!(r#","mirrors":["oci://m/os@sha256:{}"]"#, "b".repeat(64));
        let all = with(&pinned, &other).unwrap_err();
        assert!(
            all[0].starts_with("image.mirrors[0]: it names another"),
            "{all:?}"
        );
        assert!(with(oci, r#","credentials":"{\"auths\":{}}""#).is_ok());
        assert!(with(oci, r#","credentials":"/etc/x.json""#).is_ok());
        for (url, more, part) in [
            (
                oci,
                r#","plainHttp":true"#,
                "image: an image over plain HTTP",
            ),
            (
                oci,
                r#","credentials":"s3cr3t""#,
                "image.credentials: neither",
            ),
            (
                oci,
                r#","mirrors":["oci://m/os","https://h/x"]"#,
                "image.mirrors[1]: either all",
            ),
            (
                oci,
                r#","signature":{"type":"minisign"}"#,
                "image.signature.url: needed",
            ),
            (
                "https://h/x",
                r#","plainHttp":true"#,
                "image.plainHttp: only",
            ),
            (
                "https://h/x",
                r#","credentials":"/x""#,
                "image.credentials: only",
            ),
        ] {
            let all = with(url, more).unwrap_err();
            assert!(all[0].starts_with(part), "{all:?}");
            assert!(!all[0].contains("s3cr3t"), "{all:?}");
        }
    }

    #[test]
    fn proxies_that_cannot_be_used_are_named_by_their_key() {
        let with = |proxy: &str| request(&format!(r#"{IMAGE},"disk":{{}},"proxy":{proxy}"#));
        let given = with(r#"{"https":"p.example:3128","noProxy":["10.0.0.0/8"]}"#).unwrap();
        assert!(!given.proxies.unwrap().is_empty());
        // Nothing goes through a proxy, whatever the environment says.
        assert!(with("{}").unwrap().proxies.unwrap().is_empty());
        let all = with(r#"{"http":"socks5://h","noProxy":["a","b c"]}"#).unwrap_err();
        assert!(
            all[0].starts_with("proxy.http: a proxy of kind \"socks5\""),
            "{all:?}"
        );
        assert!(all[1].starts_with("proxy.noProxy[1]: "), "{all:?}");
    }

    #[test]
    fn disk_and_memory_exclude_each_other_and_none_needs_neither() {
        assert!(
            request(&format!(r#"{IMAGE},"disk":{{}},"memory":{{}}"#)).unwrap_err()[0]
                .starts_with("memory: both")
        );
        assert!(request(IMAGE).unwrap_err()[0].contains("one of `disk` and `memory`"));
        assert!(request(r#""bootPolicy":"None""#).unwrap().install.is_none());
        assert!(
            request(r#""disk":{}"#)
                .unwrap_err()
                .iter()
                .any(|p| p.contains("`image`"))
        );
    }
}
