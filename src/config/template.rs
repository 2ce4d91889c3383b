//! Variables in the config URL: `${uuid}`, `${serial}`, `${mac}`, `${arch}`, `${hostname}`, and the same
//! without the dollar, which iPXE and GRUB would expand themselves.

use crate::error::{Class, Failure, Result};
use crate::host::Machine;

/// Fills in what `text` asks for. A variable that this machine has no value for is an error: a config
/// fetched for nobody is somebody else's.
pub fn fill(text: &str, machine: &Machine) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, from_open) = rest.split_at(open);
        let Some(close) = from_open.find('}') else {
            break;
        };
        let name = from_open.get(1..close).unwrap_or_default();
        let after = from_open.get(close + 1..).unwrap_or_default();
        // Braces that hold no plain word are the URL's own business.
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            out.push_str(before);
            out.push('{');
            rest = from_open.get(1..).unwrap_or_default();
            continue;
        }
        out.push_str(before.strip_suffix('$').unwrap_or(before));
        out.push_str(&value(name, text, machine)?);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn value(name: &str, text: &str, machine: &Machine) -> Result<String> {
    let found = match name {
        "uuid" => machine.uuid.clone(),
        "serial" => machine.serial.clone(),
        "mac" => machine.macs.first().cloned(),
        "arch" => Some(machine.arch.clone()),
        "hostname" => machine.hostname.clone(),
        other => {
            return Err(Failure::new(
                Class::Config,
                format!("{text:?} uses the unknown variable {other:?}"),
            )
            .hint("use ${uuid}, ${serial}, ${mac}, ${arch} or ${hostname}"));
        }
    };
    let found = found.filter(|v| !v.is_empty()).ok_or_else(|| {
        Failure::new(
            Class::Config,
            format!("{text:?} uses ${{{name}}}, and this machine has no {name}"),
        )
        .hint("use another variable, or set it in the firmware")
    })?;
    // It becomes part of a URL: what is not plain is percent-encoded (RFC 3986, section 2.3).
    Ok(found.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"-._~:".contains(&b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
        out
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            uuid: Some("0a1b".into()),
            macs: vec!["52:54:00:12:34:56".into()],
            serial: Some("A/1 2".into()),
            arch: "x86_64".into(),
            ..Machine::default()
        }
    }

    #[test]
    fn every_variable_with_and_without_dollar() {
        let filled = fill("http://h/${uuid}/{mac}?s=${serial}&a={arch}", &machine()).unwrap();
        assert_eq!(
            filled,
            "http://h/0a1b/52:54:00:12:34:56?s=A%2F1%202&a=x86_64"
        );
        assert_eq!(
            fill("http://h/plain", &machine()).unwrap(),
            "http://h/plain"
        );
    }

    #[test]
    fn an_unknown_or_empty_variable_is_refused_by_name() {
        let unknown = fill("http://h/${uid}", &machine()).unwrap_err();
        assert_eq!(unknown.class(), Class::Config);
        assert!(unknown.to_string().contains("uid"));
        assert!(
            fill("http://h/${hostname}", &machine())
                .unwrap_err()
                .to_string()
                .contains("hostname")
        );
    }

    #[test]
    fn braces_of_a_data_url_stay() {
        let text = r#"data:application/json,{"a": {}}"#;
        assert_eq!(fill(text, &machine()).unwrap(), text);
        assert_eq!(fill("http://h/{", &machine()).unwrap(), "http://h/{");
    }
}
