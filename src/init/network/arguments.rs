//! What the kernel command line says about the network, pure.
//!
//! The forms of `ip=` are the kernel's (Documentation/admin-guide/nfs/nfsroot.rst) and dracut's
//! (dracut.cmdline(7), "Network"); where they differ, a field tells by its content which one it is.

use std::net::{IpAddr, Ipv4Addr};

use crate::config::cmdline::Cmdline;
use crate::error::printable;

/// A hardware address.
pub type Mac = [u8; 6];

/// What is wanted of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `ip=off` or `ip=none`: leave the network alone.
    pub off: bool,
    /// One for each `ip=` that configures something. None: DHCP everywhere.
    pub rules: Vec<Rule>,
    /// `nameserver=`; these come before any that DHCP names.
    pub nameservers: Vec<IpAddr>,
    /// `BOOTIF=`: the interface that the machine was booted from. It comes first; the others still count.
    pub boot_mac: Option<Mac>,
    /// What was asked for and is not carried out.
    pub warnings: Vec<String>,
}

/// One `ip=`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The interface; `None` for any.
    pub interface: Option<String>,
    /// The address to take; `None` for DHCP.
    pub fixed: Option<Fixed>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Host name.
    pub hostname: Option<String>,
    /// Name servers.
    pub nameservers: Vec<Ipv4Addr>,
}

/// An address without DHCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The address.
    pub address: Ipv4Addr,
    /// Prefix length of its network.
    pub prefix: u8,
    /// Default gateway.
    pub gateway: Option<Ipv4Addr>,
}

impl Wanted {
    /// Reads `ip=`, `nameserver=` and `BOOTIF=`, and names what is not carried out.
    pub fn of(cmdline: &Cmdline) -> Wanted {
        let mut wanted = Wanted::default();
        for value in cmdline.all("ip") {
            match parse_ip(value) {
                Ip::Off => wanted.off = true,
                Ip::Rule(rule) => wanted.rules.push(rule),
                Ip::DhcpInstead => {
                    wanted.warn(format!(
                        "ip={} is not supported in this version; DHCP for IPv4 is used",
                        printable(value)
                    ));
                    wanted.rules.push(Rule::default());
                }
                Ip::Unknown(why) => wanted.warn(format!(
                    "ip={} is not supported in this version: {why}; it is passed over",
                    printable(value)
                )),
            }
        }
        // Something to configure outweighs an `off` for the rest.
        wanted.off &= wanted.rules.is_empty();
        for value in cmdline.all("nameserver") {
            match value.trim_matches(['[', ']']).parse() {
                Ok(address) => wanted.nameservers.push(address),
                Err(_) => wanted.warn(format!(
                    "nameserver={} is not an address; it is passed over",
                    printable(value)
                )),
            }
        }
        if let Some(value) = cmdline.get("BOOTIF") {
            wanted.boot_mac = parse_bootif(value);
            if wanted.boot_mac.is_none() {
                wanted.warn(format!(
                    "BOOTIF={} is not a hardware address such as 01-52-54-00-12-34-56; it is passed over",
                    printable(value)
                ));
            }
        }
        for key in ["vlan", "bond", "team", "bridge", "ifname", "rd.route"] {
            for value in cmdline.all(key) {
                wanted.warn(format!(
                    "{key}={} is not supported in this version; it is passed over",
                    printable(value)
                ));
            }
        }
        wanted
    }

    fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }

    /// The rule for an interface: one that names it, else one for any. `None`: leave it alone.
    pub fn rule_for(&self, interface: &str) -> Option<Rule> {
        if self.rules.is_empty() {
            return (!self.off).then(Rule::default);
        }
        let named = |r: &&Rule| r.interface.as_deref() == Some(interface);
        self.rules
            .iter()
            .find(named)
            .or_else(|| self.rules.iter().find(|r| r.interface.is_none()))
            .cloned()
    }

    /// Whether the interface is named, and so configured whatever kind it is.
    pub fn names(&self, interface: &str) -> bool {
        self.rules
            .iter()
            .any(|r| r.interface.as_deref() == Some(interface))
    }
}

