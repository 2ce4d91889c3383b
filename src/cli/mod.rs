//! The command line: what this process is (PID 1, the kernel's modprobe, a command), and the commands.

mod ended;
mod flags;
mod initrd;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::config::cmdline::Cmdline;
use crate::config::{parse, request, source, wire};
use crate::error::{Class, Failure, Result, describe};
use crate::init::switch_root::command as switch_root;
use crate::plan::{Handoff, Plan};
use crate::report::event::EVENT_VERSION;
use crate::report::{Event, Reporter, Sink, console, jsonl, logger};
use crate::run::flow::{self, Entrance, Role};
use crate::{host, init, sys};
use flags::{Common, OneOff};

/// Installs an operating system on a network-booted machine.
#[derive(Debug, Parser)]
#[command(name = "ironroot", version, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 done, 2 usage, 10 config, 11 network or fetch, 12 verification, \
13 target refused or not found, 14 disk I/O, 15 not enough memory or space, 16 preserved mount, 17 handover, \
70 a bug in ironroot."
)]
struct Cli {
    /// Least severe messages to show: error, warn, info, debug, trace
    #[arg(long, global = true, default_value = "warn", value_name = "LEVEL")]
    log_level: log::LevelFilter,
    /// Machine form on stdout: one document, or events as JSON lines; people's text on stderr
    #[arg(long, global = true)]
    json: bool,
    /// No colours (there are none yet; accepted for scripts)
    #[arg(long, global = true)]
    no_color: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Be PID 1: the whole flow, from bring-up to the handover
    Boot,
    /// Be the helper of an initrd's PID 1: leave the root at the sysroot, or install and do what `then` says
    Initrd {
        /// Where the root is left
        #[arg(long, value_name = "DIRECTORY", default_value = "/sysroot")]
        sysroot: PathBuf,
        /// Only say by the exit code whether this boot asks for ironroot: 0 yes, 1 no
        #[arg(long)]
        is_wanted: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Install on a disk, from a running Linux; never reboots by itself
    Install {
        #[command(flatten)]
        one_off: OneOff,
        #[command(flatten)]
        common: Common,
    },
    /// Show what would be done; changes nothing
    Plan {
        #[command(flatten)]
        one_off: OneOff,
        #[command(flatten)]
        common: Common,
    },
    /// Validate boot configs; every problem with its line and JSON path
    Check {
        /// Boot configs
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print the JSON Schema of the boot config
    Schema,
    /// List the disks, what a selector can say of each, and what holds it
    Disks,
    /// List the outside programs that ironroot may run, and what each is for
    Tools {
        /// List the kernel modules that ironroot asks for instead, which no driver of hardware is among
        #[arg(long)]
        modules: bool,
    },
    /// The flow as PID 1's child
    #[command(hide = true)]
    Flow,
    /// Take away what a helper has made that was ended
    #[command(hide = true)]
    CleanUp(ended::Before),
    /// Start the system whose root is mounted, as the last line of an initrd's own /init
    #[command(hide = true)]
    SwitchRoot(init::switch_root::command::Switch),
}

/// All commands and flags, for manual pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The program.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let own_name = args.next().unwrap_or_default();
    if init::modules::serve::is_request(&own_name) {
        return init::modules::serve::modprobe_main(args);
    }
    // As /init, the kernel's own words for init are our arguments; they are no commands.
    let pid_1 = init::is_pid_1();
    if pid_1 && !switch_root::is_request(&own_name, std::env::args_os().nth(1).as_deref()) {
        init::main();
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        if pid_1 {
            switch_root::misused(&error)
        }
        error.exit()
    });
    logger::install(cli.log_level);
    match dispatch(&cli) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!(
                "ironroot: {}",
                describe(&failure).replace('\n', "\nironroot: ")
            );
            ExitCode::from(failure.class().exit_code())
        }
    }
}

fn dispatch(cli: &Cli) -> Result<ExitCode> {
    match &cli.command {
        Command::Boot => Err(Failure::new(
            Class::Usage,
            "`ironroot boot` is for PID 1, and this process is not it",
        )
        .hint("start it as /init of an initrd; on a running Linux use `ironroot install`")),
        Command::Initrd {
            is_wanted: true, ..
        } => Ok(initrd::is_wanted()),
        Command::Initrd {
            sysroot, common, ..
        } => Ok(initrd::main(cli.json, sysroot, common)),
        Command::Install { one_off, common } => Ok(install(cli, one_off, common)),
        Command::Plan { one_off, common } => plan(cli, one_off, common),
        Command::Check { files } => check(cli, files),
        Command::Schema => print(&wire::schema()).map(|()| ExitCode::SUCCESS),
        Command::Disks => disks(cli),
        Command::Tools { modules: true } => modules(cli),
        Command::Tools { modules: false } => tools(cli),
        Command::CleanUp(before) => Ok(ended::main(before)),
        Command::Flow => Ok(as_pid_1s_child()),
        Command::SwitchRoot(switch) => switch.run(),
    }
}

