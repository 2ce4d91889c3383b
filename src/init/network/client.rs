//! The DHCP client's states (RFC 2131, section 4.4), without clock, socket or chance: those come in as arguments,
//! what is to be done goes out as [`Command`]s.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::arguments::Mac;
use super::lease::Lease;
use super::message::{Reply, Sender};

/// RFC 2131, 4.1: four seconds, then twice as long each time, each give or take one.
const FIRST_WAIT: Duration = Duration::from_secs(4);
const LONGEST_WAIT: Duration = Duration::from_secs(64);

/// A switch port often begins to forward half a minute after the link came up; until then nobody hears us, so the
/// first minute asks more often than the doubling would.
const EAGER_WAIT: Duration = Duration::from_secs(16);
const EAGER_TRIES: u32 = 6;

/// Requests for one offer before looking for another (4, 8, 16 and 32 s: a minute, as RFC 2131, 3.1 has it).
const REQUESTS: u32 = 4;

/// RFC 2131, 4.4.5: renewing repeats after half of the time left, but not more often than this.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// A server that refuses what it has just offered must not be asked in a circle at full speed.
const AFTER_NAK: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send this to everybody on the link.
    Broadcast {
        /// Our address, where we have one.
        from: Ipv4Addr,
        /// The message.
        message: Vec<u8>,
    },
    /// Send this to the server, the usual way.
    Unicast {
        /// Our address.
        from: Ipv4Addr,
        /// The server.
        to: Ipv4Addr,
        /// The message.
        message: Vec<u8>,
    },
    /// Use this lease; where another is in use, in its place.
    Configure(Box<Lease>),
    /// The lease is over: stop using it.
    Deconfigure(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Looking for an offer.
    Selecting { tries: u32 },
    /// One was taken; waiting for the server's word.
    Requesting { offer: Box<Lease>, tries: u32 },
    /// All is well.
    Bound { held: Held },
    /// Asking the server for more time.
    Renewing { held: Held },
    /// Asking anybody for more time.
    Rebinding { held: Held },
}

/// A lease in use, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    lease: Box<Lease>,
    address: Ipv4Addr,
    renew: Duration,
    rebind: Duration,
    end: Option<Duration>,
}

/// What happened so far, for the explanation of a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages sent since the last lease.
    pub asked: u32,
    /// Offers received.
    pub offers: u32,
    /// Refusals received.
    pub naks: u32,
}

/// One interface's client. Times are since an arbitrary moment, rising.
#[derive(Clone, Debug)]
pub struct Client {
    mac: Mac,
    state: State,
    xid: u32,
    began: Duration,
    wake: Duration,
    tally: Tally,
    chance: u64,
}

impl Client {
    /// A client that begins `now`; `chance` is a random number.
    pub fn new(mac: Mac, now: Duration, chance: u64) -> Client {
        let mut client = Client {
            mac,
            state: State::Selecting { tries: 0 },
            xid: 0,
            began: now,
            wake: now,
            tally: Tally::default(),
            // The generator has one dead state.
            chance: chance | 1,
        };
        client.begin(now);
        client
    }

    /// When [`Client::tick`] has something to do.
    pub fn wake(&self) -> Duration {
        self.wake
    }

    /// What happened so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Whether a lease is in use.
    pub fn is_bound(&self) -> bool {
        !matches!(
            self.state,
            State::Selecting { .. } | State::Requesting { .. }
        )
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) -> Vec<Command> {
        if now < self.wake {
            return Vec::new();
        }
        match self.state.clone() {
            State::Selecting { tries } => self.discover(now, tries),
            State::Requesting { tries, .. } if tries >= REQUESTS => {
                self.begin(now);
                self.discover(now, 0)
            }
            State::Requesting { offer, tries } => {
                let message = self.sender(now).request(&offer);
                self.wait(now, tries, LONGEST_WAIT);
                let tries = tries.saturating_add(1);
                self.state = State::Requesting { offer, tries };
                vec![broadcast(Ipv4Addr::UNSPECIFIED, message)]
            }
            State::Bound { held } => {
                self.new_exchange(now);
                self.state = State::Renewing { held };
                self.tick(now)
            }
            State::Renewing { held } if now >= held.rebind => {
                self.state = State::Rebinding { held };
                self.tick(now)
            }
            State::Renewing { held } => {
                let message = self.sender(now).renew(held.address);
                self.wake = again(now, held.rebind);
                self.tally.asked = self.tally.asked.saturating_add(1);
                vec![match held.lease.server {
                    Some(to) => Command::Unicast {
                        from: held.address,
                        to,
                        message,
                    },
                    None => broadcast(held.address, message),
                }]
            }
            State::Rebinding { held } if held.end.is_some_and(|end| now >= end) => {
                self.begin(now);
                let mut commands = vec![Command::Deconfigure("the lease ran out")];
                commands.extend(self.discover(now, 0));
                commands
            }
            State::Rebinding { held } => {
                let message = self.sender(now).renew(held.address);
                self.wake = again(now, held.end.unwrap_or(Duration::MAX));
                self.tally.asked = self.tally.asked.saturating_add(1);
                vec![broadcast(held.address, message)]
            }
        }
    }

