//! Doing it: one loop, one match over [`Step`]. A file for each family of steps.

pub mod boot;
pub mod bulk;
pub mod default_loader;
pub mod efi;
pub mod flow;
pub mod grow;
pub mod head;
pub mod image_source;
pub mod install;
pub mod installed;
pub mod kept;
pub mod make_filesystem;
mod meanwhile;
pub mod memory;
pub mod own_mounts;
pub mod partitions;
pub mod preserve;
pub mod progress;
pub mod reread;
mod seen_again;
mod silence;
pub mod source_disk;
pub mod start;
pub mod target_disk;
pub mod teardown;
pub mod tree_disk;
pub mod wipe;
pub mod zeros;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::config::request::{Image, SystemChanges};
use crate::error::{Class, Failure, Result, describe};
use crate::image::boot::arguments::Edit;
use crate::plan::preserve::lasting;
use crate::plan::{Handoff, Plan, Step, disk_root};
use crate::report::{Event, Reporter};
use crate::stream::{Budget, Fetcher, Keyring};
use image_source::Source;
use install::Stage;
use memory::session::Told;
use memory::{Session, Wanted, zram};
use preserve::Intended;

/// What the steps work with: the small seams of this program.
#[derive(Debug)]
pub struct Machine<'a> {
    /// Fetches.
    pub fetcher: &'a Fetcher,
    /// The image with its secrets, which are in no plan.
    pub image: Option<&'a Image>,
    /// What is changed in the installed system. Contents may be secrets, and so they are in no plan.
    pub changes: &'a SystemChanges,
    /// The Ignition config for it.
    pub ignition: Option<&'a [u8]>,
    /// How long network errors are retried without progress.
    pub retry_for: Duration,
    /// Keys of the initrd, for signatures whose key the config does not give.
    pub keys: &'a Keyring,
    /// Where /sys is.
    pub root: &'a Path,
    /// As `uname -m` has it.
    pub arch: &'a str,
    /// Where the boot config came from, without secrets.
    pub config: &'a str,
    /// `metadata.name`.
    pub name: Option<&'a str>,
    /// Who is told.
    pub reporter: &'a Reporter,
    /// Ends the run after so many steps, as a power cut would: for tests.
    pub stop_after: Option<usize>,
}

/// Carries out `plan`.
pub fn run(plan: &Plan, machine: &Machine<'_>) -> Result<Handoff> {
    let total = plan.steps.len();
    let mut progress = Progress::default();
    for (i, step) in plan.steps.iter().enumerate() {
        if machine.stop_after.is_some_and(|n| i >= n) {
            return Err(Failure::new(
                Class::Bug,
                format!("stopped before step {} as asked", i + 1),
            ));
        }
        let began = Instant::now();
        let name = step.name();
        machine.reporter.emit(Event::StepStarted {
            index: i + 1,
            total,
            step: name,
            text: step.to_string(),
        });
        let started = silence::broken(name, machine.reporter, || {
            match started(step, &mut progress, machine)? {
                Some(handoff) => Ok(Some(handoff)),
                None => carry_or_instead(step, plan, &mut progress, machine),
            }
        })
        .map_err(|f: Failure| f.in_step(name))?;
        machine.reporter.emit(Event::StepDone {
            step: name,
            milliseconds: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        if let Some(handoff) = started {
            return Ok(handoff);
        }
        if let Step::Handoff(handoff) = step {
            return Ok(handoff.clone());
        }
    }
    Err(Failure::new(Class::Bug, "the plan has no end").hint("report this as a bug of ironroot"))
}

/// How far disk and session are. Each is a chain of states of its own.
struct Progress {
    disk: Stage,
    session: Session,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            disk: Stage::Idle,
            session: Session::Idle,
        }
    }
}

