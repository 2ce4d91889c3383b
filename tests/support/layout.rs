//! OCI image layouts (image-spec 1.1), as tests look into them.
#![allow(dead_code)] // each test program uses a part

use std::path::{Path, PathBuf};

use serde_json::Value;

pub fn json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The file of a blob.
pub fn blob(layout: &Path, digest: &Value) -> PathBuf {
    let digest = digest.as_str().unwrap();
    layout.join("blobs").join(digest.replace(':', "/"))
}

/// The index that the layout's only entry is.
pub fn index(layout: &Path) -> Value {
    let top = json(&layout.join("index.json"));
    let entries = top["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{top}");
    json(&blob(layout, &entries[0]["digest"]))
}

/// The manifest for an architecture.
pub fn manifest(layout: &Path, architecture: &str) -> Value {
    let index = index(layout);
    let entries = index["manifests"].as_array().unwrap();
    let fits = |e: &&Value| e["platform"]["architecture"] == architecture;
    let mut fitting = entries.iter().filter(fits);
    let (Some(entry), None) = (fitting.next(), fitting.next()) else {
        panic!("not one manifest for {architecture} in {index}");
    };
    json(&blob(layout, &entry["digest"]))
}

/// The digest of the layer whose media type ends so.
pub fn layer(manifest: &Value, kind: &str) -> String {
    let wanted = format!("application/vnd.ironcore.image.{kind}");
    let layers = manifest["layers"].as_array().unwrap();
    let layer = layers.iter().find(|l| l["mediaType"] == wanted.as_str());
    let layer = layer.unwrap_or_else(|| panic!("no {wanted} in {manifest}"));
    layer["digest"].as_str().unwrap().to_owned()
}
