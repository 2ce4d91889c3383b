//! (room)
pub mod efi;
