//! What is wanted: the kernel command line, where a boot config comes from, what was written, what it means.

pub mod cmdline;
