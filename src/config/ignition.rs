//! The boot config inside an Ignition config: one file entry, so that whoever hands out Ignition configs by
//! machine (IronCore's boot-operator) needs nothing new. Ignition itself would write it as any other file.
//!
//! Source: Ignition configuration specification, `storage.files[].path`, `.contents.source` (a `data:` URL here)
//! and `.contents.compression`; the same in versions 2 and 3.

use std::io::Read as _;

use serde_json::Value;

use super::parse::CONFIG_LIMIT;

/// Path of the file entry.
pub const PATH: &str = "/ironroot/config";

/// What [`PATH`] holds; `None` where there is no such entry.
///
/// # Errors
/// What is wrong with the document or the entry, for people.
pub fn entry(text: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let document: Value =
        serde_json::from_slice(text).map_err(|e| format!("it is no JSON ({e})"))?;
    if !document
        .pointer("/ignition/version")
        .is_some_and(Value::is_string)
    {
        return Err("it is no Ignition config: it has no ignition.version".to_owned());
    }
    let files = document.pointer("/storage/files").and_then(Value::as_array);
    let mut found = files
        .into_iter()
        .flatten()
        .filter(|file| file.get("path").and_then(Value::as_str) == Some(PATH));
    let Some(file) = found.next() else {
        return Ok(None);
    };
    if found.next().is_some() {
        return Err(format!("it has two file entries {PATH}"));
    }
    let text_at = |pointer: &str| file.pointer(pointer).and_then(Value::as_str);
    let source = text_at("/contents/source")
        .ok_or_else(|| format!("its file entry {PATH} has no contents.source"))?;
    if !source.starts_with("data:") {
        return Err(format!(
            "its file entry {PATH} is not inline: contents.source has to be a data: URL"
        ));
    }
    let wrong = |e: &dyn std::fmt::Debug| format!("the data: URL of its file entry {PATH}: {e:?}");
    let url = data_url::DataUrl::process(source).map_err(|e| wrong(&e))?;
    let (bytes, _) = url.decode_to_vec().map_err(|e| wrong(&e))?;
    match text_at("/contents/compression") {
        None | Some("") => Ok(Some(bytes)),
        Some("gzip") => {
            let mut out = Vec::new();
            let limit = u64::try_from(CONFIG_LIMIT).unwrap_or(u64::MAX);
            flate2::read::GzDecoder::new(&*bytes)
                .take(limit.saturating_add(1))
                .read_to_end(&mut out)
                .map_err(|e| format!("unpacking its file entry {PATH}: {e}"))?;
            Ok(Some(out))
        }
        Some(other) => Err(format!(
            "its file entry {PATH} has the unknown compression {other:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(files: &str) -> Vec<u8> {
        format!(r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{files}]}}}}"#)
            .into_bytes()
    }

    #[test]
    fn the_entry_is_found_among_others() {
        let other = r#"{"path":"/etc/hostname","contents":{"source":"data:,x"}}"#;
        let ours =
            r#"{"path":"/ironroot/config","contents":{"source":"data:;base64,eyJhIjoxfQ=="}}"#;
        assert_eq!(
            entry(&with(&format!("{other},{ours}"))).unwrap().unwrap(),
            br#"{"a":1}"#
        );
        let packed = r#"{"path":"/ironroot/config","contents":{"compression":"gzip","source":"data:;base64,H4sIAAAAAAACA6tWSlSyMqwFAK+sG1YHAAAA"}}"#;
        assert_eq!(entry(&with(packed)).unwrap().unwrap(), br#"{"a":1}"#);
        assert_eq!(entry(&with(other)).unwrap(), None);
        assert_eq!(entry(br#"{"ignition":{"version":"2.3.0"}}"#).unwrap(), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let twice = r#"{"path":"/ironroot/config","contents":{"source":"data:,1"}}"#;
        for (text, part) in [
            (b"variant: fcos".to_vec(), "no JSON"),
            (b"{}".to_vec(), "no ignition.version"),
            (with(&format!("{twice},{twice}")), "two file entries"),
            (with(r#"{"path":"/ironroot/config"}"#), "no contents.source"),
            (
                with(r#"{"path":"/ironroot/config","contents":{"source":"http://x/"}}"#),
                "not inline",
            ),
            (
                with(
                    r#"{"path":"/ironroot/config","contents":{"source":"data:,1","compression":"xz"}}"#,
                ),
                "unknown compression",
            ),
        ] {
            let why = entry(&text).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(source in ".{0,40}", compression in "(gzip|.{0,6})") {
            let file = serde_json::json!({"path": PATH, "contents": {"source": format!("data:{source}"), "compression": compression}});
            let _ = entry(&with(&file.to_string()));
        }
    }
}
