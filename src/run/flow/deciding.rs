//! Looks at the machine until a plan can be made of it, or the time for that is over.

use std::path::Path;
use std::time::Duration;

use super::{Entrance, Mission, Role, is_in_initrd};
use crate::config::request::{Goal, Image, Request};
use crate::error::Result;
use crate::host::seed::Seed;
use crate::host::{self, Facts, Place};
use crate::plan::{self, Plan, Refusal, target};
use crate::report::{Event, Reporter};
use crate::run;
use crate::stream::Location;
use crate::sys::clock::Deadline;

/// As PID 1, a choice among disks is made when no new one has appeared for this long.
const SETTLED_FOR: Duration = Duration::from_secs(3);

/// A disk that appears late is looked for this often.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Facts to plan. Disks that are missing are waited for.
pub(super) fn decide(
    entrance: &Entrance<'_>,
    mission: &Mission,
    reporter: &Reporter,
) -> Result<Plan> {
    let deadline = Deadline::after(mission.wait);
    let mut told = false;
    let some_are_meant = is_in_initrd(entrance.role)
        && mission
            .request
            .disk()
            .is_some_and(|install| !target::names_one(&install.select));
    let mut settled = !is_one_disk(entrance, &mission.request);
    if settled {
        settle(entrance.root, deadline, mission.wait, reporter)?;
    }
    // What only shows once all of a bus is there: a serial number on two disks, a second path to one.
    let may_be_several = is_in_initrd(entrance.role)
        && mission
            .request
            .disk()
            .is_some_and(|install| target::named_path(&install.select).is_none());
    loop {
        let waited = deadline.passed();
        let facts = Facts {
            waited,
            ..look(entrance, &mission.request)?
        };
        match plan::plan(&mission.request, &facts) {
            // What is erased is chosen among all that there is: the disk that holds this installation, or one that
            // `pick` prefers, may be behind a controller that takes its time.
            Ok(plan) if plan.is_destructive() && some_are_meant && !waited => {
                await_all(entrance.root, deadline, mission.wait, reporter)?;
            }
            Ok(plan) if plan.is_destructive() && may_be_several && !settled && !waited => {
                settled = true;
                settle(entrance.root, deadline, mission.wait, reporter)?;
            }
            Ok(plan) => {
                reporter.info(plan.summary.clone());
                for note in &plan.notes {
                    reporter.warn(note.clone());
                }
                reporter.emit(Event::Plan {
                    steps: plan.lines(),
                });
                return Ok(plan);
            }
            Err(refusal) if !refusal.may_heal() && some_are_meant && !waited => {
                await_all(entrance.root, deadline, mission.wait, reporter)?;
            }
            Err(refusal) if refusal.may_heal() && !waited => {
                if !told {
                    told = true;
                    reporter.emit(Event::Waiting {
                        reason: waiting_for(&refusal),
                        deadline_seconds: mission.wait.as_secs(),
                    });
                }
                std::thread::sleep(PROBE_EVERY.min(deadline.remaining()));
            }
            Err(refusal) => return Err(refusal.into()),
        }
    }
}

/// Waits until no new disk has appeared for a while: a controller may be half-way through its disks, and one
/// more would change the choice.
fn settle(root: &Path, deadline: Deadline, wait: Duration, reporter: &Reporter) -> Result<()> {
    reporter.emit(Event::Waiting {
        reason: "all disks to appear".to_owned(),
        deadline_seconds: wait.as_secs(),
    });
    let disks = || -> Result<Vec<_>> {
        let all = host::disks::list(root)?;
        Ok(all.iter().map(|d| (d.dev, d.size)).collect())
    };
    let mut seen = disks()?;
    loop {
        std::thread::sleep(SETTLED_FOR.min(deadline.remaining()));
        let now = disks()?;
        if now == seen || deadline.passed() {
            return Ok(());
        }
        seen = now;
    }
}

