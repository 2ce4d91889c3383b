//! The Retry-After header (RFC 9110 section 10.2.3).

use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

/// A server may ask for a longer wait than anybody would sit through.
const LONGEST: Duration = Duration::from_secs(120);

/// How long the server asks to wait: seconds, or a date. A date counts from the response's own Date
/// header, because this machine's clock may be wrong.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if let Ok(seconds) = text.parse::<u64>() {
        seconds
    } else {
        let now = http_date(headers.get(DATE)?.to_str().ok()?)?;
        http_date(text)?.saturating_sub(now)
    };
    Some(Duration::from_secs(seconds).min(LONGEST))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT` (IMF-fixdate, RFC 9110 section 5.6.7); the two
/// obsolete forms are not read.
pub(super) fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let mut words = text.trim().strip_suffix("GMT")?.split_whitespace();
    let (_, day, month, year, time) = (
        words.next()?,
        words.next()?.parse::<u64>().ok()?,
        words.next()?,
        words.next()?.parse::<u64>().ok()?,
        words.next()?,
    );
    let month = u64::try_from(MONTHS.iter().position(|m| *m == month)?).ok()? + 1;
    let mut parts = time.split(':').map(|p| p.parse::<u64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let sane = (1970..=9999).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !sane {
        return None;
    }
    // Days since 1970 by the civil calendar, with years that begin in March.
    let (y, m) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
    let since_1970 = days.checked_sub(719_468)?;
    Some(since_1970 * 86_400 + hour * 3600 + minute * 60 + second)
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

    #[test]
    fn seconds_dates_and_nonsense() {
        let wait = |pairs: &[_]| retry_after(&map(pairs)).map(|d| d.as_secs());
        assert_eq!(wait(&[("retry-after", "7")]), Some(7));
        assert_eq!(wait(&[("retry-after", "86400")]), Some(120));
        assert_eq!(wait(&[("retry-after", "-1")]), None);
        assert_eq!(wait(&[("retry-after", "soon")]), None);
        assert_eq!(wait(&[]), None);
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(
            wait(&[date, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]),
            Some(30)
        );
        assert_eq!(
            wait(&[date, ("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT")]),
            Some(0)
        );
        assert_eq!(
            wait(&[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]),
            None
        );
    }

    #[test]
    fn dates_of_known_seconds() {
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(
            http_date("Sun, 06 Nov 1994 08:49:37 GMT"),
            Some(784_111_777)
        );
        assert_eq!(
            http_date("Thu, 29 Feb 2024 23:59:59 GMT"),
            Some(1_709_251_199)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "[ -~]{0,40}") {
            let _ = http_date(&text);
            let _ = http_date(&format!("Sun, {text} GMT"));
        }
    }
}
