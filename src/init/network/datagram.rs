//! UDP in IPv4 by hand, for an interface that has no address yet (RFC 791, RFC 768).

use std::net::Ipv4Addr;

const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;

/// One datagram with both headers and checksums; `None` where it is longer than a packet may be.
pub fn build(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Option<Vec<u8>> {
    let udp_length = u16::try_from(payload.len().checked_add(UDP_HEADER)?).ok()?;
    let total = udp_length.checked_add(u16::try_from(IP_HEADER).ok()?)?;

    let mut udp = Vec::with_capacity(usize::from(total));
    udp.extend(from.1.to_be_bytes());
    udp.extend(to.1.to_be_bytes());
    udp.extend(udp_length.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend_from_slice(payload);
    let mut pseudo = Vec::with_capacity(12);
    pseudo.extend(from.0.octets());
    pseudo.extend(to.0.octets());
    pseudo.extend([0, UDP]);
    pseudo.extend(udp_length.to_be_bytes());
    // Zero would mean "no checksum"; its other form stands for it.
    let sum = match checksum(&[&pseudo, &udp]) {
        0 => u16::MAX,
        sum => sum,
    };
    put(&mut udp, 6, sum);

    let mut packet = vec![0x45, 0x10];
    packet.extend(total.to_be_bytes());
    // Identification 0 and "do not fragment"; 64 hops.
    packet.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    packet.extend(from.0.octets());
    packet.extend(to.0.octets());
    let sum = checksum(&[&packet]);
    put(&mut packet, 10, sum);
    packet.extend(udp);
    Some(packet)
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
        *place = value.to_be_bytes();
    }
}

/// The payload of a whole UDP datagram to `port`. The UDP checksum is not looked at: within one machine (a virtual
/// machine and its host) it is left to hardware that does not exist.
pub fn payload(packet: &[u8], port: u16) -> Option<&[u8]> {
    let header = usize::from(packet.first()? & 0xf).checked_mul(4)?;
    let total = usize::from(u16_at(packet, 2)?);
    let packet = packet.get(..total)?;
    let ip = packet.get(..header)?;
    let fragment = u16_at(ip, 6)? & 0x3fff;
    if ip.first()? >> 4 != 4
        || header < IP_HEADER
        || *ip.get(9)? != UDP
        || fragment != 0
        || checksum(&[ip]) != 0
    {
        return None;
    }
    let udp = packet.get(header..)?;
    let length = usize::from(u16_at(udp, 4)?);
    if u16_at(udp, 2)? != port {
        return None;
    }
    udp.get(UDP_HEADER..length)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|b| u16::from_be_bytes(*b))
}

/// RFC 1071. All parts but the last have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            let high = pair.first().copied().unwrap_or(0);
            let low = pair.get(1).copied().unwrap_or(0);
            sum = sum.wrapping_add(u64::from(u16::from_be_bytes([high, low])));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff).wrapping_add(sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: Ipv4Addr = Ipv4Addr::BROADCAST;
    const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

    #[test]
    fn the_checksum_of_a_known_header() {
        // The example of RFC 1071, section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&[&bytes]), !0xddf2);
    }

    #[test]
    fn a_packet_has_valid_checksums() {
        let packet = build((NONE, 68), (ALL, 67), b"hello").unwrap();
        assert_eq!(packet.len(), 33);
        assert_eq!(checksum(&[&packet[..20]]), 0);
        let mut pseudo = [&NONE.octets()[..], &ALL.octets()[..]].concat();
        pseudo.extend([0, UDP, 0, 13]);
        assert_eq!(checksum(&[&pseudo, &packet[20..]]), 0);
        assert_eq!(build((NONE, 68), (ALL, 67), &vec![0; 65_510]), None);
    }

    proptest! {
        #[test]
        fn what_is_built_is_read(payload_in in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut packet = build((NONE, 67), (ALL, 68), &payload_in).unwrap();
            packet.extend([0; 9]); // Ethernet's padding
            prop_assert_eq!(payload(&packet, 68), Some(payload_in.as_slice()));
            prop_assert_eq!(payload(&packet, 69), None);
            prop_assert_eq!(payload(&packet[..27], 68), None);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = payload(&bytes, 68);
        }
    }
}