/// Waits until there is another disk than before, or the time is over.
fn await_all(root: &Path, deadline: Deadline, wait: Duration, reporter: &Reporter) -> Result<()> {
    reporter.emit(Event::Waiting {
        reason: "every disk that the selector allows (a serial number or a wwn means one, `wait` shortens this)".to_owned(),
        deadline_seconds: wait.as_secs(),
    });
    let disks = || -> Result<Vec<_>> {
        let all = host::disks::list(root)?;
        Ok(all.iter().map(|d| (d.dev, d.size)).collect())
    };
    let seen = disks()?;
    while !deadline.passed() {
        std::thread::sleep(PROBE_EVERY.min(deadline.remaining()));
        if disks()? != seen {
            break;
        }
    }
    Ok(())
}

/// The image with its devices found: a path below /dev that is not there yet is waited for, and looked for
/// by its label where nobody makes the links.
pub(super) fn await_devices(
    entrance: &Entrance<'_>,
    mission: &Mission,
    image: &Image,
    reporter: &Reporter,
) -> Result<Image> {
    let mut image = image.clone();
    let deadline = Deadline::after(mission.wait);
    for location in &mut image.locations {
        let Location::File(path) = location else {
            continue;
        };
        let mut told = false;
        while path.starts_with("/dev") && !path.exists() {
            let disks = host::probe(entrance.root)?.disks;
            if let Some(found) = run::source_disk::by_name(path, &disks)? {
                reporter.info(format!("image {} is {}", path.display(), found.display()));
                *path = found;
                continue;
            }
            if deadline.passed() {
                // Whoever opens it says what is missing.
                break;
            }
            if !told {
                told = true;
                reporter.emit(Event::Waiting {
                    reason: format!("image {}", path.display()),
                    deadline_seconds: mission.wait.as_secs(),
                });
            }
            std::thread::sleep(PROBE_EVERY.min(deadline.remaining()));
        }
    }
    Ok(image)
}

/// Whether no disk that appears later could change which one is meant.
fn is_one_disk(entrance: &Entrance<'_>, request: &Request) -> bool {
    !is_in_initrd(entrance.role)
        || (request
            .disk()
            .is_none_or(|install| target::names_one(&install.select))
            && !plan::preserve::may_be_ambiguous(request.sources()))
}

fn waiting_for(refusal: &Refusal) -> String {
    match refusal {
        Refusal::NoDisk { wanted, .. } => format!("a disk that matches {wanted}"),
        Refusal::NotADisk { path, .. } => format!("disk {path}"),
        Refusal::Unreadable { disk, .. } => format!("disk {disk} to be readable"),
        Refusal::Preserve { target, source, .. } => {
            format!("source {source} of {}", target.display())
        }
        Refusal::Upper { source, .. } => format!("{source}, where what is written is kept"),
        other => other.to_string(),
    }
}

fn look(entrance: &Entrance<'_>, request: &Request) -> Result<Facts> {
    let mut facts = match &request.goal {
        Goal::Memory(_) if request.sources().next().is_some() => {
            host::probe_with_blanks(entrance.root)?
        }
        // Otherwise a session leaves the disks alone.
        Goal::Memory(_) | Goal::Nothing => host::without_disks(entrance.root),
        Goal::Disk(_) if !request.preserve.is_empty() => host::probe_with_blanks(entrance.root)?,
        Goal::Disk(_) => host::probe(entrance.root)?,
    };
    facts.place = match entrance.role {
        // Only there is it a system's.
        Role::Plan if request.image().is_some_and(|image| image.running) => Place::Running,
        // Someone who looks at a plan wants to see the one of the initrd.
        Role::Init | Role::Plan => Place::Init,
        Role::Initrd => Place::Initrd {
            sysroot: entrance.sysroot.to_owned(),
        },
        Role::Install => Place::Running,
    };
    facts.init = entrance.cmdline.get("init").map(str::to_owned);
    let creates = request.preserve.iter().any(|entry| entry.create.is_some());
    if creates || request.disk().is_some() {
        facts.seed = Seed::random()?;
    }
    if let Some(path) = request.disk().and_then(|i| target::named_path(&i.select)) {
        let named = host::named::look(entrance.root, Path::new(path), &facts.disks);
        if entrance.allow_file {
            let file = host::named::file_as_disk(entrance.root, &named, &facts.disks);
            facts.disks.extend(file);
        }
        facts.named = Some(named);
    }
    Ok(facts)
}