/// Writes to stdout. A reader that went away (`| head`) is no failure.
fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout().lock(), "{}", text.trim_end()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Class::Bug, "writing to stdout").caused_by(e))
        }
        _ => Ok(()),
    }
}

fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::new(Class::Bug, "writing JSON").caused_by(e))?;
    print(&text)
}

/// People's lines on `stderr`; with `--json`, events on stdout as well.
fn sinks(json: bool, stderr: Box<dyn std::io::Write + Send>) -> Vec<Sink> {
    let mut sinks = vec![Sink::Console(console::Console::new(vec![stderr]))];
    if json {
        sinks.push(Sink::JsonLines(jsonl::JsonLines::new(Box::new(
            std::io::stdout(),
        ))));
    }
    sinks
}

fn start(reporter: &Reporter, role: &str) {
    reporter.emit(Event::Start {
        format: EVENT_VERSION,
        version: env!("CARGO_PKG_VERSION"),
        role: role.to_owned(),
    });
}

/// The flow on a running Linux, whose network is up and whose kernel command line is not for us.
fn here<'a>(
    role: Role,
    cmdline: &'a Cmdline,
    one_off: &OneOff,
    common: &'a Common,
    amend: flow::Amend<'a>,
) -> Entrance<'a> {
    Entrance {
        role,
        cmdline,
        config: common.config.as_deref(),
        amend: one_off.is_given().then_some(amend),
        allow_file: one_off.allow_file,
        retry_for: common.retry_for,
        wait: common.wait,
        network: None,
        root: Path::new("/"),
        sysroot: Path::new("/sysroot"),
        stop_after: common.stop_after,
    }
}

fn install(cli: &Cli, one_off: &OneOff, common: &Common) -> ExitCode {
    // Another installation at the same time mounts at the same places. Who may not do that may not mount either.
    if let Err(failure) = sys::mount::own_namespace() {
        log::debug!("{}", describe(&failure));
    }
    let reporter = Reporter::new(sinks(cli.json, Box::new(std::io::stderr())));
    start(&reporter, "install");
    let cmdline = Cmdline::default();
    let amend = |config| one_off.amend(config);
    let mut entrance = here(Role::Install, &cmdline, one_off, common, &amend);
    conclude(
        flow::carry_out(&mut entrance, &reporter),
        &reporter,
        |handoff| match handoff {
            Handoff::Reboot | Handoff::Kexec => {
                "done; restart the machine to boot the new system".to_owned()
            }
            Handoff::PowerOff => {
                "done; the new system boots when the machine is switched on again".to_owned()
            }
            Handoff::Park { reason } => format!("done: {reason}"),
            Handoff::SwitchRoot { root, .. } | Handoff::Sysroot { root } => {
                format!("done; the new root is mounted at {}", root.display())
            }
        },
    )
}

/// Tells the end of a run and gives its exit code.
fn conclude(
    outcome: Result<Handoff>,
    reporter: &Reporter,
    say: impl FnOnce(&Handoff) -> String,
) -> ExitCode {
    match outcome {
        Ok(handoff) => {
            reporter.emit(Event::Finished {
                handoff: flow::word_of(&handoff).to_owned(),
                text: say(&handoff),
            });
            ExitCode::SUCCESS
        }
        Err(failure) => {
            reporter.emit(Event::failed(&failure));
            ExitCode::from(failure.class().exit_code())
        }
    }
}

