//! The network: every interface with a carrier asks for an address at once, the first answer lets the run go on, the
//! others follow, and all are kept as long as it lasts.
//!
//! [`start`] never waits and never needs an interface; who needs the network calls [`Network::wait`], as often
//! as its retries ask for. To support another word of the command line, begin in [`arguments`].

pub mod arguments;
pub mod board;
pub mod client;
pub mod datagram;
pub mod interface;
pub mod lease;
pub mod message;
pub mod missing;
pub mod name_servers;
pub mod resolv;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arguments::{Mac, Wanted};
use board::{Board, Interface, Stage};

use crate::config::cmdline::Cmdline;
use crate::error::{Class, Context as _, Failure, Result};
use crate::report::{Event, Reporter};
use crate::sys::clock::Deadline;
use crate::sys::rtnetlink::{Link, Rtnetlink};

/// How often new interfaces are looked for.
const GLANCE: Duration = Duration::from_millis(300);

/// Without any interface nothing but a late driver helps.
const NO_INTERFACE: Duration = Duration::from_secs(15);

/// An answer without a way out (a management controller's own small network) waits this long for a better one, and
/// so does one that is not on the boot interface.
const BETTER: Duration = Duration::from_secs(8);

/// A first metric that leaves room for the boot interface before it; each interface has its own, so that several
/// default routes stand side by side.
const METRIC: u32 = 100;
const BOOT_METRIC: u32 = 50;

/// `ARPHRD_ETHER` of linux/if_arp.h.
const ETHERNET: u16 = 1;

/// Where things are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Where resolv.conf is written: /etc.
    pub etc: PathBuf,
    /// /sys, for the explanation of a failure.
    pub sys: PathBuf,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            etc: PathBuf::from("/etc"),
            sys: PathBuf::from("/sys"),
        }
    }
}

/// The network, kept up in the background until it is dropped. Addresses stay when it is.
#[derive(Debug)]
pub struct Network {
    board: Arc<Board>,
    sys: PathBuf,
    started: Instant,
}

/// Starts the network as the command line wants it, and returns at once.
///
/// # Errors
/// Class network where the kernel has no rtnetlink or no thread can be started.
pub fn start(cmdline: &Cmdline, places: Places, reporter: &Reporter) -> Result<Network> {
    let wanted = Wanted::of(cmdline);
    for warning in &wanted.warnings {
        reporter.warn(warning);
    }
    let off = wanted.off;
    let board = Arc::new(Board::new(wanted, places.etc, reporter.clone()));
    let network = Network {
        board: Arc::clone(&board),
        sys: places.sys,
        started: Instant::now(),
    };
    let what = || "opening rtnetlink, the kernel's interface to network devices";
    let mut kernel = Rtnetlink::open().context(Class::Network, what)?;
    let links = kernel.links().context(Class::Network, what)?;
    for lo in links.iter().filter(|l| l.loopback && !l.up) {
        // A data: URL, a file and a disk need no loopback either.
        if let Err(error) = kernel.set_up(lo.index, true) {
            reporter.warn(format!("switching on {}: {error}", lo.name));
        }
    }
    if off {
        reporter.info("the network is left alone (ip=off)");
        return Ok(network);
    }
    std::thread::Builder::new()
        .name("network".to_owned())
        .spawn(move || watch(kernel, &board))
        .context(Class::Network, || "starting the thread for the network")?;
    Ok(network)
}

/// [`start`] and [`Network::wait`], for who cannot do without.
pub fn bring_up(
    cmdline: &Cmdline,
    places: Places,
    deadline: Deadline,
    reporter: &Reporter,
) -> Result<Network> {
    let network = start(cmdline, places, reporter)?;
    network.wait(deadline)?;
    Ok(network)
}

