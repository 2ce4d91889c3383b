//! What the threads of the interfaces tell each other and the one that waits: one state for each interface, and
//! from all of them one resolv.conf, one host name, one explanation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::arguments::{Mac, Wanted};
use super::client::Tally;
use super::lease::Lease;
use super::resolv;
use crate::error::chain;
use crate::report::Reporter;
use crate::sys::clock::Deadline;

/// How far an interface is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing alive at the other end of the cable.
    #[default]
    NoCarrier,
    /// Asking for an address.
    Asking(Tally),
    /// It has one.
    Ready(Box<Lease>),
    /// It cannot be used, for a reason that waiting does not heal.
    Broken(String),
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Hardware address.
    pub mac: Mac,
    /// Metric of its routes; the boot interface has the lowest.
    pub metric: u32,
    /// Whether the machine was booted from it (`BOOTIF=`).
    pub boot: bool,
    /// How far it is.
    pub stage: Stage,
}

impl Interface {
    /// Its lease, where it has one.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.stage {
            Stage::Ready(lease) => Some(lease),
            _ => None,
        }
    }

    fn explain(&self) -> String {
        let what = match &self.stage {
            Stage::NoCarrier => {
                "no carrier (cable, switch port, or a driver without firmware)".to_owned()
            }
            Stage::Asking(tally) if tally.naks > 0 => {
                format!(
                    "the DHCP server offered addresses and refused {} times",
                    tally.naks
                )
            }
            Stage::Asking(tally) if tally.offers > 0 => {
                "a DHCP server offers an address and does not answer the request for it".to_owned()
            }
            Stage::Asking(tally) => format!("no DHCP offer after {} tries", tally.asked),
            Stage::Ready(_) => "configured".to_owned(),
            Stage::Broken(why) => why.clone(),
        };
        let mac: Vec<String> = self.mac.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} ({}): {what}", self.name, mac.join(":"))
    }
}

/// The shared state.
#[derive(Debug)]
pub struct Board {
    interfaces: Mutex<BTreeMap<u32, Interface>>,
    changed: Condvar,
    stop: AtomicBool,
    /// Whether somebody took the address that `ip=` gives without naming an interface.
    fixed_taken: AtomicBool,
    etc: PathBuf,
    /// What is wanted.
    pub wanted: Wanted,
    /// Who is told.
    pub reporter: Reporter,
}

