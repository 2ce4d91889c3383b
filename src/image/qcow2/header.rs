//! The header (sections "Header" and "Additional fields").

use super::{Problem, be32, be64};

/// The first bytes of every version.
pub const MAGIC: &[u8] = b"QFI\xfb";

/// The largest L1 table that QEMU itself takes, in bytes.
const L1_LIMIT: u64 = 32 << 20;

/// Header fields by their offset.
mod field {
    pub(super) const VERSION: usize = 4;
    pub(super) const BACKING_FILE: usize = 8;
    pub(super) const CLUSTER_BITS: usize = 20;
    pub(super) const SIZE: usize = 24;
    pub(super) const CRYPT_METHOD: usize = 32;
    pub(super) const L1_SIZE: usize = 36;
    pub(super) const L1_OFFSET: usize = 40;
    pub(super) const INCOMPATIBLE: usize = 72;
    pub(super) const HEADER_LENGTH: usize = 100;
    pub(super) const COMPRESSION: usize = 104;
}

/// Bits of `incompatible_features`.
mod feature {
    pub(super) const DIRTY: u64 = 1;
    pub(super) const CORRUPT: u64 = 1 << 1;
    pub(super) const DATA_FILE: u64 = 1 << 2;
    pub(super) const COMPRESSION: u64 = 1 << 3;
    pub(super) const EXTENDED_L2: u64 = 1 << 4;
}

/// How compressed clusters are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Deflate without a header; QEMU calls it zlib.
    Deflate,
    /// Zstandard frames.
    Zstd,
}

/// What is needed of a header; all of it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub(super) version: u32,
    /// Binary logarithm of the cluster size in bytes, 9 to 21.
    pub(super) cluster_bits: u32,
    /// Length of the content in bytes.
    pub(super) size: u64,
    /// Where the active L1 table is; it covers all of the content.
    pub(super) l1_offset: u64,
    pub(super) compression: Compression,
}

impl Header {
    /// Reads the header from the file's first bytes; 112 of them are enough.
    pub fn parse(bytes: &[u8]) -> Result<Header, Problem> {
        let short = || Problem::Damaged(format!("it ends in its header, after {}", bytes.len()));
        let word = |at| be32(bytes, at).ok_or_else(short);
        let long = |at| be64(bytes, at).ok_or_else(short);
        if !bytes.starts_with(MAGIC) {
            return Err(damaged("it does not begin with QFI\\xfb"));
        }
        let version = word(field::VERSION)?;
        if !matches!(version, 2 | 3) {
            return Err(Problem::Unsupported(format!("its version is {version}")));
        }
        let incompatible = match version {
            2 => 0,
            _ => long(field::INCOMPATIBLE)?,
        };
        features(incompatible)?;
        if long(field::BACKING_FILE)? != 0 {
            return Err(unsupported("it has a backing file"));
        }
        match word(field::CRYPT_METHOD)? {
            0 => {}
            1 => return Err(unsupported("it is encrypted (AES)")),
            2 => return Err(unsupported("it is encrypted (LUKS)")),
            other => return Err(Problem::Unsupported(format!("it is encrypted ({other})"))),
        }
        let compression = match (version, incompatible & feature::COMPRESSION != 0) {
            (2, _) => Compression::Deflate,
            (_, declared) => compression(bytes, declared)?,
        };
        let cluster_bits = word(field::CLUSTER_BITS)?;
        if !(9..=21).contains(&cluster_bits) {
            return Err(Problem::Unsupported(format!(
                "its clusters are of 2^{cluster_bits} bytes, not of 512 to 2 MiB"
            )));
        }
        let header = Header {
            version,
            cluster_bits,
            size: long(field::SIZE)?,
            l1_offset: long(field::L1_OFFSET)?,
            compression,
        };
        let l1_size = u64::from(word(field::L1_SIZE)?);
        header.check(l1_size)?;
        Ok(header)
    }

    fn check(&self, l1_size: u64) -> Result<(), Problem> {
        if self.size == 0 {
            return Err(damaged("it is a disk of 0 bytes"));
        }
        let needed = self.size.div_ceil(self.l2_reach());
        if l1_size.max(needed).saturating_mul(8) > L1_LIMIT {
            return Err(Problem::Unsupported(format!(
                "its L1 table has {} entries; at most {} are read",
                l1_size.max(needed),
                L1_LIMIT / 8
            )));
        }
        if l1_size < needed {
            return Err(Problem::Damaged(format!(
                "its L1 table has {l1_size} entries, and {} bytes of content need {needed}",
                self.size
            )));
        }
        if self.l1_offset == 0 || !self.l1_offset.is_multiple_of(self.cluster()) {
            return Err(Problem::Damaged(format!(
                "its L1 table is at byte {}",
                self.l1_offset
            )));
        }
        Ok(())
    }

    /// The length of the content in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The cluster size in bytes.
    pub(super) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// How much content one L2 table describes, in bytes: it is a cluster of 8-byte entries.
    pub(super) fn l2_reach(&self) -> u64 {
        1 << (2 * self.cluster_bits - 3)
    }
}

