//! One installation's identity: a hash over a frozen, versioned list of fields, so that neither a newer
//! ironroot's defaults nor the rest of the config change it.

use sha2::{Digest as _, Sha256};

use crate::config::request::{Image, Request};
use crate::units::hex;

/// The identity of what `request` asks for, version 1: claim, generation, image. Lengths stand before the
/// texts, so that no two lists of fields give the same bytes.
pub fn identity(request: &Request, image: &Image) -> String {
    let mut hash = Sha256::new();
    let generation = request.generation.to_string();
    for field in [
        "ironroot-identity-1",
        &request.claim,
        &generation,
        &image.identity_source(),
    ] {
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field.as_bytes());
    }
    format!("1:{}", hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(claim: &str, generation: u64, digest: char) -> String {
        let text = format!(
            r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig",
            "metadata":{{"claim":"{claim}","generation":{generation}}},
            "image":{{"url":"http://h/a","digest":"sha256:{}"}},"disk":{{"overwrite":"Always"}}}}"#,
            digest.to_string().repeat(64)
        );
        let wire = crate::config::parse::parse(text.as_bytes()).unwrap();
        let request = crate::config::request::interpret(&wire).unwrap();
        let image = request.image().unwrap().clone();
        identity(&request, &image)
    }

    /// Frozen: a change here makes every installed machine install again.
    #[test]
    fn version_one_is_frozen() {
        assert_eq!(
            request("tenant/worker", 1, 'a'),
            "1:e5bd388bb3f943520237e6e43525bf32f5e48c1abff274a69bd80a4894b209d2"
        );
    }

    #[test]
    fn each_field_counts() {
        let base = request("a", 1, 'a');
        assert_ne!(base, request("b", 1, 'a'));
        assert_ne!(base, request("a", 2, 'a'));
        assert_ne!(base, request("a", 1, 'b'));
    }
}