enum Ip {
    Off,
    Rule(Rule),
    DhcpInstead,
    Unknown(&'static str),
}

/// The last word of `ip=`.
fn method(word: &str) -> Option<Ip> {
    Some(match word {
        "" | "dhcp" | "on" | "any" | "both" | "bootp" | "dhcp4" => Ip::Rule(Rule::default()),
        "off" | "none" | "static" => Ip::Off,
        "dhcp6" | "auto6" | "either6" | "link6" | "link-local" | "ibft" | "rarp" => Ip::DhcpInstead,
        _ => return None,
    })
}

fn parse_ip(value: &str) -> Ip {
    if value.contains('[') {
        return Ip::Unknown("IPv6 addresses cannot be set yet");
    }
    let fields: Vec<&str> = value.split(':').collect();
    let field = |n: usize| fields.get(n).copied().unwrap_or_default();
    if fields.len() == 1 {
        return method(value).unwrap_or_else(|| match value.parse() {
            // The kernel takes a bare address with the mask of its class.
            Ok(address) => Ip::Rule(Rule {
                fixed: Some(Fixed {
                    address,
                    prefix: class_prefix(address),
                    gateway: None,
                }),
                ..Rule::default()
            }),
            Err(_) => Ip::Unknown("neither a method nor an address"),
        });
    }
    // interface:method[:mtu[:mac]]
    if fields.len() <= 9
        && field(0).parse::<Ipv4Addr>().is_err()
        && !field(0).is_empty()
        && !field(1).is_empty()
        && let Some(found) = method(field(1))
    {
        let interface = name(field(0));
        return match found {
            Ip::Rule(rule) => Ip::Rule(Rule {
                interface,
                mtu: field(2).parse().ok(),
                ..rule
            }),
            // This one interface off, the others as they would be.
            Ip::Off => Ip::Unknown("one interface cannot be switched off alone"),
            other => other,
        };
    }
    long_form(&field)
}

/// `client:server:gateway:mask:host:interface:method[:dns0[:dns1[:ntp]]]`, or dracut's `[:mtu[:mac]]` at the end.
fn long_form<'a>(field: &impl Fn(usize) -> &'a str) -> Ip {
    let Some(found) = method(field(6)) else {
        return Ip::Unknown("its method is unknown");
    };
    let mut rule = Rule {
        interface: name(field(5)),
        hostname: name(field(4)),
        nameservers: [field(7), field(8)]
            .iter()
            .filter_map(|f| f.parse().ok())
            .filter(|a: &Ipv4Addr| !a.is_unspecified())
            .collect(),
        mtu: field(7).parse().ok(),
        ..Rule::default()
    };
    let client = field(0);
    let dhcp_by_name = matches!(found, Ip::Rule(_)) && !field(6).is_empty();
    match found {
        Ip::DhcpInstead => return Ip::DhcpInstead,
        _ if client.is_empty() && matches!(found, Ip::Off) => return Ip::Off,
        _ if client.is_empty() || dhcp_by_name => return Ip::Rule(rule),
        _ => {}
    }
    let Ok(address) = client.parse() else {
        return Ip::Unknown("its first field is no IPv4 address");
    };
    let prefix = match field(3) {
        "" => class_prefix(address),
        mask => match parse_mask(mask) {
            Some(prefix) => prefix,
            None => return Ip::Unknown("its mask is neither 255.255.255.0 nor 24"),
        },
    };
    let gateway = match field(2) {
        "" => None,
        text => match text.parse::<Ipv4Addr>() {
            Ok(gateway) => Some(gateway).filter(|g| !g.is_unspecified()),
            Err(_) => return Ip::Unknown("its gateway is no IPv4 address"),
        },
    };
    rule.fixed = Some(Fixed {
        address,
        prefix,
        gateway,
    });
    Ip::Rule(rule)
}

