//! What is inside an image: its head, its table, and the record that we leave beside it; and trees of files,
//! which come as archives.
pub mod boot;
pub mod fat;
pub mod qcow2;
pub mod record;
pub mod superblock;
pub mod tree;
pub mod verity;
