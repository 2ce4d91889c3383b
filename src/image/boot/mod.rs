//! What boot loaders read: kernel, initrds and kernel arguments, in every form that images use. Pure.

pub mod addon;
pub mod arguments;
pub mod bls;
pub mod extlinux;
pub mod grub;
pub mod grub_core;
pub mod grub_menu;
pub mod menu;
pub mod root_word;
pub mod uki;
pub mod versions;

/// What a boot loader starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Path of the kernel, as its boot loader resolves it.
    pub kernel: String,
    /// Paths of the initrds, in order.
    pub initrds: Vec<String>,
    /// The kernel command line.
    pub options: String,
}
