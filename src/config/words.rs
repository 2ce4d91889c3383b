//! The words of the kernel command line that are ours, and what they mean. Pure.

use std::time::Duration;

use super::cmdline::Cmdline;
use crate::error::{Class, Context as _, Failure, Result};
use crate::init::verdict::Action;
use crate::report::Reporter;
use crate::stream::Proxies;
use crate::units::{Digest, parse_duration};

/// The words that are ours on the kernel command line.
const WORDS: [&str; 9] = [
    "ironroot.config",
    "ironroot.config.digest",
    "ironroot.mode",
    "ironroot.timeout",
    "ironroot.log",
    "ironroot.on-failure",
    "ironroot.ca",
    "ironroot.skip",
    SHELL,
];

const SHELL: &str = "ironroot.shell";

/// `ironroot.shell=on-failure`: whether PID 1 starts a shell after a failure, where the initramfs has one.
pub fn shell_on_failure(cmdline: &Cmdline) -> bool {
    cmdline.get(SHELL) == Some("on-failure")
}

/// Whether the kernel command line asks for this program where it is the helper of another initrd: by a word of
/// its own, by Garden Linux's `gl.url=`, or by an Ignition config for a machine without a root.
pub fn are_for_us(cmdline: &Cmdline) -> bool {
    cmdline.has_prefix("ironroot.")
        || cmdline.has("gl.url")
        || (cmdline.has("ignition.config.url") && !cmdline.has("root"))
}

/// A wish that is misspelled must not end in an installation.
pub fn understood(cmdline: &Cmdline, reporter: &Reporter) -> Result<()> {
    match cmdline.get("ironroot.mode") {
        None | Some("plan") => {}
        Some(other) => {
            let text = format!("kernel argument ironroot.mode={other} is not known");
            return Err(Failure::new(Class::Config, text).hint("write ironroot.mode=plan"));
        }
    }
    if let Some(word) = cmdline.get(SHELL)
        && word != "on-failure"
    {
        let text = format!("kernel argument {SHELL}={word} is not known");
        return Err(Failure::new(Class::Config, text).hint(format!("write {SHELL}=on-failure")));
    }
    if let Some(word) = cmdline.get("ironroot.on-failure")
        && Action::from_word(word).is_none()
    {
        reporter.warn(format!(
            "kernel argument ironroot.on-failure={word} is not known: park, reboot or poweroff"
        ));
    }
    for word in cmdline.words() {
        if word.key.starts_with("ironroot.") && !WORDS.contains(&word.key.as_str()) {
            let text = format!("kernel argument {} is not known in this version", word.key);
            return Err(
                Failure::new(Class::Config, text).hint(format!("known are {}", WORDS.join(", ")))
            );
        }
    }
    Ok(())
}

/// `ironroot.config.digest=`.
pub fn expected_digest(cmdline: &Cmdline) -> Result<Option<Digest>> {
    let word = "ironroot.config.digest";
    cmdline
        .get(word)
        .map(|t| {
            t.parse()
                .context(Class::Config, || format!("kernel argument {word}="))
        })
        .transpose()
}

/// The duration that `word` gives.
pub fn duration(cmdline: &Cmdline, word: &str) -> Result<Option<Duration>> {
    cmdline
        .get(word)
        .map(|t| parse_duration(t).context(Class::Config, || format!("kernel argument {word}=")))
        .transpose()
}

/// Proxies of the kernel command line, for each that is not there of the environment. dracut's `proxy=` is
/// one for both schemes. (The kernel itself hands words that it does not know to PID 1 as environment.)
pub fn proxies(cmdline: &Cmdline, environment: &dyn Fn(&str) -> Option<String>) -> Result<Proxies> {
    Proxies::from_variables(|name| {
        let words = match name {
            "http_proxy" | "https_proxy" => cmdline.get(name).or_else(|| cmdline.get("proxy")),
            other => cmdline.get(other),
        };
        words.map(str::to_owned).or_else(|| environment(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_of_the_command_line_come_before_those_of_the_environment() {
        let environment = |name: &str| match name {
            "http_proxy" => Some("http://env-a:1".to_owned()),
            "HTTPS_PROXY" => Some("http://env-b:2".to_owned()),
            _ => None,
        };
        let shown = |line: &str| {
            let proxies = proxies(&Cmdline::parse(line), &environment).unwrap();
            proxies.to_string()
        };
        for (line, wanted) in [
            (
                "quiet",
                "http through http://env-a:1/, https through http://env-b:2/",
            ),
            (
                "http_proxy=http://line:3",
                "http through http://line:3/, https through http://env-b:2/",
            ),
            (
                "proxy=line:4",
                "http through http://line:4/, https through http://line:4/",
            ),
            (
                "http_proxy= https_proxy=",
                "http through no proxy, https through no proxy",
            ),
        ] {
            assert_eq!(shown(line), wanted, "{line}");
        }
        assert!(proxies(&Cmdline::parse("https_proxy=socks5://h"), &|_| None).is_err());
    }

    #[test]
    fn a_misspelled_wish_is_refused_and_a_foreign_word_is_passed_over() {
        let judge = |line: &str| understood(&Cmdline::parse(line), &Reporter::default());
        judge("quiet root=/dev/sda1 ironrooted=1 ironroot.mode=plan ironroot.config=http://h/")
            .unwrap();
        judge("").unwrap();
        judge("ironroot.shell=on-failure").unwrap();
        for line in [
            "ironroot.mode=Plan",
            "ironroot.mode=dry-run",
            "ironroot.mode",
            "ironroot.confg.digest=sha256:00",
            "ironroot.shell=always",
            "ironroot.shell",
        ] {
            let failure = judge(line).unwrap_err();
            assert_eq!(failure.class(), Class::Config, "{line}");
        }
    }

    #[test]
    fn an_installed_system_is_none_of_our_business() {
        for (line, ours) in [
            ("root=PARTUUID=1 ro quiet", false),
            ("ironroot.config=http://h/", true),
            ("gl.url=http://h/x gl.live=1", true),
            ("ignition.config.url=http://h/", true),
            ("root=/dev/sda1 ignition.config.url=http://h/", false),
            ("", false),
        ] {
            assert_eq!(are_for_us(&Cmdline::parse(line)), ours, "{line}");
        }
    }

    #[test]
    fn a_wrong_digest_or_duration_names_its_word() {
        let line = Cmdline::parse("ironroot.config.digest=md5:0 ironroot.timeout=soon");
        assert!(
            expected_digest(&line)
                .unwrap_err()
                .to_string()
                .contains("ironroot.config.digest")
        );
        assert!(
            duration(&line, "ironroot.timeout")
                .unwrap_err()
                .to_string()
                .contains("ironroot.timeout")
        );
        assert_eq!(
            duration(&Cmdline::default(), "ironroot.timeout").unwrap(),
            None
        );
    }
}