fn plan(cli: &Cli, one_off: &OneOff, common: &Common) -> Result<ExitCode> {
    // Nothing but the plan is shown; what led to it goes to the log.
    let reporter = Reporter::default();
    let cmdline = Cmdline::default();
    let amend = |config| one_off.amend(config);
    let mut entrance = here(Role::Plan, &cmdline, one_off, common, &amend);
    let plan: Plan = flow::plan_only(&mut entrance, &reporter)?;
    if cli.json {
        print_json(&plan)?;
    } else {
        let mut text = format!("{}\n", plan.summary);
        for (i, line) in plan.lines().iter().enumerate() {
            text.push_str(&format!("  {}. {line}\n", i + 1));
        }
        for note in &plan.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text.push_str(if plan.is_destructive() {
            "This plan erases a disk. Nothing has been changed yet."
        } else {
            "This plan writes to no disk."
        });
        print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(cli: &Cli, files: &[PathBuf]) -> Result<ExitCode> {
    let mut good = true;
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read(file).map_err(|e| {
            Failure::new(
                Class::Config,
                format!("reading boot config {}", file.display()),
            )
            .caused_by(e)
        })?;
        let problems = match parse::parse(&text) {
            Err(problems) => problems,
            Ok(config) => match request::interpret(&config) {
                Ok(_) => vec![],
                Err(mut problems) => {
                    source::locate_lines(&mut problems, &text);
                    problems
                }
            },
        };
        good &= problems.is_empty();
        found.push(serde_json::json!({
            "file": file,
            "problems": problems.iter().map(|p| serde_json::json!({
                "path": p.path, "line": p.line, "message": p.message,
            })).collect::<Vec<_>>(),
        }));
        if !cli.json {
            if problems.is_empty() {
                print(&format!("{}: good", file.display()))?;
            }
            for problem in problems {
                print(&format!(
                    "{}: {}",
                    file.display(),
                    crate::error::printable(&problem.to_string())
                ))?;
            }
        }
    }
    if cli.json {
        print_json(&found)?;
    }
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(Class::Config.exit_code())
    })
}

fn disks(cli: &Cli) -> Result<ExitCode> {
    let facts = host::probe(Path::new("/"))?;
    if cli.json {
        print_json(&facts.disks)
    } else {
        let booted_from = facts.machine.booted_from.as_deref();
        print(&host::listing::table(&facts.disks, booted_from))
    }?;
    Ok(ExitCode::SUCCESS)
}

fn tools(cli: &Cli) -> Result<ExitCode> {
    let all = sys::tool::Tool::ALL;
    if cli.json {
        let list: Vec<_> = all
            .iter()
            .map(|t| {
                serde_json::json!({
                    "name": t.names().first(), "names": t.names(), "purpose": t.purpose(), "package": t.package(),
                })
            })
            .collect();
        print_json(&list)?;
    } else {
        for tool in all {
            let name = tool.names().first().copied().unwrap_or_default();
            print(&format!("{name:<12} {}", tool.purpose()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn modules(cli: &Cli) -> Result<ExitCode> {
    let all = init::modules::WANTED;
    if cli.json {
        print_json(&all)?;
    } else {
        print(&all.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The flow in the initrd whose PID 1 we are. PID 1 judges by the exit code and the handoff file.
fn as_pid_1s_child() -> ExitCode {
    let cmdline = init::cmdline();
    if let Some(level) = cmdline.get("ironroot.log").and_then(|l| l.parse().ok()) {
        log::set_max_level(level);
    }
    let reporter = init::console::reporter(&cmdline);
    let hardware = init::bring_up::run(&cmdline, &reporter);
    let mut network = None;
    let mut bring_network_up = |patience| {
        let deadline = sys::clock::Deadline::after(patience);
        let up = init::network::bring_up(
            &cmdline,
            init::network::Places::default(),
            deadline,
            &reporter,
        )?;
        // Kept until the end: its threads renew the leases.
        network = Some(up);
        Ok(())
    };
    let mut entrance = Entrance {
        role: Role::Init,
        cmdline: &cmdline,
        config: None,
        amend: None,
        allow_file: false,
        retry_for: None,
        wait: None,
        network: Some(&mut bring_network_up),
        root: Path::new("/"),
        sysroot: Path::new("/sysroot"),
        stop_after: None,
    };
    let outcome = flow::carry_out(&mut entrance, &reporter);
    hardware.hand_over();
    let outcome = outcome.and_then(|handoff| flow::hand_over(&handoff).map(|()| handoff));
    conclude(outcome, &reporter, |handoff| match handoff {
        Handoff::Reboot => "done: the machine restarts now".to_owned(),
        Handoff::PowerOff => "done: the machine goes off now".to_owned(),
        Handoff::Kexec => "done: the installed system's own kernel starts now".to_owned(),
        Handoff::Park { reason } => format!("done, parked: {reason}"),
        Handoff::SwitchRoot { .. } | Handoff::Sysroot { .. } => {
            "done: the new system starts now".to_owned()
        }
    })
}

/// `30s`, `10m` as a flag's value.
fn duration(text: &str) -> Result<Duration, crate::units::ParseError> {
    crate::units::parse_duration(text)
}
