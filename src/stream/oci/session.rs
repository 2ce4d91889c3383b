//! Requests to one repository: unasked without credentials, then as the registry demands.

use std::borrow::Cow;

use bytes::Bytes as Shared;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE,
};
use reqwest::{Method, StatusCode};
use serde::Deserialize;

use super::access::{self, Challenge, Credential};
use super::{OciReference, RegistryAccess, manifest};
use crate::error::{Class, Failure, Result, chain, printable};
use crate::report::Event;
use crate::stream::budget::Budget;
use crate::stream::cancel::Driver;
use crate::stream::fetch::Fetcher;
use crate::stream::http::{self, Attempt, Body};
use crate::stream::location::HttpUrl;
use crate::stream::resume;
use crate::stream::retry_after::retry_after;

/// Manifests and tokens have a few KiB; the specification lets registries refuse more than 4 MiB.
const DOCUMENT_LIMIT: usize = 4 << 20;

/// A registry that was spoken to, and what it has to be told.
#[derive(Clone)]
pub(in crate::stream) struct Session {
    base: HttpUrl,
    name: String,
    repository: String,
    credential: Option<Credential>,
    authorization: Option<HeaderValue>,
}

/// Keys and values of a query or a form.
type Pairs<'a> = Vec<(&'static str, Cow<'a, str>)>;

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Session {
    pub(super) fn new(reference: &OciReference, access: &RegistryAccess) -> Result<Session> {
        let name = reference.to_string();
        let wrong = |why: String| Failure::new(Class::Config, format!("{name}: {why}"));
        let base = reference
            .base()
            .ok_or_else(|| wrong("the registry is a host and perhaps a port".to_owned()))?;
        let credential = match &access.docker_config {
            Some(config) => {
                let (registry, repository) = (reference.registry(), reference.repository());
                access::credential(config, registry, repository).map_err(wrong)?
            }
            None => None,
        };
        Ok(Session {
            base,
            name,
            repository: reference.repository().to_owned(),
            credential,
            authorization: None,
        })
    }

    pub(super) fn url(&self, path: &str) -> Result<HttpUrl> {
        self.base
            .join(path)
            .ok_or_else(|| Failure::new(Class::Bug, format!("{}: no URL for {path}", self.name)))
    }

    /// The headers of a request to the registry. They are secrets.
    pub(in crate::stream) fn authorize(&self, headers: &mut HeaderMap) {
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
    }

    /// Whether `response` is the registry's own demand for credentials. One of a server that a redirect led to
    /// is not answered: it could name any place for them to be sent to, and what it gives is not sent to it.
    pub(in crate::stream) fn is_asked_by(&self, response: &reqwest::Response) -> bool {
        response.status() == StatusCode::UNAUTHORIZED
            && self.base.url().origin() == response.url().origin()
    }

    /// A manifest or an index. What may heal is retried within `budget`.
    pub(super) fn get(
        &mut self,
        fetcher: &Fetcher,
        driver: &Driver,
        path: &str,
        budget: &mut Budget,
    ) -> Result<Vec<u8>> {
        let mut round = 0;
        loop {
            let attempt = match self.get_once(fetcher, driver, path) {
                Ok(bytes) => {
                    budget.renew();
                    return Ok(bytes);
                }
                Err(attempt) => attempt,
            };
            let failure = attempt.failure;
            if !failure.is_transient() || budget.is_used_up() {
                return Err(failure);
            }
            let delay = fetcher
                .options()
                .backoff
                .delay(round)
                .max(attempt.retry_after.unwrap_or_default())
                .min(budget.remaining());
            fetcher.reporter().emit(Event::Retry {
                error: chain(&failure),
                in_milliseconds: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            });
            driver.sleep(delay)?;
            round = round.saturating_add(1);
        }
    }

    fn get_once(
        &mut self,
        fetcher: &Fetcher,
        driver: &Driver,
        path: &str,
    ) -> Result<Vec<u8>, Attempt> {
        let url = self.url(path)?;
        let mut asked_again = false;
        loop {
            let mut private = HeaderMap::new();
            self.authorize(&mut private);
            let response = send(fetcher, driver, &url, &private, manifest::ACCEPT)?;
            if self.is_asked_by(&response) && !asked_again {
                asked_again = true;
                self.renew(fetcher, driver, response.headers())?;
                continue;
            }
            return body(fetcher, driver, &url, response);
        }
    }

    /// Does what a 401 asks for: a token that has run out half-way through a download is renewed here too.
    pub(in crate::stream) fn renew(
        &mut self,
        fetcher: &Fetcher,
        driver: &Driver,
        headers: &HeaderMap,
    ) -> Result<(), Attempt> {
        let refuse = |why: String| -> Attempt {
            Failure::new(Class::Network, format!("{}: {why}", self.name))
                .permanent()
                .hint("check image.credentials, and that they may read this repository")
                .into()
        };
        let challenge = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .find_map(access::challenge)
            .ok_or_else(|| {
                refuse("the registry answers 401 and does not say what it wants".to_owned())
            })?;
        let value = match (&challenge, &self.credential) {
            (Challenge::Basic, Some(Credential::Password { user, password })) => {
                basic(user, password)
            }
            (Challenge::Bearer { .. }, Some(Credential::Token(token))) => format!("Bearer {token}"),
            (Challenge::Basic, _) => {
                let text = "the registry wants a user and a password, and there is none for it";
                return Err(refuse(text.to_owned()));
            }
            (
                Challenge::Bearer {
                    realm,
                    service,
                    scope,
                },
                credential,
            ) => {
                let (realm, pairs) = self
                    .token_query(realm, service.as_deref(), scope.as_deref())
                    .map_err(refuse)?;
                let mut private = HeaderMap::new();
                let (url, form) = match credential {
                    Some(Credential::Identity(token)) => {
                        let form = exchange(&realm, pairs, token);
                        (realm, Some(form))
                    }
                    Some(Credential::Password { user, password }) => {
                        let value = secret(&basic(user, password)).map_err(refuse)?;
                        private.insert(AUTHORIZATION, value);
                        (realm.with_query(&pairs), None)
                    }
                    Some(Credential::Token(_)) | None => (realm.with_query(&pairs), None),
                };
                let response = ask(fetcher, driver, &url, &private, "application/json", form)?;
                let text = body(fetcher, driver, &url, response)?;
                let token: Token = serde_json::from_slice(&text)
                    .map_err(|_| refuse(format!("{url} gives no token")))?;
                let token = token.token.or(token.access_token);
                let token = token.ok_or_else(|| refuse(format!("{url} gives no token")))?;
                format!("Bearer {token}")
            }
        };
        self.authorization = Some(secret(&value).map_err(refuse)?);
        Ok(())
    }

    /// Where a token is, and for what. A registry spoken to over TLS must not send credentials elsewhere
    /// without it.
    fn token_query<'a>(
        &self,
        realm: &str,
        service: Option<&'a str>,
        scope: Option<&str>,
    ) -> Result<(HttpUrl, Pairs<'a>), String> {
        let shown = printable(realm.split('?').next().unwrap_or_default());
        let realm: HttpUrl = realm
            .parse()
            .map_err(|_| format!("the registry sends us to {shown:?} for a token"))?;
        if self.base.is_https() && !realm.is_https() {
            return Err(format!(
                "the registry sends us to {realm} for a token, without TLS"
            ));
        }
        let scope = match scope {
            Some(scope) => scope.to_owned(),
            None => format!("repository:{}:pull", self.repository),
        };
        let mut pairs = vec![("scope", Cow::Owned(scope))];
        if let Some(service) = service {
            pairs.insert(0, ("service", Cow::Borrowed(service)));
        }
        Ok((realm, pairs))
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.name)
    }
}

