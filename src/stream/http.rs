//! The one place that makes an HTTP client, and one GET with its redirects.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Method, StatusCode};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::cancel::{Driver, Stopped, cancelled};
use super::certificate;
use super::fetch::{ClientCertificate, FetchOptions};
use super::location::HttpUrl;
use super::names::Names;
use super::proxy::Proxies;
use crate::error::{Class, Context as _, Failure, Result, printable};

/// A connection on which nothing came for that long is probed,
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// that often,
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// and given up after so many probes without an answer.
const KEEPALIVE_PROBES: u32 = 3;

/// What to do about a 407.
const PROXY_PASSWORD: &str = "give the proxy's user and password: http://user:password@host:port";

/// How many redirects one request follows.
const MAX_REDIRECTS: usize = 10;

/// One attempt that failed, and how long the server asked to wait before the next.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) failure: Failure,
    pub(super) retry_after: Option<Duration>,
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Attempt {
        Attempt {
            failure,
            retry_after: None,
        }
    }
}

/// The HTTP library's client, and what it does not tell: which proxy it asks.
#[derive(Debug)]
pub(super) struct Client {
    library: reqwest::Client,
    proxies: Proxies,
}

/// Makes the client. It trusts the compiled-in roots (webpki-roots) and `ca_pem`, never a file of the
/// system, because an initrd has none; it uses the proxies of `options` only, decodes nothing, and leaves redirects to [`send`].
pub(super) fn client(options: &FetchOptions) -> Result<Client> {
    let mut roots = rustls::RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    for (number, pem) in options.ca_pem.iter().enumerate() {
        add_roots(&mut roots, pem)
            .map_err(|why| Failure::new(Class::Config, format!("CA {}: {why}", number + 1)))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context(Class::Bug, || "setting up TLS")?
        .with_root_certificates(roots);
    let mut tls = match &options.client_certificate {
        None => tls.with_no_client_auth(),
        Some(certificate) => {
            let wrong = |why| Failure::new(Class::Config, format!("client certificate: {why}"));
            let (chain, key) = chain_and_key(certificate).map_err(wrong)?;
            tls.with_client_auth_cert(chain, key)
                .map_err(|e| wrong(e.to_string()))?
        }
    };
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let proxies = options.proxies.clone();
    let asked = proxies.clone();
    let through = reqwest::Proxy::custom(move |url| asked.pick(url).map(|p| p.url().clone()));
    let builder = if proxies.is_empty() {
        // Else the library would read the environment.
        reqwest::Client::builder().no_proxy()
    } else {
        reqwest::Client::builder().proxy(through)
    };
    let library = builder
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        // The C library already asks the resolver several times; what else goes wrong is ours to retry.
        .retry(reqwest::retry::never())
        .dns_resolver(Names)
        .connect_timeout(options.connect_timeout)
        // A peer that is gone without a word is noticed within a minute, also where nothing is sent.
        .tcp_keepalive(KEEPALIVE_IDLE)
        .tcp_keepalive_interval(KEEPALIVE_INTERVAL)
        .tcp_keepalive_retries(KEEPALIVE_PROBES)
        // An idle connection would outlive the download that drives it.
        .pool_max_idle_per_host(0)
        .referer(false)
        .user_agent(concat!("ironroot/", env!("CARGO_PKG_VERSION")))
        .build()
        .context(Class::Bug, || "building the HTTP client")?;
    Ok(Client { library, proxies })
}

type Chain = Vec<CertificateDer<'static>>;

/// The parts of a client certificate. No text of an error has any of the key.
fn chain_and_key(
    certificate: &ClientCertificate,
) -> Result<(Chain, PrivateKeyDer<'static>), String> {
    let chain = CertificateDer::pem_slice_iter(&certificate.chain_pem)
        .collect::<Result<Chain, _>>()
        .map_err(|e| format!("not a PEM certificate: {e}"))?;
    if chain.is_empty() {
        return Err("no certificate in it (PEM, BEGIN CERTIFICATE)".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(&certificate.key_pem)
        .map_err(|_| "no private key in it (PEM, BEGIN PRIVATE KEY, not encrypted)".to_owned())?;
    Ok((chain, key))
}

fn add_roots(roots: &mut rustls::RootCertStore, pem: &[u8]) -> Result<(), String> {
    let mut any = false;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| format!("not a PEM certificate: {e}"))?;
        roots
            .add(certificate)
            .map_err(|e| format!("not usable as a CA: {e}"))?;
        any = true;
    }
    any.then_some(())
        .ok_or_else(|| "no certificate in it (PEM, BEGIN CERTIFICATE)".to_owned())
}

/// Reads headers as the boot config gives them. A value is never printed.
pub(super) fn headers(pairs: &[(String, String)]) -> Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let wrong = |what: &str| {
            Failure::new(
                Class::Config,
                format!("header {:?}: {what}", printable(name)),
            )
        };
        let key: HeaderName = name.parse().map_err(|_| wrong("not a header name"))?;
        let mut value: HeaderValue = value.parse().map_err(|_| wrong("not a header value"))?;
        value.set_sensitive(true);
        map.append(key, value);
    }
    Ok(map)
}

