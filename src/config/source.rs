//! Where the boot config comes from. The first source that is there wins, and its origin is told.
//!
//! To add a source: an arm in [`Source`], its place in [`locate`], and how its bytes are read in [`read`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::cmdline::Cmdline;
use super::parse::{CONFIG_LIMIT, Problem};
use super::{gardenlinux, ignition, parse, template, wire};
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::host::Machine;
use crate::stream::{Budget, Fetcher, KEY_DIRECTORY, Keyring, Location, SignedBy, check_config};
use crate::units::{Bytes, Digest, HashAlgorithm};

/// The config that an image builder puts into the initrd.
pub const INITRD_CONFIG: &str = "/etc/ironroot/config.json";

/// An Ignition config holds files of the whole system.
const IGNITION_LIMIT: Bytes = Bytes(16 << 20);

/// How long an Ignition config is asked for where another source of the boot config is there.
const IGNITION_PATIENCE: Duration = Duration::from_secs(30);

/// A place where a boot config is.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A URL or a file that was named.
    Named(Location),
    /// A `data:` URL (RFC 2397): the config itself.
    Data(String),
    /// [`INITRD_CONFIG`].
    Initrd(PathBuf),
    /// What Garden Linux's own kernel arguments stand for.
    GardenLinux(gardenlinux::Made),
    /// A file entry of an Ignition config.
    Ignition {
        /// Where the Ignition config is.
        location: Location,
        /// What counts where it has no such entry.
        otherwise: Option<Box<Source>>,
    },
}

/// A boot config and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What was written.
    pub config: wire::BootConfig,
    /// Where, without secrets.
    pub origin: String,
    /// SHA-256 of the document.
    pub digest: Digest,
    /// Who signed it, where that was demanded.
    pub signed_by: Option<SignedBy>,
    /// The document, for the lines of later problems.
    pub text: Vec<u8>,
}

impl Source {
    /// Whether the network must be up to read it.
    pub fn needs_network(&self) -> bool {
        match self {
            Source::Named(location) | Source::Ignition { location, .. } => location.is_remote(),
            Source::Data(_) | Source::Initrd(_) | Source::GardenLinux(_) => false,
        }
    }

    /// Where it is, for people, without secrets.
    pub fn origin(&self) -> String {
        match self {
            Source::Named(location) => location.to_string(),
            Source::Data(_) => "a data: URL".to_owned(),
            Source::Initrd(path) => path.display().to_string(),
            Source::GardenLinux(_) => "gl.url= on the kernel command line".to_owned(),
            Source::Ignition { location, .. } => {
                format!("{} of the Ignition config {location}", ignition::PATH)
            }
        }
    }
}

/// Finds the source: `given` (a flag), else `ironroot.config=`, else `ignition.config.url=`, else the initrd's own
/// config below `root`, else `gl.url=`.
pub fn locate(
    given: Option<&str>,
    cmdline: &Cmdline,
    root: &Path,
    machine: &Machine,
) -> Result<Source> {
    if let Some(text) = given {
        return named(text, machine);
    }
    if let Some(text) = cmdline.get("ironroot.config") {
        return named(text, machine);
    }
    let initrd = root.join(INITRD_CONFIG.trim_start_matches('/'));
    let other = if initrd.exists() {
        Some(Source::Initrd(initrd))
    } else {
        gardenlinux::config(cmdline, root)?.map(Source::GardenLinux)
    };
    if let Some(text) = cmdline.get("ignition.config.url") {
        return Ok(Source::Ignition {
            location: ignition_url(text, cmdline, machine)?,
            otherwise: other.map(Box::new),
        });
    }
    other.ok_or_else(|| {
        Failure::new(
            Class::Config,
            format!("no boot config: no ironroot.config=, ignition.config.url= or gl.url= on the kernel command line, no {INITRD_CONFIG} in the initrd"),
        )
        .hint("add ironroot.config=http://…/config.json to the kernel command line")
    })
}

/// IronCore's images append the machine's UUID to a URL that is the same for all machines.
fn ignition_url(text: &str, cmdline: &Cmdline, machine: &Machine) -> Result<Location> {
    let append = cmdline.get("ignition.config.url.append.uuid");
    let text = match append {
        Some("true" | "1" | "yes") => format!("{}/${{uuid}}", text.trim_end_matches('/')),
        None | Some(_) => text.to_owned(),
    };
    template::fill(&text, machine)?.parse()
}

fn named(text: &str, machine: &Machine) -> Result<Source> {
    if text.starts_with("data:") {
        return Ok(Source::Data(text.to_owned()));
    }
    let filled = template::fill(text, machine)?;
    // A relative path is what a person types at a shell.
    let path = if filled.contains("://") || filled.starts_with('/') {
        filled
    } else {
        std::path::absolute(&filled)
            .context(Class::Config, || {
                format!("boot config {}", printable(&filled))
            })?
            .to_string_lossy()
            .into_owned()
    };
    path.parse().map(Source::Named)
}

