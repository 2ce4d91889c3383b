//! Small files and reports over HTTP; and what every download shares: the client, the time-outs, the
//! reporter.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes as Shared;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use super::budget::{Backoff, Budget};
use super::cancel::{Cancel, Driver};
use super::download::{Download, Policy, What};
use super::http::{self, Attempt};
use super::location::{HttpUrl, Location};
use super::proxy::Proxies;
use super::resume;
use super::retry_after::retry_after;
use crate::error::{Class, Failure, Result, chain};
use crate::report::{Event, Reporter};
use crate::units::Bytes;

/// How to fetch.
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// CA certificates in PEM, each with one or more certificates, trusted beside the compiled-in roots.
    pub ca_pem: Vec<Vec<u8>>,
    /// How long a server may be silent: before the head of its answer, and between two pieces of a body.
    pub idle_timeout: Duration,
    /// How long setting up a connection may take (name look-up, TCP, TLS).
    pub connect_timeout: Duration,
    /// What proves us to servers that ask for it.
    pub client_certificate: Option<ClientCertificate>,
    /// Which requests go through a proxy.
    pub proxies: Proxies,
    /// Waits between attempts.
    pub backoff: Backoff,
}

impl Default for FetchOptions {
    fn default() -> FetchOptions {
        FetchOptions {
            ca_pem: Vec::new(),
            idle_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(15),
            client_certificate: None,
            proxies: Proxies::default(),
            backoff: Backoff::default(),
        }
    }
}

/// A client certificate and its private key, which is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, then those between it and a CA that the server knows, in PEM.
    pub chain_pem: Vec<u8>,
    /// The private key in PEM: PKCS #8, PKCS #1 or SEC 1, not encrypted.
    pub key_pem: Vec<u8>,
}

impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientCertificate")
    }
}

/// Fetches. Made once, cheap to clone.
#[derive(Clone, Debug)]
pub struct Fetcher {
    shared: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: http::Client,
    options: FetchOptions,
    reporter: Reporter,
}

impl Fetcher {
    /// Makes the HTTP client. Fails with [`Class::Config`] on a CA that is none.
    pub fn new(options: FetchOptions, reporter: Reporter) -> Result<Fetcher> {
        let client = http::client(&options)?;
        Ok(Fetcher {
            shared: Arc::new(Inner {
                client,
                options,
                reporter,
            }),
        })
    }

    /// The same, with a client certificate. Fails with [`Class::Config`] on one that is none.
    pub fn with_client_certificate(&self, certificate: ClientCertificate) -> Result<Fetcher> {
        let options = FetchOptions {
            client_certificate: Some(certificate),
            ..self.options().clone()
        };
        Fetcher::new(options, self.reporter().clone())
    }

    pub(super) fn client(&self) -> &http::Client {
        &self.shared.client
    }

    /// How it fetches.
    pub fn options(&self) -> &FetchOptions {
        &self.shared.options
    }

    pub(super) fn reporter(&self) -> &Reporter {
        &self.shared.reporter
    }

    /// A file that fits into memory: a boot config, a list of checksums. What may heal is retried within
    /// `budget`, a 404 as well. Fails with [`Class::Network`] when the budget is used up, and with
    /// [`Class::Config`] for a file larger than `limit`.
    pub fn get_small(
        &self,
        location: &Location,
        headers: &[(String, String)],
        limit: Bytes,
        budget: &mut Budget,
    ) -> Result<Vec<u8>> {
        self.get(location, headers, limit, budget, What::SmallAwaited)
    }

    /// A small file that must be there when the image is: a 404 is final.
    pub(super) fn get_beside_image(
        &self,
        location: &Location,
        headers: &[(String, String)],
        limit: Bytes,
        budget: &mut Budget,
    ) -> Result<Vec<u8>> {
        self.get(location, headers, limit, budget, What::SmallBesideImage)
    }

    fn get(
        &self,
        location: &Location,
        headers: &[(String, String)],
        limit: Bytes,
        budget: &mut Budget,
        what: What,
    ) -> Result<Vec<u8>> {
        let policy = Policy {
            anchored: false,
            what,
        };
        let mut download = Download::new(
            self,
            Driver::new(Cancel::default())?,
            std::slice::from_ref(location),
            http::headers(headers)?,
            budget.clone(),
            policy,
        );
        let result = collect(&mut download, location, limit);
        *budget = download.budget().clone();
        result
    }

    /// Posts a JSON document. Retried within `budget` like everything else; fails with
    /// [`Class::Network`].
    pub fn post_json(
        &self,
        url: &HttpUrl,
        headers: &[(String, String)],
        body: Vec<u8>,
        budget: &mut Budget,
    ) -> Result<()> {
        let driver = Driver::new(Cancel::default())?;
        let private = http::headers(headers)?;
        let body = Shared::from(body);
        let mut public = HeaderMap::new();
        public.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = http::Request {
            method: Method::POST,
            url,
            private: &private,
            public,
            body: Some(body),
            secret_body: false,
        };
        let mut round = 0;
        loop {
            let Err(attempt) = self.post_once(&driver, &request) else {
                return Ok(());
            };
            let failure = attempt.failure;
            if !failure.is_transient() || budget.is_used_up() {
                return Err(failure);
            }
            let delay = self
                .options()
                .backoff
                .delay(round)
                .max(attempt.retry_after.unwrap_or_default())
                .min(budget.remaining());
            self.reporter().emit(Event::Retry {
                error: chain(&failure),
                in_milliseconds: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            });
            driver.sleep(delay)?;
            round = round.saturating_add(1);
        }
    }

    fn post_once(&self, driver: &Driver, request: &http::Request<'_>) -> Result<(), Attempt> {
        let idle = self.options().idle_timeout;
        let response = http::send(self.client(), driver, idle, request)?;
        if response.status().is_success() {
            return Ok(());
        }
        let what = format!("POST {}", request.url);
        Err(Attempt {
            failure: resume::refused(&what, response.status()),
            retry_after: retry_after(response.headers()),
        })
    }
}

/// A small file takes no longer than this, or than the whole budget where that is longer.
const DRIP_LIMIT: Duration = Duration::from_secs(60);

fn collect(download: &mut Download, location: &Location, limit: Bytes) -> Result<Vec<u8>> {
    let too_large = |size: String| {
        Failure::new(
            Class::Config,
            format!("{location} has {size}; at most {limit} are read here"),
        )
    };
    let mut all = Vec::new();
    let mut piece = vec![0; 16 << 10];
    // Bytes renew the budget; for a small file a server that drips must come to an end all the same.
    let patience = download.budget().retry_for().max(DRIP_LIMIT);
    let began = std::time::Instant::now();
    loop {
        if began.elapsed() > patience {
            let text = format!(
                "{location} came too slowly: {} bytes in {} s",
                all.len(),
                patience.as_secs()
            );
            return Err(Failure::new(Class::Network, text));
        }
        let count = download.read(&mut piece)?;
        let Some(bytes) = piece.get(..count).filter(|bytes| !bytes.is_empty()) else {
            return Ok(all);
        };
        if let Some(total) = download.total().filter(|total| *total > limit.0) {
            return Err(too_large(Bytes(total).to_string()));
        }
        if (all.len() as u64).saturating_add(count as u64) > limit.0 {
            return Err(too_large("more".to_owned()));
        }
        all.extend_from_slice(bytes);
    }
}
