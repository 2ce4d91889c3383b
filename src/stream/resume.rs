//! What a response means for a download that already has its first bytes: pure decisions over a status
//! and headers (RFC 9110 sections 13, 14 and 15).

use reqwest::StatusCode;
use reqwest::header::{
    CONTENT_ENCODING, CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED,
};

use super::retry_after::http_date;

use crate::error::{Class, Failure, Result, printable};

/// What tells two versions of a file apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Validator {
    /// A strong entity tag. Weak ones (`W/"…"`) do not promise the same bytes and are not used.
    Etag(HeaderValue),
    /// The time of the last change, where the response was made at least a second after it: a file that is written
    /// twice within one second has one time for two contents (RFC 9110 section 8.8.2.2).
    LastModified(HeaderValue),
}

impl Validator {
    /// The best validator of a response. Where there is an entity tag, the time may not be used, also where the
    /// tag is a weak one (RFC 9110 section 13.1.5).
    pub(super) fn of(headers: &HeaderMap) -> Option<Validator> {
        if let Some(tag) = headers.get(ETAG) {
            let strong = tag.as_bytes().starts_with(b"\"") && tag.len() > 2;
            return strong.then(|| Validator::Etag(tag.clone()));
        }
        let time = |name| http_date(headers.get(name)?.to_str().ok()?);
        let (changed, now) = (time(LAST_MODIFIED)?, time(DATE)?);
        let value = headers.get(LAST_MODIFIED).filter(|_| changed < now)?;
        Some(Validator::LastModified(value.clone()))
    }

    /// The value for If-Range.
    pub(super) fn value(&self) -> &HeaderValue {
        match self {
            Validator::Etag(value) | Validator::LastModified(value) => value,
        }
    }

    /// Whether `headers` carry this very validator: `None` when they carry none of its kind.
    fn matches(&self, headers: &HeaderMap) -> Option<bool> {
        let name = match self {
            Validator::Etag(_) => ETAG,
            Validator::LastModified(_) => LAST_MODIFIED,
        };
        headers.get(name).map(|value| value == self.value())
    }
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// How many bytes are here already.
    pub(super) offset: u64,
    /// The length of the whole file, where it is known.
    pub(super) total: Option<u64>,
    /// The validator sent as If-Range; `None` on the first request and at another server.
    pub(super) validator: Option<Validator>,
    /// A declared digest will prove the bytes, whoever sent them.
    pub(super) anchored: bool,
    /// A part is wanted, not a rest: the whole file in its place is of no use.
    pub(super) random: bool,
}

/// Whose fault it is when a file changes under way: where its first version was proven already, it is no
/// longer what it should be; otherwise one version may still be fetched whole.
pub(super) fn class_of_change(random: bool) -> Class {
    if random {
        Class::Integrity
    } else {
        Class::Network
    }
}

/// What to do with a response's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the file from its start; drop `skip` bytes first.
    Whole {
        /// Bytes that are here already.
        skip: u64,
        /// Length of the file, where it is known.
        total: Option<u64>,
    },
    /// It goes on where the bytes that are here end.
    Rest {
        /// Length of the file, where it is known.
        total: Option<u64>,
    },
    /// Nothing is missing.
    Nothing,
}

