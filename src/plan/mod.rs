//! What will be done: a pure function from what is wanted and what is there. No files, no clock, no
//! randomness; they come in through [`Facts`]. What comes out leaves no choice open.
//!
//! What is known only when the image's head has been read goes through a second small plan,
//! [`layout::adopt`]: plan again, never improvise.

pub mod clear;
pub mod disk_boot;
pub mod disk_root;
pub mod drift;
pub mod identity;
pub mod keep;
pub mod layout;
pub mod memory_root;
pub mod preserve;
pub mod refusal;
pub mod step;
pub mod target;
pub mod teardown;
pub mod tree_layout;
pub mod tree_root;

use serde::Serialize;

pub use refusal::Refusal;
pub use step::{Handoff, Step};

use crate::config::request::{Goal, Request, Then};
use crate::config::wire::BootPolicy;
use crate::host::{Facts, Place};

/// What will be done, in order.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// One line: what this plan comes to.
    pub summary: String,
    /// Identity of the installation; empty where nothing is installed.
    pub identity: String,
    /// The steps.
    pub steps: Vec<Step>,
    /// What the operator should know.
    pub notes: Vec<String>,
    /// Keys of the config that differ from what was installed: reported, not acted on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<String>,
}

impl Plan {
    /// Whether any step erases something.
    pub fn is_destructive(&self) -> bool {
        self.steps.iter().any(Step::is_destructive)
    }

    /// Whether the image is opened.
    pub fn needs_image(&self) -> bool {
        self.steps.iter().any(|s| {
            matches!(
                s,
                Step::OpenImage { .. } | Step::OpenRoot { .. } | Step::OpenTree { .. }
            )
        })
    }

    /// Whether it changes something in the installed system.
    pub fn changes_the_system(&self) -> bool {
        self.steps
            .iter()
            .any(|s| matches!(s, Step::ChangeSystem { .. }))
    }

    /// The plan for people, one line a step.
    pub fn lines(&self) -> Vec<String> {
        self.steps.iter().map(ToString::to_string).collect()
    }
}

/// Decides what will be done, or refuses.
pub fn plan(request: &Request, facts: &Facts) -> Result<Plan, Refusal> {
    if request.policy == BootPolicy::None {
        return without_installing(request, facts);
    }
    let install = match &request.goal {
        Goal::Nothing => return Ok(disk_boot::leave_alone(facts)),
        Goal::Memory(session) => return memory_root::session(request, session, facts),
        Goal::Disk(install) => install,
    };
    let identity = identity::identity(request, &install.image);
    if request.policy == BootPolicy::NetworkBootOnce {
        if let Some(disk) = target::installed(&install.select, facts, &identity)? {
            return Ok(disk_root::boot_installed(
                request.then,
                install,
                facts,
                disk,
                &identity,
            ));
        }
        // What cannot be read may hold this very installation.
        if let Some((disk, why)) = target::first_unread(&install.select, facts) {
            return Err(Refusal::Unreadable {
                disk: disk.name.clone(),
                why: why.to_owned(),
            });
        }
    }
    disk_root::install(request, install, facts, identity)
}

/// Under [`BootPolicy::None`]: what the config describes is started where a disk holds it, else what the firmware has.
fn without_installing(request: &Request, facts: &Facts) -> Result<Plan, Refusal> {
    let install = request.disk().filter(|_| facts.place != Place::Running);
    if let Some(install) = install {
        let identity = identity::identity(request, &install.image);
        if let Some(disk) = target::installed(&install.select, facts, &identity)? {
            let then = match request.then {
                start @ (Then::Boot | Then::Kexec | Then::Reboot) => start,
                // There is nothing to do before the machine runs its system.
                Then::PowerOff | Then::Park => Then::Reboot,
            };
            return Ok(disk_root::boot_installed(
                then, install, facts, disk, &identity,
            ));
        }
    }
    Ok(disk_boot::leave_alone(facts))
}
