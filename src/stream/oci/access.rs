//! Who we are to a registry: the challenge it answers with (RFC 9110 section 11.6.1; Docker's token
//! authentication), and the credentials of a docker config.json.

use std::fmt;

use data_url::forgiving_base64::decode_to_vec;
use serde::Deserialize;

/// Credentials for a registry. They are secrets.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credential {
    /// A user and a password.
    Password { user: String, password: String },
    /// A token that the registry takes as it is.
    Token(String),
    /// A token that the registry's token server exchanges for such a one (OAuth 2, grant "refresh_token").
    Identity(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, Auth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    #[serde(rename = "auth")]
    pair: Option<String>,
    username: Option<String>,
    password: Option<String>,
    registrytoken: Option<String>,
    identitytoken: Option<String>,
}

/// Whether `text` is a docker config at all; the error shows nothing of it.
pub(in crate::stream) fn check_docker_config(text: &[u8]) -> Result<(), String> {
    serde_json::from_slice::<DockerConfig>(text)
        .map(|_| ())
        .map_err(|e| {
            format!(
                "not a docker config.json (line {}, column {})",
                e.line(),
                e.column()
            )
        })
}

/// What a docker config has for `registry/repository`. As podman reads it, a key may go on into the
/// repository's path, and the longest that fits wins.
pub(super) fn credential(
    config: &[u8],
    registry: &str,
    repository: &str,
) -> Result<Option<Credential>, String> {
    let config: DockerConfig =
        serde_json::from_slice(config).map_err(|_| "not a docker config.json".to_owned())?;
    let mut place = format!("{registry}/{repository}");
    let auth = loop {
        let found = config.auths.iter().find(|(key, _)| plain_key(key) == place);
        match (found, place.rsplit_once('/')) {
            (Some((_, auth)), _) => break auth,
            (None, Some((parent, _))) => place = parent.to_owned(),
            (None, None) => return Ok(None),
        }
    };
    if let Some(token) = &auth.registrytoken {
        return Ok(Some(Credential::Token(token.clone())));
    }
    // Docker writes it beside an `auth` that has only the user's name.
    if let Some(token) = auth.identitytoken.as_ref().filter(|t| !t.is_empty()) {
        return Ok(Some(Credential::Identity(token.clone())));
    }
    if let (Some(user), Some(password)) = (&auth.username, &auth.password) {
        return Ok(Some(Credential::Password {
            user: user.clone(),
            password: password.clone(),
        }));
    }
    if let Some(both) = &auth.pair {
        let decoded = decode_to_vec(both.as_bytes()).ok();
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let parts = text.as_deref().and_then(|t| t.split_once(':'));
        return match parts {
            Some((user, password)) => Ok(Some(Credential::Password {
                user: user.to_owned(),
                password: password.trim_end_matches('\0').to_owned(),
            })),
            None => Err(format!(
                "the `auth` of {registry} is not base64 of user:password"
            )),
        };
    }
    Ok(None)
}

/// Keys are hosts, or URLs as docker writes for its own registry.
fn plain_key(key: &str) -> &str {
    let bare = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    let bare = bare.trim_end_matches('/');
    let bare = bare
        .strip_suffix("/v1")
        .or_else(|| bare.strip_suffix("/v2"))
        .unwrap_or(bare);
    match bare {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    }
}

/// What a registry asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// Reads a WWW-Authenticate header.
pub(super) fn challenge(header: &str) -> Option<Challenge> {
    let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    let mut rest = rest;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',', '\t']).to_ascii_lowercase();
        // A quoted value may have commas: scope="repository:x:pull,push".
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        match key.as_str() {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            "scope" => scope = Some(value.to_owned()),
            _ => {}
        }
        rest = next;
    }
    Some(Challenge::Bearer {
        realm: realm?,
        service,
        scope,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn challenges_of_the_usual_registries() {
        let text = r#"Bearer realm="https://auth.example/token?x=y",service="registry.example",scope="repository:a/b:pull,push""#;
        let wanted = Challenge::Bearer {
            realm: "https://auth.example/token?x=y".to_owned(),
            service: Some("registry.example".to_owned()),
            scope: Some("repository:a/b:pull,push".to_owned()),
        };
        assert_eq!(challenge(text), Some(wanted));
        assert_eq!(challenge(r#"basic realm="x""#), Some(Challenge::Basic));
        for other in [
            "",
            "Digest x=y",
            "Bearer",
            "Bearer service=x",
            "Bearer realm=\"x",
        ] {
            assert_eq!(challenge(other), None, "{other}");
        }
    }

    #[test]
    fn a_docker_config_gives_the_credentials_of_the_closest_key() {
        // "me:secret" and "other:x:y"
        let config = br#"{"auths":{"h:5000":{"auth":"bWU6c2VjcmV0"},"h:5000/team":{"auth":"b3RoZXI6eDp5"},
            "https://index.docker.io/v1/":{"username":"d","password":"p"},"t":{"registrytoken":"tok"},
            "i":{"auth":"bWU6","identitytoken":"x"},"bad":{"auth":"@@"}},"credsStore":"desktop"}"#;
        let password = |user: &str, password: &str| {
            Some(Credential::Password {
                user: user.to_owned(),
                password: password.to_owned(),
            })
        };
        let of = |registry: &str, repository: &str| credential(config, registry, repository);
        assert_eq!(of("h:5000", "os").unwrap(), password("me", "secret"));
        assert_eq!(of("h:5000", "team/os").unwrap(), password("other", "x:y"));
        assert_eq!(of("docker.io", "library/x").unwrap(), password("d", "p"));
        assert_eq!(
            of("t", "x").unwrap(),
            Some(Credential::Token("tok".to_owned()))
        );
        assert_eq!(of("h", "os").unwrap(), None);
        assert_eq!(
            of("i", "os").unwrap(),
            Some(Credential::Identity("x".to_owned()))
        );
        assert!(of("bad", "os").is_err());
        assert!(
            !check_docker_config(b"{\"auths\":\"s3cr3t\"}")
                .unwrap_err()
                .contains("s3cr3t")
        );
    }

    proptest! {
        #[test]
        fn any_header_is_read_without_a_panic(text in "\\PC*") {
            let _ = challenge(&text);
            let _ = challenge(&format!("Bearer {text}"));
        }
    }
}
