//! Interfaces, addresses and routes by rtnetlink(7): one request, one answer, bounded in time.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NlaBuffer, NlasIterator,
};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Request;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::clock::Deadline;

/// The kernel answers at once; this only bounds the wait for a lost answer.
const ANSWER: std::time::Duration = std::time::Duration::from_secs(5);

/// Link attributes (linux/if_link.h) that are read here. The crate's own reading of a link fails as a whole on
/// any attribute that a newer kernel changes; an interface must not be lost for a statistic.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const RTM_NEWLINK: u16 = 16;

/// A network interface.
#[allow(clippy::struct_excessive_bools)] // flags of the kernel, independent of each other
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// `ARPHRD_*` of linux/if_arp.h: 1 is Ethernet.
    pub layer: u16,
    /// Hardware address.
    pub address: Vec<u8>,
    /// MTU in bytes.
    pub mtu: u32,
    /// `veth`, `bridge`, `vlan`, …; `None` for hardware.
    pub kind: Option<String>,
    /// Whether it belongs to a bond or bridge.
    pub enslaved: bool,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether there is a cable with something alive at its other end, and packets are sent. Only known while it is on.
    pub carrier: bool,
    /// Whether this is `lo`.
    pub loopback: bool,
}

/// Where packets for a network go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The network.
    pub network: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// The next hop; `None` where the network is on the link itself.
    pub gateway: Option<Ipv4Addr>,
    /// The gateway is on the link although no network of the interface holds it.
    pub onlink: bool,
}

/// A connection to rtnetlink of the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
    sequence: u32,
}