fn features(bits: u64) -> Result<(), Problem> {
    const REPAIR: &str = "; `qemu-img check -r all` may repair it";
    let known = feature::COMPRESSION;
    let text = match bits & !known {
        0 => return Ok(()),
        b if b & feature::DATA_FILE != 0 => "its data is in an external data file".to_owned(),
        b if b & feature::EXTENDED_L2 != 0 => "it has extended L2 entries".to_owned(),
        b if b & feature::CORRUPT != 0 => format!("it is marked as corrupt{REPAIR}"),
        b if b & feature::DIRTY != 0 => {
            format!("it was not closed in order and is marked as dirty{REPAIR}")
        }
        b => format!("it has the unknown incompatible feature {}", b.ilog2()),
    };
    Err(Problem::Unsupported(text))
}

/// The compression type, which stands only in a header that is long enough for it.
fn compression(bytes: &[u8], declared: bool) -> Result<Compression, Problem> {
    let length = be32(bytes, field::HEADER_LENGTH).unwrap_or(0);
    if length < 104 || !length.is_multiple_of(8) {
        return Err(Problem::Damaged(format!("its header is {length} bytes")));
    }
    let kind = (length > 104)
        .then(|| bytes.get(field::COMPRESSION))
        .flatten();
    match (declared, kind.copied().unwrap_or(0)) {
        (false, 0) => Ok(Compression::Deflate),
        (true, 1) => Ok(Compression::Zstd),
        (false, _) | (true, 0) => Err(damaged("its header contradicts itself on compression")),
        (true, other) => Err(Problem::Unsupported(format!(
            "its clusters are compressed in a way that is not known ({other})"
        ))),
    }
}

fn unsupported(text: &str) -> Problem {
    Problem::Unsupported(text.to_owned())
}

fn damaged(text: &str) -> Problem {
    Problem::Damaged(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, Sample};
    use super::*;
    use proptest::prelude::*;

    fn parse(change: impl FnOnce(&mut Vec<u8>)) -> Result<Header, Problem> {
        let mut bytes = sample::write(&Sample::new(3, 16, 10 << 20));
        bytes.truncate(112);
        change(&mut bytes);
        Header::parse(&bytes)
    }

    fn put(at: usize, value: &[u8]) -> impl FnOnce(&mut Vec<u8>) {
        move |bytes| bytes[at..at + value.len()].copy_from_slice(value)
    }

    #[test]
    fn a_header_is_read() {
        let header = parse(|_| {}).unwrap();
        assert_eq!(header.size(), 10 << 20);
        assert_eq!(header.cluster(), 64 << 10);
        assert_eq!(header.l2_reach(), 512 << 20);
        assert_eq!(header.compression, Compression::Deflate);
        let v2 = parse(put(4, &[0, 0, 0, 2])).unwrap();
        assert_eq!(v2.version, 2);
        let short = parse(|bytes| bytes.truncate(71)).unwrap_err();
        assert!(short.to_string().contains("in its header"), "{short}");
    }

    #[test]
    fn what_needs_more_than_the_file_is_refused_by_name() {
        for (at, value, part) in [
            (4usize, &[0u8, 0, 0, 1][..], "version is 1"),
            (4, &[0, 0, 0, 4], "version is 4"),
            (15, &[1], "backing file"),
            (35, &[1], "AES"),
            (35, &[2], "LUKS"),
            (79, &[1], "dirty"),
            (79, &[2], "corrupt"),
            (79, &[4], "external data file"),
            (79, &[16], "extended L2"),
            (79, &[32], "incompatible feature 5"),
            (72, &[0x80], "incompatible feature 63"),
            (23, &[8], "2^8"),
            (23, &[22], "2^22"),
            (20, &[255], "clusters are of"),
            (24, &[0x7f], "L1 table has"),
            (36, &[0xff], "L1 table has"),
        ] {
            let problem = parse(put(at, value)).unwrap_err();
            assert!(matches!(problem, Problem::Unsupported(_)), "{problem}");
            assert!(problem.to_string().contains(part), "{problem}");
        }
        let unknown = parse(|bytes| {
            put(79, &[8])(bytes);
            put(104, &[2])(bytes);
        });
        assert!(unknown.unwrap_err().to_string().contains("(2)"));
    }

    #[test]
    fn a_header_that_contradicts_itself_is_damaged() {
        for (at, value, part) in [
            (0usize, &[b'X'][..], "begin with"),
            (79, &[8], "on compression"),
            (104, &[1], "on compression"),
            (103, &[96], "header is 96"),
            (103, &[109], "header is 109"),
            (24, &[0; 8], "0 bytes"),
            (36, &[0; 4], "has 0 entries"),
            (47, &[1], "L1 table is at"),
            (40, &[0; 8], "L1 table is at"),
        ] {
            let problem = parse(put(at, value)).unwrap_err();
            assert!(matches!(problem, Problem::Damaged(_)), "{problem}");
            assert!(problem.to_string().contains(part), "{problem}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            version in 2u8..4,
        ) {
            let _ = Header::parse(&bytes);
            let mut good = b"QFI\xfb\0\0\0".to_vec();
            good.push(version);
            good.extend_from_slice(&bytes);
            let _ = Header::parse(&good);
        }
    }
}
