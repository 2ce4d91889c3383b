//! Images for tests, written by the specification: one L2 table after the other, then the clusters.

use std::collections::BTreeMap;
use std::io::Write as _;

/// How a cluster is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    None,
    Zero,
    ZeroAllocated,
    Data,
    /// To be replaced by one of the next two.
    Packed,
    Deflate,
    Zstd,
}

pub(super) struct Sample {
    version: u32,
    bits: u32,
    size: u64,
    clusters: BTreeMap<u64, Kind>,
}

impl Sample {
    pub(super) fn new(version: u32, bits: u32, size: u64) -> Sample {
        let clusters = BTreeMap::new();
        Sample {
            version,
            bits,
            size,
            clusters,
        }
    }

    /// Stores cluster `number`, where the content has one.
    pub(super) fn with(mut self, number: u64, kind: Kind) -> Sample {
        if number << self.bits < self.size {
            self.clusters.insert(number, kind);
        }
        self
    }

    pub(super) fn content(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.size).unwrap()];
        for (number, part) in all.chunks_mut(1 << self.bits).enumerate() {
            match self.clusters.get(&(number as u64)) {
                None | Some(Kind::None | Kind::Zero | Kind::ZeroAllocated) => {}
                Some(_) => part.copy_from_slice(&cluster(self.bits, number as u64)[..part.len()]),
            }
        }
        all
    }
}

/// Bytes in which every cluster differs, and which compress.
fn cluster(bits: u32, number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut state = number.wrapping_add(77);
    while out.len() < 1 << bits {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        out.extend_from_slice(&state.to_be_bytes()[..2]);
        out.extend_from_slice(b"......");
    }
    out.truncate(1 << bits);
    out
}

pub(super) fn write(sample: &Sample) -> Vec<u8> {
    let (size, cluster_len) = (sample.size, 1u64 << sample.bits);
    let per_table = cluster_len / 8;
    let clusters = size.div_ceil(cluster_len);
    let tables = clusters.div_ceil(per_table);
    let zstd = sample.clusters.values().any(|k| *k == Kind::Zstd);
    let mut file = vec![0u8; 112];
    let put = |file: &mut Vec<u8>, at: u64, bytes: &[u8]| {
        let at = usize::try_from(at).unwrap();
        let end = at + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[at..end].copy_from_slice(bytes);
    };
    let l1_at = cluster_len;
    let l1_clusters = (tables * 8).div_ceil(cluster_len);
    put(&mut file, 0, b"QFI\xfb");
    put(&mut file, 4, &sample.version.to_be_bytes());
    put(&mut file, 20, &sample.bits.to_be_bytes());
    put(&mut file, 24, &size.to_be_bytes());
    put(&mut file, 36, &u32::try_from(tables).unwrap().to_be_bytes());
    put(&mut file, 40, &l1_at.to_be_bytes());
    put(&mut file, 72, &(u64::from(zstd) << 3).to_be_bytes());
    put(&mut file, 100, &112u32.to_be_bytes());
    put(&mut file, 104, &[u8::from(zstd)]);
    let mut next = l1_at + l1_clusters * cluster_len;
    for table in 0..tables {
        let range = table * per_table..(table + 1) * per_table;
        if sample.clusters.range(range.clone()).next().is_none() {
            put(&mut file, l1_at + table * 8, &[0; 8]);
            continue;
        }
        let l2_at = next;
        next += cluster_len;
        put(
            &mut file,
            l1_at + table * 8,
            &(1 << 63 | l2_at).to_be_bytes(),
        );
        put(&mut file, next - 1, &[0]);
        for (number, kind) in sample.clusters.range(range) {
            let data = cluster(sample.bits, *number);
            next = match kind {
                // Packed clusters need no alignment; whatever comes after them does.
                Kind::Deflate | Kind::Zstd => next,
                _ => next.next_multiple_of(cluster_len),
            };
            let entry = match kind {
                Kind::None | Kind::Packed => 0,
                Kind::Zero => 1,
                Kind::ZeroAllocated => {
                    put(&mut file, next, &vec![0xee; data.len()]);
                    let entry = 1 << 63 | next | 1;
                    next += cluster_len;
                    entry
                }
                Kind::Data => {
                    put(&mut file, next, &data);
                    let entry = 1 << 63 | next;
                    next += cluster_len;
                    entry
                }
                Kind::Deflate | Kind::Zstd => {
                    let packed = pack(*kind, &data);
                    put(&mut file, next, &packed);
                    let end = next + packed.len() as u64;
                    let sectors = (end - 1) / 512 - next / 512;
                    let entry = 1 << 62 | sectors << (62 - (sample.bits - 8)) | next;
                    next = end;
                    entry
                }
            };
            put(
                &mut file,
                l2_at + number % per_table * 8,
                &u64::to_be_bytes(entry),
            );
        }
        next = next.next_multiple_of(cluster_len);
    }
    let length = usize::try_from(next).unwrap().max(file.len());
    file.resize(length, 0);
    file
}

fn pack(kind: Kind, data: &[u8]) -> Vec<u8> {
    if kind == Kind::Zstd {
        return zstd::bulk::compress(data, 3).unwrap();
    }
    let level = flate2::Compression::best();
    let mut w = flate2::write::DeflateEncoder::new(Vec::new(), level);
    w.write_all(data).unwrap();
    w.finish().unwrap()
}

/// Where the last byte that is not zero ends.
pub(super) fn end_of_data(file: &[u8]) -> usize {
    file.iter().rposition(|b| *b != 0).unwrap() + 1
}