fn name(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// `24`, or `255.255.255.0`.
fn parse_mask(text: &str) -> Option<u8> {
    if let Ok(prefix) = text.parse::<u8>() {
        return (prefix <= 32).then_some(prefix);
    }
    prefix_of_mask(text.parse().ok()?)
}

/// The prefix length of a mask; `None` where its ones are not all in front.
pub(super) fn prefix_of_mask(mask: Ipv4Addr) -> Option<u8> {
    let bits = u32::from(mask);
    let ones = bits.leading_ones();
    (ones
        .checked_add(bits.trailing_zeros())
        .is_some_and(|n| n >= 32))
    .then(|| u8::try_from(ones).unwrap_or(32))
}

/// What the address's class would have, where nobody says.
pub(super) fn class_prefix(address: Ipv4Addr) -> u8 {
    match address.octets() {
        [0..=127, ..] => 8,
        [128..=191, ..] => 16,
        _ => 24,
    }
}

/// `01-52-54-00-12-34-56` as pxelinux and iPXE write it: hardware type, then the address; `:` does as well,
/// and the type may be missing.
fn parse_bootif(value: &str) -> Option<Mac> {
    let bytes: Vec<u8> = value
        .split(['-', ':'])
        .map(|part| u8::from_str_radix(part, 16))
        .collect::<Result<_, _>>()
        .ok()?;
    // Hardware type 1 is Ethernet.
    let address = match bytes.as_slice() {
        [1, address @ ..] if address.len() == 6 => address,
        address => address,
    };
    Mac::try_from(address).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Wanted {
        Wanted::of(&Cmdline::parse(text))
    }

    fn only(text: &str) -> Rule {
        let wanted = of(text);
        assert_eq!(wanted.warnings, [""; 0], "{text}");
        assert_eq!(wanted.rules.len(), 1, "{text}");
        wanted.rules[0].clone()
    }

    #[test]
    fn without_a_word_every_interface_gets_dhcp() {
        let wanted = of("quiet console=tty0");
        assert_eq!(wanted, Wanted::default());
        assert_eq!(wanted.rule_for("eth0"), Some(Rule::default()));
        for word in ["dhcp", "on", "any"] {
            assert_eq!(
                of(&format!("ip={word}")).rule_for("eth7"),
                Some(Rule::default())
            );
        }
    }

    #[test]
    fn off_means_off_unless_something_else_is_asked_for() {
        for word in ["ip=off", "ip=none", "ip=:::::eth0:none", "ip=::::::off"] {
            let wanted = of(word);
            assert!(wanted.off, "{word}");
            assert_eq!(wanted.rule_for("eth0"), None, "{word}");
        }
        assert!(!of("ip=none ip=eth1:dhcp").off);
    }

    #[test]
    fn a_fixed_address_in_the_kernels_form() {
        let rule = only("ip=10.1.2.3::10.1.2.1:255.255.255.0:node7:eth1:none:10.0.0.53:10.0.0.54");
        assert_eq!(
            rule,
            Rule {
                interface: Some("eth1".into()),
                fixed: Some(Fixed {
                    address: Ipv4Addr::new(10, 1, 2, 3),
                    prefix: 24,
                    gateway: Some(Ipv4Addr::new(10, 1, 2, 1)),
                }),
                mtu: None,
                hostname: Some("node7".into()),
                nameservers: vec![Ipv4Addr::new(10, 0, 0, 53), Ipv4Addr::new(10, 0, 0, 54)],
            }
        );
        let wanted = of("ip=10.1.2.3::10.1.2.1:24::eth1:off");
        assert_eq!(wanted.rule_for("eth1").unwrap().fixed.unwrap().prefix, 24);
        assert_eq!(wanted.rule_for("eth0"), None);
        assert!(wanted.names("eth1") && !wanted.names("eth0"));
    }

    #[test]
    fn a_fixed_address_without_method_mask_or_interface() {
        let rule = only("ip=192.168.7.9::192.168.7.1");
        let fixed = rule.fixed.unwrap();
        assert_eq!((fixed.prefix, rule.interface), (24, None));
        assert_eq!(only("ip=10.9.8.7").fixed.unwrap().prefix, 8);
    }

    #[test]
    fn dracuts_forms() {
        assert_eq!(
            only("ip=eth2:dhcp:9000"),
            Rule {
                interface: Some("eth2".into()),
                mtu: Some(9000),
                ..Rule::default()
            }
        );
        assert_eq!(
            only("ip=::::node1:eth0:dhcp").hostname.as_deref(),
            Some("node1")
        );
        assert_eq!(
            only("ip=10.0.0.1::10.0.0.254:20::eth0:none:1400").mtu,
            Some(1400)
        );
        assert_eq!(only("ip=10.0.0.1::10.0.0.254:20::eth0:dhcp").fixed, None);
        let both = of("ip=dhcp ip=10.0.0.1:::20::eth0:none");
        assert!(both.rule_for("eth0").unwrap().fixed.is_some());
        assert!(both.rule_for("eth1").unwrap().fixed.is_none());
    }

    #[test]
    fn what_is_not_carried_out_is_named() {
        for word in [
            "ip=dhcp6",
            "ip=auto6",
            "ip=eth0:dhcp6",
            "ip=[2001:db8::1]::[2001:db8::2]:64::eth0:none",
            "ip=10.0.0.1::x:24::eth0:none",
            "ip=10.0.0.1:::255.0.255.0::eth0:none",
            "ip=a:b:c:d:e:f:g",
            "vlan=vlan5:eth0",
            "bond=bond0:eth0,eth1",
            "rd.route=10.0.0.0/8:10.1.1.1",
            "ifname=x:52:54:0:0:0:1",
            "nameserver=dns.example",
            "BOOTIF=nonsense",
        ] {
            let wanted = of(word);
            assert_eq!(wanted.warnings.len(), 1, "{word}");
            let key = word.split('=').next().unwrap();
            assert!(wanted.warnings[0].starts_with(key), "{:?}", wanted.warnings);
        }
        // The machine still gets a chance to reach its config.
        assert_eq!(of("ip=dhcp6").rule_for("eth0"), Some(Rule::default()));
        assert_eq!(
            of("ip=[2001:db8::1]:::64::eth0:none").rule_for("eth0"),
            Some(Rule::default())
        );
    }

    #[test]
    fn bootif_and_nameservers() {
        let wanted = of("BOOTIF=01-52-54-00-ab-CD-ef nameserver=10.0.0.1 nameserver=[fd00::1]");
        assert_eq!(wanted.boot_mac, Some([0x52, 0x54, 0, 0xab, 0xcd, 0xef]));
        assert_eq!(wanted.nameservers.len(), 2);
        assert_eq!(of("BOOTIF=52:54:00:ab:cd:ef").boot_mac, wanted.boot_mac);
    }

    #[test]
    fn masks() {
        assert_eq!(prefix_of_mask(Ipv4Addr::new(255, 255, 240, 0)), Some(20));
        assert_eq!(prefix_of_mask(Ipv4Addr::UNSPECIFIED), Some(0));
        assert_eq!(prefix_of_mask(Ipv4Addr::BROADCAST), Some(32));
        assert_eq!(prefix_of_mask(Ipv4Addr::new(255, 0, 255, 0)), None);
    }

    proptest! {
        #[test]
        fn any_words_parse_without_a_panic(value in "[0-9a-z:.\\[\\]-]{0,60}") {
            let _ = of(&format!("ip={value} BOOTIF={value} nameserver={value}"));
        }
    }
}
