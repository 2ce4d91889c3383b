//! DHCP messages (RFC 2131, section 2): what we send, and which of what arrives is an answer to it.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, DhcpOptions, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable as _, Decoder, Encodable as _};

use super::arguments::Mac;
use super::lease::{ASKED, Lease};

/// Fixed fields and the magic cookie.
const HEADER: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];

/// RFC 951 and 1542: relays and servers of old drop shorter ones.
const SHORTEST: usize = 300;

/// The largest answer that we take: an Ethernet frame.
const LONGEST: u16 = 1500;

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It offers a lease.
    Offer(Lease),
    /// It grants the lease.
    Ack(Lease),
    /// It refuses: the address is not, or no longer, ours.
    Nak {
        /// Who.
        server: Option<Ipv4Addr>,
    },
}

/// What all our messages have in common.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// Our hardware address.
    pub mac: Mac,
    /// Number of this exchange.
    pub xid: u32,
    /// Seconds since the exchange began; servers and relays look at it.
    pub seconds: u16,
}

impl Sender {
    /// Who offers an address?
    pub fn discover(&self) -> Vec<u8> {
        self.encode(MessageType::Discover, Ipv4Addr::UNSPECIFIED, &[])
    }

    /// I take this offer.
    pub fn request(&self, offer: &Lease) -> Vec<u8> {
        let mut options = Vec::new();
        options.extend(offer.address.map(DhcpOption::RequestedIpAddress));
        options.extend(offer.server.map(DhcpOption::ServerIdentifier));
        self.encode(MessageType::Request, Ipv4Addr::UNSPECIFIED, &options)
    }

    /// I want to keep my address.
    pub fn renew(&self, address: Ipv4Addr) -> Vec<u8> {
        self.encode(MessageType::Request, address, &[])
    }

    fn encode(&self, kind: MessageType, own: Ipv4Addr, more: &[DhcpOption]) -> Vec<u8> {
        let zero = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(self.xid, own, zero, zero, zero, &self.mac);
        message.set_secs(self.seconds);
        // The client identifier that iPXE uses by default, hardware type and address: with another one the server
        // would take us for another machine and give us a second address.
        let mut id = vec![1];
        id.extend_from_slice(&self.mac);
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::ClientIdentifier(id));
        options.insert(DhcpOption::ClassIdentifier(b"ironroot".to_vec()));
        options.insert(DhcpOption::MaxMessageSize(LONGEST));
        options.insert(DhcpOption::ParameterRequestList(ASKED.to_vec()));
        for option in more {
            options.insert(option.clone());
        }
        // Only a text longer than an option holds could fail, and there is none.
        let mut bytes = message.to_vec().unwrap_or_default();
        bytes.resize(bytes.len().max(SHORTEST), 0);
        bytes
    }

    /// Reads what arrived; `None` for what does not answer this exchange of this interface.
    pub fn read(&self, packet: &[u8]) -> Option<Reply> {
        let (header, rest) = packet.split_at_checked(HEADER)?;
        // The crate takes any length of the hardware address from the packet, and panics on it later.
        let ethernet = header.get(1..3)? == [1, 6];
        if !ethernet || header.get(HEADER - 4..)? != COOKIE {
            return None;
        }
        let message = Message::decode(&mut Decoder::new(header)).ok()?;
        if message.opcode() != Opcode::BootReply
            || message.xid() != self.xid
            || message.chaddr() != self.mac
        {
            return None;
        }
        let options = read_options(rest);
        let lease = || Lease::read(message.yiaddr(), &options);
        match options.msg_type()? {
            MessageType::Offer => Some(Reply::Offer(lease()?)),
            MessageType::Ack => Some(Reply::Ack(lease()?)),
            MessageType::Nak => Some(Reply::Nak {
                server: match options.get(OptionCode::ServerIdentifier) {
                    Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
                    _ => None,
                },
            }),
            _ => None,
        }
    }
}

