use super::super::message::tests::{MAC, answer};
use super::*;
use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};
use dhcproto::{Decodable as _, Decoder};
use proptest::prelude::*;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn client() -> Client {
    Client::new(MAC, at(100), 42)
}

/// The only command, which must be a broadcast, and its kind.
fn sent(commands: &[Command]) -> (MessageType, Vec<u8>) {
    match commands {
        [Command::Broadcast { message, .. } | Command::Unicast { message, .. }] => {
            let decoded = Message::decode(&mut Decoder::new(message)).unwrap();
            (decoded.opts().msg_type().unwrap(), message.clone())
        }
        other => panic!("{other:?}"),
    }
}

fn reply(to: &[u8], kind: MessageType, server: Ipv4Addr, lease: u32) -> Vec<u8> {
    answer(
        to,
        kind,
        ADDRESS,
        &[
            DhcpOption::ServerIdentifier(server),
            DhcpOption::AddressLeaseTime(lease),
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        ],
    )
}

/// A client that got a lease of an hour at 100 s.
fn bound() -> Client {
    let mut client = client();
    let (_, discover) = sent(&client.tick(at(100)));
    let offer = reply(&discover, MessageType::Offer, SERVER, 3600);
    let (kind, request) = sent(&client.receive(at(100), &offer));
    assert_eq!(kind, MessageType::Request);
    let ack = reply(&request, MessageType::Ack, SERVER, 3600);
    let commands = client.receive(at(100), &ack);
    assert!(matches!(commands.as_slice(), [Command::Configure(l)] if l.address == Some(ADDRESS)));
    assert!(client.is_bound());
    assert_eq!(client.wake(), at(100 + 1800));
    client
}

#[test]
fn discovers_are_repeated_ever_less_often() {
    let mut client = client();
    let mut now = at(100);
    let mut waits = Vec::new();
    for _ in 0..9 {
        assert_eq!(sent(&client.tick(now)).0, MessageType::Discover);
        assert!(
            client.tick(now).is_empty(),
            "nothing is due before the wait is over"
        );
        waits.push(client.wake().saturating_sub(now).as_secs_f64());
        now = client.wake();
    }
    let expected = [4.0, 8.0, 16.0, 16.0, 16.0, 16.0, 64.0, 64.0, 64.0];
    for (wait, expected) in waits.iter().zip(expected) {
        assert!((wait - expected).abs() <= 1.0, "{waits:?}");
    }
    assert!(
        waits.iter().any(|w| w.fract() > 0.001),
        "no jitter: {waits:?}"
    );
    assert_eq!(client.tally().asked, 9);
}

#[test]
fn an_offer_without_answer_to_its_request_is_given_up() {
    let mut client = client();
    let (_, discover) = sent(&client.tick(at(100)));
    let offer = reply(&discover, MessageType::Offer, SERVER, 3600);
    let mut kinds = vec![sent(&client.receive(at(101), &offer)).0];
    for _ in 0..4 {
        kinds.push(sent(&client.tick(client.wake())).0);
    }
    assert_eq!(kinds[..4], [MessageType::Request; 4]);
    assert_eq!(kinds[4], MessageType::Discover);
}

#[test]
fn only_the_server_that_was_asked_grants_or_refuses() {
    let mut client = client();
    let (_, discover) = sent(&client.tick(at(100)));
    let offer = reply(&discover, MessageType::Offer, SERVER, 3600);
    let (_, request) = sent(&client.receive(at(100), &offer));
    let foreign = reply(&request, MessageType::Ack, OTHER, 3600);
    assert!(client.receive(at(100), &foreign).is_empty());
    let foreign = reply(&request, MessageType::Nak, OTHER, 3600);
    assert!(client.receive(at(100), &foreign).is_empty() && client.tally().naks == 0);
    let late_offer = reply(&discover, MessageType::Offer, OTHER, 3600);
    assert!(client.receive(at(100), &late_offer).is_empty());
    assert!(!client.is_bound());
    let good = reply(&request, MessageType::Ack, SERVER, 3600);
    assert_eq!(client.receive(at(100), &good).len(), 1);
}

#[test]
fn a_refusal_starts_again_with_a_new_exchange_and_growing_pauses() {
    let mut client = client();
    let mut now = at(100);
    let mut xids = Vec::new();
    for round in 0..3u32 {
        let (kind, discover) = sent(&client.tick(now));
        assert_eq!(kind, MessageType::Discover);
        let offer = reply(&discover, MessageType::Offer, SERVER, 3600);
        let (_, request) = sent(&client.receive(now, &offer));
        let nak = reply(&request, MessageType::Nak, SERVER, 3600);
        assert!(client.receive(now, &nak).is_empty());
        assert_eq!(client.tally().naks, round + 1);
        assert_eq!(client.wake(), now + at(1 << round));
        xids.push(Message::decode(&mut Decoder::new(&discover)).unwrap().xid());
        now = client.wake();
    }
    xids.dedup();
    assert_eq!(xids.len(), 3);
}

