//! How a run ended and what follows from it: a table, pure.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::Class;

/// Written by the flow when it ends well: `{"handoff":"reboot"|"powerOff"|"park"|"kexec"}`, or
/// `{"handoff":"switchRoot","root":"/run/ironroot/root","init":"/sbin/init"|null}`.
pub const HANDOFF: &str = "/run/ironroot/handoff.json";

/// Written by the flow as soon as it has read a config: one of `"park"`, `"reboot"`, `"powerOff"`.
pub const ON_FAILURE: &str = "/run/ironroot/on-failure.json";

/// What PID 1 does when the flow has ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "handoff", rename_all = "camelCase")]
pub enum Action {
    /// Stay, with the reason on the consoles.
    Park,
    /// Start again from the firmware.
    Reboot,
    /// Go off.
    PowerOff,
    /// Start the kernel that is loaded, or start again from the firmware where that does not work. Never the
    /// answer to a failure.
    Kexec,
    /// Start the system whose root is mounted at `root`. Never the answer to a failure.
    SwitchRoot {
        /// Where it is mounted.
        root: PathBuf,
        /// Its init, a path inside it; `None` for the usual places.
        init: Option<String>,
    },
}

impl Action {
    /// As `ironroot.on-failure=` has it: `park`, `reboot`, `poweroff`, in any case.
    pub fn from_word(word: &str) -> Option<Action> {
        match word.to_ascii_lowercase().as_str() {
            "park" => Some(Action::Park),
            "reboot" => Some(Action::Reboot),
            "poweroff" => Some(Action::PowerOff),
            _ => None,
        }
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Action::Park => "park",
            Action::Reboot => "reboot",
            Action::PowerOff => "power off",
            Action::Kexec => "start the kernel of the installed system",
            Action::SwitchRoot { .. } => "start the new system",
        })
    }
}

/// How the process that ran the flow ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It ended by itself with this code.
    Exited(i32),
    /// A signal ended it.
    Killed {
        /// The signal's name.
        signal: String,
        /// Whether the kernel had run out of memory.
        out_of_memory: bool,
    },
    /// It could not be started or watched.
    Lost(String),
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do.
    pub action: Action,
    /// Whose fault, where the run failed.
    pub failed: Option<Class>,
    /// Why, for people.
    pub reason: String,
    /// Whether the flow itself had the chance to say why.
    pub told: bool,
}

/// The table. `handoff` is the text of [`HANDOFF`] where it exists.
pub fn decide(end: &End, handoff: Option<&str>, on_failure: Action) -> Verdict {
    let failed = move |class, told, reason: String| Verdict {
        action: on_failure,
        failed: Some(class),
        reason,
        told,
    };
    match (end, handoff) {
        (End::Exited(0), Some(text)) => match parse_handoff(text) {
            Some(action) => Verdict {
                action,
                failed: None,
                reason: "the run ended well".to_owned(),
                told: true,
            },
            None => failed(
                Class::Bug,
                false,
                format!("the run ended well, but {HANDOFF} does not say what comes next"),
            ),
        },
        (End::Exited(0), None) => failed(
            Class::Bug,
            false,
            format!("the run ended without writing {HANDOFF}"),
        ),
        (End::Exited(code), _) => {
            let class = Class::from_exit_code(*code);
            let known = i32::from(class.exit_code()) == *code;
            failed(class, known, format!("the run failed with code {code}"))
        }
        (
            End::Killed {
                signal,
                out_of_memory: true,
            },
            _,
        ) => failed(
            Class::Space,
            false,
            format!("the run was ended by {signal}: the machine ran out of memory"),
        ),
        (End::Killed { signal, .. }, _) => {
            failed(Class::Bug, false, format!("the run was ended by {signal}"))
        }
        (End::Lost(why), _) => failed(Class::Bug, false, why.clone()),
    }
}

/// How a process ended that is a zombie by its /proc/PID/stat (proc(5): field 3 is the state, field 52 the
/// status as waitpid(2) gives it). `None` while it lives.
pub fn zombie(stat: &str) -> Option<End> {
    // The name may hold blanks and brackets: the fields begin behind its last bracket.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if *fields.first()? != "Z" {
        return None;
    }
    let status: i32 = fields.get(49)?.parse().ok()?;
    Some(match status & 0x7f {
        0 => End::Exited((status >> 8) & 0xff),
        signal => End::Killed {
            signal: format!("signal {signal}"),
            out_of_memory: false,
        },
    })
}

/// What to do on failure: the word of the command line wins over the config's. `None`: neither says anything
/// that is understood.
pub fn on_failure(word: Option<&str>, config: Option<&str>) -> Option<Action> {
    let in_config = |text: &str| Action::from_word(&serde_json::from_str::<String>(text).ok()?);
    word.and_then(Action::from_word)
        .or_else(|| config.and_then(in_config))
}

fn parse_handoff(text: &str) -> Option<Action> {
    serde_json::from_str(text).ok()
}

/// The start of a small file; `None` where it cannot be read.
pub(super) fn small_file(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)
        .ok()?
        .take(64 << 10)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// `oom_kill` of /proc/vmstat: how many processes the kernel has ended for want of memory.
