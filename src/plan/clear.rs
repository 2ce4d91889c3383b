//! What is zeroed before a new image goes on: every place where firmware, kernel or a probe would still
//! see the old content.

use super::keep;
use super::step::Span;
use crate::host::Disk;
use crate::host::signatures::copies;
use crate::host::tables::TablePartition;
use crate::image::record;
use crate::units::{Bytes, MIB, SectorSize};

/// How much goes at the end of the disk and of each partition. The furthest signature from an end is that of a
/// Promise RAID, 3087 sectors before it (libblkid: superblocks/promise_raid.c).
const TAIL: u64 = 2 * MIB;

/// Signatures behind the first MiB: second headers of LUKS2 (LUKS2 on-disk format specification, section 2.2:
/// up to 4 MiB), VMFS at 1 and 2 MiB.
const DEEP: [u64; 3] = [MIB, 2 * MIB, 4 * MIB];

/// Zeroed at each of those.
const PAGE: u64 = 4096;

/// Head and tail of a disk, and of each of its old partitions, in the order in which they go: LBA 0 first, so that
/// nothing boots, the backup table last: where a power cut ends this in between, it tells the next run where the old
/// partitions were. An MBR has no backup. The place of the mark and what lies in `spare` are left out. All within the
/// disk and aligned to 4 KiB where the disk's own end, or `spare`, allows it.
pub fn spans(disk: &Disk, spare: &[Span]) -> Vec<Span> {
    let size = disk.size.0;
    let mut out = Vec::new();
    let mut add = |start: u64, end: u64| without(start, end.min(size), spare, &mut out);
    add(0, record::OFFSET);
    for at in DEEP {
        add(at, at.saturating_add(PAGE));
    }
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
        let aligned = |at: u64| at / PAGE * PAGE;
        let round_up = |at: u64| aligned(at.saturating_add(PAGE - 1));
        let head_end = round_up(start.saturating_add(MIB).min(end));
        add(aligned(start).max(MIB), head_end);
        for at in DEEP {
            let at = start.saturating_add(at);
            if at < end {
                add(
                    aligned(at).max(MIB),
                    round_up(at.saturating_add(PAGE).min(end)),
                );
            }
        }
        add(
            aligned(end.saturating_sub(TAIL))
                .max(aligned(start))
                .max(MIB),
            round_up(end),
        );
    }
    // What reaches below 1 MiB was zeroed at the beginning, and the mark stands there now.
    add(size.saturating_sub(TAIL).max(MIB), size);
    out
}

/// The places within a new partition from `start` to `end` where a probe would still see what lay there before.
pub fn ends(start: u64, end: u64) -> Vec<Span> {
    let copies = copies::places(Bytes(end.saturating_sub(start)));
    let deep = DEEP.into_iter().chain(copies);
    let deep = deep.map(|at| (start.saturating_add(at / PAGE * PAGE), PAGE));
    let places = [(start, MIB), (end.saturating_sub(TAIL).max(start), TAIL)];
    let mut out = Vec::new();
    for (at, length) in places.into_iter().chain(deep) {
        without(at, at.saturating_add(length).min(end), &[], &mut out);
    }
    out
}

/// The whole disk, LBA 0 first, without the place of the mark and what lies in `spare`.
pub fn whole(disk: &Disk, spare: &[Span]) -> Vec<Span> {
    let mut out = Vec::new();
    without(0, record::OFFSET.min(disk.size.0), spare, &mut out);
    without(MIB, disk.size.0, spare, &mut out);
    out
}

/// What `kept` partitions need: their bytes, and both copies of the table that lists only them, which stands there
/// by the time the rest goes; its step has zeroed LBA 0.
pub fn spared(disk: &Disk, kept: &[TablePartition]) -> Vec<Span> {
    let mut spared: Vec<Span> = kept
        .iter()
        .map(|p| Span {
            start: p.start,
            length: p.size,
        })
        .collect();
    let sector = disk.sector.unwrap_or(SectorSize::S512);
    if let Some((head, tail)) = keep::interim_places(disk.size, sector).filter(|_| !kept.is_empty())
    {
        let end = head.start.0.saturating_add(head.length.0);
        spared.extend([
            Span {
                start: Bytes::ZERO,
                length: Bytes(end),
            },
            tail,
        ]);
    }
    spared
}

