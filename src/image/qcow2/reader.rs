//! Content in any order, cheapest in ascending order: one L2 table and one decompressed cluster are kept.

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder as Zstd, InBuffer, Operation as _, OutBuffer};

use super::header::{Compression, Header};
use super::mapping::Cluster;
use super::{Problem, ReadAt, be64};

/// Windows of compressed clusters may be that long; the clusters themselves are at most 2^21 bytes.
pub(super) const ZSTD_WINDOW_LOG: u32 = 22;

/// How many bytes of the L1 table are read at a time.
const L1_PIECE: u64 = 64 << 10;

/// Reads content.
pub struct Reader<S> {
    header: Header,
    source: S,
    l1: Held,
    l2: Held,
    /// The cluster that was decompressed last.
    cluster: Held,
    packed: Vec<u8>,
}

/// Bytes that were read, and which of their kind they are.
#[derive(Default)]
struct Held {
    number: Option<u64>,
    bytes: Vec<u8>,
}

impl Held {
    /// Makes these bytes number `number` by `fill`, where they are not that already.
    fn hold(
        &mut self,
        number: u64,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Problem>,
    ) -> Result<&[u8], Problem> {
        if self.number != Some(number) {
            self.number = None;
            self.bytes.resize(length, 0);
            fill(&mut self.bytes)?;
            self.number = Some(number);
        }
        Ok(&self.bytes)
    }
}

impl<S: ReadAt> Reader<S> {
    /// A reader of the image whose file is `source`.
    pub fn new(header: Header, source: S) -> Reader<S> {
        Reader {
            header,
            source,
            l1: Held::default(),
            l2: Held::default(),
            cluster: Held::default(),
            packed: Vec::new(),
        }
    }

    /// Fills all of `out` with the content from `offset` on.
    pub fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), Problem> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.header.size) {
            return Err(Problem::Damaged("it was read past its end".to_owned()));
        }
        let cluster = self.header.cluster();
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let within = at % cluster;
            let step = usize::try_from(cluster - within).unwrap_or(usize::MAX);
            let step = step.min(rest.len());
            let (part, after) = rest.split_at_mut(step);
            self.part(at / cluster, within, part)?;
            at = at.saturating_add(step as u64);
            rest = after;
        }
        Ok(())
    }

    /// Fills `out` with a part of the cluster of content `number`.
    fn part(&mut self, number: u64, within: u64, out: &mut [u8]) -> Result<(), Problem> {
        match self.place(number)? {
            Cluster::Zero => {
                out.fill(0);
                Ok(())
            }
            Cluster::Data(start) => {
                read(&mut self.source, start.saturating_add(within), out, "data")
            }
            Cluster::Packed { offset, length } => {
                let size = length_of(self.header.cluster());
                let (source, packed) = (&mut self.source, &mut self.packed);
                let compression = self.header.compression;
                let content = self.cluster.hold(number, size, |content| {
                    // The last sector is counted whole, and need not be there.
                    let there = source.length().saturating_sub(offset).min(length);
                    packed.resize(length_of(there), 0);
                    read(source, offset, packed, "a compressed cluster")?;
                    unpack(compression, packed, content).map_err(|why| {
                        let text = format!("the compressed cluster at byte {offset} {why}");
                        Problem::Damaged(text)
                    })
                })?;
                let start = length_of(within);
                let part = content.get(start..start.saturating_add(out.len()));
                out.copy_from_slice(part.unwrap_or_default());
                Ok(())
            }
        }
    }

    /// Where the cluster of content `number` is.
    fn place(&mut self, number: u64) -> Result<Cluster, Problem> {
        let per_table = self.header.cluster() / 8;
        let (table, index) = (number / per_table, number % per_table);
        let Some(offset) = self.l2_table(table)? else {
            return Ok(Cluster::Zero);
        };
        let source = &mut self.source;
        let size = length_of(self.header.cluster());
        let l2 = self.l2.hold(table, size, |bytes| {
            read(source, offset, bytes, "an L2 table")
        })?;
        let entry = be64(l2, length_of(index * 8)).unwrap_or(0);
        self.header.place(entry)
    }

    /// Where L2 table `number` is; `None` where all of its content reads as zeros.
    fn l2_table(&mut self, number: u64) -> Result<Option<u64>, Problem> {
        let place = number.saturating_mul(8);
        let piece = place / L1_PIECE;
        let all = self.header.size.div_ceil(self.header.l2_reach()) * 8;
        let start = piece * L1_PIECE;
        let length = length_of(all.saturating_sub(start).min(L1_PIECE));
        let (source, l1_offset) = (&mut self.source, self.header.l1_offset);
        let l1 = self.l1.hold(piece, length, |bytes| {
            let at = l1_offset.saturating_add(start);
            read(source, at, bytes, "its L1 table")
        })?;
        let entry = be64(l1, length_of(place % L1_PIECE)).unwrap_or(0);
        self.header.l2_table(entry)
    }
}

