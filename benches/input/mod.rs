//! What the benches read: 64 MiB that compress about as well as a system's files, in every compression.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ironroot::report::Reporter;
use ironroot::stream::{
    Budget, FetchOptions, Fetcher, ImageRequest, ImageStream, Location, Verified,
};

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of decoded content.
pub const SIZE: usize = 64 << 20;

/// The same in each run: words of a small vocabulary, each third chunk of noise between them.
pub fn content() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words: Vec<[u8; 12]> = (0..4096)
        .map(|_| {
            let mut word = [0; 12];
            for (byte, letter) in word
                .iter_mut()
                .zip(next().to_le_bytes().into_iter().cycle())
            {
                *byte = b'a' + letter % 24;
            }
            word
        })
        .collect();
    let mut bytes = Vec::with_capacity(SIZE);
    while bytes.len() < SIZE {
        for _ in 0..64 {
            let pick = next();
            let word = usize::try_from(pick % 4096)
                .ok()
                .and_then(|at| words.get(at));
            bytes.extend(
                word.into_iter()
                    .flat_map(|word| word.iter().take(4 + (pick >> 60) as usize % 8)),
            );
        }
        for _ in 0..32 {
            bytes.extend(next().to_le_bytes());
        }
    }
    bytes.truncate(SIZE);
    bytes
}

/// A file in `directory` with these bytes.
pub fn file(directory: &Path, name: &str, bytes: &[u8]) -> Outcome<PathBuf> {
    let path = directory.join(name);
    std::fs::File::create(&path)?.write_all(bytes)?;
    Ok(path)
}

/// Reads an image from a file to its verdict, as an installation does, and drops what is decoded.
pub fn read(fetcher: &Fetcher, request: ImageRequest) -> Outcome<Verified> {
    let mut stream = ImageStream::open(fetcher, request, Budget::new(Duration::ZERO))?;
    while stream.next_block()?.is_some() {}
    Ok(stream.finish()?)
}

/// A request for a file, without any demand.
pub fn request(path: &Path) -> ImageRequest {
    ImageRequest {
        locations: vec![Location::File(path.to_owned())],
        ..ImageRequest::default()
    }
}

/// What fetches; it reports to nobody.
pub fn fetcher() -> Outcome<Fetcher> {
    Ok(Fetcher::new(
        FetchOptions::default(),
        Reporter::new(Vec::new()),
    )?)
}
