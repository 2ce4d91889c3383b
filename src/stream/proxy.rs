//! Which proxy a request goes through: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy` as curl reads
//! them (curl's manual, "Environment"), with the CIDR blocks that others understand as well.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;

use super::location::HttpUrl;
use crate::error::{Class, Failure, Result, printable};

/// Proxies for plain and for encrypted requests, and the hosts that are reached without one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    http: Option<HttpUrl>,
    https: Option<HttpUrl>,
    exceptions: Vec<Exception>,
}

/// Hosts that are reached without a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    All,
    /// Addresses written as such whose first bits are these. No name is looked up for it.
    Block {
        network: IpAddr,
        bits: u8,
    },
    /// A name and all names below it, and perhaps one port only.
    Domain {
        name: String,
        port: Option<u16>,
    },
    Address {
        address: IpAddr,
        port: Option<u16>,
    },
}

impl Proxies {
    /// Proxies as a boot config gives them. The error names the key and what is wrong with it.
    pub fn new(
        http: Option<&str>,
        https: Option<&str>,
        exceptions: &[String],
    ) -> Result<Proxies, Vec<(String, String)>> {
        let mut problems = Vec::new();
        let mut read = |key: &str, text: Option<&str>| {
            proxy(text?)
                .map_err(|why| problems.push((key.to_owned(), why)))
                .ok()
        };
        let (http, https) = (read("http", http), read("https", https));
        let mut all = Vec::new();
        for (i, text) in exceptions.iter().enumerate() {
            match exception(text.trim()) {
                Some(exception) => all.push(exception),
                None => problems.push((
                    format!("noProxy[{i}]"),
                    "neither a host, a domain, an address, a CIDR block nor `*`".to_owned(),
                )),
            }
        }
        if problems.is_empty() {
            Ok(Proxies {
                http,
                https,
                exceptions: all,
            })
        } else {
            Err(problems)
        }
    }

    /// Proxies as variables give them: `get` looks one up, in lower and in upper case. An empty value
    /// is none. What `no_proxy` has that is no host is passed over, as everybody does.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Proxies> {
        let either = |name: &str| get(name).or_else(|| get(&name.to_ascii_uppercase()));
        let read = |name: &str| -> Result<Option<HttpUrl>> {
            let (name, value) = match (either(name), either("all_proxy")) {
                (Some(value), _) => (name, value),
                (None, Some(value)) => ("all_proxy", value),
                (None, None) => return Ok(None),
            };
            if value.trim().is_empty() {
                return Ok(None);
            }
            proxy(value.trim()).map(Some).map_err(|why| {
                Failure::new(Class::Config, format!("{name}: {why}"))
                    .hint("write http://host:port, or leave it out")
            })
        };
        let exceptions = either("no_proxy").unwrap_or_default();
        Ok(Proxies {
            http: read("http_proxy")?,
            https: read("https_proxy")?,
            exceptions: exceptions
                .split([',', ' ', '\t'])
                .filter_map(|text| exception(text.trim()))
                .collect(),
        })
    }

    /// Whether nothing goes through a proxy.
    pub fn is_empty(&self) -> bool {
        self.http.is_none() && self.https.is_none()
    }

    /// The proxy for a request to `url`.
    pub(super) fn pick(&self, url: &Url) -> Option<&HttpUrl> {
        let proxy = match url.scheme() {
            "https" => self.https.as_ref(),
            _ => self.http.as_ref(),
        }?;
        let port = url.port_or_known_default();
        let host = url.host_str().unwrap_or_default();
        let direct = self.exceptions.iter().any(|e| e.covers(host, port));
        (!direct).then_some(proxy)
    }
}

