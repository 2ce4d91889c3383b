//! What the kernel command line says about modules, pure.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::normal;
use crate::config::cmdline::Cmdline;

/// Parameters and blacklist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Modules that no alias loads: `modprobe.blacklist=`, `module_blacklist=` (which the kernel itself
    /// enforces on top).
    pub blacklist: BTreeSet<String>,
    parameters: BTreeMap<String, Vec<String>>,
}

impl Settings {
    /// Reads `modprobe.blacklist=a,b`, `module_blacklist=a,b` and `module.parameter=value`.
    pub fn of(cmdline: &Cmdline) -> Settings {
        let mut settings = Settings::default();
        for word in cmdline.words() {
            let value = word.value.as_deref();
            match (word.key.as_str(), value) {
                ("modprobe.blacklist" | "module_blacklist", Some(list)) => {
                    let names = list.split(',').filter(|n| !n.is_empty()).map(normal);
                    settings.blacklist.extend(names);
                }
                (key, _) => {
                    if let Some((module, parameter)) = key.split_once('.') {
                        let text = match value {
                            None => parameter.to_owned(),
                            // The kernel splits at blanks outside double quotes.
                            Some(v) if v.contains(char::is_whitespace) => {
                                format!("{parameter}=\"{v}\"")
                            }
                            Some(v) => format!("{parameter}={v}"),
                        };
                        let list = settings.parameters.entry(normal(module)).or_default();
                        list.push(text);
                    }
                }
            }
        }
        settings
    }

    /// The parameters of a module as finit_module(2) takes them.
    pub fn parameters(&self, module: &str) -> String {
        self.parameters
            .get(&normal(module))
            .map(|list| list.join(" "))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blacklists_and_parameters() {
        let settings = Settings::of(&Cmdline::parse(
            "modprobe.blacklist=nouveau,i2c-piix4 module_blacklist=pcspkr nvme-core.io_timeout=60 \
             nvme_core.multipath=N \"x.name=two words\" loop.flag ironroot.config=http://h/?a=b quiet",
        ));
        assert_eq!(
            settings.blacklist.iter().collect::<Vec<_>>(),
            ["i2c_piix4", "nouveau", "pcspkr"]
        );
        assert_eq!(
            settings.parameters("nvme_core"),
            "io_timeout=60 multipath=N"
        );
        assert_eq!(settings.parameters("x"), "name=\"two words\"");
        assert_eq!(settings.parameters("loop"), "flag");
        assert_eq!(settings.parameters("virtio_net"), "");
    }
}
