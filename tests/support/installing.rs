//! What the test programs that run whole installations share.
#![allow(
    dead_code, // each test program uses a part
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod disk_image;
pub mod fault_server;
pub mod loop_device;
pub mod nginx;
pub mod program;
pub mod qcow2;
pub mod systems;
pub mod traced;
pub mod verdict;