/// Reads the config. Network errors are retried within `budget`; `expected` is the digest that the kernel
/// command line demands. Where there are `keys`, one of them must have signed it, unless it is part of the
/// initrd as they are.
pub fn load(
    source: &Source,
    fetcher: &Fetcher,
    budget: &mut Budget,
    expected: Option<&Digest>,
    keys: &Keyring,
) -> Result<Loaded> {
    // Before anything is fetched.
    if !keys.is_empty() && is_on_the_command_line(source) {
        return Err(unsigned_data());
    }
    if !keys.is_empty() && matches!(source, Source::Ignition { .. }) {
        return Err(Failure::new(
            Class::Integrity,
            format!(
                "{KEY_DIRECTORY} has keys, and {} cannot be signed",
                source.origin()
            ),
        )
        .hint("give ironroot.config= with the URL of a signed boot config"));
    }
    let text = match (read(source, fetcher, budget)?, source) {
        (Some(text), _) => text,
        (
            None,
            Source::Ignition {
                otherwise: Some(other),
                ..
            },
        ) => return load(other, fetcher, budget, expected, keys),
        (None, _) => {
            return Err(Failure::new(
                Class::Config,
                format!("no boot config: there is no file entry {}", source.origin()),
            )
            .hint("add the entry with the boot config as a data: URL, or give ironroot.config="));
        }
    };
    let origin = source.origin();
    let digest = Digest::from_bytes(HashAlgorithm::Sha256, &Sha256::digest(&text));
    if let Some(expected) = expected {
        let found = match expected.algorithm() {
            HashAlgorithm::Sha256 => digest.clone(),
            HashAlgorithm::Sha512 => {
                Digest::from_bytes(HashAlgorithm::Sha512, &sha2::Sha512::digest(&text))
            }
        };
        if found != *expected {
            return Err(Failure::new(
                Class::Integrity,
                format!("boot config {origin} has the digest {found}, ironroot.config.digest= demands {expected}"),
            )
            .hint("publish the config that was meant, or update the digest"));
        }
    }
    let signed_by = match source {
        Source::Named(location) if !keys.is_empty() => {
            Some(check_config(fetcher, keys, location, &text, budget)?)
        }
        Source::Named(_)
        | Source::Data(_)
        | Source::Initrd(_)
        | Source::GardenLinux(_)
        | Source::Ignition { .. } => None,
    };
    let config = parse::parse(&text).map_err(|problems| refuse(&origin, &problems))?;
    Ok(Loaded {
        config,
        origin,
        digest,
        signed_by,
        text,
    })
}

fn is_on_the_command_line(source: &Source) -> bool {
    match source {
        Source::Data(_) => true,
        Source::GardenLinux(made) => !made.of_initrd,
        Source::Named(_) | Source::Initrd(_) | Source::Ignition { .. } => false,
    }
}

/// Whoever writes the kernel command line could write any config into it, and its digest beside it.
fn unsigned_data() -> Failure {
    let text = format!(
        "the boot config is part of the kernel command line, which cannot be signed, and {KEY_DIRECTORY} has keys"
    );
    Failure::new(Class::Integrity, text).hint(
        "publish the config and its signature on a server, or put it into the initrd as /etc/ironroot/config.json",
    )
}

/// The document; `None` for an Ignition config without one.
fn read(source: &Source, fetcher: &Fetcher, budget: &mut Budget) -> Result<Option<Vec<u8>>> {
    let text = match source {
        Source::Named(location) => {
            let limit = Bytes(u64::try_from(CONFIG_LIMIT).unwrap_or(u64::MAX));
            fetcher.get_small(location, &[], limit, budget)?
        }
        Source::Ignition {
            location,
            otherwise,
        } => {
            // Something else to go on with: a server without an Ignition config for this machine (404, or a connection
            // that it drops) does not hold it for the whole time that retries may take.
            let mut short = Budget::new(IGNITION_PATIENCE.min(budget.remaining()));
            // Only what leaves the disks alone may stand in for a server that does not answer.
            let harmless = matches!(otherwise.as_deref(), Some(Source::GardenLinux(_)));
            let budget = if harmless { &mut short } else { budget };
            let answer = fetcher.get_small(location, &[], IGNITION_LIMIT, budget);
            let document = match (answer, otherwise) {
                (Ok(document), _) => document,
                (Err(failure), Some(_)) if harmless && failure.class() == Class::Network => {
                    log::warn!("{}; going on without it", crate::error::chain(&failure));
                    return Ok(None);
                }
                (Err(failure), _) => return Err(failure),
            };
            return ignition::entry(&document).map_err(|why| {
                Failure::new(Class::Config, format!("Ignition config {location}: {why}"))
            });
        }
        Source::Data(text) => {
            let wrong = |what: String| {
                Failure::new(
                    Class::Config,
                    format!("the boot config's data: URL cannot be read: {what}"),
                )
                .hint("write data:application/json;base64,…")
            };
            let url = data_url::DataUrl::process(text).map_err(|e| wrong(format!("{e:?}")))?;
            url.decode_to_vec().map_err(|e| wrong(format!("{e:?}")))?.0
        }
        Source::GardenLinux(made) => made.text.clone(),
        Source::Initrd(path) => {
            let length = std::fs::metadata(path).map(|m| m.len()).unwrap_or_default();
            if length > CONFIG_LIMIT as u64 {
                return Err(Failure::new(
                    Class::Config,
                    format!("{} has {length} bytes", path.display()),
                ));
            }
            std::fs::read(path).context(Class::Config, || {
                format!("reading boot config {}", path.display())
            })?
        }
    };
    Ok(Some(text))
}

/// One failure for all problems of a config.
pub fn refuse(origin: &str, problems: &[Problem]) -> Failure {
    let mut text = format!("boot config {origin}:");
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(&printable(&problem.to_string()));
    }
    Failure::new(Class::Config, text).hint("correct the config; `ironroot check FILE` tests it")
}

/// What `config` means; a problem gets the line on which its key stands in `text`.
pub fn interpret(
    config: &wire::BootConfig,
    origin: &str,
    text: &[u8],
) -> Result<super::request::Request> {
    super::request::interpret(config).map_err(|mut problems| {
        locate_lines(&mut problems, text);
        refuse(origin, &problems)
    })
}

/// Fills in the line of each problem that has none.
pub fn locate_lines(problems: &mut [Problem], text: &[u8]) {
    for problem in problems {
        if problem.line == 0 {
            problem.line = parse::line_of(text, &problem.path);
        }
    }
}

#[cfg(test)]
mod tests;