impl Rtnetlink {
    /// Opens it.
    pub fn open() -> io::Result<Rtnetlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Rtnetlink {
            socket,
            sequence: 0,
        })
    }

    /// Every interface.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        self.call(Request::GetLink(LinkMessage::default()), NLM_F_DUMP)
    }

    /// Switches an interface on or off.
    pub fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        let mut message = link(index);
        message.header.change_mask = LinkFlags::Up;
        if up {
            message.header.flags = LinkFlags::Up;
        }
        self.call(Request::SetLink(message), NLM_F_ACK).map(drop)
    }

    /// Sets the MTU, in bytes.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        let mut message = link(index);
        message.attributes.push(LinkAttribute::Mtu(mtu));
        self.call(Request::SetLink(message), NLM_F_ACK).map(drop)
    }

    /// Gives the interface an address; the route to its own network gets `metric`. An address that is there
    /// already stays.
    pub fn add_address(
        &mut self,
        index: u32,
        address: Ipv4Addr,
        prefix: u8,
        metric: u32,
    ) -> io::Result<()> {
        let mut message = address_message(index, address, prefix);
        if prefix < 31 {
            message
                .attributes
                .push(AddressAttribute::Broadcast(broadcast(address, prefix)));
        }
        message
            .attributes
            .push(AddressAttribute::RoutePriority(metric));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.call(Request::NewAddress(message), flags).map(drop)
    }

    /// Takes an address, and the routes that depend on it, from the interface.
    pub fn remove_address(&mut self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let message = address_message(index, address, prefix);
        self.call(Request::DelAddress(message), NLM_F_ACK).map(drop)
    }

    /// Adds a route of the main table, or replaces the one of the same network and metric.
    pub fn add_route(&mut self, index: u32, route: &Route, metric: u32) -> io::Result<()> {
        let message = route_message(index, route, metric);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.call(Request::NewRoute(message), flags).map(drop)
    }

    /// Removes such a route.
    pub fn remove_route(&mut self, index: u32, route: &Route, metric: u32) -> io::Result<()> {
        let message = route_message(index, route, metric);
        self.call(Request::DelRoute(message), NLM_F_ACK).map(drop)
    }

    fn call(&mut self, request: Request, flags: u16) -> io::Result<Vec<Link>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let deadline = Deadline::after(ANSWER);
        let mut links = Vec::new();
        loop {
            if deadline.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some(datagram) = self.receive(deadline)? else {
                continue;
            };
            if self.read(&datagram, &mut links)? {
                return Ok(links);
            }
        }
    }

    fn receive(&self, deadline: Deadline) -> io::Result<Option<Vec<u8>>> {
        // SAFETY: the descriptor belongs to `self.socket`, which lives longer than this borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) };
        let mut waiting = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(deadline.remaining()).unwrap_or(PollTimeout::MAX);
        match poll(&mut waiting, timeout) {
            Ok(0) | Err(nix::Error::EINTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // The kernel fills at most 32 KiB (net/netlink/af_netlink.c, `netlink_dump`).
        let mut buffer = Vec::with_capacity(64 << 10);
        match self.socket.recv_from(&mut buffer, libc::MSG_DONTWAIT) {
            Ok((_, from)) => Ok((from.port_number() == 0).then_some(buffer)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the answer is complete.
    fn read(&self, mut datagram: &[u8], links: &mut Vec<Link>) -> io::Result<bool> {
        while !datagram.is_empty() {
            let message = NetlinkMessage::<Answer>::deserialize(datagram)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
            let aligned = length.saturating_add(3) & !3;
            datagram = datagram.get(aligned.max(16)..).unwrap_or_default();
            if message.header.sequence_number != self.sequence {
                continue;
            }
            match message.payload {
                NetlinkPayload::Error(error) => {
                    return match error.code {
                        None => Ok(true),
                        Some(_) => Err(error.to_io()),
                    };
                }
                NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::InnerMessage(Answer::Link(link)) => links.push(link),
                _ => {}
            }
        }
        Ok(false)
    }
}

fn link(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn address_message(index: u32, address: Ipv4Addr, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = prefix;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.into()),
        AddressAttribute::Address(address.into()),
    ];
    message
}

fn route_message(index: u32, route: &Route, metric: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: AddressFamily::Inet,
        destination_prefix_length: route.prefix,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Dhcp,
        scope: match route.gateway {
            Some(_) => RouteScope::Universe,
            None => RouteScope::Link,
        },
        kind: RouteType::Unicast,
        flags: if route.onlink {
            RouteFlags::Onlink
        } else {
            RouteFlags::empty()
        },
        ..RouteHeader::default()
    };
    if route.prefix > 0 {
        message
            .attributes
            .push(RouteAttribute::Destination(RouteAddress::Inet(
                route.network,
            )));
    }
    if let Some(gateway) = route.gateway {
        message
            .attributes
            .push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
    }
    message.attributes.push(RouteAttribute::Oif(index));
    message.attributes.push(RouteAttribute::Priority(metric));
    message
}

fn broadcast(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let hosts = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    Ipv4Addr::from(u32::from(address) | hosts)
}

enum Answer {
    Link(Link),
    Other,
}

impl NetlinkDeserializable for Answer {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Answer, DecodeError> {
        Ok(if header.message_type == RTM_NEWLINK {
            parse_link(payload).map_or(Answer::Other, Answer::Link)
        } else {
            Answer::Other
        })
    }
}

/// Whether packets are sent. The driver says `IFF_LOWER_UP` at once, but up to a second later the kernel's link watch
/// gives the interface its queue (net/core/link_watch.c, `linkwatch_do_dev`) together with `IFF_RUNNING`: what is sent
/// before is dropped in silence, and a DISCOVER goes out again after 4 s only. A dormant interface (RFC 2863) has its
/// queue, and nobody here who would wake it.
fn has_carrier(flags: LinkFlags) -> bool {
    flags.contains(LinkFlags::LowerUp) && flags.intersects(LinkFlags::Running | LinkFlags::Dormant)
}

/// `struct ifinfomsg` (linux/rtnetlink.h) and its attributes.
fn parse_link(payload: &[u8]) -> Option<Link> {
    let (head, attributes) = payload.split_first_chunk::<16>()?;
    let [_, _, l0, l1, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *head;
    let flags = LinkFlags::from_bits_retain(u32::from_ne_bytes([f0, f1, f2, f3]));
    let mut link = Link {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        layer: u16::from_ne_bytes([l0, l1]),
        up: flags.contains(LinkFlags::Up),
        carrier: has_carrier(flags),
        loopback: flags.contains(LinkFlags::Loopback),
        ..Link::default()
    };
    for attribute in NlasIterator::new(attributes).map_while(Result::ok) {
        match attribute.kind() {
            IFLA_ADDRESS => link.address = attribute.value().to_vec(),
            IFLA_IFNAME => link.name = text(&attribute),
            IFLA_MTU => {
                link.mtu = <[u8; 4]>::try_from(attribute.value()).map_or(0, u32::from_ne_bytes);
            }
            IFLA_MASTER => link.enslaved = true,
            IFLA_LINKINFO => {
                link.kind = NlasIterator::new(attribute.value())
                    .map_while(Result::ok)
                    .find(|info| info.kind() == IFLA_INFO_KIND)
                    .map(|info| text(&info));
            }
            _ => {}
        }
    }
    Some(link)
}

fn text(attribute: &NlaBuffer<&[u8]>) -> String {
    let bytes = attribute.value();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_namespace_has_a_loopback() {
        let links = Rtnetlink::open().unwrap().links().unwrap();
        let lo = links.iter().find(|l| l.loopback).unwrap();
        assert_eq!((lo.name.as_str(), lo.index, lo.layer), ("lo", 1, 772));
    }

    #[test]
    fn the_kernels_refusal_is_the_error() {
        let error = Rtnetlink::open()
            .unwrap()
            .set_up(0x7fff_fff0, true)
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn broadcast_addresses() {
        let address = Ipv4Addr::new(10, 1, 2, 3);
        assert_eq!(broadcast(address, 24), Ipv4Addr::new(10, 1, 2, 255));
        assert_eq!(broadcast(address, 0), Ipv4Addr::BROADCAST);
        assert_eq!(broadcast(address, 32), address);
    }

    #[test]
    fn a_cable_alone_is_no_carrier_while_the_kernel_drops_what_is_sent() {
        let plugged = LinkFlags::Up | LinkFlags::LowerUp;
        assert!(!has_carrier(plugged));
        assert!(!has_carrier(LinkFlags::Up | LinkFlags::Running));
        assert!(has_carrier(plugged | LinkFlags::Running));
        assert!(has_carrier(plugged | LinkFlags::Dormant));
    }
}
