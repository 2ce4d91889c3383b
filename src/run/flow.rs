//! The one flow behind every entrance: config, facts, plan, run, report, handoff.

mod deciding;
mod fetchers;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::cmdline::Cmdline;
use crate::config::request::{Goal, Request, SystemChanges};
use crate::config::source::{self, Loaded};
use crate::config::{wire, words};
use crate::error::{Class, Context as _, Failure, Result};
use crate::host;
use crate::plan::{Handoff, Plan, Step};
use crate::report::{Event, Reporter, webhook};
use crate::run::install::ItIsATree;
use crate::run::{self, Machine};
use crate::stream::{Budget, Fetcher, HttpUrl, Keyring, Location};
use crate::sys::chroot;
use crate::units::Bytes;
use deciding::{await_devices, decide};
use fetchers::{certificates, image_fetcher, options};

/// Where plan, events and verdict of this run are.
pub const STATE: &str = "/run/ironroot";

/// How the flow is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// As the child of our own PID 1.
    Init,
    /// As the helper of another initrd's PID 1.
    Initrd,
    /// On a running Linux.
    Install,
    /// Only to say what would be done.
    Plan,
}

/// Changes a config before it is interpreted: the flags of a command.
pub type Amend<'a> = &'a dyn Fn(Option<wire::BootConfig>) -> Result<wire::BootConfig>;

/// Brings the network up within a time, where this program has to.
pub type Network<'a> = &'a mut dyn FnMut(Duration) -> Result<()>;

/// What an entrance asks for.
pub struct Entrance<'a> {
    /// How the flow is entered.
    pub role: Role,
    /// The kernel command line; empty on a running Linux, whose own words are not for us.
    pub cmdline: &'a Cmdline,
    /// `--config`.
    pub config: Option<&'a str>,
    /// The flags that stand for a config, or amend it.
    pub amend: Option<Amend<'a>>,
    /// A regular file may be the target.
    pub allow_file: bool,
    /// `--retry-for`.
    pub retry_for: Option<Duration>,
    /// `--wait`.
    pub wait: Option<Duration>,
    /// Brings the network up.
    pub network: Option<Network<'a>>,
    /// Where /sys, /proc and /dev are.
    pub root: &'a Path,
    /// Where the helper of another PID 1 leaves the root.
    pub sysroot: &'a Path,
    /// Ends the run after so many steps.
    pub stop_after: Option<usize>,
}

impl std::fmt::Debug for Entrance<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entrance")
            .field("role", &self.role)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// What a run is for: everything that is known once the config has been read.
struct Mission {
    request: Request,
    fetcher: Fetcher,
    /// The same, with what proves this machine to the image's servers.
    image_fetcher: Fetcher,
    keys: Keyring,
    machine: host::Machine,
    retry_for: Duration,
    wait: Duration,
    /// Where the boot config came from, without secrets.
    origin: String,
}

/// What the plan says that the report is about.
#[derive(Default)]
struct Known {
    drift: Vec<String>,
    /// A disk that is installed already is booted, and nothing else.
    only_boots: bool,
}

/// Makes the plan and shows it; nothing is changed.
pub fn plan_only(entrance: &mut Entrance<'_>, reporter: &Reporter) -> Result<Plan> {
    let mission = prepare(entrance, reporter)?;
    decide(entrance, &mission, reporter)
}

/// The whole flow. The result says what shall happen to the machine.
pub fn carry_out(entrance: &mut Entrance<'_>, reporter: &Reporter) -> Result<Handoff> {
    let mut mission = prepare(entrance, reporter)?;
    // A rehearsal is nobody's success: it is not reported.
    if entrance.cmdline.get("ironroot.mode") == Some("plan") {
        decide(entrance, &mission, reporter)?;
        return Ok(Handoff::Park {
            reason: "ironroot.mode=plan: nothing was touched".to_owned(),
        });
    }
    let mut known = Known::default();
    let mut outcome = decide_and_run(entrance, &mission, reporter, &mut known);
    if let Err(failure) = &outcome
        && let Some(tree) = failure.source().and_then(|s| s.downcast_ref::<ItIsATree>())
    {
        // The plan was made for a disk image, and nothing has been written.
        reporter.info(format!("the image: {tree}; planning again"));
        if let Goal::Disk(install) = &mut mission.request.goal {
            install.image.kind = wire::ImageKind::Tree;
        }
        // What was waited for a moment ago need not be again.
        mission.wait = Duration::ZERO;
        outcome = decide_and_run(entrance, &mission, reporter, &mut known);
    }
    let word = outcome.as_ref().map(word_of);
    let only_boots = known.only_boots && outcome.is_ok();
    let (fetcher, patience) = if only_boots {
        (
            impatient(&mission.fetcher, reporter).unwrap_or_else(|_| mission.fetcher.clone()),
            webhook::SHORT_PATIENCE,
        )
    } else {
        (mission.fetcher.clone(), webhook::PATIENCE)
    };
    let told = webhook::send(
        &fetcher,
        &mission.request.report,
        &mission.machine,
        mission.request.name.as_deref(),
        &known.drift,
        (word, patience),
    );
    if let Err(failure) = told {
        reporter.warn(format!(
            "the report was not delivered: {}",
            crate::error::chain(&failure)
        ));
    }
    outcome
}

