//! What is inside an image: its head, its table, and the record that we leave beside it.
pub mod qcow2;
pub mod record;
pub mod superblock;
pub mod verity;
