//! Runs of zeros in what is written: the device makes them faster than they can be sent.

use std::ops::Range;

/// Shorter runs are not worth a call of their own; a multiple of every sector size and of the page size.
const GRAIN: usize = 64 << 10;

/// A run of bytes that are all zero, or not known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it is.
    pub range: Range<usize>,
    /// All zero.
    pub zero: bool,
}

/// Cuts `data` into runs at multiples of the grain. A last piece shorter than that counts as data.
pub fn runs(data: &[u8]) -> Vec<Run> {
    static ZEROS: [u8; GRAIN] = [0; GRAIN];
    let mut runs: Vec<Run> = Vec::new();
    let mut at = 0usize;
    for chunk in data.chunks(GRAIN) {
        let end = at.saturating_add(chunk.len());
        // Comparing slices of bytes is memcmp: a tenth of the cost of writing them.
        let zero = chunk == ZEROS.as_slice();
        match runs.last_mut() {
            Some(last) if last.zero == zero => last.range.end = end,
            _ => runs.push(Run {
                range: at..end,
                zero,
            }),
        }
        at = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_single_byte_makes_its_grain_data() {
        let mut data = vec![0u8; 4 * GRAIN + 512];
        data[2 * GRAIN] = 1;
        let shape: Vec<(usize, bool)> = runs(&data)
            .iter()
            .map(|r| (r.range.len(), r.zero))
            .collect();
        assert_eq!(
            shape,
            [
                (2 * GRAIN, true),
                (GRAIN, false),
                (GRAIN, true),
                (512, false)
            ]
        );
        assert!(runs(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn runs_cover_everything_once_and_zero_means_zero(
            length in 0usize..(6 * GRAIN),
            marks in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
        ) {
            let mut data = vec![0u8; length];
            if length > 0 {
                for mark in marks {
                    data[mark.index(length)] = 7;
                }
            }
            let mut at = 0;
            for run in runs(&data) {
                prop_assert_eq!(run.range.start, at);
                prop_assert!(!run.zero || data[run.range.clone()].iter().all(|b| *b == 0));
                at = run.range.end;
            }
            prop_assert_eq!(at, length);
        }
    }
}