/// The handoff as events, reports and files spell it.
pub fn word_of(handoff: &Handoff) -> &'static str {
    match handoff {
        Handoff::Reboot => "reboot",
        Handoff::PowerOff => "powerOff",
        Handoff::Kexec => "kexec",
        Handoff::Park { .. } => "park",
        Handoff::SwitchRoot { .. } => "switchRoot",
        Handoff::Sysroot { .. } => "sysroot",
    }
}

/// The same fetcher, for a server that may be down.
fn impatient(fetcher: &Fetcher, reporter: &Reporter) -> Result<Fetcher> {
    let mut options = fetcher.options().clone();
    options.idle_timeout = options.idle_timeout.min(webhook::SHORT_PATIENCE);
    options.connect_timeout = options.connect_timeout.min(webhook::SHORT_PATIENCE);
    Fetcher::new(options, reporter.clone())
}

fn decide_and_run(
    entrance: &mut Entrance<'_>,
    mission: &Mission,
    reporter: &Reporter,
    known: &mut Known,
) -> Result<Handoff> {
    let plan = decide(entrance, mission, reporter)?;
    known.drift.clone_from(&plan.drift);
    known.only_boots = mission.request.disk().is_some() && !plan.is_destructive();
    save(entrance.role, "plan.json", &plan, reporter);
    can_be_carried_out(entrance.root, &plan)?;
    let image = match mission.request.image() {
        Some(image) if plan.needs_image() => {
            Some(await_devices(entrance, mission, image, reporter)?)
        }
        _ => None,
    };
    let none = SystemChanges::default();
    let changes = mission.request.disk().map_or(&none, |i| &i.changes);
    let ignition = match &changes.ignition {
        Some(url) if plan.changes_the_system() => Some(ignition_config(mission, url)?),
        _ => None,
    };
    let machine = Machine {
        fetcher: &mission.image_fetcher,
        image: image.as_ref(),
        changes,
        ignition: ignition.as_deref(),
        retry_for: mission.retry_for,
        keys: &mission.keys,
        root: entrance.root,
        arch: &mission.machine.arch,
        config: &mission.origin,
        name: mission.request.name.as_deref(),
        reporter,
        stop_after: entrance.stop_after,
    };
    run::run(&plan, &machine)
}

/// Looks for the key files and programs of required sources, and for what runs a tree's own programs, before anything
/// is fetched or written.
fn can_be_carried_out(root: &Path, plan: &Plan) -> Result<()> {
    for step in &plan.steps {
        if let Step::InstallBootloader { wish } = step
            && wish.runs_the_trees_programs()
        {
            chroot::can_run()?;
        }
        let sources = match step {
            Step::OpenSource { source } => std::slice::from_ref(&**source),
            Step::KeepPaths { sources, .. } => sources.as_slice(),
            Step::MountRoot {
                upper: Some(upper), ..
            } => std::slice::from_ref(&upper.source),
            _ => &[],
        };
        for source in sources.iter().filter(|s| s.required) {
            if let Some(luks) = &source.luks {
                run::preserve::luks::can_be_opened(&luks.key_file, root)?;
            }
            run::preserve::source::can_be_opened(source)?;
        }
    }
    Ok(())
}

/// Fetches the Ignition config before anything is written, and sees that it is one.
fn ignition_config(mission: &Mission, url: &HttpUrl) -> Result<Vec<u8>> {
    const LIMIT: Bytes = Bytes(4 << 20);
    let mut budget = Budget::new(mission.retry_for);
    let location = Location::Http(url.clone());
    let bytes = mission
        .fetcher
        .get_small(&location, &[], LIMIT, &mut budget)?;
    let is_one = serde_json::from_slice::<serde_json::Value>(&bytes)
        .ok()
        .is_some_and(|json| {
            json.pointer("/ignition/version")
                .is_some_and(serde_json::Value::is_string)
        });
    if is_one {
        return Ok(bytes);
    }
    Err(Failure::new(
        Class::Config,
        format!("ignition.url: what came from {location} is no Ignition config: it is no JSON with a text at ignition.version"),
    )
    .hint("translate a Butane config with butane first"))
}