fn carry_out(
    step: &Step,
    plan: &Plan,
    progress: Progress,
    machine: &Machine<'_>,
) -> Result<Progress> {
    let Progress { disk, session } = progress;
    match step {
        Step::LockDisk { .. }
        | Step::LockStack { .. }
        | Step::TakeDown { .. }
        | Step::ClaimDisk
        | Step::WipeDisk { .. }
        | Step::OpenImage { .. }
        | Step::WriteMark { .. }
        | Step::ReplaceTable { .. }
        | Step::ClearDisk { .. }
        | Step::WriteBody { .. }
        | Step::ReadBack
        | Step::OpenPartitions { .. }
        | Step::OpenTree { .. }
        | Step::MakePartitions { .. }
        | Step::MakeFileSystems { .. }
        | Step::UnpackTree { .. }
        | Step::SettleTree { .. }
        | Step::InstallBootloader { .. }
        | Step::ChangeSystem { .. }
        | Step::LookAtSources { .. }
        | Step::KeepPaths { .. }
        | Step::MakeFilesystem { .. }
        | Step::GrowFilesystem { .. }
        | Step::ClosePartitions
        | Step::CommitHead { .. }
        | Step::BeginFirstBoot { .. }
        | Step::RereadPartitions
        | Step::BootEntry { .. }
        | Step::BootDisk { .. }
        | Step::ForgetDiskBoot
        | Step::CountStart { .. }
        | Step::GiveUp { .. } => Ok(Progress {
            disk: on_disk(step, disk, machine)?,
            session,
        }),
        Step::OpenRoot { .. }
        | Step::LoadRoot
        | Step::MountRoot { .. }
        | Step::AddPartitions { .. }
        | Step::OpenSource { .. }
        | Step::Preserve { .. }
        | Step::Scratch { .. }
        | Step::Volatile { .. }
        | Step::ZramSwap { .. }
        | Step::CheckRoot { .. } => Ok(Progress {
            disk,
            session: in_memory(step, plan, session, machine)?,
        }),
        // Answered where the steps are counted.
        Step::StartInstalled { .. } => Ok(Progress { disk, session }),
        // The disk is closed and unlocked before the machine goes down.
        Step::Handoff(_) => Ok(Progress {
            disk: Stage::Idle,
            session: session.hand_over(
                &Told {
                    image: &machine.image.map(Image::name).unwrap_or_default(),
                    config: machine.config,
                    name: machine.name,
                },
                machine.reporter,
            )?,
        }),
    }
}

/// Carries out a step; where that fails and it says what is done instead, that, which ends the run.
fn carry_or_instead(
    step: &Step,
    plan: &Plan,
    progress: &mut Progress,
    machine: &Machine<'_>,
) -> Result<Option<Handoff>> {
    let before = std::mem::take(progress);
    match carry_out(step, plan, before, machine) {
        Ok(after) => {
            *progress = after;
            Ok(None)
        }
        Err(failure) => {
            let Step::BootEntry {
                otherwise: Some(instead),
                ..
            } = step
            else {
                return Err(failure);
            };
            machine.reporter.warn(format!(
                "the firmware is not told, and the system's own kernel is started from here: {}",
                describe(&failure)
            ));
            // A restart would end here again: without either the machine stays where it is.
            match try_start(instead, progress, machine) {
                Some(Ok(handoff)) => Ok(Some(handoff)),
                Some(Err(second)) => Err(second),
                None => Err(failure),
            }
        }
    }
}

/// Starts the installed system, where this step does; `None` where the run goes on.
fn started(step: &Step, progress: &mut Progress, machine: &Machine<'_>) -> Result<Option<Handoff>> {
    match try_start(step, progress, machine) {
        Some(Ok(handoff)) => Ok(Some(handoff)),
        Some(Err(failure)) => tolerate(Err(failure), step, machine.reporter).map(|()| None),
        None => Ok(None),
    }
}

fn try_start(
    step: &Step,
    progress: &mut Progress,
    machine: &Machine<'_>,
) -> Option<Result<Handoff>> {
    let Step::StartInstalled {
        target,
        start,
        place,
        init,
        switch,
        kept,
    } = step
    else {
        return None;
    };
    // The disk is closed and unlocked before its system is mounted.
    progress.disk = Stage::Idle;
    let system = start::System {
        target,
        place,
        init: init.as_deref(),
        switch: *switch,
        kept,
    };
    Some(start::start(&system, *start, machine))
}

fn source<'a>(machine: &Machine<'a>) -> Result<Source<'a>> {
    let image = machine
        .image
        .ok_or_else(|| Failure::new(Class::Bug, "the plan needs an image and has none"))?;
    Ok(Source {
        image,
        fetcher: machine.fetcher,
        keys: machine.keys,
        root: machine.root,
        arch: machine.arch,
    })
}

fn not_of_this_family(step: &Step) -> Failure {
    Failure::new(Class::Bug, format!("step {} went astray", step.name()))
        .hint("report this as a bug of ironroot")
}

