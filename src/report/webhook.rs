//! The final report: one POST to `report.url` when the run ends. It never fails a finished run.

use std::time::Duration;

use serde_json::json;

use crate::config::request::Report;
use crate::error::{Class, Failure, Result, chain};
use crate::host::Machine;
use crate::stream::{Budget, Fetcher};

/// A receiver that is down must not keep a finished machine from booting.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Nor one that did nothing but find out that it is installed, which takes seconds.
pub const SHORT_PATIENCE: Duration = Duration::from_secs(5);

/// The body: metal-maintenance's form, with the machine's UUID and our class and code beside it. `drift` are the keys
/// of the config that differ from what was installed.
pub fn body(
    machine: &Machine,
    name: Option<&str>,
    drift: &[String],
    outcome: Result<&str, &Failure>,
) -> serde_json::Value {
    let mut body = match outcome {
        Ok(handoff) => json!({ "status": "Success", "error": "", "handoff": handoff }),
        Err(failure) => json!({
            "status": "Failure",
            "error": chain(failure),
            "exitCode": failure.class().exit_code(),
            "step": failure.step(),
        }),
    };
    if let serde_json::Value::Object(map) = &mut body {
        map.insert("systemUUID".into(), json!(machine.uuid));
        map.insert("name".into(), json!(name));
        map.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
        if !drift.is_empty() {
            map.insert("drift".into(), json!(drift));
        }
    }
    body
}

/// Posts the final report, where one is wanted.
pub fn send(
    fetcher: &Fetcher,
    report: &Report,
    machine: &Machine,
    name: Option<&str>,
    drift: &[String],
    (outcome, patience): (Result<&str, &Failure>, Duration),
) -> Result<()> {
    let Some(url) = &report.url else {
        return Ok(());
    };
    let text = serde_json::to_vec(&body(machine, name, drift, outcome))
        .map_err(|e| Failure::new(Class::Bug, "writing the report as JSON").caused_by(e))?;
    fetcher.post_json(url, &report.headers, text, &mut Budget::new(patience))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_and_failure_as_receivers_know_them() {
        let machine = Machine {
            uuid: Some("u".into()),
            ..Machine::default()
        };
        let good = body(&machine, Some("n"), &[], Ok("reboot"));
        assert_eq!(good["status"], "Success");
        assert_eq!(good["error"], "");
        assert!(good.get("drift").is_none());
        assert_eq!(good["systemUUID"], "u");
        let failure = Failure::new(Class::Integrity, "wrong digest").in_step("writeBody");
        let bad = body(&machine, None, &["disk.grow".to_owned()], Err(&failure));
        assert_eq!(
            (&bad["status"], &bad["exitCode"]),
            (&json!("Failure"), &json!(12))
        );
        assert_eq!(
            (&bad["error"], &bad["step"]),
            (&json!("wrong digest"), &json!("writeBody"))
        );
        assert_eq!(bad["drift"], json!(["disk.grow"]));
    }
}
