//! One download, whatever happens to its connections: retried, resumed where it broke, and taken over by
//! mirrors. What comes out is one uninterrupted run of bytes, so that hashing and decoding above know
//! nothing of all that.

mod recovery;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::header::{
    ACCEPT_ENCODING, HeaderMap, HeaderValue, IF_RANGE, RANGE, TRANSFER_ENCODING,
};
use reqwest::{Method, StatusCode};

use super::budget::Budget;
use super::cancel::Driver;
use super::fetch::Fetcher;
use super::http::{self, Attempt};
use super::location::{HttpUrl, Location};
use super::oci::Session;
use super::resume::{self, Validator, Verdict, Wanted};
use super::retry_after::retry_after;
use crate::error::{Class, Failure, Result};

/// A file on its way from one of several places.
pub(super) struct Download {
    fetcher: Fetcher,
    driver: Driver,
    headers: HeaderMap,
    budget: Budget,
    places: Vec<Place>,
    policy: Policy,
    /// Index into `places`.
    current: usize,
    body: Option<Body>,
    /// Bytes at the start of `body` that are here already.
    skip: u64,
    position: u64,
    total: Option<u64>,
    validator: Option<Validator>,
    /// Which server gave the validator: behind a redirect it may be another one each time.
    validated_by: Option<String>,
    /// It was another one: If-Range would only bring the file from its start.
    wanders: bool,
    complete: bool,
    attempts: u32,
    /// Attempts since the last new byte.
    fruitless: u32,
    /// Whether the present attempt has brought a byte.
    fresh: bool,
    received: Arc<AtomicU64>,
}

/// What differs between an image and a small file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// A declared digest proves the bytes, so that another server may continue.
    pub(super) anchored: bool,
    pub(super) what: What,
}

/// What is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A small file. 404 is retried: the server may be up before its files are.
    SmallAwaited,
    /// A small file that is there when the image is.
    SmallBesideImage,
    /// An image, from its start to its end.
    Image,
    /// Parts of an image in any order, and whoever reads them proves each: every server must do ranges, and none
    /// has to show that it has the same file.
    Parts,
}

/// One of the locations, and what happened there.
struct Place {
    location: Location,
    /// What a registry has to be told with each request.
    session: Option<Session>,
    /// Whether it is told the headers of the config.
    private: bool,
    last: Option<String>,
    /// Trying again cannot help.
    dead: bool,
}

enum Body {
    Http(http::Body),
    File(File),
}

impl Download {
    /// A download that has not begun. `locations` must not be empty.
    pub(super) fn new(
        fetcher: &Fetcher,
        driver: Driver,
        locations: &[Location],
        headers: HeaderMap,
        budget: Budget,
        policy: Policy,
    ) -> Download {
        Download {
            fetcher: fetcher.clone(),
            driver,
            headers,
            budget,
            places: locations
                .iter()
                .map(|location| Place {
                    location: location.clone(),
                    session: None,
                    private: true,
                    last: None,
                    dead: false,
                })
                .collect(),
            policy,
            current: 0,
            body: None,
            skip: 0,
            position: 0,
            total: None,
            validator: None,
            validated_by: None,
            wanders: false,
            complete: false,
            attempts: 0,
            fruitless: 0,
            fresh: false,
            received: Arc::default(),
        }
    }

    /// The same, with what the registries ask for, in the order of the locations.
    pub(super) fn in_sessions(mut self, sessions: &[Session]) -> Download {
        for (place, session) in self.places.iter_mut().zip(sessions) {
            place.session = Some(session.clone());
        }
        self
    }

    /// The same, with the headers for the places at the origin of `owner` only: they may be secrets, and a mirror
    /// is somebody else's.
    pub(super) fn with_headers_for(mut self, owner: Option<&HttpUrl>) -> Download {
        for place in &mut self.places {
            place.private = matches!((&place.location, owner), (Location::Http(url), Some(owner)) if owner.same_origin(url));
        }
        self
    }

    /// The same, with a counter that has counted before.
    pub(super) fn counting_on(mut self, received: Arc<AtomicU64>) -> Download {
        self.received = received;
        self
    }

    /// The next byte to come.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether bytes come without a new request.
    pub(super) fn is_open(&self) -> bool {
        self.body.is_some()
    }

