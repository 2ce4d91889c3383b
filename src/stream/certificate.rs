//! Why a server's certificate was refused, as an operator can act on it. Asking again shows the same one.

use std::error::Error;

use rustls::CertificateError;
use rustls::pki_types::UnixTime;

use crate::error::printable;

/// More names than anybody reads.
const NAMES: usize = 6;

/// What to do where `error` comes from a certificate that was refused.
pub(super) fn remedy(error: &(dyn Error + 'static)) -> Option<String> {
    refusal(error).map(remedy_of)
}

/// The refusal in a chain of causes.
fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CertificateError> {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(rustls::Error::InvalidCertificate(why)) = cause.downcast_ref() {
            return Some(why);
        }
        // An io::Error hides what it wraps from source(), and names the source of that instead.
        next = match cause.downcast_ref::<std::io::Error>() {
            Some(io) => io.get_ref().map(|e| e as &(dyn Error + 'static)),
            None => cause.source(),
        };
    }
    None
}

fn remedy_of(why: &CertificateError) -> String {
    match why {
        CertificateError::NotValidYet => {
            "this machine's clock is wrong: it stands before the certificate begins; set it in the firmware's setup".to_owned()
        }
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "this machine's clock is wrong: it says {}, and the certificate begins on {}; set it in the firmware's setup",
            date(*time),
            date(*not_before)
        ),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "the certificate ended on {}: renew it on the server; or set this machine's clock, if {} is wrong",
            date(*not_after),
            date(*time)
        ),
        CertificateError::Expired => {
            "the certificate has ended: renew it on the server, or set this machine's clock".to_owned()
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<String> = presented.iter().take(NAMES).map(|n| printable(n)).collect();
            format!(
                "the certificate is for other names ({}): use one of them in the URL, or give the server a certificate for this one",
                names.join(", ")
            )
        }
        CertificateError::UnknownIssuer => {
            "add the server's CA to `ca`, or to the initrd with ironroot.ca=; if there is a proxy that opens TLS, its CA".to_owned()
        }
        _ => "check the server's certificate, `ca` and this machine's clock".to_owned(),
    }
}

/// `2026-12-02 14:45 UTC`.
fn date(time: UnixTime) -> String {
    let seconds = time.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400 of them: the leap day is the last of its year.
    let shifted = days.saturating_add(719_468);
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era.saturating_mul(400).saturating_add(year + next);
    let (hour, minute) = (rest / 3600, rest % 3600 / 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn dates_of_known_seconds() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (784_111_777, "1994-11-06 08:49 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00 UTC"),
            (4_102_444_800, "2100-01-01 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(at(seconds)), text);
        }
    }

    #[test]
    fn a_clock_in_1970_is_named_as_the_cause() {
        let text = remedy_of(&CertificateError::NotValidYetContext {
            time: at(123),
            not_before: at(1_767_225_600),
        });
        assert!(text.contains("clock is wrong"), "{text}");
        assert!(
            text.contains("1970-01-01 00:02") && text.contains("2026-01-01"),
            "{text}"
        );
    }

    #[test]
    fn the_refusal_is_found_below_what_hides_it() {
        let refused = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let hidden = std::io::Error::other(std::io::Error::other(refused));
        assert!(remedy(&hidden).unwrap().contains("CA"));
        assert_eq!(remedy(&std::io::Error::other("broken")), None);
    }

    proptest! {
        #[test]
        fn any_second_has_a_date(seconds: u64) {
            let _ = date(at(seconds));
        }
    }
}
