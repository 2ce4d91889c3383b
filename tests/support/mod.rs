//! What several test programs share.
#![allow(
    dead_code, // each test program uses a part
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod fault_server;
pub mod images;
pub mod proxy;
pub mod qcow2;
