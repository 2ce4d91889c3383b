//! What is changed in an installed system, as a plan shows it: without contents, which may be secrets.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::config::request::SystemChanges;
use crate::error::printable;

/// What is changed in an installed system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// Kernel arguments that are added.
    pub append: Vec<String>,
    /// Kernel arguments that are taken away.
    pub remove: Vec<String>,
    /// Files that are written.
    pub files: Vec<PathBuf>,
    /// Whether an Ignition config is put in place.
    pub ignition: bool,
}

impl Changes {
    /// The changes, without what may be secret in them.
    pub fn of(changes: &SystemChanges) -> Changes {
        Changes {
            append: changes.arguments.appended().to_vec(),
            remove: changes.arguments.removed().to_vec(),
            files: changes.files.iter().map(|f| f.path.clone()).collect(),
            ignition: changes.ignition.is_some(),
        }
    }
}

impl Changes {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        let Changes {
            append,
            remove,
            files,
            ignition,
        } = self;
        append.is_empty() && remove.is_empty() && files.is_empty() && !ignition
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let arguments = |words: &[String]| printable(&words.join(" "));
        if !self.append.is_empty() {
            parts.push(format!("add kernel arguments {}", arguments(&self.append)));
        }
        if !self.remove.is_empty() {
            parts.push(format!("take away {}", arguments(&self.remove)));
        }
        for path in &self.files {
            parts.push(format!("write {}", printable(&path.display().to_string())));
        }
        if self.ignition {
            parts.push("put the Ignition config in place".to_owned());
        }
        write!(f, "change the installed system: {}", parts.join(", "))
    }
}
