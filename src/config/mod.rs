//! What is wanted: the kernel command line, where a boot config comes from, what was written, what it means.

pub mod cmdline;
pub mod quantity;
pub mod wire;