/// Judges a response. `length` is that of its body, where the server said it; `what` names the request.
pub(super) fn judge(
    what: &str,
    wanted: &Wanted,
    status: StatusCode,
    headers: &HeaderMap,
    length: Option<u64>,
) -> Result<Verdict> {
    let broken = |text: String| Failure::new(Class::Network, format!("{what}: {text}")).permanent();
    let changed = |how: String| {
        let text = format!(
            "{what}: the file changed while downloading, after {} bytes: {how}",
            wanted.offset
        );
        let class = class_of_change(wanted.random);
        Failure::new(class, text)
            .permanent()
            .hint("start again; publish an image under a new name instead of overwriting it")
    };
    if let Some(coding) = content_coding(headers) {
        return Err(broken(format!(
            "the server sent Content-Encoding: {coding}, which was not asked for"
        ))
        .hint("let the server send the file as it is: digest and format are those of the file"));
    }
    match status {
        StatusCode::OK if wanted.offset == 0 => Ok(Verdict::Whole {
            skip: 0,
            total: length,
        }),
        StatusCode::OK if wanted.random => Err(broken(format!(
            "the server does not give parts of a file: asked for the bytes from {} on, got it from its start",
            wanted.offset
        ))
        .hint("qcow2 is read in two passes, the second by Range requests: let the server answer them, or publish a raw image")),
        StatusCode::OK => {
            // The server ignored the range, or If-Range told it that the file changed.
            let same = wanted.validator.as_ref().and_then(|v| v.matches(headers));
            if same == Some(false) {
                return Err(changed("its ETag or Last-Modified is another".to_owned()));
            }
            if same.is_none() && !wanted.anchored {
                return Err(broken(
                    "the server sent the file from its start and nothing shows that it is the same file"
                        .to_owned(),
                ));
            }
            let total = same_total(wanted.total, length).map_err(changed)?;
            Ok(Verdict::Whole {
                skip: wanted.offset,
                total,
            })
        }
        StatusCode::PARTIAL_CONTENT if wanted.offset > 0 => {
            let range = headers
                .get(CONTENT_RANGE)
                .and_then(|v| v.to_str().ok())
                .and_then(ContentRange::parse);
            let Some(ContentRange::Part { first, last, total }) = range else {
                return Err(broken("206 without a usable Content-Range".to_owned()));
            };
            if first != wanted.offset {
                return Err(broken(format!(
                    "asked for the bytes from {} on, got those from {first} on",
                    wanted.offset
                )));
            }
            if let Some(v) = &wanted.validator
                && v.matches(headers) == Some(false)
            {
                return Err(changed("its ETag or Last-Modified is another".to_owned()));
            }
            // `bytes 5-9/*`: the length is not said, but a last byte beyond ours is wrong all the same.
            let total = same_total(wanted.total, total).map_err(changed)?;
            if total.is_some_and(|t| last >= t) {
                return Err(broken(format!(
                    "Content-Range names byte {last} of a file of {} bytes",
                    total.unwrap_or_default()
                )));
            }
            // Less than the rest is a right answer, so that without a length its end would pass for the file's.
            if total.is_none() && !wanted.random {
                return Err(broken(format!(
                    "206 for the bytes {first} to {last} of a file whose length nobody says"
                )));
            }
            if let Some(length) = length
                && length.checked_sub(1) != Some(last - first)
            {
                return Err(broken(format!(
                    "Content-Range names the bytes {first} to {last}, and {length} bytes follow"
                )));
            }
            Ok(Verdict::Rest { total })
        }
        StatusCode::RANGE_NOT_SATISFIABLE if wanted.offset > 0 => {
            let range = headers
                .get(CONTENT_RANGE)
                .and_then(|v| v.to_str().ok())
                .and_then(ContentRange::parse);
            match range {
                // Everything had arrived; only the end of the body was lost.
                Some(ContentRange::None { total }) if total == wanted.offset => {
                    same_total(wanted.total, Some(total)).map_err(changed)?;
                    Ok(Verdict::Nothing)
                }
                Some(ContentRange::None { total }) => {
                    Err(changed(format!("it has {total} bytes now")))
                }
                _ => Err(broken(
                    "416: the server has no bytes from here on".to_owned(),
                )),
            }
        }
        other => Err(refused(what, other)),
    }
}

/// A status that is not what was asked for: some heal with time, others do not.
pub(super) fn refused(what: &str, status: StatusCode) -> Failure {
    let failure = Failure::new(Class::Network, format!("{what}: {status}"));
    let failure = match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            failure.hint("check the URL, and that the file is published")
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            failure.hint("check the headers that the boot config sends with this URL")
        }
        _ => failure,
    };
    let heals = status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        );
    if heals { failure } else { failure.permanent() }
}

/// A coding that changes the bytes; `identity` does not.
fn content_coding(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_ENCODING)?;
    let text = String::from_utf8_lossy(value.as_bytes());
    let trimmed = text.trim();
    (!trimmed.is_empty() && !trimmed.eq_ignore_ascii_case("identity")).then(|| printable(trimmed))
}