/// Config to mission.
fn prepare(entrance: &mut Entrance<'_>, reporter: &Reporter) -> Result<Mission> {
    let in_initrd =
        is_in_initrd(entrance.role) || entrance.root.join("etc/initrd-release").exists();
    let mut retry_for = entrance
        .retry_for
        .or(words::duration(entrance.cmdline, "ironroot.timeout")?);
    let default_retry = Duration::from_secs(if in_initrd { 30 * 60 } else { 60 });
    let patience = retry_for.unwrap_or(default_retry);
    let mut network_is_up = false;
    let mut bring_up = |entrance: &mut Entrance<'_>| match entrance.network.as_mut() {
        Some(network) if !network_is_up => {
            network_is_up = true;
            network(patience)
        }
        _ => Ok(()),
    };

    words::understood(entrance.cmdline, reporter)?;
    let bootif = host::machine::bootif(entrance.root);
    let machine = host::machine::probe(entrance.root, bootif.as_deref());
    let keys = Keyring::read(entrance.root)?;
    let mut ca = certificates(entrance)?;
    let given_proxies = words::proxies(entrance.cmdline, &|name| std::env::var(name).ok())?;
    let bare = Fetcher::new(options(&ca, &given_proxies, patience), reporter.clone())?;
    let (config, origin, text) = if entrance.amend.is_some() && entrance.config.is_none() {
        (None, "the command line".to_owned(), Vec::new())
    } else {
        let source = source::locate(entrance.config, entrance.cmdline, entrance.root, &machine)?;
        if source.needs_network() {
            bring_up(entrance)?;
        }
        let expected = words::expected_digest(entrance.cmdline)?;
        let mut budget = Budget::new(patience);
        let Loaded {
            config,
            origin,
            digest,
            signed_by,
            text,
        } = source::load(&source, &bare, &mut budget, expected.as_ref(), &keys)?;
        if let Some(key) = signed_by {
            reporter.info(format!("boot config {origin}: signed by {key}"));
        }
        reporter.emit(Event::Config {
            origin: origin.clone(),
            digest: digest.to_string(),
            name: config.metadata.name.clone(),
        });
        (Some(config), origin, text)
    };
    let config = match entrance.amend {
        Some(amend) => amend(config)?,
        None => config.ok_or_else(|| Failure::new(Class::Bug, "there is no boot config"))?,
    };
    let request = source::interpret(&config, &origin, &text)?;
    tell_pid_1(entrance.role, request.on_failure);

    ca.extend(request.ca.iter().map(|pem| pem.clone().into_bytes()));
    retry_for = retry_for.or(request.retry_for);
    let patience = retry_for.unwrap_or(default_retry);
    let proxies = request.proxies.as_ref().unwrap_or(&given_proxies);
    if !proxies.is_empty() {
        reporter.info(format!("proxies: {proxies}"));
    }
    let fetcher = Fetcher::new(options(&ca, proxies, patience), reporter.clone())?;
    let image_fetcher = image_fetcher(entrance.root, &request, &fetcher)?;
    let image_is_remote = request
        .image()
        .is_some_and(|image| image.all_locations().any(Location::is_remote));
    let ignition = request.disk().is_some_and(|i| i.changes.ignition.is_some());
    if image_is_remote || ignition || request.report.url.is_some() {
        bring_up(entrance)?;
    }
    let default_wait = Duration::from_secs(if in_initrd { 30 } else { 0 });
    Ok(Mission {
        retry_for: patience,
        wait: entrance.wait.or(request.wait).unwrap_or(default_wait),
        origin,
        request,
        fetcher,
        image_fetcher,
        keys,
        machine,
    })
}

fn is_in_initrd(role: Role) -> bool {
    match role {
        Role::Init | Role::Initrd => true,
        Role::Install | Role::Plan => false,
    }
}

/// PID 1 acts on `onFailure`; it reads the config's wish from a file, because the run may not live to say it.
fn tell_pid_1(role: Role, then: wire::OnFailureThen) {
    if role != Role::Init {
        return;
    }
    let word = match then {
        wire::OnFailureThen::Park => "park",
        wire::OnFailureThen::PowerOff => "powerOff",
        wire::OnFailureThen::Reboot => "reboot",
    };
    // Parking, the default, needs no file.
    let _ = std::fs::write(crate::init::verdict::ON_FAILURE, format!("\"{word}\""));
}

/// Tells PID 1 how the run ended.
pub fn hand_over(handoff: &Handoff) -> Result<()> {
    let path = crate::init::verdict::HANDOFF;
    let mut json = serde_json::json!({ "handoff": word_of(handoff) });
    if let Handoff::SwitchRoot { root, init } = handoff
        && let Some(object) = json.as_object_mut()
    {
        object.insert("root".to_owned(), serde_json::json!(root));
        object.insert("init".to_owned(), serde_json::json!(init));
    }
    std::fs::write(path, json.to_string()).context(Class::Handover, || format!("writing {path}"))
}

/// Writes `what` where only root looks: a plan names URLs, keys and people's files.
fn private(path: &Path, what: &impl serde::Serialize) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let mut text = serde_json::to_vec_pretty(what)?;
    text.push(b'\n');
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    // One that an older version left behind.
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    std::io::Write::write_all(&mut file, &text)
}

fn save(role: Role, name: &str, what: &impl serde::Serialize, reporter: &Reporter) {
    let path = PathBuf::from(STATE).join(name);
    let written = private(&path, what);
    if let Err(e) = written
        && is_in_initrd(role)
    {
        reporter.warn(format!("{} was not written: {e}", path.display()));
    }
}
