//! Whether the tree of an image has room beside the image.

use super::{RESERVE, Room, RootImage};
use crate::image::tree::Size;
use crate::plan::refusal::Refusal;
use crate::units::Bytes;

/// How much memory the tree `size` may take while the image, `held` bytes of memory, is there as well. Nothing has
/// been unpacked when this refuses.
pub fn unpacked(
    image: &RootImage,
    size: &Size,
    held: Bytes,
    room: &Room,
) -> Result<Bytes, Refusal> {
    let sum = |one: Bytes, two: Bytes| Bytes(one.0.saturating_add(two.0));
    let left = Bytes(room.available.0.saturating_sub(held.0));
    if size.bytes > left {
        return Err(Refusal::NoRoom {
            what: format!(
                "the image ({image}, {}) with its tree ({}) beside it",
                held.short(),
                size.bytes.short()
            ),
            need: sum(sum(held, size.bytes), RESERVE),
            have: sum(room.available, RESERVE),
            more: "give the machine more memory, or leave `memory.method` away: the image is used as it is then",
        });
    }
    if size.bytes > room.size {
        return Err(Refusal::NoRoom {
            what: "the unpacked image".to_owned(),
            need: size.bytes,
            have: room.size,
            more: "raise `memory.size`",
        });
    }
    Ok(room.size.min(left))
}
