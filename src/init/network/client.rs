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
mod tests;