impl Network {
    /// Waits for the first address. Returns at once where there is one, or where the command line wants no network.
    ///
    /// # Errors
    /// Class network, transient, with what is known of each interface.
    pub fn wait(&self, deadline: Deadline) -> Result<()> {
        let mut first: Option<Instant> = None;
        let (mut told, mut warned) = (false, false);
        loop {
            let interfaces = self.board.interfaces();
            if interfaces.iter().any(|i| i.lease().is_some()) {
                let since = *first.get_or_insert_with(Instant::now);
                if is_enough(&interfaces, &self.board.wanted) || since.elapsed() >= BETTER {
                    return Ok(());
                }
            }
            if self.board.wanted.off {
                return Ok(());
            }
            if deadline.passed() {
                return match first {
                    Some(_) => Ok(()),
                    None => Err(self.failure()),
                };
            }
            // A driver may take its time: the reason is told, and the wait goes on.
            if !warned && interfaces.is_empty() && self.started.elapsed() >= NO_INTERFACE {
                warned = true;
                self.board
                    .reporter
                    .warn(crate::error::describe(&self.failure()));
            }
            if !told && self.started.elapsed() > Duration::from_secs(3) {
                told = true;
                self.board.reporter.emit(Event::Waiting {
                    reason: "an address from the network".to_owned(),
                    deadline_seconds: deadline.remaining().as_secs(),
                });
            }
            self.board
                .wait_for_change(deadline.remaining().min(Duration::from_millis(500)));
        }
    }

    /// Every interface and how far it is, the preferred one first.
    pub fn interfaces(&self) -> Vec<Interface> {
        self.board.interfaces()
    }

    fn failure(&self) -> Failure {
        let mut known = self.board.explain();
        let without_driver = missing::without_driver(&self.sys);
        let message = if known.is_empty() {
            "there is no network interface".to_owned()
        } else {
            "no network interface got an address".to_owned()
        };
        let hint = match (known.is_empty(), without_driver.first()) {
            (true, Some(line)) => line.clone(),
            (true, None) => {
                "the kernel knows no network controller; look at the firmware's settings and the bus".to_owned()
            }
            (false, _) => "look at the cable, the switch port's VLAN and the DHCP server; or give a fixed address \
                           by ip=ADDRESS::GATEWAY:MASK::INTERFACE:none"
                .to_owned(),
        };
        known.extend(without_driver);
        let text = match known.as_slice() {
            [] => message,
            lines => format!("{message}: {}", lines.join("; ")),
        };
        Failure::new(Class::Network, text).hint(hint)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.board.stop();
    }
}

/// Whether what is there is as good as it gets: no need to wait for another answer.
fn is_enough(interfaces: &[Interface], wanted: &Wanted) -> bool {
    let ready = |i: &&Interface| i.lease().is_some();
    let all_done = interfaces.iter().all(|i| {
        matches!(
            i.stage,
            Stage::Ready(_) | Stage::Broken(_) | Stage::NoCarrier
        )
    });
    let good = |i: &Interface| i.lease().is_some_and(lease::Lease::has_default_route);
    match wanted.boot_mac {
        // The boot interface's answer is as good as it is.
        Some(_) if interfaces.iter().any(|i| i.boot) => {
            interfaces.iter().filter(ready).any(|i| i.boot)
        }
        _ => interfaces.iter().any(good) || all_done,
    }
}

/// Starts a thread for each interface that appears.
fn watch(mut kernel: Rtnetlink, board: &Arc<Board>) {
    let mut told = false;
    while !board.stopped() {
        match kernel.links() {
            Ok(links) => {
                for link in links.iter().filter(|l| is_ours(l, &board.wanted)) {
                    adopt(link, &mut kernel, board);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    board
                        .reporter
                        .warn(format!("listing the network interfaces: {error}"));
                }
                // Half an answer may be queued; a new connection begins clean.
                if let Ok(fresh) = Rtnetlink::open() {
                    kernel = fresh;
                }
            }
        }
        board.pause(GLANCE);
    }
}

/// Hardware, and a container's end of a cable (`veth`); other virtual interfaces only where `ip=` names them.
fn is_ours(link: &Link, wanted: &Wanted) -> bool {
    let ethernet = link.layer == ETHERNET && link.address.len() == 6 && !link.loopback;
    let hardware = matches!(link.kind.as_deref(), None | Some("veth")) && !link.enslaved;
    ethernet && (hardware || wanted.names(&link.name)) && wanted.rule_for(&link.name).is_some()
}