/// RFC 7617.
fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

/// RFC 4648 section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let index = (bits >> (18 - 6 * i)) & 63;
            let digit = DIGITS.get(index as usize).copied().unwrap_or(b'=');
            out.push(if i <= group.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    out
}

fn secret(value: &str) -> Result<HeaderValue, String> {
    let mut value: HeaderValue = value
        .parse()
        .map_err(|_| "the credentials cannot be sent in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// The form that asks for a token (distribution's "OAuth2 Token Authentication").
fn exchange(realm: &HttpUrl, mut pairs: Pairs<'_>, token: &str) -> Shared {
    pairs.extend([
        ("grant_type", "refresh_token".into()),
        ("client_id", "ironroot".into()),
        ("refresh_token", Cow::Owned(token.to_owned())),
    ]);
    Shared::from(realm.form(&pairs))
}

fn send(
    fetcher: &Fetcher,
    driver: &Driver,
    url: &HttpUrl,
    private: &HeaderMap,
    accept: &'static str,
) -> Result<reqwest::Response, Attempt> {
    ask(fetcher, driver, url, private, accept, None)
}

/// GET, or POST with a form, which is a secret.
fn ask(
    fetcher: &Fetcher,
    driver: &Driver,
    url: &HttpUrl,
    private: &HeaderMap,
    accept: &'static str,
    form: Option<Shared>,
) -> Result<reqwest::Response, Attempt> {
    let mut public = HeaderMap::new();
    public.insert(ACCEPT, HeaderValue::from_static(accept));
    if form.is_some() {
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        public.insert(CONTENT_TYPE, kind);
    }
    let request = http::Request {
        method: if form.is_some() {
            Method::POST
        } else {
            Method::GET
        },
        url,
        private,
        public,
        secret_body: form.is_some(),
        body: form,
    };
    http::send(
        fetcher.client(),
        driver,
        fetcher.options().idle_timeout,
        &request,
    )
}

/// The body of a good answer.
fn body(
    fetcher: &Fetcher,
    driver: &Driver,
    url: &HttpUrl,
    response: reqwest::Response,
) -> Result<Vec<u8>, Attempt> {
    if response.status() != StatusCode::OK {
        return Err(Attempt {
            failure: resume::refused(&format!("GET {url}"), response.status()),
            retry_after: retry_after(response.headers()),
        });
    }
    let expected = response.content_length();
    let mut body = Body::new(response);
    let mut all = Vec::new();
    let mut piece = vec![0; 16 << 10];
    loop {
        let count = body.read(driver, fetcher.options().idle_timeout, &mut piece)?;
        let Some(bytes) = piece.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        all.extend_from_slice(bytes);
        if all.len() > DOCUMENT_LIMIT {
            let text = format!("GET {url}: more than {DOCUMENT_LIMIT} bytes came");
            return Err(Failure::new(Class::Network, text).permanent().into());
        }
    }
    if expected.is_some_and(|expected| expected != all.len() as u64) {
        let text = format!("GET {url}: the answer is cut short");
        return Err(Failure::new(Class::Network, text).into());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn basic_credentials_of_the_specification() {
        // RFC 7617 section 2.
        assert_eq!(
            basic("Aladdin", "open sesame"),
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        );
    }

    proptest! {
        #[test]
        fn base64_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let text = base64(&bytes);
            prop_assert_eq!(data_url::forgiving_base64::decode_to_vec(text.as_bytes()).ok(), Some(bytes));
        }
    }
}
