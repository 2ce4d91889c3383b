//! Image streams as the tests open them, and the images that they read.

use std::io::Write as _;
use std::time::Duration;

use ironroot::error::Failure;
use ironroot::report::Reporter;
use ironroot::stream::{
    ALIGNMENT, BLOCK, Backoff, Budget, Codec, FetchOptions, Fetcher, ImageRequest, ImageStream,
    Verified,
};
use ironroot::units::{Digest, HashAlgorithm};
use sha2::Digest as _;

use super::fault_server::{Act, FaultServer, Serve, file};

pub const LONG: Duration = Duration::from_secs(20);
pub const SHORT: Duration = Duration::from_millis(200);
pub const ETAG: &[(&str, &str)] = &[("ETag", "\"v1\"")];

/// Short times, and trust in `ca`.
pub fn options(ca: &[&[u8]]) -> FetchOptions {
    FetchOptions {
        ca_pem: ca.iter().map(|pem| pem.to_vec()).collect(),
        idle_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        backoff: Backoff {
            first: Duration::from_millis(2),
            longest: Duration::from_millis(20),
        },
        ..FetchOptions::default()
    }
}

/// A client with these options.
pub fn fetcher(ca: &[&[u8]]) -> Fetcher {
    Fetcher::new(options(ca), Reporter::default()).expect("a client")
}

pub fn request(urls: &[String]) -> ImageRequest {
    ImageRequest {
        locations: urls.iter().map(|u| u.parse().expect("a URL")).collect(),
        insecure: true,
        ..ImageRequest::default()
    }
}

pub fn open(request: ImageRequest, retry_for: Duration) -> Result<ImageStream, Failure> {
    ImageStream::open(&fetcher(&[]), request, Budget::new(retry_for))
}

/// All of the content and the verdict.
pub fn read(request: ImageRequest, retry_for: Duration) -> Result<(Vec<u8>, Verified), Failure> {
    let mut stream = open(request, retry_for)?;
    let mut content = Vec::new();
    while let Some(block) = stream.next_block()? {
        assert_eq!(block.as_ptr().align_offset(ALIGNMENT), 0);
        assert_eq!(content.len() % BLOCK, 0, "only the last block is shorter");
        content.extend_from_slice(&block);
    }
    Ok((content, stream.finish()?))
}

pub fn get(url: String) -> Result<Vec<u8>, Failure> {
    read(request(&[url]), LONG).map(|(content, _)| content)
}

pub fn fails(url: String, retry_for: Duration) -> Failure {
    read(request(&[url]), retry_for).expect_err("a failure")
}

pub fn sha256(bytes: &[u8]) -> Digest {
    Digest::from_bytes(HashAlgorithm::Sha256, &sha2::Sha256::digest(bytes))
}

pub fn sha512(bytes: &[u8]) -> Digest {
    Digest::from_bytes(HashAlgorithm::Sha512, &sha2::Sha512::digest(bytes))
}

/// Content that does not compress to nothing and in which every part differs, so that a wrong offset shows.
pub fn image(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    // Longer than the window of gzip.
    let mut noise = vec![0; 40 << 10];
    for byte in &mut noise {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *byte = state.to_be_bytes()[0];
    }
    let mut bytes = Vec::with_capacity(len + noise.len());
    while bytes.len() < len {
        let number = bytes.len() as u64;
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&noise);
    }
    bytes.truncate(len);
    bytes
}

pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut w = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    w.write_all(content).expect("memory");
    w.finish().expect("memory")
}

pub fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 1).expect("memory")
}

pub fn xz(content: &[u8]) -> Vec<u8> {
    let options = lzma_rust2::XzOptions::with_preset(0);
    let mut w = lzma_rust2::XzWriter::new(Vec::new(), options).expect("memory");
    w.write_all(content).expect("memory");
    w.finish().expect("memory")
}

pub fn bzip2(content: &[u8]) -> Vec<u8> {
    let mut w = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    w.write_all(content).expect("memory");
    w.finish().expect("memory")
}

pub fn lz4(content: &[u8]) -> Vec<u8> {
    let mut w = lz4_flex::frame::FrameEncoder::new(Vec::new());
    w.write_all(content).expect("memory");
    w.finish().expect("memory")
}

/// `content` in frames, members or blocks of `size` bytes, each of which can be decoded by itself.
pub fn apart(codec: Codec, content: &[u8], size: usize) -> Vec<u8> {
    let pieces = content.chunks(size);
    match codec {
        Codec::Zstd => pieces.flat_map(zstd).collect(),
        Codec::Gzip => pieces
            .flat_map(|piece| {
                // As pgzip does: the member's length in a subfield of its header.
                let mut w = flate2::GzBuilder::new()
                    .extra(b"IG\x04\0\0\0\0\0".to_vec())
                    .write(Vec::new(), flate2::Compression::fast());
                w.write_all(piece).expect("memory");
                let mut member = w.finish().expect("memory");
                let length = u32::try_from(member.len()).expect("memory");
                let place = member.get_mut(16..20).expect("a header");
                place.copy_from_slice(&length.to_le_bytes());
                member
            })
            .collect(),
        Codec::Xz => {
            let stream = liblzma::stream::MtStreamBuilder::new()
                .threads(2)
                .preset(0)
                .block_size(size as u64)
                .check(liblzma::stream::Check::Crc64)
                .encoder()
                .expect("memory");
            let mut w = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
            w.write_all(content).expect("memory");
            w.finish().expect("memory")
        }
        Codec::Raw | Codec::Bzip2 | Codec::Lz4 | Codec::Qcow2 => unreachable!(),
    }
}

pub const RIGHT: Serve<'static> = Serve {
    headers: ETAG,
    ranges: true,
    stop_after: None,
};

/// A server of `data` that breaks off after each `every` bytes with a reset.
pub fn resetting(data: Vec<u8>, every: usize, serve: Serve<'static>) -> FaultServer {
    FaultServer::start(move |request| {
        let left = data.len() - request.range_from().unwrap_or(0).min(data.len());
        let mut acts = file(
            request,
            &data,
            Serve {
                stop_after: Some(every),
                ..serve
            },
        );
        if left > every {
            acts.push(Act::Reset);
        }
        acts
    })
}
