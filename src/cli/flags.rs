//! The flags that stand for a boot config, or amend one. Their values are spelled as in the config, and a
//! wrong one is a usage error.

use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::config::wire;
use crate::error::{Class, Failure, Result};

/// Flags of every command that runs the flow.
#[derive(Args, Debug)]
pub struct Common {
    /// Boot config: a file, or a URL (with ${uuid}, ${mac}, ${serial}, ${arch}, ${hostname})
    #[arg(long, value_name = "FILE|URL")]
    pub config: Option<String>,
    /// How long network errors are retried without progress [default: 30m in an initrd, else 1m]
    #[arg(long, value_name = "TIME", value_parser = super::duration)]
    pub retry_for: Option<Duration>,
    /// How long missing disks are waited for [default: 30s in an initrd, else 0s]
    #[arg(long, value_name = "TIME", value_parser = super::duration)]
    pub wait: Option<Duration>,
    /// End after so many steps, as a power cut would: for tests
    #[arg(long, value_name = "N", hide = true)]
    pub stop_after: Option<usize>,
}

/// Flags that stand for a boot config.
#[derive(Args, Debug)]
pub struct OneOff {
    /// Image to install: https://…, http://…, oci://…, file:///…, or a path; live: is the root that is running
    #[arg(long, value_name = "URL")]
    image: Option<String>,
    /// Digest of the image as it is downloaded: sha256:… or sha512:…
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
    /// Digest of the image's decoded content
    #[arg(long, value_name = "DIGEST")]
    content_digest: Option<String>,
    /// Target: a path, or key=value,… (serial, wwn, model, vendor, size, rotational, transport, path, hctl)
    #[arg(long, value_name = "PATH|SELECTOR")]
    disk: Option<String>,
    /// What to do when several disks match: Only, Smallest, Largest, First
    #[arg(long, value_name = "RULE")]
    pick: Option<String>,
    /// What may be erased: IfBlank, IfOurs, Always
    #[arg(long, value_name = "RULE")]
    overwrite: Option<String>,
    /// Partitions that survive: a label (with *) or a number; may be repeated
    #[arg(long, value_name = "PARTITION")]
    keep: Vec<String>,
    /// Accept an image without any proof
    #[arg(long)]
    insecure: bool,
    /// The target may be a regular file
    #[arg(long)]
    pub allow_file: bool,
}

impl OneOff {
    /// Whether any flag stands for a part of a config.
    pub fn is_given(&self) -> bool {
        self.image.is_some()
            || self.digest.is_some()
            || self.content_digest.is_some()
            || self.disk.is_some()
            || self.pick.is_some()
            || self.overwrite.is_some()
            || !self.keep.is_empty()
            || self.insecure
    }

    /// `config` with what the flags say; without a config, the flags are one.
    pub fn amend(&self, config: Option<wire::BootConfig>) -> Result<wire::BootConfig> {
        let mut config = match config {
            Some(config) => config,
            None => value(
                "--image",
                json!({ "apiVersion": "ironroot.dev/v1alpha1", "kind": "BootConfig", "disk": {} }),
            )?,
        };
        if let Some(url) = &self.image {
            // Another image has another digest: what the config says of the old one must not stay.
            config.image = Some(value("--image", json!({ "url": from_here(url) }))?);
        }
        if let Some(text) = &self.digest {
            image(&mut config, "--digest")?.digest = Some(value("--digest", json!(text))?);
        }
        if let Some(text) = &self.content_digest {
            image(&mut config, "--content-digest")?.content_digest =
                Some(value("--content-digest", json!(text))?);
        }
        if self.insecure {
            image(&mut config, "--insecure")?.insecure = true;
        }
        let disk = config.disk.get_or_insert_default();
        if let Some(text) = &self.disk {
            disk.select = value("--disk", selector(text)?)?;
        }
        if let Some(text) = &self.pick {
            disk.pick = value("--pick", json!(text))?;
        }
        if let Some(text) = &self.overwrite {
            disk.overwrite = Some(value("--overwrite", json!(text))?);
        }
        if !self.keep.is_empty() {
            disk.keep.clone_from(&self.keep);
        }
        Ok(config)
    }
}

fn image<'a>(config: &'a mut wire::BootConfig, flag: &str) -> Result<&'a mut wire::Image> {
    config.image.as_mut().ok_or_else(|| {
        Failure::new(Class::Usage, format!("{flag} is given and no image"))
            .hint("give --image as well")
    })
}

/// A relative path is what a person types at a shell; a config has none.
fn from_here(text: &str) -> String {
    if text.starts_with('/') || text.contains(':') {
        return text.to_owned();
    }
    std::path::absolute(text).map_or_else(
        |_| text.to_owned(),
        |path| path.to_string_lossy().into_owned(),
    )
}

/// A flag's value, read by the same types as the config's.
fn value<T: DeserializeOwned>(flag: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| {
        Failure::new(Class::Usage, format!("flag {flag}"))
            .caused_by(e)
            .hint("see --help")
    })
}

/// `key=value,key=value`, or a path.
fn selector(text: &str) -> Result<Value> {
    if text.starts_with('/') || !text.contains('=') {
        return Ok(json!({ "path": from_here(text) }));
    }
    let mut map = Map::new();
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(Failure::new(
                Class::Usage,
                format!("flag --disk: {part:?} is not key=value"),
            )
            .hint("see --help"));
        };
        // `size>=200GiB` reads as the key `size>`: the comparison belongs to the value.
        let (key, value) = match key.find(['<', '>']) {
            Some(at) => {
                let (name, sign) = key.split_at(at);
                (name, json!(format!("{sign}={value}")))
            }
            None if key == "rotational" => (
                key,
                value
                    .parse()
                    .map_or_else(|_| json!(value), |b: bool| json!(b)),
            ),
            None => (key, json!(value)),
        };
        if map.insert(key.to_owned(), value).is_some() {
            return Err(
                Failure::new(Class::Usage, format!("flag --disk: {key:?} is given twice"))
                    .hint("see --help"),
            );
        }
    }
    Ok(Value::Object(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_a_path_or_a_selector() {
        let select = |text: &str| value::<wire::Select>("--disk", selector(text).unwrap());
        assert_eq!(
            select("/dev/vda").unwrap().path.as_deref(),
            Some("/dev/vda")
        );
        let here = std::env::current_dir().unwrap().join("disk.raw");
        assert_eq!(select("disk.raw").unwrap().path.as_deref(), here.to_str());
        assert_eq!(from_here("https://h/x"), "https://h/x");
        let several = select("model=QEMU*,size>=10GiB,rotational=false,transport=nvme").unwrap();
        assert!(several.size.unwrap().allows(crate::units::Bytes(10 << 30)));
        assert_eq!(several.rotational, Some(false));
        let wrong = select("serail=x").unwrap_err();
        assert_eq!(wrong.class(), Class::Usage);
        assert!(crate::error::chain(&wrong).contains("expected one of `serial`"));
        assert!(selector("serial=a,serial=b").is_err());
        assert!(selector("serial=a,b").is_err());
    }
}
