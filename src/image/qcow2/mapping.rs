//! L1 and L2 table entries (section "Cluster mapping").

use super::Problem;
use super::header::Header;

/// Bits 9 to 55: where a table or a cluster is.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Its refcount is one; of no interest to a reader.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// A standard cluster that reads as zeros, whatever its offset.
const ZERO: u64 = 1;

/// Where a cluster of content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Nowhere: it reads as zeros.
    Zero,
    /// In the file from this byte on.
    Data(u64),
    /// Compressed, within these bytes of the file.
    Packed { offset: u64, length: u64 },
}

impl Header {
    /// Where an L1 entry leads; `None` where all of its content reads as zeros.
    pub(super) fn l2_table(&self, entry: u64) -> Result<Option<u64>, Problem> {
        let offset = entry & OFFSET;
        if entry & !(OFFSET | COPIED) != 0 || !offset.is_multiple_of(self.cluster()) {
            return Err(odd("L1", entry));
        }
        Ok((offset != 0).then_some(offset))
    }

    /// Where an L2 entry leads.
    pub(super) fn place(&self, entry: u64) -> Result<Cluster, Problem> {
        if entry & COMPRESSED != 0 {
            return self.packed(entry);
        }
        let offset = entry & OFFSET;
        let zero = entry & ZERO != 0;
        let strange = entry & !(OFFSET | COPIED | ZERO) != 0;
        if strange || !offset.is_multiple_of(self.cluster()) || (zero && self.version < 3) {
            return Err(odd("L2", entry));
        }
        Ok(if zero || offset == 0 {
            Cluster::Zero
        } else {
            Cluster::Data(offset)
        })
    }

    fn packed(&self, entry: u64) -> Result<Cluster, Problem> {
        let sector_bits = self.cluster_bits - 8;
        let offset_bits = 62 - sector_bits;
        let offset = entry & ((1 << offset_bits) - 1);
        let sectors = (entry >> offset_bits) & ((1 << sector_bits) - 1);
        // Only with small clusters does the field go beyond bit 55.
        if entry & COPIED != 0 || offset >> 56 != 0 {
            return Err(odd("L2", entry));
        }
        Ok(Cluster::Packed {
            offset,
            length: (sectors + 1) * 512 - offset % 512,
        })
    }
}

fn odd(table: &str, entry: u64) -> Problem {
    Problem::Damaged(format!("an entry of an {table} table is {entry:#018x}"))
}

#[cfg(test)]
mod tests {
    use super::super::header::Compression;
    use super::*;
    use proptest::prelude::*;

    fn header(version: u32, cluster_bits: u32) -> Header {
        Header {
            version,
            cluster_bits,
            size: 1 << 20,
            l1_offset: 1 << cluster_bits,
            compression: Compression::Deflate,
        }
    }

    #[test]
    fn standard_entries() {
        let h = header(3, 16);
        assert_eq!(h.place(0).unwrap(), Cluster::Zero);
        assert_eq!(h.place(1).unwrap(), Cluster::Zero);
        assert_eq!(h.place(COPIED | 0x5_0001).unwrap(), Cluster::Zero);
        assert_eq!(h.place(COPIED | 0x5_0000).unwrap(), Cluster::Data(0x5_0000));
        assert_eq!(h.place(0x5_0000).unwrap(), Cluster::Data(0x5_0000));
        for entry in [0x5_0200, 2, 1 << 56, 1 << 61, 1 << 8] {
            assert!(h.place(entry).is_err(), "{entry:#x}");
        }
        assert!(header(2, 16).place(1).is_err(), "no zero clusters in v2");
        assert_eq!(h.l2_table(COPIED | 0x7_0000).unwrap(), Some(0x7_0000));
        assert_eq!(h.l2_table(0).unwrap(), None);
        for entry in [1, 0x7_0200, COMPRESSED | 0x7_0000] {
            assert!(h.l2_table(entry).is_err(), "{entry:#x}");
        }
    }

    #[test]
    fn compressed_entries() {
        // 64 KiB clusters: 54 bits of offset, 8 of sectors.
        let entry = COMPRESSED | 2 << 54 | 0x12_3456;
        let length = 3 * 512 - 0x56;
        let offset = 0x12_3456;
        assert_eq!(
            header(3, 16).place(entry).unwrap(),
            Cluster::Packed { offset, length }
        );
        // 512-byte clusters: 61 bits, of which the upper ones must be zero, and one of sectors.
        let entry = COMPRESSED | 1 << 61 | 0x1ff;
        assert_eq!(
            header(3, 9).place(entry).unwrap(),
            Cluster::Packed {
                offset: 0x1ff,
                length: 513
            }
        );
        assert!(header(3, 9).place(COMPRESSED | 1 << 56).is_err());
        assert!(header(3, 16).place(COMPRESSED | COPIED).is_err());
    }

    proptest! {
        #[test]
        fn a_compressed_cluster_never_takes_more_than_two_clusters_and_a_sector(
            entry: u64, bits in 9u32..=21,
        ) {
            let h = header(3, bits);
            let _ = h.l2_table(entry);
            if let Ok(Cluster::Packed { offset, length }) = h.place(entry | COMPRESSED) {
                prop_assert!((1..=2 * h.cluster()).contains(&length));
                prop_assert!(offset < 1 << 56);
            }
        }
    }
}