impl Board {
    /// A board without interfaces; resolv.conf is written below `etc`.
    pub fn new(wanted: Wanted, etc: PathBuf, reporter: Reporter) -> Board {
        Board {
            interfaces: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            fixed_taken: AtomicBool::new(false),
            etc,
            wanted,
            reporter,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Interface>> {
        self.interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the threads are to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Lets them end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Whether the caller is the first to ask for the fixed address that names no interface.
    pub fn take_fixed(&self) -> bool {
        !self.fixed_taken.swap(true, Ordering::Relaxed)
    }

    /// A new interface; `false` where it is known.
    pub fn add(&self, index: u32, interface: Interface) -> bool {
        let mut interfaces = self.lock();
        if interfaces.contains_key(&index) {
            return false;
        }
        interfaces.insert(index, interface);
        true
    }

    /// Sets how far an interface is.
    pub fn set(&self, index: u32, stage: Stage) {
        let mut interfaces = self.lock();
        let names_changed = match interfaces.get_mut(&index) {
            Some(interface) if interface.stage != stage => {
                let names = matches!(stage, Stage::Ready(_)) || interface.lease().is_some();
                interface.stage = stage;
                names
            }
            _ => return,
        };
        // Under the lock: the last state is the one that is written.
        if names_changed {
            self.write_names(&interfaces);
        }
        drop(interfaces);
        self.changed.notify_all();
    }

    fn write_names(&self, interfaces: &BTreeMap<u32, Interface>) {
        let mut ordered: Vec<&Interface> = interfaces.values().collect();
        ordered.sort_by_key(|i| i.metric);
        let leases = || ordered.iter().filter_map(|i| i.lease());
        let servers: Vec<IpAddr> = self
            .wanted
            .nameservers
            .iter()
            .copied()
            .chain(leases().flat_map(|l| l.nameservers.iter().copied().map(IpAddr::V4)))
            .collect();
        // Without a server, one that the initramfs brought along stays.
        if !servers.is_empty() {
            let search: Vec<String> = leases().flat_map(|l| l.search.clone()).collect();
            if let Err(failure) = resolv::write(&self.etc, &resolv::text(&servers, &search)) {
                self.reporter
                    .warn(format!("names will not be resolved: {}", chain(&failure)));
            }
        }
        if let Some(name) = leases().find_map(|l| l.hostname.as_deref()) {
            set_hostname(name);
        }
    }

    /// Every interface, the one with the lowest metric first.
    pub fn interfaces(&self) -> Vec<Interface> {
        let mut list: Vec<Interface> = self.lock().values().cloned().collect();
        list.sort_by_key(|i| i.metric);
        list
    }

    /// What is known of each interface, for people.
    pub fn explain(&self) -> Vec<String> {
        self.interfaces().iter().map(Interface::explain).collect()
    }

    /// Waits until something changes, in at most `longest`.
    pub fn wait_for_change(&self, longest: Duration) {
        let guard = self.lock();
        let _ = self
            .changed
            .wait_timeout(guard, longest)
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Sleeps, in small steps so that a stop is seen.
    pub fn pause(&self, long: Duration) {
        let deadline = Deadline::after(long);
        while !deadline.passed() && !self.stopped() {
            std::thread::sleep(deadline.remaining().min(Duration::from_millis(200)));
        }
    }
}

/// Gives the kernel a host name where it has none (uts namespace of this process).
fn set_hostname(name: &str) {
    let has_none = nix::unistd::gethostname()
        .is_ok_and(|h| matches!(h.to_str(), Some("" | "(none)" | "localhost")));
    // The kernel's limit, __NEW_UTS_LEN.
    if has_none
        && name.len() <= 64
        && let Err(error) = nix::unistd::sethostname(name)
    {
        log::warn!("setting the host name to {name}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn interface(name: &str, metric: u32) -> Interface {
        Interface {
            name: name.into(),
            mac: [0x52, 0x54, 0, 0, 0, 1],
            metric,
            boot: false,
            stage: Stage::default(),
        }
    }

    fn ready(server: u8, domain: &str) -> Stage {
        Stage::Ready(Box::new(Lease {
            nameservers: vec![Ipv4Addr::new(10, 0, 0, server)],
            search: vec![domain.into()],
            ..Lease::default()
        }))
    }

    #[test]
    fn resolv_conf_holds_all_interfaces_in_the_order_of_their_metric() {
        let etc = tempfile::tempdir().unwrap();
        let wanted = Wanted {
            nameservers: vec!["10.9.9.9".parse().unwrap()],
            ..Wanted::default()
        };
        let board = Board::new(wanted, etc.path().to_owned(), Reporter::default());
        assert!(board.add(2, interface("eth0", 102)));
        assert!(board.add(3, interface("eth1", 50)));
        assert!(!board.add(3, interface("eth1", 50)));
        board.set(2, ready(2, "two.example"));
        board.set(3, ready(3, "three.example"));
        let read = || std::fs::read_to_string(etc.path().join("resolv.conf")).unwrap();
        assert_eq!(
            read(),
            "# written by ironroot\nnameserver 10.9.9.9\nnameserver 10.0.0.3\nnameserver 10.0.0.2\n\
             search three.example two.example\n"
        );
        board.set(3, Stage::NoCarrier);
        assert!(!read().contains("10.0.0.3"));
        assert_eq!(board.interfaces()[0].name, "eth1");
    }

    #[test]
    fn every_interface_is_explained() {
        let board = Board::new(Wanted::default(), PathBuf::new(), Reporter::default());
        board.add(1, interface("eth0", 1));
        board.add(2, interface("eth1", 2));
        board.set(
            2,
            Stage::Asking(Tally {
                asked: 5,
                ..Tally::default()
            }),
        );
        assert_eq!(
            board.explain(),
            [
                "eth0 (52:54:00:00:00:01): no carrier (cable, switch port, or a driver without firmware)",
                "eth1 (52:54:00:00:00:01): no DHCP offer after 5 tries"
            ]
        );
        let naks = Tally {
            naks: 2,
            offers: 2,
            asked: 4,
        };
        board.set(2, Stage::Asking(naks));
        assert!(board.explain()[1].contains("refused 2 times"));
    }
}