impl<S> std::fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// Never more than a few MiB: every length here is bounded by the header's checks.
fn length_of(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// Reads from the file. What an image points to must be there: a file that was cut short is no disk of zeros.
fn read(source: &mut impl ReadAt, offset: u64, out: &mut [u8], what: &str) -> Result<(), Problem> {
    let length = source.length();
    let end = offset.saturating_add(out.len() as u64);
    if end > length {
        return Err(Problem::Damaged(format!(
            "it is cut short: it has {length} bytes, and {what} ends at byte {end}"
        )));
    }
    source.read_at(offset, out).map_err(Problem::Source)
}

/// Decompresses exactly one cluster; behind it may be anything, up to the end of the sector.
fn unpack(compression: Compression, packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    let made = match compression {
        Compression::Deflate => inflate(packed, out),
        Compression::Zstd => unzstd(packed, out),
    }
    .map_err(|e| format!("cannot be decompressed: {e}"))?;
    if made < out.len() {
        return Err(format!("has {made} bytes instead of {}", out.len()));
    }
    Ok(())
}

fn inflate(packed: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let mut decoder = Decompress::new(false);
    let mut status = Status::Ok;
    while status == Status::Ok {
        let (used, made) = (
            length_of(decoder.total_in()),
            length_of(decoder.total_out()),
        );
        let (input, space) = (packed.get(used..), out.get_mut(made..));
        let (input, space) = (input.unwrap_or_default(), space.unwrap_or_default());
        if space.is_empty() {
            break;
        }
        status = decoder
            .decompress(input, space, FlushDecompress::None)
            .map_err(|e| e.to_string())?;
        if (used, made)
            == (
                length_of(decoder.total_in()),
                length_of(decoder.total_out()),
            )
        {
            break;
        }
    }
    Ok(length_of(decoder.total_out()))
}

fn unzstd(packed: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let text = |e: std::io::Error| e.to_string();
    let mut decoder = Zstd::new().map_err(text)?;
    let limit = DParameter::WindowLogMax(ZSTD_WINDOW_LOG);
    decoder.set_parameter(limit).map_err(text)?;
    let mut input = InBuffer::around(packed);
    let mut output = OutBuffer::around(out);
    loop {
        let before = (input.pos(), output.pos());
        if output.pos() == output.capacity() {
            break;
        }
        decoder.run(&mut input, &mut output).map_err(text)?;
        if before == (input.pos(), output.pos()) {
            break;
        }
    }
    Ok(output.pos())
}

#[cfg(test)]
mod tests {
    use super::super::sample::{self, Kind, Sample};
    use super::*;
    use crate::error::Failure;
    use proptest::prelude::*;

    struct Memory(Vec<u8>);

    impl ReadAt for Memory {
        fn length(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
            let start = usize::try_from(offset).unwrap();
            out.copy_from_slice(&self.0[start..start + out.len()]);
            Ok(())
        }
    }

    /// The first `most` bytes of content, in pieces of `piece`.
    fn content(file: Vec<u8>, piece: usize, most: u64) -> Result<Vec<u8>, Problem> {
        let header = Header::parse(&file)?;
        let size = usize::try_from(header.size().min(most)).unwrap();
        let mut reader = Reader::new(header, Memory(file));
        let mut all = vec![7; size];
        for (number, part) in all.chunks_mut(piece).enumerate() {
            reader.read((number * piece) as u64, part)?;
        }
        Ok(all)
    }

    #[test]
    fn an_l2_table_or_data_behind_the_end_of_the_file_is_found_out() {
        let sample = Sample::new(3, 9, 70_000)
            .with(3, Kind::Data)
            .with(130, Kind::Data);
        let (file, expected) = (sample::write(&sample), sample.content());
        assert!(content(file.clone(), 4096, u64::MAX).unwrap() == expected);
        for length in [file.len() - 1, file.len() - 512, file.len() - 1024, 1100] {
            let problem = content(file[..length].to_vec(), 4096, u64::MAX).unwrap_err();
            assert!(problem.to_string().contains("cut short"), "{problem}");
        }
    }

    #[test]
    fn a_compressed_cluster_may_lack_the_end_of_its_last_sector_and_nothing_else() {
        for kind in [Kind::Deflate, Kind::Zstd] {
            let sample = Sample::new(3, 12, 20_000).with(1, kind);
            let file = sample::write(&sample);
            let data = sample::end_of_data(&file);
            let whole = content(file[..data].to_vec(), 4096, u64::MAX).unwrap();
            assert!(whole == sample.content());
            let problem = content(file[..data - 20].to_vec(), 4096, u64::MAX).unwrap_err();
            assert!(matches!(problem, Problem::Damaged(_)), "{problem}");
        }
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::None),
            Just(Kind::Zero),
            Just(Kind::ZeroAllocated),
            Just(Kind::Data),
            Just(Kind::Packed)
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn content_comes_back_however_it_is_stored_and_read(
            bits in 9u32..13,
            size in 1u64..300_000,
            zstd: bool,
            kinds in proptest::collection::vec((0u64..600, kind()), 0..40),
            piece in 1usize..20_000,
        ) {
            let mut sample = Sample::new(3, bits, size);
            for (number, kind) in kinds {
                sample = sample.with(number, match kind {
                    Kind::Packed if zstd => Kind::Zstd,
                    Kind::Packed => Kind::Deflate,
                    other => other,
                });
            }
            let piece = piece.max(64);
            prop_assert!(content(sample::write(&sample), piece, u64::MAX).unwrap() == sample.content());
        }

        #[test]
        fn a_changed_file_is_read_or_refused_without_a_panic(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
            in_header: bool,
            cut in proptest::option::of(any::<proptest::sample::Index>()),
        ) {
            let sample = Sample::new(3, 9, 70_000)
                .with(0, Kind::Data).with(1, Kind::Deflate).with(65, Kind::Data).with(2, Kind::Zero);
            let mut file = sample::write(&sample);
            let reach = if in_header { 112 } else { file.len() };
            for (at, value) in changes {
                file[at.index(reach)] = value;
            }
            if let Some(cut) = cut {
                file.truncate(cut.index(file.len()));
            }
            let _ = content(file, 5000, 1 << 20);
        }
    }
}
