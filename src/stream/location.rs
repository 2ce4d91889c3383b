//! Where bytes are: a closed set of schemes, and the one way to print a URL without its secrets.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use reqwest::Url;

use super::oci::OciReference;
use crate::error::{Class, Failure, Result, printable};

/// Where bytes come from.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// `http://…` or `https://…`.
    Http(HttpUrl),
    /// A regular file or a block device: `file:///…` or an absolute path.
    File(PathBuf),
    /// An image in a registry: `oci://registry/repository[:tag][@sha256:…]`.
    Oci(OciReference),
}

/// An `http` or `https` URL. Neither `Display` nor `Debug` shows user name, password, query or fragment,
/// because that is where tokens are.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl(Url);

impl Location {
    /// Whether an attacker on the path could change what arrives from here.
    pub fn is_plain_http(&self) -> bool {
        match self {
            Location::Http(url) => !url.is_https(),
            Location::File(_) => false,
            // A digest leads to the disk's own, whatever the way.
            Location::Oci(reference) => reference.is_open_to_change(),
        }
    }

    /// Whether the network is needed.
    pub fn is_remote(&self) -> bool {
        match self {
            Location::Http(_) | Location::Oci(_) => true,
            Location::File(_) => false,
        }
    }

    /// Whether secrets meant for `self` may be sent to `other`.
    pub(super) fn same_origin(&self, other: &Location) -> bool {
        match (self, other) {
            (Location::Http(one), Location::Http(other)) => one.same_origin(other),
            (Location::Http(_) | Location::File(_) | Location::Oci(_), _) => false,
        }
    }

    /// The file beside this one whose name is this one's and `ending`; the query stays. Beside an image in
    /// a registry there is none.
    #[must_use]
    pub fn with_ending(&self, ending: &str) -> Location {
        match self {
            Location::Http(HttpUrl(url)) => {
                let mut url = url.clone();
                url.set_path(&format!("{}{ending}", url.path()));
                Location::Http(HttpUrl(url))
            }
            Location::File(path) => {
                let mut name = path.clone().into_os_string();
                name.push(ending);
                Location::File(name.into())
            }
            Location::Oci(reference) => Location::Oci(reference.clone()),
        }
    }

    /// The path as people and file lists write it: percent-decoded, without query and fragment.
    pub(super) fn decoded_path(&self) -> String {
        match self {
            Location::Http(url) => percent_decoded(url.url().path()),
            Location::File(path) => path.to_string_lossy().into_owned(),
            Location::Oci(reference) => reference.to_string(),
        }
    }
}