fn adopt(link: &Link, kernel: &mut Rtnetlink, board: &Arc<Board>) {
    let Ok(mac) = Mac::try_from(link.address.as_slice()) else {
        return;
    };
    let Some(rule) = board.wanted.rule_for(&link.name) else {
        return;
    };
    let boot = board.wanted.boot_mac == Some(mac);
    let metric = if boot {
        BOOT_METRIC
    } else {
        METRIC.saturating_add(link.index)
    };
    let interface = Interface {
        name: link.name.clone(),
        mac,
        metric,
        boot,
        stage: Stage::NoCarrier,
    };
    if !board.add(link.index, interface) {
        return;
    }
    // Switched on here, all at once: the carrier of the slowest port counts from now.
    if let Err(error) = kernel.set_up(link.index, true) {
        board
            .reporter
            .warn(format!("switching on {}: {error}", link.name));
    }
    let worker = interface::Worker {
        index: link.index,
        name: link.name.clone(),
        mac,
        mtu: link.mtu,
        metric,
        boot,
        rule,
        board: Arc::clone(board),
    };
    let thread = std::thread::Builder::new()
        .name(link.name.clone())
        .spawn(move || worker.run());
    if let Err(error) = thread {
        let why = format!("no thread for it: {error}");
        board.set(link.index, Stage::Broken(why));
    }
}

/// The places of a system whose root is `root`, for tests and image factories.
pub fn places_below(root: &Path) -> Places {
    Places {
        etc: root.join("etc"),
        sys: root.join("sys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn interface(boot: bool, stage: Stage) -> Interface {
        Interface {
            name: "eth0".into(),
            mac: [2, 0, 0, 0, 0, 1],
            metric: 1,
            boot,
            stage,
        }
    }

    fn ready(gateway: bool) -> Stage {
        let route = crate::sys::rtnetlink::Route {
            network: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            gateway: Some(Ipv4Addr::LOCALHOST),
            onlink: false,
        };
        Stage::Ready(Box::new(lease::Lease {
            routes: if gateway { vec![route] } else { Vec::new() },
            ..lease::Lease::default()
        }))
    }

    #[test]
    fn a_management_controllers_network_does_not_stop_the_wait_for_the_real_one() {
        let any = Wanted::default();
        let asking = || interface(false, Stage::Asking(client::Tally::default()));
        assert!(is_enough(&[interface(false, ready(true)), asking()], &any));
        assert!(!is_enough(
            &[interface(false, ready(false)), asking()],
            &any
        ));
        let no_carrier = interface(false, Stage::NoCarrier);
        assert!(is_enough(
            &[interface(false, ready(false)), no_carrier],
            &any
        ));
    }

    #[test]
    fn the_boot_interface_is_waited_for_where_it_exists() {
        let boot = Wanted {
            boot_mac: Some([2, 0, 0, 0, 0, 1]),
            ..Wanted::default()
        };
        let other = interface(false, ready(true));
        let asking = interface(true, Stage::Asking(client::Tally::default()));
        assert!(!is_enough(&[asking, other.clone()], &boot));
        assert!(is_enough(
            &[interface(true, ready(false)), other.clone()],
            &boot
        ));
        assert!(is_enough(&[other], &boot));
    }

    #[test]
    fn hardware_and_a_containers_cable_are_ours_other_things_when_named() {
        let link = |kind: Option<&str>| Link {
            name: "x0".into(),
            layer: ETHERNET,
            address: vec![2, 0, 0, 0, 0, 1],
            kind: kind.map(Into::into),
            ..Link::default()
        };
        let wanted = |text: &str| Wanted::of(&Cmdline::parse(text));
        assert!(is_ours(&link(None), &wanted("")));
        assert!(is_ours(&link(Some("veth")), &wanted("")));
        assert!(!is_ours(&link(Some("bridge")), &wanted("")));
        assert!(is_ours(&link(Some("bridge")), &wanted("ip=x0:dhcp")));
        assert!(!is_ours(&link(None), &wanted("ip=eth5:dhcp")));
        assert!(!is_ours(&link(None), &wanted("ip=off")));
        let slave = Link {
            enslaved: true,
            ..link(None)
        };
        assert!(!is_ours(&slave, &wanted("")));
    }
}