#[test]
fn a_lease_is_renewed_with_the_server_by_its_address() {
    let mut client = bound();
    assert!(client.tick(at(1899)).is_empty());
    let commands = client.tick(at(1900));
    let (kind, request) = sent(&commands);
    assert_eq!(kind, MessageType::Request);
    assert!(matches!(
        &commands[0],
        Command::Unicast {
            from: ADDRESS,
            to: SERVER,
            ..
        }
    ));
    let message = Message::decode(&mut Decoder::new(&request)).unwrap();
    assert_eq!(message.ciaddr(), ADDRESS);
    assert!(!message.opts().contains(OptionCode::ServerIdentifier));
    let ack = reply(&request, MessageType::Ack, SERVER, 3600);
    assert_eq!(client.receive(at(1901), &ack).len(), 1);
    assert_eq!(client.wake(), at(1901 + 1800));
}

#[test]
fn without_the_server_anybody_is_asked_and_at_the_end_the_address_goes() {
    let mut client = bound();
    let mut now = at(1900);
    let (mut unicasts, mut broadcasts) = (0, 0);
    let end = loop {
        let commands = client.tick(now);
        match &commands[..] {
            [Command::Unicast { .. }] => {
                assert!(now < at(100 + 3150));
                unicasts += 1;
            }
            [Command::Broadcast { from, .. }] => {
                assert!(now >= at(100 + 3150));
                assert_eq!(*from, ADDRESS);
                broadcasts += 1;
            }
            [Command::Deconfigure(_), Command::Broadcast { .. }] => break now,
            other => panic!("{other:?}"),
        }
        assert!(client.wake() > now);
        now = client.wake();
    };
    assert_eq!(end, at(100 + 3600));
    assert!((4..=10).contains(&unicasts) && (2..=6).contains(&broadcasts));
    assert!(!client.is_bound());
}

#[test]
fn a_refused_renewal_takes_the_address_away_at_once() {
    let mut client = bound();
    let (_, request) = sent(&client.tick(at(1900)));
    let foreign = reply(&request, MessageType::Nak, OTHER, 0);
    assert!(client.receive(at(1900), &foreign).is_empty());
    let nak = reply(&request, MessageType::Nak, SERVER, 0);
    assert!(matches!(
        client.receive(at(1900), &nak).as_slice(),
        [Command::Deconfigure(_)]
    ));
    assert_eq!(sent(&client.tick(at(1901))).0, MessageType::Discover);
}

#[test]
fn a_lease_for_ever_needs_nothing() {
    let mut client = client();
    let (_, discover) = sent(&client.tick(at(100)));
    let offer = reply(&discover, MessageType::Offer, SERVER, u32::MAX);
    let (_, request) = sent(&client.receive(at(100), &offer));
    let ack = reply(&request, MessageType::Ack, SERVER, u32::MAX);
    client.receive(at(100), &ack);
    assert!(client.tick(at(10 * 365 * 86400)).is_empty());
}

proptest! {
    /// Whatever a server does and whenever: no panic, no busy loop, and no address in use after a lease's end.
    #[test]
    fn any_server_is_survived(
        script in proptest::collection::vec((0u8..6, any::<bool>(), 0u32..5000, 0u64..3000), 0..60),
    ) {
        let mut client = client();
        let mut now = at(100);
        let mut last = Vec::new();
        let mut end: Option<Duration> = None;
        for (what, mine, lease, pause) in script {
            let mut commands = client.tick(now);
            let ticked = client.wake();
            prop_assert!(ticked > now, "something is due for ever");
            let server = if mine { SERVER } else { OTHER };
            let kind = [MessageType::Offer, MessageType::Ack, MessageType::Nak, MessageType::Discover]
                .get(usize::from(what)).copied();
            for command in &commands {
                if let Command::Broadcast { message, .. } | Command::Unicast { message, .. } = command {
                    last.clone_from(message);
                }
            }
            if let (Some(kind), false) = (kind, last.is_empty()) {
                commands.extend(client.receive(now, &reply(&last, kind, server, lease)));
            }
            for command in &commands {
                match command {
                    Command::Configure(lease) => end = lease.duration.map(|d| now + d),
                    Command::Deconfigure(_) => end = None,
                    Command::Broadcast { message, .. } | Command::Unicast { message, .. } => {
                        last.clone_from(message);
                    }
                }
            }
            if let Some(end) = end {
                prop_assert!(client.wake() <= end);
            }
            now = now.max(client.wake().min(now + Duration::from_secs(pause)));
        }
    }
}