/// RFC 3986 section 2.1; what is no escape stays as it is.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16));
        let escaped = match (*first == b'%', digit(0), digit(1)) {
            (true, Some(high), Some(low)) => u8::try_from(high * 16 + low).ok(),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = escaped.and_then(|_| after.get(2..)).unwrap_or(after);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl FromStr for Location {
    type Err = Failure;

    /// Reads `http://`, `https://`, `oci://`, `file:///…` or an absolute path.
    fn from_str(text: &str) -> Result<Location> {
        if text.starts_with('/') {
            return Ok(Location::File(PathBuf::from(text)));
        }
        let Some((scheme, _)) = text.split_once(':') else {
            return Err(wrong(text, "it is neither a URL nor an absolute path"));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => text.parse().map(Location::Http),
            "file" => Url::parse(text)
                .ok()
                .and_then(|url| url.to_file_path().ok())
                .map(Location::File)
                .ok_or_else(|| wrong(text, "a file URL is file:///absolute/path")),
            "oci" => text
                .split_once("://")
                .ok_or("it is oci://registry/repository")
                .and_then(|(_, rest)| rest.parse().map(Location::Oci))
                .map_err(|why| wrong(text, why)),
            other => Err(wrong(
                text,
                &format!("{:?} is not supported in this version", printable(other)),
            )),
        }
    }
}

impl HttpUrl {
    /// Whether the connection is encrypted and the server proven.
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    pub(super) fn url(&self) -> &Url {
        &self.0
    }

    /// The target of a redirect from here: a relative or an absolute reference (RFC 9110 section 10.2.2).
    pub(super) fn join(&self, reference: &str) -> Option<HttpUrl> {
        self.0.join(reference).ok().and_then(HttpUrl::accept)
    }

    /// Whether secrets meant for `self` may be sent to `other`: same scheme, host and port.
    pub(super) fn same_origin(&self, other: &HttpUrl) -> bool {
        self.0.origin() == other.0.origin()
    }

    /// The same, with the user and the password of `other` where they are meant for this place as well and it has none
    /// of its own.
    pub(super) fn with_user_of(mut self, other: &HttpUrl) -> HttpUrl {
        if self.same_origin(other) && self.0.username().is_empty() && self.0.password().is_none() {
            // Both fail only where a URL cannot have a user: not those of http.
            let _ = self.0.set_username(other.0.username());
            let _ = self.0.set_password(other.0.password());
        }
        self
    }

    pub(super) fn with_query(&self, pairs: &[(&'static str, Cow<'_, str>)]) -> HttpUrl {
        let mut url = self.0.clone();
        url.query_pairs_mut().extend_pairs(pairs);
        HttpUrl(url)
    }

    /// `pairs` as application/x-www-form-urlencoded, which is how a query is written.
    pub(super) fn form(&self, pairs: &[(&'static str, Cow<'_, str>)]) -> String {
        let mut url = self.0.clone();
        url.set_query(None);
        url.query_pairs_mut().extend_pairs(pairs);
        url.query().unwrap_or_default().to_owned()
    }

    fn accept(url: Url) -> Option<HttpUrl> {
        (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(HttpUrl(url))
    }
}

impl FromStr for HttpUrl {
    type Err = Failure;

    fn from_str(text: &str) -> Result<HttpUrl> {
        // A browser would take `http:///x` and `http:x` for `http://x`; here they are mistakes.
        let host = text.split_once("://").map_or("", |(_, rest)| rest);
        if host.is_empty() || host.starts_with(['/', '\\']) {
            return Err(wrong(text, "the host is missing"));
        }
        let url = Url::parse(text).map_err(|e| wrong(text, &e.to_string()))?;
        HttpUrl::accept(url).ok_or_else(|| wrong(text, "it is not an http or https URL"))
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = &self.0;
        // `host_str` keeps the brackets of an IPv6 literal; the path is percent-encoded.
        write!(
            f,
            "{}://{}",
            url.scheme(),
            url.host_str().unwrap_or_default()
        )?;
        if let Some(port) = url.port() {
            write!(f, ":{port}")?;
        }
        f.write_str(&printable(url.path()))?;
        if url.query().is_some() {
            f.write_str("?…")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpUrl({self})")
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Http(url) => url.fmt(f),
            Location::File(path) => f.write_str(&printable(&path.to_string_lossy())),
            Location::Oci(reference) => reference.fmt(f),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

/// What could not be read as a URL, without the parts where secrets are. It is not a URL, so this errs on
/// the side of hiding too much.
fn redacted(text: &str) -> String {
    let public = text.split(['?', '#']).next().unwrap_or_default();
    let shown = match (public.split_once("://"), public.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, after))) => format!("{scheme}://{after}"),
        (None, Some((_, after))) => after.to_owned(),
        (_, None) => public.to_owned(),
    };
    printable(&shown)
}

fn wrong(text: &str, why: &str) -> Failure {
    Failure::new(
        Class::Config,
        format!("{:?} cannot be fetched from: {why}", redacted(text)),
    )
    .hint("write http://…, https://…, oci://…, file:///… or an absolute path")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_closed_set_of_schemes() {
        let http = |t: &str| matches!(t.parse().unwrap(), Location::Http(_));
        assert!(
            http("http://10.0.0.1/x.raw") && http("HTTPS://h/x") && http("http://[::1]:8080/x")
        );
        for (text, path) in [
            ("/dev/sdb", "/dev/sdb"),
            ("file:///srv/a%20b.raw", "/srv/a b.raw"),
        ] {
            assert_eq!(
                text.parse::<Location>().unwrap(),
                Location::File(path.into())
            );
        }
        for text in [
            "",
            "image.raw",
            "http://",
            "http:///x",
            "file://host/x",
            "ftp://h/x",
            "oci://h",
        ] {
            let failure = text.parse::<Location>().unwrap_err();
            assert_eq!(failure.class(), Class::Config, "{text}");
        }
        let oci: Location = "oci://registry/repo:tag".parse().unwrap();
        assert_eq!(oci.to_string(), "oci://registry/repo:tag");
        for text in ["oci:x", "oci://u:s3cr3t@h/x", "s3://b/x"] {
            let failure = text.parse::<Location>().unwrap_err();
            assert!(!failure.to_string().contains("s3cr3t"), "{failure}");
        }
    }

    #[test]
    fn printing_a_url_hides_user_password_query_and_fragment() {
        let url: Location = "https://bob:pa55@h.example:8443/a/b.raw?token=s3cr3t#frag"
            .parse()
            .unwrap();
        assert_eq!(url.to_string(), "https://h.example:8443/a/b.raw?…");
        let debug = format!("{url:?}");
        assert!(!debug.contains("pa55") && !debug.contains("s3cr3t"));
        let v6: Location = "http://[fe80::1]:80/x".parse().unwrap();
        assert_eq!(v6.to_string(), "http://[fe80::1]/x");
    }

    #[test]
    fn a_broken_url_does_not_leak_either() {
        for text in [
            "http://bob:pa55@",
            "foo://bob:pa55@h/?token=pa55",
            "http://bob:pa55@h:99999/",
        ] {
            let failure = text.parse::<Location>().unwrap_err();
            assert!(!failure.to_string().contains("pa55"), "{failure}");
        }
    }

    #[test]
    fn the_path_is_decoded_and_has_no_query() {
        for (url, path) in [
            ("https://h/a%20b/x%2b1.raw?token=/y", "/a b/x+1.raw"),
            ("https://h/100%/%zz%4", "/100%/%zz%4"),
            ("https://h/%c3%a4", "/ä"),
            ("/srv/a%20b", "/srv/a%20b"),
        ] {
            let location: Location = url.parse().unwrap();
            assert_eq!(location.decoded_path(), path);
        }
    }

    #[test]
    fn the_file_beside_keeps_query_and_escapes() {
        let beside = |t: &str| t.parse::<Location>().unwrap().with_ending(".minisig");
        let Location::Http(url) = beside("https://u:p@h:1/a%20b/x.json?uuid=1&t=a/b") else {
            panic!("not a URL")
        };
        assert_eq!(
            url.url().as_str(),
            "https://u:p@h:1/a%20b/x.json.minisig?uuid=1&t=a/b"
        );
        assert_eq!(beside("/a/x").to_string(), "/a/x.minisig");
    }

    #[test]
    fn secrets_stay_at_their_origin() {
        let url = |t: &str| t.parse::<HttpUrl>().unwrap();
        let a = url("https://h/x");
        assert!(a.same_origin(&url("https://h:443/y")));
        for other in ["http://h/x", "https://h:444/x", "https://g/x"] {
            assert!(!a.same_origin(&url(other)), "{other}");
        }
        assert_eq!(
            a.join("../y?z").unwrap().url().as_str(),
            url("https://h/y?z").url().as_str()
        );
        assert!(a.join("file:///etc/shadow").is_none());
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails_without_a_panic(text in "\\PC*") {
            let _ = text.parse::<Location>();
        }
    }
}
