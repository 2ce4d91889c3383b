//! How fast images are hashed: a raw image from a file, where reading is a copy from the page cache and
//! nothing is decoded, so that the hash is what takes time.
//!
//! `cargo bench --bench hash`

#![allow(
    missing_docs,
    reason = "criterion's macros make public items without documentation"
)]

mod input;

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use input::{Outcome, SIZE, content, fetcher, file, read, request};
use ironroot::stream::ImageRequest;
use ironroot::units::{Digest, HashAlgorithm};
use sha2::{Digest as _, Sha256, Sha512};

fn all(criterion: &mut Criterion) -> Outcome<()> {
    let bytes = content();
    let sha256 = Digest::from_bytes(HashAlgorithm::Sha256, &Sha256::digest(&bytes));
    let sha512 = Digest::from_bytes(HashAlgorithm::Sha512, &Sha512::digest(&bytes));
    let (directory, fetcher) = (tempfile::tempdir()?, fetcher()?);
    let path = file(directory.path(), "raw", &bytes)?;
    let mut group = criterion.benchmark_group("hash");
    group.throughput(Throughput::Bytes(SIZE as u64));
    group.sample_size(10).warm_up_time(Duration::from_secs(1));
    // SHA-256 of the download is always made; SHA-512 comes on top where it is asked for.
    for (name, digest) in [("sha256", sha256), ("sha256 and sha512", sha512)] {
        let wanted = ImageRequest {
            digest: Some(digest),
            ..request(&path)
        };
        read(&fetcher, wanted.clone())?;
        group.bench_function(name, |bencher| {
            bencher.iter(|| read(&fetcher, wanted.clone()).map(|verified| format!("{verified:?}")));
        });
    }
    group.finish();
    Ok(())
}

fn hash(criterion: &mut Criterion) {
    if let Err(error) = all(criterion) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

criterion_group!(benches, hash);
criterion_main!(benches);
