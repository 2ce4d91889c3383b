//! What a DHCP server grants, read from its options and checked.

use std::net::Ipv4Addr;
use std::time::Duration;

use dhcproto::v4::{DhcpOption, DhcpOptions, OptionCode};

use super::arguments::{class_prefix, prefix_of_mask};
use crate::sys::rtnetlink::Route;

/// A shorter lease would keep us renewing; a missing one is taken for an hour.
const SHORTEST: Duration = Duration::from_secs(10);
const UNSAID: Duration = Duration::from_secs(3600);

/// How many of each list are kept.
const MOST: usize = 64;

/// A lease. Routes and texts are what the server said, checked; nothing here is applied yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Our address.
    pub address: Option<Ipv4Addr>,
    /// Prefix length of its network (option 1).
    pub prefix: u8,
    /// Who granted it (option 54).
    pub server: Option<Ipv4Addr>,
    /// Routes: classless ones (option 121), else by the first router (option 3).
    pub routes: Vec<Route>,
    /// Name servers (option 6).
    pub nameservers: Vec<Ipv4Addr>,
    /// Search list (option 119), else the domain (option 15).
    pub search: Vec<String>,
    /// Host name (option 12).
    pub hostname: Option<String>,
    /// MTU (option 26).
    pub mtu: Option<u32>,
    /// Time servers (option 42).
    pub ntp: Vec<Ipv4Addr>,
    /// How long it holds; `None` for ever.
    pub duration: Option<Duration>,
    /// When to ask the server for more (option 58), and when to ask anybody (option 59).
    pub renew: Duration,
    /// See `renew`.
    pub rebind: Duration,
}

impl Lease {
    /// Reads the options of an offer or acknowledgement of `address`. `None` where the address cannot be ours.
    pub fn read(address: Ipv4Addr, options: &DhcpOptions) -> Option<Lease> {
        let [first, ..] = address.octets();
        if first == 0 || first == 127 || first >= 224 {
            return None;
        }
        let mut lease = Lease {
            address: Some(address),
            prefix: class_prefix(address),
            duration: Some(UNSAID),
            ..Lease::default()
        };
        let mut routers = Vec::new();
        let mut classless = None;
        let mut domain = None;
        let mut timers = (None, None);
        for (_, option) in options.iter() {
            match option {
                DhcpOption::SubnetMask(mask) => {
                    if let Some(prefix) = prefix_of_mask(*mask).filter(|p| *p > 0) {
                        lease.prefix = prefix;
                    }
                }
                DhcpOption::Router(list) => routers = usable(list),
                DhcpOption::ClasslessStaticRoute(list) => classless = Some(list),
                DhcpOption::DomainNameServer(list) => lease.nameservers = usable(list),
                DhcpOption::NtpServers(list) => lease.ntp = usable(list),
                DhcpOption::DomainName(name) => domain = host_name(name),
                DhcpOption::DomainSearch(names) => {
                    let names = names.iter().take(MOST);
                    lease.search = names.filter_map(|n| host_name(&n.to_string())).collect();
                }
                DhcpOption::Hostname(name) => lease.hostname = host_name(name),
                // RFC 791: every network carries 576 bytes; less is a mistake that breaks TLS.
                DhcpOption::InterfaceMtu(mtu) if *mtu >= 576 => lease.mtu = Some(u32::from(*mtu)),
                DhcpOption::ServerIdentifier(server) => lease.server = Some(*server),
                DhcpOption::AddressLeaseTime(u32::MAX) => lease.duration = None,
                DhcpOption::AddressLeaseTime(s) => lease.duration = Some(seconds(*s).max(SHORTEST)),
                DhcpOption::Renewal(s) => timers.0 = Some(seconds(*s)),
                DhcpOption::Rebinding(s) => timers.1 = Some(seconds(*s)),
                _ => {}
            }
        }
        if lease.search.is_empty() {
            lease.search.extend(domain);
        }
        // RFC 3442: with classless routes the routers are ignored, even where they name no default.
        let raw: Vec<Route> = match classless.filter(|list| !list.is_empty()) {
            Some(list) => list
                .iter()
                .take(MOST)
                .map(|(n, g)| route(n.network(), n.prefix_len(), *g))
                .collect(),
            None => routers
                .first()
                .map(|g| route(Ipv4Addr::UNSPECIFIED, 0, *g))
                .into_iter()
                .collect(),
        };
        lease.routes = order_routes(raw, address, lease.prefix);
        lease.set_timers(timers.0, timers.1);
        Some(lease)
    }

