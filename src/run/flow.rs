//! The one flow behind every entrance: config, facts, plan, run, report, handoff.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::cmdline::Cmdline;
use crate::config::request::{Goal, Image, Request, SystemChanges, Text};
use crate::config::source::{self, Loaded};
use crate::config::{wire, words};
use crate::error::{Class, Context as _, Failure, Result};
use crate::host::seed::Seed;
use crate::host::{self, Facts, Place};
use crate::plan::{self, Handoff, Plan, Refusal, Step, target};
use crate::report::{Event, Reporter, webhook};
use crate::run::install::ItIsATree;
use crate::run::{self, Machine};
use crate::stream::{
    Budget, ClientCertificate, FetchOptions, Fetcher, HttpUrl, Keyring, Location, Proxies,
};
use crate::sys::clock::Deadline;
use crate::units::Bytes;

/// Where plan, events and verdict of this run are.
pub const STATE: &str = "/run/ironroot";

/// As PID 1, a choice among disks is made when no new one has appeared for this long.
const SETTLED_FOR: Duration = Duration::from_secs(3);

/// A disk that appears late is looked for this often.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// How long a server may be silent at the least, however short the time for retries is.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(5);

/// Files of CA certificates that an initrd may carry.
const CA_FILES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

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
    let mut drift = Vec::new();
    let mut outcome = decide_and_run(entrance, &mission, reporter, &mut drift);
    if let Err(failure) = &outcome
        && let Some(tree) = failure.source().and_then(|s| s.downcast_ref::<ItIsATree>())
    {
        // The plan was made for a disk image, and nothing has been written.
        reporter.info(format!("the image: {tree}; planning again"));
        if let Goal::Disk(install) = &mut mission.request.goal {
            install.image.kind = wire::ImageKind::Tree;
        }
        outcome = decide_and_run(entrance, &mission, reporter, &mut drift);
    }
    let word = outcome.as_ref().map(word_of);
    let told = webhook::send(
        &mission.fetcher,
        &mission.request.report,
        &mission.machine,
        mission.request.name.as_deref(),
        &drift,
        word,
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

fn decide_and_run(
    entrance: &mut Entrance<'_>,
    mission: &Mission,
    reporter: &Reporter,
    drift: &mut Vec<String>,
) -> Result<Handoff> {
    let plan = decide(entrance, mission, reporter)?;
    drift.clone_from(&plan.drift);
    save(entrance.role, "plan.json", &plan, reporter);
    keys_are_there(entrance.root, &plan)?;
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

/// Looks for the key files of required sources before anything is fetched.
fn keys_are_there(root: &Path, plan: &Plan) -> Result<()> {
    for step in &plan.steps {
        if let Step::OpenSource { source } = step
            && let Some(luks) = source.luks.as_ref().filter(|_| source.required)
        {
            run::preserve::luks::can_be_opened(luks, root)?;
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

/// A server that says nothing must not outlast the time for which the operator wants to retry; an attempt
/// gets a few seconds all the same.
fn options(ca: &[Vec<u8>], proxies: &Proxies, retry_for: Duration) -> FetchOptions {
    let normal = FetchOptions::default();
    let most = retry_for.max(SHORTEST_ATTEMPT);
    FetchOptions {
        ca_pem: ca.to_vec(),
        proxies: proxies.clone(),
        idle_timeout: normal.idle_timeout.min(most),
        connect_timeout: normal.connect_timeout.min(most),
        ..normal
    }
}

/// The fetcher for the image and what lies beside it.
fn image_fetcher(root: &Path, request: &Request, fetcher: &Fetcher) -> Result<Fetcher> {
    let Some(certificate) = request
        .image()
        .and_then(|image| image.client_certificate.as_ref())
    else {
        return Ok(fetcher.clone());
    };
    let read = |text: &Text, key: &str| match text {
        Text::Inline(text) => Ok(text.clone().into_bytes()),
        Text::File(path) => std::fs::read(root.join(path.strip_prefix("/").unwrap_or(path)))
            .context(Class::Config, || {
                format!("reading image.clientCertificate.{key} {}", path.display())
            }),
    };
    fetcher.with_client_certificate(ClientCertificate {
        chain_pem: read(&certificate.chain, "certificate")?,
        key_pem: read(&certificate.key, "privateKey")?,
    })
}

/// One trust store for every fetch: the compiled-in roots, the initrd's, `ironroot.ca=`, the config's.
fn certificates(entrance: &Entrance<'_>) -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    // On a running Linux the system's own store counts as well.
    for file in CA_FILES {
        let path = entrance.root.join(file.trim_start_matches('/'));
        if let Ok(pem) = std::fs::read(path) {
            all.push(pem);
            break;
        }
    }
    for path in entrance.cmdline.all("ironroot.ca") {
        let place = entrance.root.join(path.trim_start_matches('/'));
        all.push(
            std::fs::read(&place)
                .context(Class::Config, || format!("reading ironroot.ca={path}"))?,
        );
    }
    Ok(all)
}

/// Facts to plan. Disks that are missing are waited for.
fn decide(entrance: &Entrance<'_>, mission: &Mission, reporter: &Reporter) -> Result<Plan> {
    let deadline = Deadline::after(mission.wait);
    let mut told = false;
    if !is_one_disk(entrance, &mission.request) {
        settle(entrance.root, deadline, mission.wait, reporter)?;
    }
    loop {
        let waited = deadline.passed();
        let facts = Facts {
            waited,
            ..look(entrance, &mission.request)?
        };
        match plan::plan(&mission.request, &facts) {
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

/// The image with its devices found: a path below /dev that is not there yet is waited for, and looked for
/// by its label where nobody makes the links.
fn await_devices(
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

fn is_in_initrd(role: Role) -> bool {
    match role {
        Role::Init | Role::Initrd => true,
        Role::Install | Role::Plan => false,
    }
}

/// Whether no disk that appears later could change which one is meant.
fn is_one_disk(entrance: &Entrance<'_>, request: &Request) -> bool {
    !is_in_initrd(entrance.role)
        || (request.disk().is_none_or(|install| {
            let select = &install.select;
            select.serial.is_some()
                || select.wwn.is_some()
                || select.hctl.is_some()
                || target::named_path(select).is_some()
        }) && !plan::preserve::may_be_ambiguous(request.sources()))
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

fn save(role: Role, name: &str, what: &impl serde::Serialize, reporter: &Reporter) {
    let path = PathBuf::from(STATE).join(name);
    let written = std::fs::create_dir_all(STATE).and_then(|()| {
        let mut text = serde_json::to_vec_pretty(what)?;
        text.push(b'\n');
        std::fs::write(&path, text)
    });
    if let Err(e) = written
        && is_in_initrd(role)
    {
        reporter.warn(format!("{} was not written: {e}", path.display()));
    }
}