/// All that `plan` mounts in the root of a session.
fn intended(plan: &Plan) -> Intended<'_> {
    let mut all = Intended::default();
    for step in &plan.steps {
        match step {
            Step::Preserve { binding } => {
                all.bindings.push(&**binding);
                // The machine id is copied.
                if lasting::is_mounted(binding) {
                    all.mounted.push(&binding.target);
                }
            }
            Step::Scratch { path, .. } | Step::Volatile { path, .. } => all.mounted.push(path),
            _ => {}
        }
    }
    all
}

fn in_memory(step: &Step, plan: &Plan, session: Session, machine: &Machine<'_>) -> Result<Session> {
    let reporter = machine.reporter;
    match step {
        Step::OpenRoot {
            kind, method, room, ..
        } => session.open(
            &source(machine)?,
            Wanted {
                kind: *kind,
                method: *method,
                room,
            },
            Budget::new(machine.retry_for),
            reporter,
        ),
        Step::LoadRoot => session.load(reporter),
        Step::MountRoot {
            place,
            verity,
            upper,
        } => session.mount(place, verity.as_ref(), upper.as_deref(), reporter),
        Step::AddPartitions { partitions } => session.add_partitions(partitions, reporter),
        Step::OpenSource { source } => session.open_source(source, reporter),
        Step::Preserve { binding } => {
            let all = intended(plan);
            session.preserve(binding, &all, reporter)
        }
        Step::Scratch { path, size, inodes } => session.scratch(path, *size, *inodes),
        Step::Volatile {
            path,
            number,
            size,
            inodes,
        } => session.volatile(path, *number, (*size, *inodes)),
        Step::ZramSwap { size } => {
            tolerate(zram::swap_on(machine.root, *size), step, reporter)?;
            Ok(session)
        }
        Step::CheckRoot { init, .. } => session.check(init.as_deref(), reporter),
        other => Err(not_of_this_family(other)),
    }
}