/// The length of the file, if both answers agree as far as they say it.
fn same_total(before: Option<u64>, now: Option<u64>) -> Result<Option<u64>, String> {
    match (before, now) {
        (Some(before), Some(now)) if before != now => {
            Err(format!("it had {before} bytes and has {now} now"))
        }
        (before, now) => Ok(before.or(now)),
    }
}

/// A Content-Range header of unit `bytes` (RFC 9110 section 14.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentRange {
    /// `bytes 5-9/10`, `bytes 5-9/*`.
    Part {
        first: u64,
        last: u64,
        total: Option<u64>,
    },
    /// `bytes */10`.
    None { total: u64 },
}

impl ContentRange {
    fn parse(text: &str) -> Option<ContentRange> {
        let (unit, rest) = text.trim().split_once(' ')?;
        let (range, total) = rest.trim().split_once('/')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let number = |t: &str| {
            let plain = !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| t.parse::<u64>().ok()).flatten()
        };
        let total = match total.trim() {
            "*" => None,
            digits => Some(number(digits)?),
        };
        if range.trim() == "*" {
            return total.map(|total| ContentRange::None { total });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first.trim())?, number(last.trim())?);
        (first <= last && total.is_none_or(|t| last < t)).then_some(ContentRange::Part {
            first,
            last,
            total,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap()))
            .collect()
    }

    fn wanted(offset: u64, total: Option<u64>, etag: Option<&'static str>) -> Wanted {
        Wanted {
            offset,
            total,
            validator: etag.and_then(|e| Validator::of(&map(&[("etag", e)]))),
            anchored: false,
            random: false,
        }
    }

    fn ask(
        wanted: &Wanted,
        status: u16,
        headers: &[(&'static str, &'static str)],
        length: Option<u64>,
    ) -> Result<Verdict> {
        let status = StatusCode::from_u16(status).unwrap();
        judge("GET http://h/x", wanted, status, &map(headers), length)
    }

    #[test]
    fn only_strong_validators_are_used() {
        let of = |pairs: &[_]| Validator::of(&map(pairs));
        assert!(matches!(
            of(&[("etag", "\"a\""), ("last-modified", "x")]),
            Some(Validator::Etag(_))
        ));
        let (then, later) = (
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:38 GMT",
        );
        assert!(matches!(
            of(&[("last-modified", then), ("date", later)]),
            Some(Validator::LastModified(_))
        ));
        assert_eq!(of(&[("last-modified", then), ("date", then)]), None);
        assert_eq!(of(&[("last-modified", then)]), None);
        let weak = ("etag", "W/\"a\"");
        assert_eq!(of(&[weak, ("last-modified", then), ("date", later)]), None);
        assert_eq!(of(&[("etag", "W/\"a\"")]), None);
        assert_eq!(of(&[("etag", "\"\"")]), None);
    }

    #[test]
    fn the_first_answer_must_be_200() {
        let first = Wanted::default();
        let whole = Verdict::Whole {
            skip: 0,
            total: Some(10),
        };
        assert_eq!(ask(&first, 200, &[], Some(10)).unwrap(), whole);
        for (status, transient) in [
            (206, false),
            (203, false),
            (204, false),
            (304, false),
            (404, false),
            (403, false),
            (416, false),
            (408, true),
            (425, true),
            (429, true),
            (500, true),
            (503, true),
        ] {
            let failure = ask(&first, status, &[], None).unwrap_err();
            assert_eq!(failure.class(), Class::Network);
            assert_eq!(failure.is_transient(), transient, "{status}");
            assert!(failure.to_string().contains(&status.to_string()));
        }
    }

    #[test]
    fn a_coding_that_nobody_asked_for_is_named() {
        let first = Wanted::default();
        let failure = ask(&first, 200, &[("content-encoding", "gzip")], None).unwrap_err();
        assert!(failure.to_string().contains("Content-Encoding: gzip"));
        assert!(!failure.is_transient());
        assert!(ask(&first, 200, &[("content-encoding", "identity")], None).is_ok());
    }

    #[test]
    fn a_rest_must_start_where_we_are_and_belong_to_the_same_file() {
        let w = wanted(5, Some(10), Some("\"a\""));
        let rest = Verdict::Rest { total: Some(10) };
        let range = |r| ("content-range", r);
        assert_eq!(
            ask(&w, 206, &[range("bytes 5-9/10")], Some(5)).unwrap(),
            rest
        );
        assert_eq!(
            ask(&w, 206, &[range("bytes 5-9/*")], Some(5)).unwrap(),
            rest
        );
        for (headers, why) in [
            (vec![range("bytes 4-9/10")], "from 4 on"),
            (vec![range("bytes 5-10/11")], "it had 10 bytes and has 11"),
            (vec![range("bytes 5-12/*")], "names byte 12"),
            (vec![range("bytes 5-9/10"), ("etag", "\"b\"")], "changed"),
            (vec![range("pages 5-9/10")], "Content-Range"),
            (vec![], "Content-Range"),
        ] {
            let failure = ask(&w, 206, &headers, Some(5)).unwrap_err();
            assert!(failure.to_string().contains(why), "{failure}");
        }
        for length in [0, 4, 6] {
            let failure = ask(&w, 206, &[range("bytes 5-9/10")], Some(length)).unwrap_err();
            assert!(failure.to_string().contains("bytes follow"), "{failure}");
        }
        let unknown = wanted(5, None, Some("\"a\""));
        let failure = ask(&unknown, 206, &[range("bytes 5-9/*")], Some(5)).unwrap_err();
        assert!(failure.to_string().contains("nobody says"), "{failure}");
        let proven_by_piece = Wanted {
            random: true,
            ..unknown.clone()
        };
        let open = Verdict::Rest { total: None };
        assert_eq!(
            ask(&proven_by_piece, 206, &[range("bytes 5-9/*")], Some(5)).unwrap(),
            open
        );
        assert_eq!(
            ask(&unknown, 206, &[range("bytes 5-9/10")], None).unwrap(),
            rest
        );
    }

    #[test]
    fn a_whole_file_in_answer_to_a_range_is_skipped_into_only_when_it_is_the_same() {
        let w = wanted(5, Some(10), Some("\"a\""));
        let skip = Verdict::Whole {
            skip: 5,
            total: Some(10),
        };
        assert_eq!(ask(&w, 200, &[("etag", "\"a\"")], Some(10)).unwrap(), skip);
        for (headers, length) in [
            (vec![("etag", "\"b\"")], Some(10)),
            (vec![], Some(10)),
            (vec![("etag", "\"a\"")], Some(11)),
        ] {
            assert!(ask(&w, 200, &headers, length).is_err());
        }
        let anchored = Wanted {
            anchored: true,
            validator: None,
            ..w
        };
        assert_eq!(ask(&anchored, 200, &[], Some(10)).unwrap(), skip);
        assert!(ask(&anchored, 200, &[], Some(11)).is_err());
    }

    #[test]
    fn a_range_past_the_end_means_done_or_changed() {
        let w = wanted(10, None, Some("\"a\""));
        let range = |r| [("content-range", r)];
        assert_eq!(
            ask(&w, 416, &range("bytes */10"), None).unwrap(),
            Verdict::Nothing
        );
        let shrunk = ask(&w, 416, &range("bytes */7"), None).unwrap_err();
        assert!(shrunk.to_string().contains("changed while downloading"));
        assert!(ask(&w, 416, &[], None).is_err());
    }

    proptest! {
        #[test]
        fn a_content_range_is_read_or_refused_without_a_panic(text in "[ -~]{0,40}") {
            let _ = ContentRange::parse(&text);
            let _ = ContentRange::parse(&format!("bytes {text}"));
        }

        #[test]
        fn a_content_range_comes_back(first in 0u64..1000, len in 1u64..1000, more in 0u64..10) {
            let (last, total) = (first + len - 1, first + len + more);
            let parsed = ContentRange::parse(&format!("bytes {first}-{last}/{total}"));
            prop_assert_eq!(parsed, Some(ContentRange::Part { first, last, total: Some(total) }));
        }
    }
}