    /// RFC 2131, 4.4.5: half and seven eighths of the lease, where the server says nothing that makes sense.
    fn set_timers(&mut self, renew: Option<Duration>, rebind: Option<Duration>) {
        let whole = self.duration.unwrap_or(Duration::MAX);
        self.rebind = rebind
            .filter(|t| *t < whole && !t.is_zero())
            .unwrap_or_else(|| whole / 8 * 7);
        self.renew = renew
            .filter(|t| *t < self.rebind && *t >= SHORTEST / 2)
            .unwrap_or_else(|| (whole / 2).min(self.rebind));
    }

    /// Whether there is a way out of the own network.
    pub fn has_default_route(&self) -> bool {
        self.routes.iter().any(|r| r.prefix == 0)
    }
}

/// The code of every option that [`Lease::read`] understands, in the order in which we ask for them: RFC 3442
/// wants classless routes before routers.
pub const ASKED: [OptionCode; 12] = [
    OptionCode::SubnetMask,
    OptionCode::ClasslessStaticRoute,
    OptionCode::Router,
    OptionCode::DomainNameServer,
    OptionCode::Hostname,
    OptionCode::DomainName,
    OptionCode::DomainSearch,
    OptionCode::InterfaceMtu,
    OptionCode::NtpServers,
    OptionCode::AddressLeaseTime,
    OptionCode::Renewal,
    OptionCode::Rebinding,
];

fn seconds(count: u32) -> Duration {
    Duration::from_secs(u64::from(count))
}

fn usable(list: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
    list.iter()
        .copied()
        .filter(|a| !a.is_unspecified() && !a.is_broadcast())
        .take(MOST)
        .collect()
}

fn route(network: Ipv4Addr, prefix: u8, gateway: Ipv4Addr) -> Route {
    Route {
        network,
        prefix,
        // RFC 3442: gateway 0.0.0.0 means that the network is on the link.
        gateway: Some(gateway).filter(|g| !g.is_unspecified()),
        onlink: false,
    }
}

/// Routes on the link first, then by gateways, the default last: the kernel wants a gateway's own network to be
/// known. Where no network holds it (clouds grant /32 addresses), it is declared to be on the link.
pub(super) fn order_routes(mut routes: Vec<Route>, address: Ipv4Addr, prefix: u8) -> Vec<Route> {
    routes.sort_by_key(|r| (r.gateway.is_some(), r.prefix == 0));
    let mut on_link = vec![(address, prefix)];
    on_link.extend(
        routes
            .iter()
            .filter(|r| r.gateway.is_none())
            .map(|r| (r.network, r.prefix)),
    );
    for route in &mut routes {
        if let Some(gateway) = route.gateway {
            route.onlink = !on_link.iter().any(|(n, p)| holds(*n, *p, gateway));
        }
    }
    routes
}

fn holds(network: Ipv4Addr, prefix: u8, address: Ipv4Addr) -> bool {
    let mask = u32::MAX
        .checked_shl(32u32.saturating_sub(u32::from(prefix)))
        .unwrap_or(0);
    (u32::from(network) ^ u32::from(address)) & mask == 0
}

