//! The wall clock's floor: a machine with a dead battery starts in 1970, where no certificate is valid yet.

use crate::report::Reporter;
use crate::sys::clock;

/// No copy of this program is older than its source: 2026-01-01 00:00 UTC.
const SOURCE: u64 = 1_767_225_600;

/// When this program was built, where the build said so (reproducible-builds.org, `SOURCE_DATE_EPOCH`).
fn built() -> u64 {
    option_env!("SOURCE_DATE_EPOCH")
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(SOURCE)
        .max(SOURCE)
}

/// Where the clock must be set to; `None` where it is plausible. It is never set back.
fn correction(now: u64, floor: u64) -> Option<u64> {
    (now < floor).then_some(floor)
}

/// Sets the clock forward to the time of the build where it is behind that.
pub fn raise_to_build_time(reporter: &Reporter) {
    let now = clock::wall_seconds();
    let Some(floor) = correction(now, built()) else {
        return;
    };
    match clock::set_wall_seconds(floor) {
        Ok(()) => reporter.warn(format!(
            "the clock was at {now} s since 1970, before this program was built; set to {floor} s \
             (is the battery of the machine's clock empty?)"
        )),
        Err(error) => reporter.warn(format!(
            "the clock is at {now} s since 1970 and cannot be set: {error}; certificates will not be valid"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_only_goes_forward() {
        assert_eq!(correction(0, SOURCE), Some(SOURCE));
        assert_eq!(correction(SOURCE, SOURCE), None);
        assert_eq!(correction(SOURCE + 1, SOURCE), None);
        assert!(built() >= SOURCE);
    }
}
