//! ironroot takes a network-booted machine from "the kernel is up" to "the operating system you asked
//! for is running".
//!
//! > **Config** says what is wanted, **Host** says what is there, **Plan** says what will be done,
//! > **Run** does it, **Report** tells.
//!
//! ```text
//! cmdline -> Source -> bytes + Provenance -> wire::BootConfig -TryFrom-> Request -+
//!                                            (what was written)   (what it means) +-> plan() -> Plan -> run() -> Handoff
//! /sys /proc EFI SMBIOS -> host::Facts (read only, under a root path) ------------+   pure     data    effects
//! install record -> Record -------------------------------------------------------+    or a Refusal    or a Failure
//!                                    every arrow emits a report::Event
//! ```
//!
//! | room | question it answers |
//! |---|---|
//! | [`config`] | what is wanted, and where was it written? |
//! | [`host`] | what is there? (reads only, under a root path, so that fixtures are machines) |
//! | [`plan`] | what will be done? (pure) |
//! | [`run`] | doing it |
//! | [`image`] | what is inside an image's first bytes? |
//! | [`stream`] | how do bytes get from a URL to here, decoded and proven? |
//! | [`init`] | being PID 1 |
//! | [`report`] | who is told, and how? |
//! | [`sys`] | the only unsafe code and the only raw system calls |

pub mod cli;
pub mod config;
pub mod error;
pub mod host;
pub mod image;
pub mod init;
pub mod plan;
pub mod report;
pub mod run;
pub mod stream;
pub mod sys;
pub mod units;

/// See there why the system's own is not enough.
#[global_allocator]
static ALLOCATOR: sys::recycle::Recycling = sys::recycle::Recycling::new();