pub(super) fn oom_kills(vmstat: &str) -> u64 {
    vmstat
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))
        .and_then(|n| n.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch_root(root: &str, init: Option<&str>) -> Action {
        Action::SwitchRoot {
            root: PathBuf::from(root),
            init: init.map(str::to_owned),
        }
    }

    const REBOOT: Option<&str> = Some("{\"handoff\":\"reboot\"}");

    #[test]
    fn a_good_end_does_what_the_flow_said() {
        for (text, action) in [
            ("{\"handoff\":\"reboot\"}", Action::Reboot),
            ("{\"handoff\":\"powerOff\"}\n", Action::PowerOff),
            ("{\"handoff\":\"park\",\"more\":1}", Action::Park),
            (
                "{\"handoff\":\"switchRoot\",\"root\":\"/run/r\",\"init\":null}",
                switch_root("/run/r", None),
            ),
            (
                "{\"handoff\":\"switchRoot\",\"root\":\"/r\",\"init\":\"/sbin/init\"}",
                switch_root("/r", Some("/sbin/init")),
            ),
        ] {
            let verdict = decide(&End::Exited(0), Some(text), Action::Park);
            assert_eq!((verdict.action, verdict.failed), (action, None), "{text}");
        }
    }

    #[test]
    fn everything_else_is_a_failure_and_does_what_on_failure_says() {
        let killed = |out_of_memory| End::Killed {
            signal: "SIGKILL".to_owned(),
            out_of_memory,
        };
        let table = [
            (End::Exited(0), None, Class::Bug, false),
            (End::Exited(0), Some("{}"), Class::Bug, false),
            (
                End::Exited(0),
                Some("{\"handoff\":\"jump\"}"),
                Class::Bug,
                false,
            ),
            (End::Exited(0), Some(""), Class::Bug, false),
            (
                End::Exited(0),
                Some("{\"handoff\":\"switchRoot\"}"),
                Class::Bug,
                false,
            ),
            // A hand-off file of a flow that failed afterwards counts for nothing.
            (End::Exited(12), REBOOT, Class::Integrity, true),
            (End::Exited(70), None, Class::Bug, true),
            (End::Exited(101), None, Class::Bug, false),
            (killed(false), REBOOT, Class::Bug, false),
            (killed(true), None, Class::Space, false),
            (
                End::Lost("no such file".to_owned()),
                REBOOT,
                Class::Bug,
                false,
            ),
        ];
        for (end, handoff, class, told) in table {
            for action in [Action::Park, Action::Reboot, Action::PowerOff] {
                let verdict = decide(&end, handoff, action.clone());
                assert_eq!(verdict.action, action, "{end:?} {handoff:?}");
                assert_eq!(verdict.failed, Some(class), "{end:?} {handoff:?}");
                assert_eq!(verdict.told, told, "{end:?} {handoff:?}");
                assert!(!verdict.reason.is_empty());
            }
        }
    }

    #[test]
    fn the_command_lines_word_wins_over_the_config() {
        assert_eq!(on_failure(None, None), None);
        assert_eq!(
            on_failure(Some("poweroff"), Some("\"reboot\"")),
            Some(Action::PowerOff)
        );
        assert_eq!(
            on_failure(None, Some("\"powerOff\"\n")),
            Some(Action::PowerOff)
        );
        assert_eq!(
            on_failure(Some("explode"), Some("\"reboot\"")),
            Some(Action::Reboot)
        );
        assert_eq!(on_failure(Some("explode"), Some("explode")), None);
        let switch = "{\"handoff\":\"switchRoot\",\"root\":\"/r\",\"init\":null}";
        for never in ["switchRoot", "switchroot", "\"switchRoot\"", switch] {
            assert_eq!(on_failure(Some(never), Some(never)), None, "{never}");
        }
    }

    #[test]
    fn out_of_memory_is_counted_by_the_kernel() {
        assert_eq!(oom_kills("nr_free_pages 5\noom_kill 3\nnuma_hit 1\n"), 3);
        assert_eq!(oom_kills(""), 0);
    }

    #[test]
    fn a_zombie_says_how_it_ended() {
        let stat = |state: &str, code: i32| {
            let middle = "0 ".repeat(48);
            format!("7 (a ) b) {state} {middle}{code}\n")
        };
        assert_eq!(zombie(&stat("S", 0)), None);
        assert_eq!(zombie(&stat("Z", 12 << 8)), Some(End::Exited(12)));
        assert_eq!(zombie(&stat("Z", 0)), Some(End::Exited(0)));
        assert!(matches!(zombie(&stat("Z", 9)), Some(End::Killed { .. })));
        assert_eq!(zombie("nonsense"), None);
    }

    #[test]
    fn a_real_zombie_says_how_it_ended() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "exit 13"])
            .spawn()
            .unwrap();
        let path = format!("/proc/{}/stat", child.id());
        let mut found = None;
        for _ in 0..200 {
            found = zombie(&std::fs::read_to_string(&path).unwrap());
            if found.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.wait().unwrap();
        assert_eq!(found, Some(End::Exited(13)));
    }
}