impl Exception {
    fn covers(&self, host: &str, port: Option<u16>) -> bool {
        let same_port = |wanted: &Option<u16>| wanted.is_none() || *wanted == port;
        let address = || -> Option<IpAddr> { unbracketed(host).parse().ok() };
        match self {
            Exception::All => true,
            Exception::Block { network, bits } => {
                address().is_some_and(|a| is_within(a, *network, *bits))
            }
            Exception::Address { address: one, port } => same_port(port) && address() == Some(*one),
            Exception::Domain { name, port } => {
                let host = host.trim_end_matches('.').to_ascii_lowercase();
                let below = host
                    .strip_suffix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
                same_port(port) && below
            }
        }
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let mask = |width: u32| u128::MAX.checked_shl(width.saturating_sub(u32::from(bits)));
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => {
            let mask = mask(32).unwrap_or(0);
            u128::from(a.to_bits()) & mask == u128::from(n.to_bits()) & mask
        }
        (IpAddr::V6(a), IpAddr::V6(n)) => {
            let mask = mask(128).unwrap_or(0);
            a.to_bits() & mask == n.to_bits() & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// Reads a proxy; without a scheme it is spoken to in plain HTTP.
fn proxy(text: &str) -> Result<HttpUrl, String> {
    let url = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let scheme = url.split("://").next().unwrap_or_default();
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
        return Err(format!(
            "a proxy of kind {:?} is not supported, only http and https ones",
            printable(scheme)
        ));
    }
    // The failure's text is already without secrets.
    url.parse().map_err(|failure: Failure| failure.to_string())
}

fn exception(text: &str) -> Option<Exception> {
    if text == "*" {
        return Some(Exception::All);
    }
    if let Some((network, bits)) = text.split_once('/') {
        let network: IpAddr = unbracketed(network).parse().ok()?;
        let bits: u8 = bits.parse().ok()?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        return (bits <= most).then_some(Exception::Block { network, bits });
    }
    if let Ok(address) = unbracketed(text).parse() {
        return Some(Exception::Address {
            address,
            port: None,
        });
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (text, None),
    };
    if let Ok(address) = unbracketed(host).parse() {
        return Some(Exception::Address { address, port });
    }
    let host = host.strip_prefix('*').unwrap_or(host);
    let name = host.trim_matches('.').to_ascii_lowercase();
    let is_name = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    is_name.then_some(Exception::Domain { name, port })
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host)
}

impl fmt::Display for Proxies {
    /// The proxies, without their secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<HttpUrl>| {
            url.as_ref()
                .map_or_else(|| "no proxy".to_owned(), ToString::to_string)
        };
        write!(
            f,
            "http through {}, https through {}",
            shown(&self.http),
            shown(&self.https)
        )
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxies({self}, except {:?})", self.exceptions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Proxies> {
        Proxies::from_variables(|name| {
            pairs
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
    }

    fn picked(proxies: &Proxies, url: &str) -> Option<String> {
        proxies
            .pick(&url.parse().unwrap())
            .map(|p| p.url().as_str().to_owned())
    }

    #[test]
    fn each_scheme_has_its_proxy_and_lower_case_wins() {
        let proxies = from(&[
            ("http_proxy", "plain.example:3128"),
            ("HTTP_PROXY", "http://other:1"),
            ("HTTPS_PROXY", "https://user:pa55@secure.example"),
        ])
        .unwrap();
        assert_eq!(
            picked(&proxies, "http://h/").as_deref(),
            Some("http://plain.example:3128/")
        );
        assert_eq!(
            picked(&proxies, "https://h/").as_deref(),
            Some("https://user:pa55@secure.example/")
        );
        let shown = format!("{proxies} {proxies:?}");
        assert!(
            shown.contains("secure.example") && !shown.contains("pa55"),
            "{shown}"
        );
        let all = from(&[("all_proxy", "p:1"), ("https_proxy", "")]).unwrap();
        assert!(picked(&all, "http://h/").is_some() && picked(&all, "https://h/").is_none());
        assert!(from(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_without_its_secrets() {
        for value in ["socks5://u:pa55@h:1", "http://", "http://u:pa55@h:99999"] {
            let failure = from(&[("http_proxy", value)]).unwrap_err();
            assert_eq!(failure.class(), Class::Config);
            let text = failure.to_string();
            assert!(
                text.starts_with("http_proxy: ") && !text.contains("pa55"),
                "{text}"
            );
        }
        let bad = ["a b".to_owned()];
        let problems = Proxies::new(Some("ftp://h"), None, &bad).unwrap_err();
        let keys: Vec<&str> = problems.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["http", "noProxy[0]"]);
    }

    #[test]
    fn exceptions_are_hosts_domains_addresses_blocks_and_ports() {
        let list = "localhost, .example.org *.lab.test,10.0.0.0/8,192.168.1.7,[fd00::]/8,::1,only.port:8080,10.9.9.9:1";
        let proxies = from(&[("http_proxy", "p:1"), ("NO_PROXY", list)]).unwrap();
        for direct in [
            "http://localhost/",
            "http://LOCALHOST./",
            "http://example.org/",
            "http://a.b.example.org:81/",
            "http://x.lab.test/",
            "http://10.255.0.1/",
            "http://192.168.1.7:8080/",
            "http://[fd12::1]/",
            "http://[::1]:80/",
            "http://only.port:8080/",
        ] {
            assert_eq!(picked(&proxies, direct), None, "{direct}");
        }
        for through in [
            "http://notexample.org/",
            "http://example.org.evil/",
            "http://11.0.0.1/",
            "http://192.168.1.8/",
            "http://[fe80::1]/",
            "http://only.port/",
        ] {
            assert!(picked(&proxies, through).is_some(), "{through}");
        }
        let star = from(&[("http_proxy", "p:1"), ("no_proxy", "*")]).unwrap();
        assert_eq!(picked(&star, "http://h/"), None);
        let nothing = from(&[
            ("http_proxy", "p:1"),
            ("no_proxy", "0.0.0.0/0,,/,10.0.0.0/33"),
        ])
        .unwrap();
        assert!(picked(&nothing, "http://h/").is_some());
        assert_eq!(picked(&nothing, "http://1.2.3.4/"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC*", host in "[a-z0-9.]{1,12}") {
            let proxies = from(&[("http_proxy", "p:1"), ("no_proxy", &text)]).unwrap();
            if let Ok(url) = format!("http://{host}/").parse() {
                let _ = proxies.pick(&url);
            }
            let _ = from(&[("http_proxy", &text)]);
        }

        #[test]
        fn a_block_covers_what_shares_its_bits(address: u32, other: u32, bits in 0u8..=32) {
            let shared = bits == 0 || address >> (32 - u32::from(bits)) == other >> (32 - u32::from(bits));
            let ip = |bits: u32| IpAddr::V4(std::net::Ipv4Addr::from_bits(bits));
            prop_assert_eq!(is_within(ip(other), ip(address), bits), shared);
        }
    }
}