    /// Goes on at `position`, with a new request and the whole budget. Only for reading in any order.
    pub(super) fn seek(&mut self, position: u64) {
        self.body = None;
        self.skip = 0;
        self.position = position;
        self.complete = false;
        self.fresh = false;
        self.fruitless = 0;
        self.budget.renew();
    }

    /// What came from the present place was wrong: `failure` says how. Turns to another place for good, and
    /// fails where there is none.
    pub(super) fn disbelieve(&mut self, failure: Failure) -> Result<()> {
        self.fresh = false;
        self.recover(failure.permanent().into())
    }

    /// Fills the start of `out`; 0 once the whole file was read.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        loop {
            match self.attempt(out) {
                Ok(Some(count)) => return Ok(count),
                // Bytes that were here already.
                Ok(None) => {}
                Err(attempt) => self.recover(attempt)?,
            }
        }
    }

    /// Fills `out` as far as the file reaches.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read(rest)? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    /// The length of the file, where it is known by now.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    /// A counter of the bytes received, for other threads.
    pub(super) fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }

    /// The budget as it is now.
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    fn attempt(&mut self, out: &mut [u8]) -> Result<Option<usize>, Attempt> {
        if self.complete || out.is_empty() {
            return Ok(Some(0));
        }
        if self.body.is_none() {
            self.fresh = false;
            self.connect()?;
        }
        if self.fresh {
            // Only waiting for bytes counts, not the time that the stages above took for the last ones.
            self.budget.renew();
        }
        let idle = self.fetcher.options().idle_timeout;
        let got = match &mut self.body {
            Some(Body::Http(body)) => body.read(&self.driver, idle, out),
            Some(Body::File(file)) => super::file::read(file, out),
            None => Ok(0),
        };
        let got = got.map_err(|failure| self.broken(failure))?;
        if got == 0 {
            let missing = self.skip > 0 || self.total.is_some_and(|total| self.position < total);
            if missing {
                let text = "the server ended it there";
                return Err(self.broken(Failure::new(Class::Network, text)).into());
            }
            self.complete = true;
            self.total = Some(self.position);
            return Ok(Some(0));
        }
        let known = usize::try_from(self.skip).unwrap_or(usize::MAX).min(got);
        self.skip -= known as u64;
        if known == got {
            // They renew nothing: a server that always breaks off before the new ones must come to an end.
            return Ok(None);
        }
        // musl's memmove(3) copies a range onto itself byte by byte, backwards: a third of this thread's time.
        if known > 0 {
            out.copy_within(known..got, 0);
        }
        let new = got - known;
        self.position = self.position.saturating_add(new as u64);
        if self.total.is_some_and(|total| self.position > total) {
            let text = format!(
                "more than the announced {} bytes came",
                self.total.unwrap_or(0)
            );
            return Err(Failure::new(Class::Network, text).permanent().into());
        }
        self.fresh = true;
        self.fruitless = 0;
        self.budget.renew();
        self.received.fetch_add(new as u64, Ordering::Relaxed);
        Ok(Some(new))
    }

    /// Opens the current place at the current position.
    fn connect(&mut self) -> Result<(), Attempt> {
        self.attempts = self.attempts.saturating_add(1);
        let Some(place) = self.places.get(self.current) else {
            return Err(Failure::new(Class::Bug, "a download without a location").into());
        };
        match place.location.clone() {
            Location::Http(url) => self.connect_http(&url),
            Location::File(path) => Ok(self.connect_file(&path)?),
            Location::Oci(reference) => {
                let text = format!("{reference} is an image in a registry, and not a file");
                Err(Failure::new(Class::Config, text).into())
            }
        }
    }

    fn connect_file(&mut self, path: &Path) -> Result<()> {
        let (file, len) = super::file::open(path, self.position)?;
        if let Some(total) = self
            .total
            .filter(|total| *total != len && (self.position > 0 || self.policy.what == What::Parts))
        {
            let text = format!(
                "{} has {len} bytes and not {total}",
                Location::File(path.into())
            );
            let class = resume::class_of_change(self.policy.what == What::Parts);
            return Err(Failure::new(class, text).permanent());
        }
        self.total = Some(len);
        self.skip = 0;
        self.body = Some(Body::File(file));
        Ok(())
    }

    fn connect_http(&mut self, url: &HttpUrl) -> Result<(), Attempt> {
        let mut wanted = Wanted {
            offset: self.position,
            total: self
                .total
                .filter(|_| self.position > 0 || self.policy.what == What::Parts),
            validator: self
                .validator
                .clone()
                .filter(|_| self.position > 0 && !self.wanders),
            anchored: self.policy.anchored,
            random: self.policy.what == What::Parts,
        };
        let mut public = HeaderMap::new();
        // A server that may compress does not serve ranges of the file, and a digest is that of the file.
        public.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if wanted.offset > 0 {
            if wanted.validator.is_none() && !wanted.anchored {
                let text = format!(
                    "the server of {url} gives neither a strong ETag nor a Last-Modified older than its answer, so that the download cannot go on at byte {}",
                    wanted.offset
                );
                return Err(Failure::new(Class::Network, text)
                    .permanent()
                    .hint("declare the image's digest: then any server may continue")
                    .into());
            }
            let range = format!("bytes={}-", wanted.offset);
            if let Ok(range) = HeaderValue::try_from(range) {
                public.insert(RANGE, range);
            }
            if let Some(validator) = &wanted.validator {
                public.insert(IF_RANGE, validator.value().clone());
            }
        }
        let mut response = self.send(url, public.clone())?;
        if let Some(place) = self.places.get_mut(self.current)
            && let Some(session) = &mut place.session
            && session.is_asked_by(&response)
        {
            // A token lives for some minutes, a download for longer.
            session.renew(&self.fetcher, &self.driver, response.headers())?;
            response = self.send(url, public)?;
        }
        let (status, length) = (response.status(), response.content_length());
        let headers = response.headers();
        let server = response.url().origin().ascii_serialization();
        if wanted.anchored && self.validated_by.as_ref().is_some_and(|by| *by != server) {
            // Another server's tag means nothing here, and the digest proves the bytes.
            wanted.validator = None;
            self.wanders = true;
        }
        let what = format!("GET {url}");
        if self.policy.what == What::SmallAwaited && status == StatusCode::NOT_FOUND {
            return Err(Failure::new(Class::Network, format!("{what}: {status}"))
                .hint("check the URL, and that the file is published")
                .into());
        }
        let verdict =
            resume::judge(&what, &wanted, status, headers, length).map_err(|failure| Attempt {
                failure,
                retry_after: retry_after(headers),
            })?;
        let validator = Validator::of(headers);
        match verdict {
            Verdict::Nothing => {
                self.complete = true;
                return Ok(());
            }
            Verdict::Whole { skip, total } => {
                // To its end by the length, or by the last chunk.
                let shows = total.is_some() || headers.contains_key(TRANSFER_ENCODING);
                if self.policy.what == What::Image && !wanted.anchored && !shows {
                    let text = format!(
                        "{what}: the server does not say how long the file is, so that nothing would show that it was cut"
                    );
                    return Err(Failure::new(Class::Network, text)
                        .permanent()
                        .hint("declare the image's digest, or let the server send Content-Length")
                        .into());
                }
                self.skip = skip;
                self.total = total;
            }
            Verdict::Rest { total } => {
                self.skip = 0;
                self.total = total;
            }
        }
        // A 206 need not repeat the validator; then the one that If-Range sent still holds.
        self.validator = validator
            .or(wanted.validator)
            .filter(|_| self.policy.what != What::Parts);
        self.validated_by = self.validator.as_ref().map(|_| server);
        self.body = Some(Body::Http(http::Body::new(response)));
        Ok(())
    }

    fn send(&self, url: &HttpUrl, public: HeaderMap) -> Result<reqwest::Response, Attempt> {
        let place = self.places.get(self.current);
        let mut private = match place {
            Some(place) if place.private => self.headers.clone(),
            _ => HeaderMap::new(),
        };
        if let Some(session) = place.and_then(|place| place.session.as_ref()) {
            session.authorize(&mut private);
        }
        let request = http::Request {
            method: Method::GET,
            url,
            private: &private,
            public,
            body: None,
            secret_body: false,
        };
        let idle = self.fetcher.options().idle_timeout;
        http::send(self.fetcher.client(), &self.driver, idle, &request)
    }
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download")
            .field("position", &self.position)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}