/// A name that may stand in resolv.conf or be a host name: what the server says ends up in files and on consoles.
fn host_name(text: &str) -> Option<String> {
    let name = text.trim_matches(['\0', '.', ' ']);
    let good = !name.is_empty()
        && name.len() <= 253
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    good.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 1);

    fn read(options: Vec<DhcpOption>) -> Lease {
        Lease::read(ADDRESS, &options.into_iter().collect()).unwrap()
    }

    /// Option 121 as it comes over the wire.
    fn classless(bytes: &[u8]) -> DhcpOption {
        use dhcproto::Decodable as _;
        let mut option = vec![121, u8::try_from(bytes.len()).unwrap()];
        option.extend_from_slice(bytes);
        option.push(255);
        DhcpOption::decode(&mut dhcproto::Decoder::new(&option)).unwrap()
    }

    #[test]
    fn the_usual_options() {
        let lease = read(vec![
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
            DhcpOption::Router(vec![GATEWAY, Ipv4Addr::new(10, 1, 2, 2)]),
            DhcpOption::DomainNameServer(vec![Ipv4Addr::new(10, 1, 2, 53), Ipv4Addr::UNSPECIFIED]),
            DhcpOption::DomainName("lab.example.\0".into()),
            DhcpOption::Hostname("node7".into()),
            DhcpOption::InterfaceMtu(1400),
            DhcpOption::ServerIdentifier(GATEWAY),
            DhcpOption::AddressLeaseTime(3600),
            DhcpOption::NtpServers(vec![GATEWAY]),
        ]);
        assert_eq!(lease.prefix, 24);
        assert_eq!(lease.routes, [route(Ipv4Addr::UNSPECIFIED, 0, GATEWAY)]);
        assert!(lease.has_default_route());
        assert_eq!(lease.nameservers, [Ipv4Addr::new(10, 1, 2, 53)]);
        assert_eq!(lease.search, ["lab.example"]);
        assert_eq!(lease.hostname.as_deref(), Some("node7"));
        assert_eq!(lease.mtu, Some(1400));
        assert_eq!(lease.duration, Some(Duration::from_secs(3600)));
        assert_eq!(lease.renew, Duration::from_secs(1800));
        assert_eq!(lease.rebind, Duration::from_secs(3150));
        assert_eq!(lease.ntp, [GATEWAY]);
    }

    #[test]
    fn classless_routes_take_the_place_of_routers() {
        let lease = read(vec![
            DhcpOption::SubnetMask(Ipv4Addr::BROADCAST),
            DhcpOption::Router(vec![Ipv4Addr::new(10, 9, 9, 9)]),
            classless(&[
                0, 10, 1, 2, 1, // default by the gateway
                32, 10, 1, 2, 1, 0, 0, 0, 0, // the gateway on the link
                16, 192, 168, 10, 1, 7, 7, // 192.168.0.0/16
            ]),
        ]);
        assert_eq!(lease.prefix, 32);
        let on_link = route(GATEWAY, 32, Ipv4Addr::UNSPECIFIED);
        let far = Route {
            onlink: true,
            ..route(
                Ipv4Addr::new(192, 168, 0, 0),
                16,
                Ipv4Addr::new(10, 1, 7, 7),
            )
        };
        let default = route(Ipv4Addr::UNSPECIFIED, 0, GATEWAY);
        assert_eq!(lease.routes, [on_link, far, default]);
    }

    #[test]
    fn a_router_outside_of_a_slash_32_is_declared_on_link() {
        let lease = read(vec![
            DhcpOption::SubnetMask(Ipv4Addr::BROADCAST),
            DhcpOption::Router(vec![GATEWAY]),
        ]);
        assert!(lease.routes[0].onlink);
    }

    #[test]
    fn nonsense_is_left_out() {
        let lease = read(vec![
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 0, 255, 0)),
            DhcpOption::Hostname("a b;\nreboot".into()),
            DhcpOption::DomainName("x\nnameserver 6.6.6.6".into()),
            DhcpOption::InterfaceMtu(68),
            DhcpOption::AddressLeaseTime(0),
            DhcpOption::Renewal(5000),
            DhcpOption::Rebinding(0),
        ]);
        assert_eq!((lease.prefix, lease.hostname, lease.mtu), (8, None, None));
        assert!(lease.search.is_empty());
        assert_eq!(lease.duration, Some(SHORTEST));
        assert!(lease.renew < lease.rebind && lease.rebind < SHORTEST);
        for address in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            let none = DhcpOptions::new();
            assert_eq!(Lease::read(address.parse().unwrap(), &none), None);
        }
    }

    #[test]
    fn a_lease_for_ever_is_never_renewed_within_a_lifetime() {
        let lease = read(vec![DhcpOption::AddressLeaseTime(u32::MAX)]);
        assert_eq!(lease.duration, None);
        assert!(lease.renew > Duration::from_secs(100 * 365 * 86400));
    }

    #[test]
    fn which_network_holds_an_address() {
        assert!(holds(ADDRESS, 24, GATEWAY) && !holds(ADDRESS, 32, GATEWAY));
        assert!(holds(ADDRESS, 0, Ipv4Addr::BROADCAST));
    }
}
