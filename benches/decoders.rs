//! How fast images are decoded: bytes of decoded content a second, from a file to the dropped block.
//! SHA-256 of the compressed file runs beside, as in every installation.
//!
//! `cargo bench --bench decoders`; a word behind it chooses among the names.

#![allow(
    missing_docs,
    reason = "criterion's macros make public items without documentation"
)]

mod input;

use std::io::Write;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use input::{Outcome, SIZE, content, fetcher, file, read, request};

/// What one block, frame or member of the formats with many of them holds.
const PIECE: usize = 4 << 20;

fn gzip(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn zstd_frame(bytes: &[u8]) -> Outcome<Vec<u8>> {
    Ok(zstd::encode_all(bytes, 3)?)
}

fn bzip2_stream(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(6));
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn lz4_frame(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// One stream, its blocks as `xz -T0` makes them: with their sizes in their headers.
fn xz_blocks(bytes: &[u8], block: usize) -> Outcome<Vec<u8>> {
    let stream = liblzma::stream::MtStreamBuilder::new()
        .preset(1)
        .check(liblzma::stream::Check::Crc64)
        .threads(2)
        .block_size(block as u64)
        .encoder()?;
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn pieces(bytes: &[u8], encode: fn(&[u8]) -> Outcome<Vec<u8>>) -> Outcome<Vec<u8>> {
    let encoded: Outcome<Vec<Vec<u8>>> = bytes.chunks(PIECE).map(encode).collect();
    Ok(encoded?.concat())
}

fn all(criterion: &mut Criterion) -> Outcome<()> {
    let bytes = content();
    let inputs = [
        ("gzip, one member", gzip(&bytes)?),
        ("gzip, many members", pieces(&bytes, gzip)?),
        ("zstd, one frame", zstd_frame(&bytes)?),
        ("zstd, many frames", pieces(&bytes, zstd_frame)?),
        ("xz, one block", xz_blocks(&bytes, SIZE)?),
        ("xz, many blocks", xz_blocks(&bytes, PIECE)?),
        ("bzip2", bzip2_stream(&bytes)?),
        ("lz4", lz4_frame(&bytes)?),
        ("raw", bytes),
    ];
    let (directory, fetcher) = (tempfile::tempdir()?, fetcher()?);
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Bytes(SIZE as u64));
    group.sample_size(10).warm_up_time(Duration::from_secs(1));
    for (name, bytes) in inputs {
        let path = file(directory.path(), name, &bytes)?;
        // Once with the error in hand: an input that cannot be read must not be timed.
        read(&fetcher, request(&path))?;
        group.bench_function(name, |bencher| {
            bencher.iter(|| read(&fetcher, request(&path)).map(|verified| format!("{verified:?}")));
        });
    }
    group.finish();
    Ok(())
}

fn decoders(criterion: &mut Criterion) {
    if let Err(error) = all(criterion) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

criterion_group!(benches, decoders);
criterion_main!(benches);
