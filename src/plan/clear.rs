//! What is zeroed before a new image goes on: every place where firmware, kernel or a probe would still
//! see the old content.

use super::keep;
use super::layout::extent;
use super::layout::space::Extent;
use super::step::Span;
use crate::host::Disk;
use crate::host::tables::TablePartition;
use crate::image::record;
use crate::units::{Bytes, MIB, SectorSize};

/// Head and tail of a disk, and of each of its old partitions, in the order in which they go: LBA 0 first,
/// then the backup table, then the rest. The place of the mark is left out. All within the disk and aligned
/// to 4 KiB where the disk's own end allows it.
///
/// With `kept` partitions, their bytes are left out, and both copies of the table that lists only them, which
/// stands there by then; its step has zeroed LBA 0.
pub fn spans(disk: &Disk, kept: &[TablePartition]) -> Vec<Span> {
    let mut spared: Vec<Extent> = kept.iter().map(extent).collect();
    let sector = disk.sector.unwrap_or(SectorSize::S512);
    if let Some((head, tail)) = keep::interim_places(disk.size, sector).filter(|_| !kept.is_empty())
    {
        let of = |s: Span, from: u64| Extent {
            start: from,
            end: s.start.0.saturating_add(s.length.0),
        };
        spared.extend([of(head, 0), of(tail, tail.start.0)]);
    }
    let size = disk.size.0;
    let mut out = Vec::new();
    let mut add = |start: u64, end: u64| {
        let end = end.min(size);
        out.extend(without(Extent { start, end }, &spared));
    };
    add(0, record::OFFSET);
    // What reaches below 1 MiB was zeroed a line above, and the mark stands there now.
    add(size.saturating_sub(MIB).max(MIB), size);
    let kernel = disk.partitions.iter().map(|p| (p.start.0, p.size.0));
    let table = disk
        .table
        .partitions()
        .iter()
        .map(|p| (p.start.0, p.size.0));
    let mut old: Vec<(u64, u64)> = kernel.chain(table).collect();
    old.sort_unstable();
    old.dedup();
    // A hostile table may name thousands of partitions; a real one has at most 128.
    for (start, length) in old.into_iter().take(1024) {
        let Some(end) = start.checked_add(length) else {
            continue;
        };
        let aligned = |at: u64| at / 4096 * 4096;
        let head_end = aligned(start.saturating_add(MIB).min(end).saturating_add(4095));
        add(aligned(start).max(MIB), head_end);
        let tail_end = aligned(end.saturating_add(4095));
        add(
            aligned(end.saturating_sub(MIB))
                .max(aligned(start))
                .max(MIB),
            tail_end,
        );
    }
    out
}

/// What is left of `extent` without all of `spared`.
fn without(extent: Extent, spared: &[Extent]) -> Vec<Span> {
    let mut left = vec![extent];
    for hole in spared {
        left = left
            .into_iter()
            .flat_map(|e| {
                let before = Extent {
                    start: e.start,
                    end: e.end.min(hole.start),
                };
                let behind = Extent {
                    start: e.start.max(hole.end),
                    end: e.end,
                };
                // Apart from the hole, one of the two is all of it.
                if e.overlaps(*hole) {
                    vec![before, behind]
                } else {
                    vec![e]
                }
            })
            .collect();
    }
    left.into_iter()
        .filter(|e| e.length() > 0)
        .map(|e| Span {
            start: Bytes(e.start),
            length: Bytes(e.length()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Partition;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_span_is_on_the_disk_and_none_touches_the_mark(
            size in 1u64..(1 << 40),
            parts in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..8),
        ) {
            let size = size / 512 * 512;
            let partitions = parts.iter()
                .map(|(start, size)| Partition { start: Bytes(*start), size: Bytes(*size), ..Partition::default() })
                .collect();
            let disk = Disk { size: Bytes(size), partitions, ..Disk::default() };
            for span in spans(&disk, &[]) {
                let end = span.start.0 + span.length.0;
                prop_assert!(end <= size);
                prop_assert!(end <= record::OFFSET || span.start.0 >= MIB, "{span:?}");
                prop_assert!(span.start.0 % 512 == 0 && span.length.0 % 512 == 0, "{span:?}");
            }
        }
    }

    #[test]
    fn lba_0_goes_first_then_the_tail_then_old_partitions() {
        let disk = Disk {
            size: Bytes(100 * MIB),
            partitions: vec![Partition {
                start: Bytes(10 * MIB),
                size: Bytes(20 * MIB),
                ..Partition::default()
            }],
            ..Disk::default()
        };
        let starts: Vec<u64> = spans(&disk, &[]).iter().map(|s| s.start.0 / MIB).collect();
        assert_eq!(starts, [0, 99, 10, 29]);
    }

    proptest! {
        #[test]
        fn what_is_kept_and_its_table_are_left_out(
            mib in 8u64..200, large in any::<bool>(),
            kept in proptest::collection::vec((1u64..200, 1u64..60), 1..4),
            old in proptest::collection::vec((0u64..200, 1u64..60), 0..4),
        ) {
            let part = |(start, size): (u64, u64)| TablePartition {
                number: 1,
                start: Bytes(start * MIB),
                size: Bytes(size * MIB),
                kind: crate::host::tables::PartitionKind::Byte(1),
                partuuid: String::new(),
                name: None,
                attributes: 0,
            };
            let kept: Vec<_> = kept.into_iter().map(part).collect();
            let partitions = old.into_iter()
                .map(|(start, size)| Partition { start: Bytes(start * MIB), size: Bytes(size * MIB), ..Partition::default() })
                .collect();
            let sector = if large { SectorSize::S4096 } else { SectorSize::S512 };
            let disk = Disk { size: Bytes(mib * MIB), sector: Some(sector), partitions, ..Disk::default() };
            let (head, tail) = keep::interim_places(disk.size, sector).unwrap();
            let spared: Vec<Extent> = kept.iter().map(extent)
                .chain([head, tail].map(|s| Extent { start: s.start.0, end: s.start.0 + s.length.0 }))
                .collect();
            let all = spans(&disk, &kept);
            for span in &all {
                let own = Extent { start: span.start.0, end: span.start.0 + span.length.0 };
                prop_assert!(own.end <= disk.size.0 && own.start.is_multiple_of(sector.get()) && own.end.is_multiple_of(sector.get()));
                prop_assert!(spared.iter().all(|s| !s.overlaps(own)), "{own:?}");
            }
            // The old head is gone behind the table.
            prop_assert!(all.iter().any(|s| s.start.0 == head.start.0 + head.length.0));
        }
    }
}
