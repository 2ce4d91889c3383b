//! One interface, one thread: wait for its carrier, get an address and keep it as long as the run lasts.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;

use super::arguments::{Mac, Rule};
use super::board::{Board, Stage};
use super::client::{Client, Command};
use super::datagram;
use super::lease::{Lease, order_routes};
use crate::error::{Class, Context as _, Result, chain};
use crate::sys::clock::uptime;
use crate::sys::packet::PacketSocket;
use crate::sys::rtnetlink::{Route, Rtnetlink};

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
const EVERYBODY: Mac = [0xff; 6];

/// How often the carrier is looked for, and a stop noticed.
const GLANCE: Duration = Duration::from_millis(250);

/// Pause after an error of the interface itself, such as its being switched off.
const AFTER_ERROR: Duration = Duration::from_secs(2);

/// What a thread needs to know of its interface.
#[derive(Debug)]
pub struct Worker {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Hardware address.
    pub mac: Mac,
    /// MTU that it has.
    pub mtu: u32,
    /// Metric of its routes.
    pub metric: u32,
    /// Whether the machine was booted from it.
    pub boot: bool,
    /// What the command line wants of it.
    pub rule: Rule,
    /// Where it reports.
    pub board: Arc<Board>,
}

impl Worker {
    /// The thread's whole work. Ends when the board is stopped, or the interface cannot be used.
    pub fn run(mut self) {
        let mut told = false;
        while !self.board.stopped() {
            let result = if self.rule.fixed.is_some() {
                self.fixed()
            } else {
                self.dhcp()
            };
            match result {
                Ok(()) => return,
                Err(failure) => {
                    let text = format!("{}: {}", self.name, chain(&failure));
                    self.board.set(self.index, Stage::Broken(chain(&failure)));
                    if !std::mem::replace(&mut told, true) {
                        self.board.reporter.warn(text);
                    }
                    self.board.pause(AFTER_ERROR);
                }
            }
        }
    }

    /// Whether there is a carrier before the board is stopped.
    fn wait_for_carrier(&self) -> Result<bool> {
        let what = || format!("reading the state of {}", self.name);
        let mut kernel = Rtnetlink::open().context(Class::Network, what)?;
        while !self.board.stopped() {
            let links = kernel.links().context(Class::Network, what)?;
            let link = links.iter().find(|l| l.index == self.index);
            match link {
                Some(link) if link.carrier => return Ok(true),
                Some(link) if !link.up => {
                    kernel
                        .set_up(self.index, true)
                        .context(Class::Network, || format!("switching on {}", self.name))?;
                }
                _ => {}
            }
            self.board.pause(GLANCE);
        }
        Ok(false)
    }

    fn fixed(&mut self) -> Result<()> {
        if !self.wait_for_carrier()? {
            return Ok(());
        }
        let for_anybody = self.rule.interface.is_none();
        let board = Arc::clone(&self.board);
        let boot_elsewhere = board.wanted.boot_mac.is_some() && !self.boot;
        if for_anybody && (boot_elsewhere || !board.take_fixed()) {
            return Ok(());
        }
        let Some(fixed) = self.rule.fixed else {
            return Ok(());
        };
        let default = fixed.gateway.map(|gateway| Route {
            network: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            gateway: Some(gateway),
            onlink: false,
        });
        let lease = self.with_rule(Lease {
            address: Some(fixed.address),
            prefix: fixed.prefix,
            routes: order_routes(default.into_iter().collect(), fixed.address, fixed.prefix),
            ..Lease::default()
        });
        self.configure(None, &lease)?;
        self.announce(&lease, "set");
        self.board.set(self.index, Stage::Ready(Box::new(lease)));
        Ok(())
    }

    /// The command line's words outweigh the server's.
    fn with_rule(&self, mut lease: Lease) -> Lease {
        if let Some(hostname) = &self.rule.hostname {
            lease.hostname = Some(hostname.clone());
        }
        if !self.rule.nameservers.is_empty() {
            lease.nameservers.clone_from(&self.rule.nameservers);
        }
        lease.mtu = self.rule.mtu.or(lease.mtu);
        lease
    }

    fn dhcp(&mut self) -> Result<()> {
        self.board.set(self.index, Stage::NoCarrier);
        if !self.wait_for_carrier()? {
            return Ok(());
        }
        let mut client = Client::new(self.mac, uptime(), random());
        self.board.set(self.index, Stage::Asking(client.tally()));
        let socket = PacketSocket::open(self.index, CLIENT_PORT).context(Class::Network, || {
            format!("opening a packet socket on {}", self.name)
        })?;
        let mut bound = Bound::default();
        let result = self.converse(&mut client, &socket, &mut bound);
        // On the way out of an error the address must not outlive the one who renews it.
        if result.is_err()
            && let Some(lease) = bound.lease.take()
        {
            self.deconfigure(&lease);
        }
        result
    }