fn on_disk(step: &Step, stage: Stage, machine: &Machine<'_>) -> Result<Stage> {
    match step {
        Step::LockDisk { target, seen } => {
            let stage = stage.lock(target)?;
            seen_again::must_be_as_planned(machine.root, target, seen)?;
            Ok(stage)
        }
        Step::LockStack {
            target,
            seen,
            devices,
        } => {
            let stage = stage.lock_stack(target, devices)?;
            seen_again::must_be_as_planned(machine.root, target, seen)?;
            Ok(stage)
        }
        Step::TakeDown { device } => stage.take_down(device),
        Step::ClaimDisk => stage.claim(),
        Step::WipeDisk { method, spans } => stage.wipe(*method, spans, machine.reporter),
        Step::OpenImage { record, shape, .. } => stage.open(
            &source(machine)?,
            *record,
            shape,
            Budget::new(machine.retry_for),
            machine.reporter,
        ),
        Step::WriteMark { record } => stage.mark(record),
        Step::ReplaceTable { first, .. } => stage.replace_table(*first),
        Step::ClearDisk { spans } => stage.clear(spans),
        Step::WriteBody { remember } => stage.write(*remember, machine.reporter),
        Step::ReadBack => stage.read_back(machine.reporter),
        Step::OpenTree {
            table,
            filesystem,
            shape,
            running,
            ..
        } => stage.open_tree(
            &source(machine)?,
            tree_disk::Wanted {
                table,
                filesystem: *filesystem,
                shape,
                running: *running,
            },
            Budget::new(machine.retry_for),
            machine.reporter,
        ),
        Step::MakePartitions { kept, .. } => stage.make_partitions(kept),
        Step::MakeFileSystems { filesystems } => stage.make_filesystems(|shared| {
            tree_disk::make_filesystems(shared, filesystems, machine.reporter)
        }),
        Step::UnpackTree {
            partition,
            remember,
            ..
        } => stage.unpack_tree((*partition, *remember), machine.reporter),
        Step::SettleTree {
            partition,
            root,
            esp,
        } => stage.work(step.name(), |working| {
            tree_disk::settle(
                working.shared(),
                *partition,
                (root, esp.as_deref()),
                machine.reporter,
            )
        }),
        Step::InstallBootloader { wish } => stage.install_bootloader(|working| {
            tree_disk::install_bootloader(working.shared(), wish, machine.reporter)
        }),
        Step::OpenPartitions { kept } => stage.open_partitions(kept),
        Step::ChangeSystem { changes: planned } => stage.work(step.name(), |working| {
            let mut changes = machine.changes.clone();
            if planned.append.is_empty() && planned.remove.is_empty() {
                changes.arguments = Edit::default();
            }
            let system = installed_system(working, machine)?;
            let secure_boot = crate::host::boot_entries::secure_boot(machine.root);
            system.change(&changes, machine.ignition, secure_boot, machine.reporter)?;
            system.unmount()
        }),
        Step::MakeFilesystem { label, filesystem } => stage.work(step.name(), |working| {
            make_filesystem::on_added(working, label, *filesystem, machine.reporter)
        }),
        Step::GrowFilesystem { .. } => stage.work(step.name(), |working| {
            grow::file_system(working, machine.reporter)
        }),
        Step::LookAtSources { sources, bindings } => stage.look_ahead(|disk, kept| {
            preserve::look_ahead::look_ahead((disk, kept), sources, bindings, machine.reporter)
        }),
        Step::KeepPaths { sources, bindings } => stage.work(step.name(), |working| {
            let system = installed_system(working, machine)?;
            let table = &working.layout().table;
            let nodes = working.shared().nodes();
            installed::lasting::keep(&system, (table, nodes), sources, bindings, machine.reporter)?;
            system.unmount()
        }),
        Step::ClosePartitions => stage.close_partitions(),
        Step::CommitHead { record } => {
            let stage = stage.commit(record.as_ref())?;
            if let Stage::Complete(disk, _) = &stage {
                machine
                    .reporter
                    .info(format!("installed: {} boots from now on", disk.target()));
            }
            Ok(stage)
        }
        Step::BeginFirstBoot { sources, bindings } => {
            if let Stage::Complete(disk, done) = &stage {
                let table = done.layout.table.partitions();
                tolerate(
                    preserve::first_boot::begin((disk, table), sources, bindings),
                    step,
                    machine.reporter,
                )?;
            }
            Ok(stage)
        }
        Step::RereadPartitions => {
            if let Stage::Complete(disk, done) = &stage {
                tolerate(
                    reread::reread(disk, done.layout.table.partitions()),
                    step,
                    machine.reporter,
                )?;
            }
            Ok(stage)
        }
        Step::BootDisk { number, tries, .. } => {
            boot::disk_once(machine.root, *number, *tries)?;
            Ok(stage)
        }
        Step::CountStart { tries } => {
            tolerate(boot::count(machine.root, *tries), step, machine.reporter)?;
            Ok(stage)
        }
        Step::GiveUp { reason } => Err(Failure::new(Class::Handover, reason.clone()).hint(
            "look at the console of the installed system; a start of this machine tries again, and a higher metadata.generation installs anew",
        )),
        Step::ForgetDiskBoot => {
            tolerate(boot::forget_disk(machine.root), step, machine.reporter)?;
            Ok(stage)
        }
        Step::BootEntry {
            efi,
            description,
            esp,
            replaced,
            required: _,
            tries,
            otherwise: _,
        } => {
            let (installed, disk) = match &stage {
                Stage::Complete(disk, done) => {
                    let table = done.layout.table.partitions();
                    (disk_root::esp_in(table, disk.target().sector), Some(disk))
                }
                _ => (None, None),
            };
            let wanted = boot::Wanted {
                efi: *efi,
                description,
                arch: machine.arch,
                esp: installed.as_ref().or(esp.as_ref()),
                replaced,
                tries: *tries,
            };
            let result = boot::entry(machine.root, &wanted, disk, machine.reporter);
            tolerate(result, step, machine.reporter)?;
            Ok(stage)
        }
        other => Err(not_of_this_family(other)),
    }
}

/// The new system, mounted to be changed. What is kept is no part of it, whatever it holds.
fn installed_system(
    working: &install::Working,
    machine: &Machine<'_>,
) -> Result<installed::Installed> {
    let layout = working.layout();
    let kept: Vec<u32> = layout.kept.iter().map(|p| p.number).collect();
    installed::Installed::mount(
        &partitions::without(working.shared().nodes(), &kept),
        &layout.table,
        machine.arch,
        installed::Access::Change,
        machine.reporter,
    )
}

/// After the verdict, what is not essential may warn, never undo.
fn tolerate(result: Result<()>, step: &Step, reporter: &Reporter) -> Result<()> {
    match result {
        Err(failure) if step.may_fail() => {
            reporter.warn(format!(
                "{}; the run goes on without it",
                describe(&failure)
            ));
            Ok(())
        }
        other => other,
    }
}
