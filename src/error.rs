//! Failures: whose fault, which exit code, may it be tried again, and how a chain is printed.
//!
//! Every failure names what was tried, on what, what was found and what to do next. `Display` never
//! repeats the source; [`chain`] is the one place that prints a whole chain.

use std::error::Error;
use std::fmt;

use serde::Serialize;

/// Whose fault a failure is. One table decides exit code and retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// The command line of this program is wrong.
    Usage,
    /// The boot config (or a kernel argument) is wrong.
    Config,
    /// The network, or a server on it, did not answer as needed.
    Network,
    /// What arrived is not what was declared: digest, signature, length, format.
    Integrity,
    /// The target disk was refused or not found. Nothing was written.
    Refused,
    /// Reading or writing a disk failed.
    Media,
    /// Not enough memory or space.
    Space,
    /// A required preserved path could not be provided.
    Preserve,
    /// The handover to the new system failed.
    Handover,
    /// A bug in ironroot.
    Bug,
}

impl Class {
    /// Every class, for tables in documentation and tests.
    pub const ALL: [Class; 10] = [
        Class::Usage,
        Class::Config,
        Class::Network,
        Class::Integrity,
        Class::Refused,
        Class::Media,
        Class::Space,
        Class::Preserve,
        Class::Handover,
        Class::Bug,
    ];

    /// The process exit code of this class.
    pub const fn exit_code(self) -> u8 {
        match self {
            Class::Usage => 2,
            Class::Config => 10,
            Class::Network => 11,
            Class::Integrity => 12,
            Class::Refused => 13,
            Class::Media => 14,
            Class::Space => 15,
            Class::Preserve => 16,
            Class::Handover => 17,
            Class::Bug => 70,
        }
    }

    /// The class of an exit code; what is not in the table is a bug (a crash, a signal).
    pub fn from_exit_code(code: i32) -> Class {
        Class::ALL
            .into_iter()
            .find(|c| i32::from(c.exit_code()) == code)
            .unwrap_or(Class::Bug)
    }

    /// What to do next where a failure itself does not say it better.
    pub const fn advice(self) -> &'static str {
        match self {
            Class::Usage => "see --help",
            Class::Config => "correct the boot config; `ironroot check FILE` tests it",
            Class::Network => {
                "check that the server runs, the URL is right and the network reaches it, then try again"
            }
            Class::Integrity => "publish the file again, or correct what the config declares of it",
            Class::Refused => "see `ironroot disks` for the disks and what holds them",
            Class::Media => "check the disk's cabling and health, then try again",
            Class::Space => "give the machine more memory or space",
            Class::Preserve => "check the source of the preserved path",
            Class::Handover => "choose the disk in the firmware's boot menu",
            Class::Bug => "report this with the lines above as a bug of ironroot",
        }
    }

    /// Whether the same attempt may succeed later without anybody changing the request.
    pub const fn may_heal(self) -> bool {
        match self {
            Class::Network => true,
            Class::Usage
            | Class::Config
            | Class::Integrity
            | Class::Refused
            | Class::Media
            | Class::Space
            | Class::Preserve
            | Class::Handover
            | Class::Bug => false,
        }
    }
}

/// A failure on its way to the operator.
#[derive(Debug)]
pub struct Failure {
    class: Class,
    step: Option<String>,
    message: String,
    hint: Option<String>,
    transient: bool,
    source: Option<Box<dyn Error + Send + Sync + 'static>>,
}

/// What fallible code in this crate returns unless its callers branch on the error.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure of `class`; `message` says what was tried, on what, and what was found.
    pub fn new(class: Class, message: impl Into<String>) -> Failure {
        Failure {
            class,
            step: None,
            message: message.into(),
            hint: None,
            transient: class.may_heal(),
            source: None,
        }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn Error + Send + Sync + 'static>>,
    ) -> Failure {
        self.source = Some(source.into());
        self
    }

    /// Marks a failure that trying again cannot heal, whatever its class says.
    #[must_use]
    pub fn permanent(mut self) -> Failure {
        self.transient = false;
        self
    }

    /// Names the step of the plan that failed; the innermost name wins.
    #[must_use]
    pub fn in_step(mut self, step: &str) -> Failure {
        self.step.get_or_insert_with(|| step.to_owned());
        self
    }

    /// Whose fault it is.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        self.transient
    }

    /// The step of the plan that failed.
    pub fn step(&self) -> Option<&str> {
        self.step.as_deref()
    }

    /// What to do next.
    pub fn next(&self) -> &str {
        self.hint.as_deref().unwrap_or(self.class.advice())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

/// The whole chain on one line: `outer: cause: cause of the cause`. Repeated texts (many libraries print
/// their source) are left out.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let part = cause.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = cause.source();
    }
    text
}

/// The chain and the hint, as an operator reads them.
pub fn describe(failure: &Failure) -> String {
    format!("{}\n  next: {}", chain(failure), failure.next())
}

/// Adds class and context to errors of the standard library and of crates.
pub trait Context<T> {
    /// Wraps the error into a [`Failure`] of `class` whose message is made by `message`.
    fn context<M: Into<String>>(self, class: Class, message: impl FnOnce() -> M) -> Result<T>;
}

impl<T, E: Error + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context<M: Into<String>>(self, class: Class, message: impl FnOnce() -> M) -> Result<T> {
        self.map_err(|e| Failure::new(class, message()).caused_by(e))
    }
}

/// Makes untrusted text (labels, URLs, what a server said) safe for a serial console: control characters
/// are escaped and the length is bounded.
pub fn printable(text: &str) -> String {
    const LIMIT: usize = 400;
    let mut out = String::new();
    for c in text.chars() {
        if out.len() > LIMIT {
            out.push('…');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_contract_and_distinct() {
        let codes: Vec<u8> = Class::ALL.iter().map(|c| c.exit_code()).collect();
        assert_eq!(codes, [2, 10, 11, 12, 13, 14, 15, 16, 17, 70]);
        for class in Class::ALL {
            assert_eq!(Class::from_exit_code(class.exit_code().into()), class);
        }
        assert_eq!(Class::from_exit_code(101), Class::Bug);
    }

    #[test]
    fn a_chain_prints_every_cause_once() {
        let inner = std::io::Error::other("disk on fire");
        let failure = Failure::new(Class::Media, "writing /dev/sda at byte 4096").caused_by(inner);
        assert_eq!(
            chain(&failure),
            "writing /dev/sda at byte 4096: disk on fire"
        );
        assert!(describe(&failure).ends_with(Class::Media.advice()));
        let hinted = failure.hint("replace the disk");
        assert!(describe(&hinted).ends_with("next: replace the disk"));
    }

    #[test]
    fn printable_escapes_what_would_steer_a_terminal() {
        assert_eq!(printable("a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert!(printable(&"x".repeat(10_000)).len() < 500);
    }
}