/// Decodes the options that we know, each by itself: an odd one costs nothing but itself, and the crate never sees
/// an option that we did not ask for. Parts of a long option are joined (RFC 3396).
fn read_options(mut rest: &[u8]) -> DhcpOptions {
    let mut parts: Vec<(u8, Vec<u8>)> = Vec::new();
    while let Some((&code, after)) = rest.split_first() {
        rest = after;
        if code == 0 {
            continue;
        }
        let Some((&length, after)) = after.split_first().filter(|_| code != 255) else {
            break;
        };
        let Some((value, after)) = after.split_at_checked(usize::from(length)) else {
            break;
        };
        rest = after;
        let known = OptionCode::from(code);
        let wanted = ASKED.contains(&known)
            || matches!(
                known,
                OptionCode::MessageType | OptionCode::ServerIdentifier
            );
        if !wanted {
            continue;
        }
        match parts.iter_mut().find(|(c, _)| *c == code) {
            Some((_, joined)) => joined.extend_from_slice(value),
            None => parts.push((code, value.to_vec())),
        }
    }
    parts
        .iter()
        .filter_map(|(code, value)| {
            // As its encoder would write it: pieces of 255 bytes, and an end.
            let mut bytes = Vec::new();
            for piece in value.chunks(255) {
                bytes.extend([*code, u8::try_from(piece.len()).unwrap_or(u8::MAX)]);
                bytes.extend_from_slice(piece);
            }
            bytes.push(255);
            DhcpOption::decode(&mut Decoder::new(&bytes)).ok()
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    pub(crate) const MAC: Mac = [0x52, 0x54, 0, 1, 2, 3];
    const SENDER: Sender = Sender {
        mac: MAC,
        xid: 0x1234_5678,
        seconds: 7,
    };

    /// What a server would answer to `request`.
    pub(crate) fn answer(
        request: &[u8],
        kind: MessageType,
        address: Ipv4Addr,
        options: &[DhcpOption],
    ) -> Vec<u8> {
        let request = Message::decode(&mut Decoder::new(request)).unwrap();
        let zero = Ipv4Addr::UNSPECIFIED;
        let mut message =
            Message::new_with_id(request.xid(), zero, address, zero, zero, request.chaddr());
        message.set_opcode(Opcode::BootReply);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        for option in options {
            message.opts_mut().insert(option.clone());
        }
        message.to_vec().unwrap()
    }

    fn decode(bytes: &[u8]) -> Message {
        Message::decode(&mut Decoder::new(bytes)).unwrap()
    }

    #[test]
    fn a_discover_says_who_we_are_and_what_we_want() {
        let bytes = SENDER.discover();
        assert!(bytes.len() >= SHORTEST);
        let message = decode(&bytes);
        assert_eq!(message.opts().msg_type(), Some(MessageType::Discover));
        assert_eq!((message.xid(), message.secs()), (0x1234_5678, 7));
        assert_eq!(message.chaddr(), MAC);
        assert!(!message.flags().broadcast());
        assert_eq!(
            message.opts().get(OptionCode::ClientIdentifier),
            Some(&DhcpOption::ClientIdentifier(vec![
                1, 0x52, 0x54, 0, 1, 2, 3
            ]))
        );
        assert_eq!(
            message.opts().get(OptionCode::ClassIdentifier),
            Some(&DhcpOption::ClassIdentifier(b"ironroot".to_vec()))
        );
    }

    #[test]
    fn a_request_names_offer_and_server_a_renewal_only_its_address() {
        let offer = Lease {
            address: Some(Ipv4Addr::new(10, 0, 0, 9)),
            server: Some(Ipv4Addr::new(10, 0, 0, 1)),
            ..Lease::default()
        };
        let message = decode(&SENDER.request(&offer));
        assert_eq!(message.ciaddr(), Ipv4Addr::UNSPECIFIED);
        assert!(message.opts().contains(OptionCode::RequestedIpAddress));
        assert!(message.opts().contains(OptionCode::ServerIdentifier));
        let message = decode(&SENDER.renew(Ipv4Addr::new(10, 0, 0, 9)));
        assert_eq!(message.ciaddr(), Ipv4Addr::new(10, 0, 0, 9));
        assert!(!message.opts().contains(OptionCode::RequestedIpAddress));
        assert!(!message.opts().contains(OptionCode::ServerIdentifier));
    }

    #[test]
    fn only_answers_to_this_exchange_of_this_interface_count() {
        let address = Ipv4Addr::new(10, 0, 0, 9);
        let good = answer(&SENDER.discover(), MessageType::Offer, address, &[]);
        assert!(matches!(SENDER.read(&good), Some(Reply::Offer(_))));
        let other_xid = Sender { xid: 1, ..SENDER };
        assert_eq!(other_xid.read(&good), None);
        let other_mac = Sender {
            mac: [0; 6],
            ..SENDER
        };
        assert_eq!(other_mac.read(&good), None);
        assert_eq!(SENDER.read(&SENDER.discover()), None);
        // A hardware address longer than its field.
        let mut evil = good.clone();
        evil[2] = 200;
        assert_eq!(SENDER.read(&evil), None);
        let mut no_cookie = good.clone();
        no_cookie[236] = 0;
        assert_eq!(SENDER.read(&no_cookie), None);
        let no_address = answer(
            &SENDER.discover(),
            MessageType::Ack,
            Ipv4Addr::UNSPECIFIED,
            &[],
        );
        assert_eq!(SENDER.read(&no_address), None);
    }

    #[test]
    fn an_odd_option_costs_only_itself_and_long_ones_are_joined() {
        let mut bytes = answer(
            &SENDER.discover(),
            MessageType::Offer,
            Ipv4Addr::new(10, 0, 0, 9),
            &[],
        );
        bytes.truncate(HEADER);
        let name = b"a.very.long.domain.name.example";
        bytes.extend([53, 1, 2]); // OFFER
        bytes.extend([12, 4, 0xff, 0xfe, 0xfd, 0xfc]); // a host name that is no UTF-8
        bytes.extend([51, 2, 0, 1]); // a lease time of two bytes
        bytes.extend([81, 0]); // an FQDN without its three fixed bytes
        bytes.extend([151, 0]); // a status code without a code
        for piece in name.chunks(10) {
            bytes.extend([15, u8::try_from(piece.len()).unwrap()]);
            bytes.extend_from_slice(piece);
        }
        bytes.extend([1, 4, 255, 255, 0, 0, 6, 200, 1]); // a mask, then DNS servers cut short
        let Some(Reply::Offer(lease)) = SENDER.read(&bytes) else {
            panic!("no offer");
        };
        assert_eq!(lease.search, ["a.very.long.domain.name.example"]);
        assert_eq!(lease.prefix, 16);
        assert_eq!(lease.duration, Some(Duration::from_secs(3600)));
    }

    proptest! {
        #[test]
        fn any_packet_is_read_without_a_panic(
            options in proptest::collection::vec(any::<u8>(), 0..300),
            code in any::<u8>(), value in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes =
                answer(&SENDER.discover(), MessageType::Offer, Ipv4Addr::new(10, 0, 0, 9), &[]);
            bytes.truncate(HEADER);
            let mut one = bytes.clone();
            bytes.extend_from_slice(&options);
            let _ = SENDER.read(&bytes);
            let _ = SENDER.read(&options);
            one.extend([53, 1, 2]);
            for piece in value.chunks(255) {
                one.extend([code, u8::try_from(piece.len()).unwrap()]);
                one.extend_from_slice(piece);
            }
            let _ = SENDER.read(&one);
        }
    }
}
