//! What is wanted: the kernel command line, where a boot config comes from, what was written, what it means.

pub mod cmdline;
pub mod gardenlinux;
pub mod ignition;
pub mod parse;
pub mod quantity;
pub mod request;
pub mod source;
pub mod template;
pub mod wire;
pub mod words;