/// What is sent.
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) url: &'a HttpUrl,
    /// Secrets: sent to the origin of `url` only.
    pub(super) private: &'a HeaderMap,
    /// Sent to whomever a redirect names.
    pub(super) public: HeaderMap,
    pub(super) body: Option<Bytes>,
    /// The body is a secret as well: a redirect to another origin is refused.
    pub(super) secret_body: bool,
}

/// Sends `request` and follows redirects: at most ten, never from https to http, and never with secrets to
/// another origin. `idle` bounds each hop, from the name look-up to the head of the response.
pub(super) fn send(
    client: &Client,
    driver: &Driver,
    idle: Duration,
    request: &Request<'_>,
) -> Result<reqwest::Response, Attempt> {
    let mut url = request.url.clone();
    for _ in 0..=MAX_REDIRECTS {
        let mut builder = client
            .library
            .request(request.method.clone(), url.url().clone());
        if request.url.same_origin(&url) {
            builder = builder.headers(request.private.clone());
        }
        // Second, because the later one wins: nobody may change what resuming relies on.
        builder = builder.headers(request.public.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        let proxy = client.proxies.pick(url.url());
        let what = || match proxy {
            None => format!("{} {url}", request.method),
            Some(proxy) => format!("{} {url} through the proxy {proxy}", request.method),
        };
        let response = match driver.wait(idle, builder.send()) {
            Ok(Ok(r)) if r.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                let text = format!("{}: {}", what(), r.status());
                return Err(Failure::new(Class::Network, text)
                    .permanent()
                    .hint(PROXY_PASSWORD)
                    .into());
            }
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(transport(what(), error).into()),
            Err(Stopped::Cancelled) => return Err(cancelled().into()),
            Err(Stopped::TimedOut) => {
                let text = format!("{}: no answer within {idle:?}", what());
                return Err(Failure::new(Class::Network, text).into());
            }
        };
        if !is_redirect(response.status(), &request.method) {
            return Ok(response);
        }
        let target = response
            .headers()
            .get(LOCATION)
            .and_then(|v| v.to_str().ok())
            .and_then(|reference| url.join(reference));
        let refuse = |why: String| Failure::new(Class::Network, why).permanent();
        let next = target.ok_or_else(|| {
            let status = response.status();
            refuse(format!(
                "{}: {status} without a usable Location header",
                what()
            ))
        })?;
        if url.is_https() && !next.is_https() {
            return Err(refuse(format!(
                "{}: redirected from https to {next}, which is refused",
                what()
            ))
            .into());
        }
        if request.secret_body && !request.url.same_origin(&next) {
            return Err(refuse(format!(
                "{}: redirected to {next} with a secret, which is refused",
                what()
            ))
            .into());
        }
        url = next.with_user_of(request.url);
    }
    let text = format!(
        "{} {}: more than {MAX_REDIRECTS} redirects, the last to {url}",
        request.method, request.url
    );
    Err(Failure::new(Class::Network, text).permanent().into())
}