    /// Takes in what arrived; anything may arrive.
    pub fn receive(&mut self, now: Duration, packet: &[u8]) -> Vec<Command> {
        let Some(reply) = self.sender(now).read(packet) else {
            return Vec::new();
        };
        match (self.state.clone(), reply) {
            (State::Selecting { .. }, Reply::Offer(offer)) if offer.server.is_some() => {
                self.tally.offers = self.tally.offers.saturating_add(1);
                self.state = State::Requesting {
                    offer: Box::new(offer),
                    tries: 0,
                };
                self.wake = now;
                self.tick(now)
            }
            (State::Requesting { offer, .. }, Reply::Ack(lease))
                if lease.server.is_none() || lease.server == offer.server =>
            {
                self.hold(now, lease, &offer)
            }
            (State::Renewing { held } | State::Rebinding { held }, Reply::Ack(lease)) => {
                self.hold(now, lease, &held.lease)
            }
            (State::Requesting { offer, .. }, Reply::Nak { server })
                if server.is_none() || server == offer.server =>
            {
                self.refused(now);
                Vec::new()
            }
            (State::Renewing { held }, Reply::Nak { server })
                if server.is_none() || server == held.lease.server =>
            {
                self.refused(now);
                vec![Command::Deconfigure("the server took the lease back")]
            }
            (State::Rebinding { .. }, Reply::Nak { .. }) => {
                self.refused(now);
                vec![Command::Deconfigure("a server took the lease back")]
            }
            _ => Vec::new(),
        }
    }

    fn discover(&mut self, now: Duration, tries: u32) -> Vec<Command> {
        let message = self.sender(now).discover();
        let longest = if tries < EAGER_TRIES {
            EAGER_WAIT
        } else {
            LONGEST_WAIT
        };
        self.wait(now, tries, longest);
        self.state = State::Selecting {
            tries: tries.saturating_add(1),
        };
        vec![broadcast(Ipv4Addr::UNSPECIFIED, message)]
    }

    fn hold(&mut self, now: Duration, mut lease: Lease, before: &Lease) -> Vec<Command> {
        let Some(address) = lease.address else {
            return Vec::new();
        };
        lease.server = lease.server.or(before.server);
        // The lease counts from our request, not from the answer; the difference is below a second, and the server
        // gives some grace itself.
        let held = Held {
            address,
            renew: now.saturating_add(lease.renew),
            rebind: now.saturating_add(lease.rebind),
            end: lease.duration.map(|d| now.saturating_add(d)),
            lease: Box::new(lease),
        };
        self.wake = held.renew;
        self.tally = Tally::default();
        let lease = held.lease.clone();
        self.state = State::Bound { held };
        vec![Command::Configure(lease)]
    }

    fn refused(&mut self, now: Duration) {
        let naks = self.tally.naks;
        self.begin(now);
        self.tally.naks = naks.saturating_add(1);
        let factor = 1u32.checked_shl(naks.min(6)).unwrap_or(64);
        self.wake = now.saturating_add(AFTER_NAK.saturating_mul(factor));
    }

    fn begin(&mut self, now: Duration) {
        self.state = State::Selecting { tries: 0 };
        self.wake = now;
        self.new_exchange(now);
    }

    fn new_exchange(&mut self, now: Duration) {
        self.began = now;
        self.xid = u32::try_from(self.random() >> 32).unwrap_or(0);
    }

    fn sender(&self, now: Duration) -> Sender {
        let seconds = now.saturating_sub(self.began).as_secs();
        Sender {
            mac: self.mac,
            xid: self.xid,
            seconds: u16::try_from(seconds).unwrap_or(u16::MAX),
        }
    }

    /// Sets the time of the next try, give or take a second.
    fn wait(&mut self, now: Duration, tries: u32, longest: Duration) {
        self.tally.asked = self.tally.asked.saturating_add(1);
        let factor = 1u32.checked_shl(tries.min(8)).unwrap_or(256);
        let base = FIRST_WAIT.saturating_mul(factor).min(longest);
        let jitter = Duration::from_millis(self.random() % 2001);
        let wait = base
            .saturating_sub(Duration::from_secs(1))
            .saturating_add(jitter);
        self.wake = now.saturating_add(wait);
    }

    /// Marsaglia's xorshift: only spreads machines that were switched on together.
    fn random(&mut self) -> u64 {
        let mut x = self.chance;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.chance = x;
        x
    }
}

/// When to ask again before `end`.
fn again(now: Duration, end: Duration) -> Duration {
    let left = end.saturating_sub(now);
    now.saturating_add((left / 2).max(RENEW_AGAIN).min(left))
}

fn broadcast(from: Ipv4Addr, message: Vec<u8>) -> Command {
    Command::Broadcast { from, message }
}

#[cfg(test)]
mod tests {
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
        assert!(
            matches!(commands.as_slice(), [Command::Configure(l)] if l.address == Some(ADDRESS))
        );
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
}
