//! How do bytes get from a URL to here, decoded and proven?
//!
//! [`Fetcher`] gets small files; [`ImageStream`] gets an image: it fetches (`download`, which retries,
//! resumes and changes to mirrors below everything else), hashes, decodes (`codec`) and hands out
//! page-aligned [`Block`]s, each stage on its own thread (`pipeline`), within 64 MiB and the decoder's
//! window. Only a stream that was right from its first to its last byte ends in a [`Verified`].

mod budget;
mod buffer;
mod cancel;
mod certificate;
mod codec;
mod digest;
mod download;
mod fetch;
mod file;
mod http;
mod image;
mod location;
mod names;
mod oci;
mod pieces;
mod pipeline;
mod proof;
mod proxy;
mod resume;
mod retry_after;
mod two_pass;
mod verified;

pub use budget::{Backoff, Budget};
pub use buffer::{ALIGNMENT, BLOCK, Block, MAX_HELD};
pub use codec::{Codec, Purpose, WINDOW_CAP};
pub use fetch::{ClientCertificate, FetchOptions, Fetcher};
pub use image::{Counters, ImageRequest, ImageStream};
pub use location::{HttpUrl, Location};
pub use oci::{OciReference, RegistryAccess};
pub use proof::{
    KEY_DIRECTORY, Keyring, SignatureKind, SignatureOf, SignatureRequest, SignedBy, check_config,
};
pub use proxy::Proxies;
pub use verified::Verified;