/// Adds what of the range from `start` to `end` is not in `spare`.
fn without(start: u64, end: u64, spare: &[Span], out: &mut Vec<Span>) {
    let mut spare: Vec<(u64, u64)> = spare
        .iter()
        .map(|s| (s.start.0, s.start.0.saturating_add(s.length.0)))
        .filter(|(from, to)| from < to && *from < end && *to > start)
        .collect();
    spare.sort_unstable();
    let mut at = start;
    for (from, to) in spare.into_iter().chain([(end, end)]) {
        if at < from {
            out.push(Span {
                start: Bytes(at),
                length: Bytes(from.min(end).saturating_sub(at)),
            });
        }
        at = at.max(to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::extent;
    use super::super::layout::space::Extent;
    use super::*;
    use crate::host::Partition;
    use proptest::prelude::*;

    fn covered(spans: &[Span], at: u64) -> bool {
        spans
            .iter()
            .any(|s| s.start.0 <= at && at < s.start.0 + s.length.0)
    }

    proptest! {
        #[test]
        fn every_span_is_on_the_disk_and_none_touches_the_mark_or_what_is_spared(
            size in 1u64..(1 << 40),
            parts in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..8),
            spared in proptest::collection::vec((0u64..(1 << 28), 0u64..(1 << 12)), 0..4),
        ) {
            let size = size / 512 * 512;
            let partitions = parts.iter()
                .map(|(start, size)| Partition { start: Bytes(*start), size: Bytes(*size), ..Partition::default() })
                .collect();
            let spare: Vec<Span> = spared.iter()
                .map(|(start, length)| Span { start: Bytes(start * 512), length: Bytes(length * 512) })
                .collect();
            let disk = Disk { size: Bytes(size), partitions, ..Disk::default() };
            for span in spans(&disk, &spare).into_iter().chain(whole(&disk, &spare)) {
                let end = span.start.0 + span.length.0;
                prop_assert!(end <= size && span.length.0 > 0);
                prop_assert!(end <= record::OFFSET || span.start.0 >= MIB, "{span:?}");
                prop_assert!(span.start.0 % 512 == 0 && span.length.0 % 512 == 0, "{span:?}");
                for s in &spare {
                    prop_assert!(end <= s.start.0 || span.start.0 >= s.start.0 + s.length.0 || s.length.0 == 0);
                }
            }
            // What is not spared goes.
            let all = whole(&disk, &spare);
            for at in [0, 4096, MIB, size / 2, size.saturating_sub(1)] {
                let spared = covered(&spare, at) || (record::OFFSET..MIB).contains(&at) || at >= size;
                prop_assert_eq!(covered(&all, at), !spared, "{}", at);
            }
        }
    }

    #[test]
    fn lba_0_goes_first_and_the_tail_when_nothing_old_is_left() {
        let disk = Disk {
            size: Bytes(100 * MIB),
            partitions: vec![Partition {
                start: Bytes(10 * MIB),
                size: Bytes(20 * MIB),
                ..Partition::default()
            }],
            ..Disk::default()
        };
        let starts = |spare: &[Span]| -> Vec<u64> {
            spans(&disk, spare)
                .iter()
                .map(|s| s.start.0 / MIB)
                .collect()
        };
        assert_eq!(starts(&[]), [0, 1, 2, 4, 10, 11, 12, 14, 28, 98]);
        let kept = Span {
            start: Bytes(10 * MIB),
            length: Bytes(20 * MIB),
        };
        assert_eq!(starts(&[kept]), [0, 1, 2, 4, 98]);
        assert_eq!(
            whole(&disk, &[kept])
                .iter()
                .map(|s| s.start.0 / MIB)
                .collect::<Vec<_>>(),
            [0, 1, 30]
        );
    }

    #[test]
    fn every_place_of_a_signature_is_covered() {
        let (start, length) = (10 * MIB, 200 * MIB + 512);
        let disk = Disk {
            size: Bytes(300 * MIB),
            partitions: vec![Partition {
                start: Bytes(start),
                size: Bytes(length),
                ..Partition::default()
            }],
            ..Disk::default()
        };
        let spans = spans(&disk, &[]);
        // From the start: file systems, LVM, LUKS and its second headers, btrfs, bcache, VMFS, ZFS.
        let head = [
            0, 512, 1536, 4096, 0x4000, 0x1_0000, 0x1_0040, 0x4_0000, 0x10_0000, 0x20_0000,
            0x40_0000,
        ];
        // From the end: GPT, md 1.0 and 0.90, DDF, IMSM, Promise, ZFS, DRBD.
        let tail = [
            512,
            8192 + 4096,
            0x2_0000,
            257 * 512,
            1024,
            3087 * 512,
            768 << 10,
            4096,
        ];
        let new = ends(start, start + length);
        let of = [
            (&spans, start, start + length),
            (&spans, 0, disk.size.0),
            (&new, start, start + length),
        ];
        for (spans, start, end) in of {
            for at in head {
                assert!(covered(spans, start + at), "{at:#x} from {start}");
            }
            for back in tail {
                assert!(covered(spans, end - back), "{back:#x} before {end}");
            }
        }
        // What an old file system keeps further in would make the new partition look used.
        for at in copies::places(Bytes(length)) {
            assert!(covered(&new, start + at), "{at:#x} from {start}");
        }
    }

    proptest! {
        #[test]
        fn the_ends_of_a_new_partition_lie_within_it(start in MIB..(1 << 40), length in 0u64..(16 * MIB)) {
            for span in ends(start, start + length) {
                prop_assert!(span.length.0 > 0 && span.start.0 >= start);
                prop_assert!(span.start.0 + span.length.0 <= start + length);
            }
        }
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
            let all = spans(&disk, &super::spared(&disk, &kept));
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