/// Statuses that name another place for the same request (RFC 9110 section 15.4). A POST is repeated only
/// where the status says so.
fn is_redirect(status: StatusCode, method: &Method) -> bool {
    match status {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => {
            *method == Method::GET
        }
        _ => false,
    }
}

/// What the transport says, without the URL that the library would print in full.
fn transport(what: String, error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let (remedy, locked) = (certificate::remedy(&error), wants_proxy_password(&error));
    let failure = Failure::new(Class::Network, what).caused_by(error);
    match remedy {
        Some(remedy) => failure.permanent().hint(remedy),
        None if locked => failure.permanent().hint(PROXY_PASSWORD),
        None => failure,
    }
}

/// Whether the proxy answered CONNECT with 407. The library's error for it has no name outside of it.
fn wants_proxy_password(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        if cause.to_string().contains("proxy authorization required") {
            return true;
        }
        next = cause.source();
    }
    false
}

/// The body of a response, as it was sent.
pub(super) struct Body {
    response: reqwest::Response,
    pending: Bytes,
}

impl Body {
    pub(super) fn new(response: reqwest::Response) -> Body {
        Body {
            response,
            pending: Bytes::new(),
        }
    }

    /// Fills the start of `out`; 0 when the server ended the body in order. `idle` is how long it may be
    /// silent.
    pub(super) fn read(
        &mut self,
        driver: &Driver,
        idle: Duration,
        out: &mut [u8],
    ) -> Result<usize> {
        while self.pending.is_empty() {
            match driver.wait(idle, self.response.chunk()) {
                Ok(Ok(Some(bytes))) => self.pending = bytes,
                Ok(Ok(None)) => return Ok(0),
                Ok(Err(error)) => {
                    return Err(Failure::new(Class::Network, "the connection broke off")
                        .caused_by(error.without_url()));
                }
                Err(Stopped::Cancelled) => return Err(cancelled()),
                Err(Stopped::TimedOut) => {
                    let text = format!("the server was silent for {idle:?}");
                    return Err(Failure::new(Class::Network, text));
                }
            }
        }
        let count = self.pending.len().min(out.len());
        let (head, _) = out.split_at_mut(count);
        self.pending.copy_to_slice(head);
        Ok(count)
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({})", self.response.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_builds_without_a_ca_bundle_and_without_a_process_wide_provider() {
        // reqwest panics without a provider and fails without a bundle, unless all of TLS is given to it.
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
        assert!(client(&FetchOptions::default()).is_ok());
    }

    #[test]
    fn a_ca_that_is_none_is_refused_by_number() {
        for pem in [
            "",
            "hello",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let options = FetchOptions {
                ca_pem: vec![pem.into()],
                ..FetchOptions::default()
            };
            let failure = client(&options).unwrap_err();
            assert_eq!(failure.class(), Class::Config);
            assert!(failure.to_string().starts_with("CA 1: "), "{failure}");
        }
    }

    #[test]
    fn a_wrong_header_is_named_without_its_value() {
        let pair = |n: &str, v: &str| vec![(n.to_owned(), v.to_owned())];
        for pairs in [pair("X-Token", "s3cr3t\n"), pair("X Token", "s3cr3t")] {
            let failure = headers(&pairs).unwrap_err();
            assert!(!crate::error::chain(&failure).contains("s3cr3t"));
        }
        let map = headers(&pair("Authorization", "Bearer s3cr3t")).unwrap();
        assert!(!format!("{map:?}").contains("s3cr3t"));
    }

    #[test]
    fn a_post_is_repeated_only_where_the_status_says_so() {
        assert!(is_redirect(StatusCode::FOUND, &Method::GET));
        assert!(!is_redirect(StatusCode::FOUND, &Method::POST));
        assert!(is_redirect(StatusCode::TEMPORARY_REDIRECT, &Method::POST));
        assert!(!is_redirect(StatusCode::NOT_MODIFIED, &Method::GET));
    }
}
