//! Free space on a disk, and what goes where in it. Everything begins and ends at a multiple of 1 MiB.

use crate::config::quantity::{Amount, SizeText};
use crate::units::MIB;

/// Partitions begin and end at multiples of this: whole blocks of every disk, RAID stripe and SSD page.
pub const ALIGNMENT: u64 = MIB;

/// Bytes from `start` up to `end`, which does not belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
}

impl Extent {
    /// Number of bytes.
    pub const fn length(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether both have a byte in common.
    pub const fn overlaps(self, other: Extent) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// The multiple of the alignment at or before `at`.
pub const fn align_down(at: u64) -> u64 {
    at / ALIGNMENT * ALIGNMENT
}

/// The multiple of the alignment at or behind `at`.
pub const fn align_up(at: u64) -> u64 {
    at.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}

/// What of `within` none of `taken` covers, aligned inwards, in order.
pub fn gaps(taken: &[Extent], within: Extent) -> Vec<Extent> {
    let mut taken = taken.to_vec();
    taken.sort_unstable();
    let mut gaps = Vec::new();
    let mut at = within.start;
    let wall = Extent {
        start: within.end,
        end: u64::MAX,
    };
    for next in taken.into_iter().chain([wall]) {
        let gap = Extent {
            start: align_up(at),
            end: align_down(next.start.min(within.end)),
        };
        if gap.start < gap.end {
            gaps.push(gap);
        }
        at = at.max(next.end);
    }
    gaps
}

/// Why no place was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPlace {
    /// Which of the sizes.
    pub index: usize,
    /// Bytes that it needs.
    pub need: u64,
    /// The largest free range that is left.
    pub largest: u64,
}

/// Finds places for `sizes` in `gaps`, each in the first gap that has room; the one that wants the rest takes
/// what is left of the largest. What lands in the gap that begins at `growing` moves to its end, so that what
/// is before it can grow.
pub fn place(
    sizes: &[SizeText],
    gaps: &[Extent],
    growing: Option<u64>,
) -> Result<Vec<Extent>, NoPlace> {
    let total = gaps
        .iter()
        .fold(0u64, |sum, gap| sum.saturating_add(gap.length()));
    let mut free: Vec<Extent> = gaps.to_vec();
    let mut places: Vec<Option<Extent>> = vec![None; sizes.len()];
    let largest = |free: &[Extent]| {
        free.iter()
            .map(|gap| gap.length())
            .max()
            .unwrap_or_default()
    };
    for (index, (size, slot)) in sizes.iter().zip(&mut places).enumerate() {
        let need = match size {
            SizeText::Rest => continue,
            SizeText::Amount(Amount::Bytes(bytes)) => align_up(bytes.0),
            SizeText::Amount(Amount::Percent(percent)) => align_down(
                total / 100 * u64::from(*percent) + total % 100 * u64::from(*percent) / 100,
            ),
        };
        let need = need.max(ALIGNMENT);
        let Some(gap) = free.iter_mut().find(|gap| gap.length() >= need) else {
            return Err(NoPlace {
                index,
                need,
                largest: largest(&free),
            });
        };
        let end = gap.start.saturating_add(need);
        *slot = Some(Extent {
            start: gap.start,
            end,
        });
        gap.start = end;
    }
    for (index, (size, slot)) in sizes.iter().zip(&mut places).enumerate() {
        if *size != SizeText::Rest {
            continue;
        }
        let rest = free.iter_mut().max_by_key(|gap| gap.length());
        match rest.filter(|gap| gap.length() >= ALIGNMENT) {
            Some(gap) => {
                *slot = Some(*gap);
                gap.start = gap.end;
            }
            None => {
                return Err(NoPlace {
                    index,
                    need: ALIGNMENT,
                    largest: 0,
                });
            }
        }
    }
    // What is left of the gap behind what grows goes to its front.
    let behind = gaps.iter().position(|gap| Some(gap.start) == growing);
    if let Some((gap, left)) = behind.and_then(|i| Some((gaps.get(i)?, free.get(i)?.length()))) {
        for place in places.iter_mut().flatten().filter(|p| p.overlaps(*gap)) {
            place.start = place.start.saturating_add(left);
            place.end = place.end.saturating_add(left);
        }
    }
    Ok(places.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;
    use proptest::prelude::*;

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        proptest::collection::vec((0..200 * MIB, 1..20 * MIB), 0..8).prop_map(|all| {
            let extent = |(start, length)| Extent {
                start,
                end: start + length,
            };
            all.into_iter().map(extent).collect()
        })
    }

    fn sizes() -> impl Strategy<Value = Vec<SizeText>> {
        let amount = prop_oneof![
            (1..40 * MIB).prop_map(|n| Amount::Bytes(Bytes(n))),
            (1u8..60).prop_map(Amount::Percent),
        ];
        let sized = proptest::collection::vec(amount.prop_map(SizeText::Amount), 0..5);
        (sized, any::<bool>()).prop_map(|(mut all, rest)| {
            if rest {
                all.push(SizeText::Rest);
            }
            all
        })
    }

    proptest! {
        #[test]
        fn gaps_are_free_aligned_and_complete(taken in extents(), start in 0..100 * MIB, length in 0..150 * MIB) {
            let within = Extent { start, end: start + length };
            let gaps = gaps(&taken, within);
            for gap in &gaps {
                prop_assert!(gap.start % MIB == 0 && gap.end % MIB == 0 && gap.start < gap.end);
                prop_assert!(gap.start >= within.start && gap.end <= within.end);
                prop_assert!(taken.iter().all(|t| !t.overlaps(*gap)));
            }
            // Every whole free MiB is in one of them.
            for mib in start / MIB..(start + length) / MIB {
                let block = Extent { start: mib * MIB, end: (mib + 1) * MIB };
                let free = block.start >= within.start && block.end <= within.end
                    && taken.iter().all(|t| !t.overlaps(block));
                prop_assert_eq!(free, gaps.iter().any(|g| g.start <= block.start && block.end <= g.end));
            }
        }

        #[test]
        fn places_are_in_gaps_and_apart(taken in extents(), sizes in sizes(), grow in any::<bool>()) {
            let gaps = gaps(&taken, Extent { start: 3 * MIB, end: 180 * MIB });
            let growing = gaps.first().filter(|_| grow).map(|g| g.start);
            if let Ok(places) = place(&sizes, &gaps, growing) {
                prop_assert_eq!(places.len(), sizes.len());
                for (i, (one, size)) in places.iter().zip(&sizes).enumerate() {
                    prop_assert!(one.start % MIB == 0 && one.end % MIB == 0 && one.start < one.end);
                    prop_assert!(gaps.iter().any(|g| g.start <= one.start && one.end <= g.end));
                    prop_assert!(places.iter().skip(i + 1).all(|other| !other.overlaps(*one)));
                    if let SizeText::Amount(Amount::Bytes(bytes)) = size {
                        prop_assert_eq!(one.length(), align_up(bytes.0));
                    }
                }
            }
        }
    }

    #[test]
    fn what_stands_behind_a_growing_partition_stands_at_the_end() {
        let gap = Extent {
            start: 10 * MIB,
            end: 100 * MIB,
        };
        let sizes = ["20MiB", "10MiB"].map(|s| s.parse().unwrap());
        let at = |growing| {
            let places = place(&sizes, &[gap], growing).unwrap();
            places.iter().map(|p| p.start / MIB).collect::<Vec<_>>()
        };
        assert_eq!(at(None), [10, 30]);
        assert_eq!(at(Some(10 * MIB)), [70, 90]);
    }
}
