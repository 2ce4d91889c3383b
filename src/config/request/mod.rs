//! What a boot config means: no text that is a URL, no key that is not carried out. Every problem is
//! reported with its JSON path; what this version does not do is refused by name, never ignored.

mod disk;
mod image;
mod memory;
pub mod preserve;
mod sections;
pub mod system;
pub mod tree;
mod unsupported;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use disk::{Addition, DiskInstall, Named};
pub use image::{ClientCertificate, Image, RUNNING, Signature, Text};
pub use memory::{MemorySession, Verity};
pub use preserve::{Preserved, Source};
pub use system::{SystemChanges, SystemFile};
pub use tree::TreeDisk;

use super::parse::Problem;
use super::wire;
use crate::stream::{HttpUrl, Location, Proxies};

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
    /// What to do.
    pub goal: Goal,
    /// Paths that outlive the session, parents before what is below them.
    pub preserve: Vec<Preserved>,
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

/// What to do.
#[derive(Clone, Debug)]
pub enum Goal {
    /// Touch nothing: only under [`wire::BootPolicy::None`].
    Nothing,
    /// Install on a disk; under [`wire::BootPolicy::None`] start what is installed there.
    Disk(Box<DiskInstall>),
    /// Run from memory.
    Memory(Box<MemorySession>),
}

impl Request {
    /// The image, where one is needed.
    pub fn image(&self) -> Option<&Image> {
        match &self.goal {
            Goal::Nothing => None,
            Goal::Disk(install) => Some(&install.image),
            Goal::Memory(session) => Some(&session.image),
        }
    }

    /// All that is kept on devices: what is preserved, and what is written to the root.
    pub fn sources(&self) -> impl Iterator<Item = &Preserved> {
        let upper = match &self.goal {
            Goal::Memory(session) => session.upper.as_ref(),
            Goal::Nothing | Goal::Disk(_) => None,
        };
        self.preserve.iter().chain(upper)
    }

    /// The installation, where one is wanted.
    pub fn disk(&self) -> Option<&DiskInstall> {
        match &self.goal {
            Goal::Disk(install) => Some(install),
            Goal::Nothing | Goal::Memory(_) => None,
        }
    }
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
    /// Run the new system from here.
    Boot,
    /// Restart the machine.
    Reboot,
    /// Power off.
    PowerOff,
    /// Start the installed system's own kernel from here.
    Kexec,
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
    unsupported::refuse(config, &mut problems);
    let nothing = config.boot_policy == wire::BootPolicy::None;
    let preserve = preserve::read(config, &mut problems);
    let goal = match (nothing, &config.disk, &config.memory) {
        (true, disk, memory) => Some(looked_for(config, disk.as_ref(), memory.is_some())),
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
        (false, Some(disk), None) => {
            disk::read(config, disk, &mut problems).map(|install| Goal::Disk(Box::new(install)))
        }
        (false, None, Some(memory)) => memory::read(config, memory, &mut problems)
            .map(|session| Goal::Memory(Box::new(session))),
    };
    for (i, pem) in config.ca.iter().enumerate() {
        if !pem.contains("-----BEGIN CERTIFICATE-----") {
            problems.add(&format!("ca[{i}]"), "not a certificate in PEM form");
        }
    }
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
    let then = then(config, &mut problems);
    let goal = match goal {
        Some(goal) if problems.0.is_empty() => goal,
        _ => return Err(problems.0),
    };
    Ok(Request {
        name: config.metadata.name.clone(),
        claim: config.metadata.claim.clone(),
        generation: config.metadata.generation.unwrap_or(1),
        policy: config.boot_policy,
        goal,
        preserve,
        ca: config.ca.clone(),
        proxies,
        report,
        then,
        retry_for: config.on_failure.retry_for.map(|d| d.0),
        on_failure: config.on_failure.then,
        wait: config.wait.map(|d| d.0),
    })
}

/// Under [`wire::BootPolicy::None`]: the installation that is started where a disk holds it. Nothing of it is carried out, so
/// what is wrong with it is no problem; nor is it looked for then.
fn looked_for(config: &wire::BootConfig, disk: Option<&wire::Disk>, in_memory: bool) -> Goal {
    let Some(disk) = disk.filter(|_| config.image.is_some() && !in_memory) else {
        return Goal::Nothing;
    };
    let mut problems = Problems(Vec::new());
    match disk::read(config, disk, &mut problems) {
        Some(install) if problems.0.is_empty() => Goal::Disk(Box::new(install)),
        _ => Goal::Nothing,
    }
}

fn then(config: &wire::BootConfig, problems: &mut Problems) -> Then {
    let memory = config.memory.is_some();
    match (config.then, memory) {
        (None | Some(wire::Then::Boot), true) | (Some(wire::Then::Boot), false) => Then::Boot,
        (Some(wire::Then::Kexec), false) => Then::Kexec,
        (None | Some(wire::Then::Reboot), false) => Then::Reboot,
        (Some(wire::Then::PowerOff), false) => Then::PowerOff,
        (Some(wire::Then::Park), false) => Then::Park,
        (Some(_), true) => {
            problems.add(
                "then",
                "only Boot with `memory`: nothing else is left of it",
            );
            Then::Boot
        }
    }
}
