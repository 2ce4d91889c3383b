//! What proves an image: digests that the boot config declares, and those that a checksum file gives.

mod checksums;

use super::budget::Budget;
use super::fetch::Fetcher;
use super::image::ImageRequest;
use super::location::Location;
use super::verified::Demand;
use crate::error::{Class, Failure, Result};
use crate::units::{Bytes, MIB};

/// Larger checksum files are refused; those of whole distributions have a few hundred KiB.
const CHECKSUMS_LIMIT: Bytes = Bytes(4 * MIB);

/// Invariant I4: over plain HTTP an image needs a proof that somebody on the way cannot change with it.
pub(super) fn must_suffice(request: &ImageRequest) -> Result<()> {
    let proven = request.digest.is_some()
        || request.content_digest.is_some()
        || request
            .checksums
            .as_ref()
            .is_some_and(|c| !c.is_plain_http());
    if proven || request.insecure {
        return Ok(());
    }
    match request.locations.iter().find(|l| l.is_plain_http()) {
        None => Ok(()),
        Some(plain) => {
            let text = match &request.checksums {
                None => format!("{plain} is plain HTTP, and no digest is declared"),
                Some(sums) => format!("{plain} is plain HTTP, and so are its checksums {sums}"),
            };
            Err(Failure::new(Class::Config, text)
                .hint("declare image.digest, use https, or accept it with image.insecure"))
        }
    }
}

/// Every digest that the download must have. Fetches the checksum file, where there is one.
pub(super) fn demands(
    fetcher: &Fetcher,
    request: &ImageRequest,
    budget: &mut Budget,
) -> Result<Vec<Demand>> {
    let mut demands: Vec<Demand> = request
        .digest
        .iter()
        .map(|digest| Demand {
            digest: digest.clone(),
            by: "declared".to_owned(),
        })
        .collect();
    let (Some(checksums), Some(image)) = (&request.checksums, request.locations.first()) else {
        return Ok(demands);
    };
    let headers = headers_for(request, checksums);
    let text = fetcher.get_beside_image(checksums, &headers, CHECKSUMS_LIMIT, budget)?;
    let digest = checksums::find(&text, &image.decoded_path()).map_err(|why| {
        Failure::new(Class::Integrity, format!("checksum file {checksums} {why}"))
            .hint("check that image.checksums is the file that belongs to image.url")
    })?;
    let from_file = Demand {
        digest,
        by: format!("in {checksums}"),
    };
    let contradicted = demands.iter().find(|d| {
        d.digest.algorithm() == from_file.digest.algorithm() && d.digest != from_file.digest
    });
    if let Some(declared) = contradicted {
        return Err(Failure::new(
            Class::Integrity,
            format!(
                "image {image}: image.digest is {}, {checksums} says {}",
                declared.digest, from_file.digest
            ),
        )
        .hint("the checksum file has changed, or the digest is that of another version"));
    }
    demands.push(from_file);
    Ok(demands)
}

/// The image's headers, where they may go to `other`: they can hold secrets.
fn headers_for(request: &ImageRequest, other: &Location) -> Vec<(String, String)> {
    if request.locations.iter().any(|l| l.same_origin(other)) {
        request.headers.clone()
    } else {
        Vec::new()
    }
}