    fn converse(
        &mut self,
        client: &mut Client,
        socket: &PacketSocket,
        bound: &mut Bound,
    ) -> Result<()> {
        let mut buffer = vec![0u8; 2048];
        while !self.board.stopped() {
            for command in client.tick(uptime()) {
                self.carry_out(command, socket, bound)?;
            }
            if !client.is_bound() {
                self.board.set(self.index, Stage::Asking(client.tally()));
            }
            let wait = client.wake().saturating_sub(uptime()).min(GLANCE);
            let received = socket
                .receive(&mut buffer, wait.max(Duration::from_millis(1)))
                .context(Class::Network, || format!("listening on {}", self.name))?;
            let Some(message) = received.and_then(|p| datagram::payload(p, CLIENT_PORT)) else {
                continue;
            };
            for command in client.receive(uptime(), message) {
                self.carry_out(command, socket, bound)?;
            }
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        command: Command,
        socket: &PacketSocket,
        bound: &mut Bound,
    ) -> Result<()> {
        match command {
            Command::Broadcast { from, message } => {
                let to = (Ipv4Addr::BROADCAST, SERVER_PORT);
                if let Some(packet) = datagram::build((from, CLIENT_PORT), to, &message) {
                    socket
                        .send(&packet, EVERYBODY)
                        .context(Class::Network, || format!("sending on {}", self.name))?;
                }
            }
            Command::Unicast { to, message, .. } => {
                // A renewal that does not get out is tried again, later by broadcast.
                let sent = bound
                    .socket
                    .as_ref()
                    .map(|s| s.send_to(&message, (to, SERVER_PORT)));
                if let Some(Err(error)) = sent {
                    log::warn!("{}: asking {to} to renew the lease: {error}", self.name);
                }
            }
            Command::Configure(lease) => {
                let lease = self.with_rule(*lease);
                let known = bound.lease.as_ref().is_some_and(|l| {
                    (l.address, l.prefix, &l.routes) == (lease.address, lease.prefix, &lease.routes)
                });
                if !known {
                    self.configure(bound.lease.as_ref(), &lease)?;
                    bound.socket = self.renewal_socket(&lease);
                    self.announce(&lease, "leased");
                }
                bound.lease = Some(lease.clone());
                self.board.set(self.index, Stage::Ready(Box::new(lease)));
            }
            Command::Deconfigure(why) => {
                bound.socket = None;
                if let Some(lease) = bound.lease.take() {
                    self.board.reporter.warn(format!(
                        "{}: {why}; its address is taken away and a new one looked for",
                        self.name
                    ));
                    self.deconfigure(&lease);
                }
            }
        }
        Ok(())
    }

    /// Renewals go the usual way, by the kernel. The socket stays open, so that the kernel does not tell the server
    /// that nobody listens there; what arrives is read by the packet socket.
    fn renewal_socket(&self, lease: &Lease) -> Option<UdpSocket> {
        let socket = UdpSocket::bind((lease.address?, CLIENT_PORT))
            .inspect_err(|error| log::warn!("{}: port {CLIENT_PORT}: {error}", self.name))
            .ok()?;
        let device = std::ffi::OsString::from(&self.name);
        let _ = setsockopt(&socket, BindToDevice, &device);
        Some(socket)
    }

    /// Puts a lease into force, in the place of `before`.
    fn configure(&mut self, before: Option<&Lease>, lease: &Lease) -> Result<()> {
        let Some(address) = lease.address else {
            return Ok(());
        };
        let mut kernel = Rtnetlink::open().context(Class::Network, || "opening rtnetlink")?;
        if let Some(mtu) = lease.mtu.filter(|m| *m != self.mtu) {
            match kernel.set_mtu(self.index, mtu) {
                Ok(()) => self.mtu = mtu,
                Err(error) => self
                    .board
                    .reporter
                    .warn(format!("{}: setting the MTU to {mtu}: {error}", self.name)),
            }
        }
        if let Some(old) = before {
            for route in old.routes.iter().filter(|r| !lease.routes.contains(r)) {
                let _ = kernel.remove_route(self.index, route, self.metric);
            }
            if let Some(old_address) = old.address
                && (old_address, old.prefix) != (address, lease.prefix)
            {
                let _ = kernel.remove_address(self.index, old_address, old.prefix);
            }
        }
        kernel
            .add_address(self.index, address, lease.prefix, self.metric)
            .context(Class::Network, || {
                format!(
                    "setting the address {address}/{} on {}",
                    lease.prefix, self.name
                )
            })?;
        for route in &lease.routes {
            // One bad route of many must not cost the others.
            if let Err(error) = kernel.add_route(self.index, route, self.metric) {
                let by = route
                    .gateway
                    .map(|g| format!(" by {g}"))
                    .unwrap_or_default();
                self.board.reporter.warn(format!(
                    "{}: the route to {}/{}{by} was not taken: {error}",
                    self.name, route.network, route.prefix
                ));
            }
        }
        Ok(())
    }

    fn deconfigure(&self, lease: &Lease) {
        let removed = Rtnetlink::open().and_then(|mut kernel| match lease.address {
            Some(address) => kernel.remove_address(self.index, address, lease.prefix),
            None => Ok(()),
        });
        if let Err(error) = removed {
            log::warn!("{}: removing its address: {error}", self.name);
        }
    }

    fn announce(&self, lease: &Lease, how: &str) {
        let address = lease.address.map(|a| a.to_string()).unwrap_or_default();
        let gateway = lease
            .routes
            .iter()
            .find(|r| r.prefix == 0)
            .and_then(|r| r.gateway)
            .map_or(", no default route".to_owned(), |g| {
                format!(", gateway {g}")
            });
        let names = match lease.nameservers.as_slice() {
            [] => ", no name server".to_owned(),
            list => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                format!(", names {}", list.join(" "))
            }
        };
        let server = lease.server.map(|s| format!(" by {s}")).unwrap_or_default();
        let time = lease
            .duration
            .map(|d| format!(" for {} s", d.as_secs()))
            .unwrap_or_default();
        self.board.reporter.info(format!(
            "{}: {address}/{} {how}{server}{time}{gateway}{names}",
            self.name, lease.prefix
        ));
    }
}

/// The lease in use.
#[derive(Default)]
struct Bound {
    lease: Option<Lease>,
    socket: Option<UdpSocket>,
}

/// A number that differs between machines and runs: the standard library seeds its hash maps from the kernel.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}
