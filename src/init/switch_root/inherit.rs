//! What the new init is started with: the words and variables that the kernel gave us, as if it had started
//! that init itself.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;

use crate::config::cmdline::Cmdline;

/// Arguments and environment of the new init.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    /// Without the name of the program.
    pub arguments: Vec<CString>,
    /// `NAME=value`.
    pub environment: Vec<CString>,
}

/// Where the programs of a system are, for an init that does not say so itself.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

impl Inheritance {
    /// From what this process was started with. `cmdline` decides which of our variables are the kernel's:
    /// it hands on each `name=value` without a dot that it does not know itself (init/main.c,
    /// `unknown_bootoption`). Whatever else is there a shell has added.
    pub fn new(
        arguments: impl IntoIterator<Item = OsString>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        cmdline: &Cmdline,
    ) -> Inheritance {
        let mut environment: Vec<(String, OsString)> = vec![
            ("HOME".to_owned(), "/".into()),
            ("TERM".to_owned(), "linux".into()),
            ("PATH".to_owned(), PATH.into()),
        ];
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|n| !n.contains('.')) else {
                continue;
            };
            // The kernel sets these two by itself.
            let own = matches!(name, "HOME" | "TERM");
            let given = || {
                value
                    .to_str()
                    .is_some_and(|v| cmdline.all(name).any(|c| c == v))
            };
            if !own && !given() {
                continue;
            }
            environment.retain(|(known, _)| known != name);
            environment.push((name.to_owned(), value));
        }
        Inheritance {
            arguments: arguments
                .into_iter()
                .filter(|word| !word.to_string_lossy().starts_with("ironroot."))
                .filter_map(|word| CString::new(word.into_vec()).ok())
                .collect(),
            environment: environment
                .into_iter()
                .filter_map(|(name, value)| {
                    CString::new([name.as_bytes(), b"=", &value.into_vec()].concat()).ok()
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)], cmdline: &str) -> Vec<String> {
        let variables = variables.iter().map(|(n, v)| ((*n).into(), (*v).into()));
        let made = Inheritance::new([], variables, &Cmdline::parse(cmdline));
        let mut all: Vec<String> = made
            .environment
            .into_iter()
            .map(|v| v.into_string().unwrap())
            .collect();
        all.sort();
        all
    }

    #[test]
    fn only_what_the_kernel_gave_is_handed_on() {
        let usual = ["HOME=/", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=linux"];
        assert_eq!(environment(&[], ""), usual);
        // A shell's variables, a word that the kernel keeps, one that a program changed, one with a dot.
        let ours = [
            ("HOME", "/"),
            ("TERM", "vt220"),
            ("PWD", "/"),
            ("SHLVL", "1"),
            ("foobar", "2"),
            ("changed", "by a script"),
            ("ironroot.config", "x"),
            ("msg", "two words"),
            ("PATH", "/sbin"),
        ];
        let line = "root=/dev/sda foobar=1 foobar=2 changed=no ironroot.config=x \"msg=two words\"";
        assert_eq!(
            environment(&ours, line),
            [
                "HOME=/",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "TERM=vt220",
                "foobar=2",
                "msg=two words"
            ]
        );
        assert!(environment(&ours, "PATH=/sbin").contains(&"PATH=/sbin".to_owned()));
    }

    #[test]
    fn arguments_come_in_order_and_our_own_words_never() {
        let words = ["single", "ironroot.skip", "splash", "-b"];
        let made = Inheritance::new(words.map(OsString::from), [], &Cmdline::default());
        let shown: Vec<_> = made.arguments.iter().map(|w| w.to_str().unwrap()).collect();
        assert_eq!(shown, ["single", "splash", "-b"]);
    }
}
