//! Addresses of a name. The C library's resolver asks for IPv4 and IPv6 addresses at once, and musl's takes a name
//! server that refuses one of the two questions, or never answers it, for one that answers neither (musl:
//! src/network/lookup_name.c, `name_from_dns`). Such servers exist, so each question is then asked alone.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use dns_lookup::{AddrInfoHints, SockType, getaddrinfo};
use nix::libc::{AF_INET, AF_INET6};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// How long both questions may take together before each is asked alone as well. A server that answers does so in a
/// fraction of that; the C library waits five seconds.
const PATIENCE: Duration = Duration::from_secs(1);

type Found = io::Result<Vec<SocketAddr>>;
type Asking = Pin<Box<dyn Future<Output = Found> + Send>>;

/// The system's resolver, which is asked again for one family of addresses where it finds nothing for both.
#[derive(Debug)]
pub(super) struct Names;

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        Box::pin(async move {
            let family = |family| {
                let name = name.clone();
                in_background(move || of_family(&name, family))
            };
            let (four, six) = (family(AF_INET), family(AF_INET6));
            let all = in_background(move || Ok((name.as_str(), 0).to_socket_addrs()?.collect()));
            let found = patiently(all, vec![four, six], has_route).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The C library blocks, so it is asked on a thread of its own. Nothing is asked before somebody waits for it.
fn in_background(ask: impl FnOnce() -> Found + Send + 'static) -> Asking {
    Box::pin(async move {
        tokio::task::spawn_blocking(ask)
            .await
            .map_err(io::Error::other)?
    })
}

fn of_family(name: &str, family: i32) -> Found {
    let hints = AddrInfoHints {
        address: family,
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    getaddrinfo(Some(name), None, Some(hints))?
        .map(|found| found.map(|info| info.sockaddr))
        .collect()
}

/// Whether there is a way to `address`. Connecting a socket of UDP sends nothing: the kernel only looks for a route.
fn has_route(address: &SocketAddr) -> bool {
    let mut to = *address;
    // "discard": any number but 0 will do.
    to.set_port(9);
    let from = match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    UdpSocket::bind(from).is_ok_and(|socket| socket.connect(to).is_ok())
}

/// What `all` finds; where it fails or takes its time, what any of `alone` finds, whichever is first and can be
/// reached. Where nobody finds anything, the reason of `all`.
async fn patiently(
    mut all: Asking,
    alone: Vec<Asking>,
    reaches: impl Fn(&SocketAddr) -> bool,
) -> Found {
    match tokio::time::timeout(PATIENCE, all.as_mut()).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(why)) => first(alone, reaches).await.map_err(|_| why),
        Err(_) => first(std::iter::once(all).chain(alone).collect(), reaches).await,
    }
}

/// The first of `asked` that finds something that can be reached; where none does, the first that finds anything, as an
/// address of IPv6 on a machine that has only IPv4. Where nobody finds anything, why the first of them did not.
async fn first(asked: Vec<Asking>, reaches: impl Fn(&SocketAddr) -> bool) -> Found {
    let mut waiting: Vec<(usize, Asking)> = asked.into_iter().enumerate().collect();
    let mut failed: Option<(usize, io::Error)> = None;
    let mut fallback = None;
    poll_fn(|context| {
        let mut found = None;
        waiting.retain_mut(|(place, one)| match one.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(Ok(addresses)) => {
                if addresses.iter().any(&reaches) {
                    found.get_or_insert(addresses);
                } else {
                    fallback.get_or_insert(addresses);
                }
                false
            }
            Poll::Ready(Err(why)) => {
                if failed.as_ref().is_none_or(|(before, _)| *place < *before) {
                    failed = Some((*place, why));
                }
                false
            }
        });
        if found.is_none() && waiting.is_empty() {
            found = fallback.take();
        }
        match found {
            Some(addresses) => Poll::Ready(Ok(addresses)),
            None if waiting.is_empty() => Poll::Ready(Err(failed
                .take()
                .map_or_else(|| io::Error::other("nobody was asked"), |(_, why)| why))),
            None => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn address(last: u8) -> Vec<SocketAddr> {
        vec![SocketAddr::from(([192, 0, 2, last], 0))]
    }

    fn of_ipv6(last: u16) -> Vec<SocketAddr> {
        vec![SocketAddr::from((
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last),
            0,
        ))]
    }

    fn after(time: Duration, found: Found) -> Asking {
        Box::pin(async move {
            tokio::time::sleep(time).await;
            found
        })
    }

    fn refused(why: &str) -> Found {
        Err(io::Error::other(why.to_owned()))
    }

    fn run(all: Asking, alone: Vec<Asking>) -> (Found, Duration) {
        let start = Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        // As on a machine that has only IPv4.
        let found = patiently(all, alone, SocketAddr::is_ipv4);
        (runtime.block_on(found), start.elapsed())
    }

    const SOON: Duration = Duration::from_millis(20);
    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn who_answers_both_questions_is_not_asked_again() {
        let asked_again: Asking = Box::pin(async { panic!("asked again") });
        let (found, _) = run(after(SOON, Ok(address(1))), vec![asked_again]);
        assert_eq!(found.unwrap(), address(1));
    }

    #[test]
    fn where_both_fail_one_alone_is_enough() {
        let alone = vec![after(SOON, Ok(address(4))), after(NEVER, refused("six"))];
        let (found, _) = run(after(SOON, refused("all")), alone);
        assert_eq!(found.unwrap(), address(4));
        let alone = vec![after(SOON, refused("four")), after(SOON, Ok(address(6)))];
        let (found, _) = run(after(SOON, refused("all")), alone);
        assert_eq!(found.unwrap(), address(6));
    }

    #[test]
    fn who_never_answers_both_is_waited_for_no_longer_than_a_second() {
        let alone = vec![after(SOON, Ok(address(4))), after(NEVER, refused("six"))];
        let (found, time) = run(after(NEVER, refused("all")), alone);
        assert_eq!(found.unwrap(), address(4));
        assert!(time >= PATIENCE && time < 4 * PATIENCE, "{time:?}");
    }

    #[test]
    fn what_cannot_be_reached_is_taken_only_where_nothing_else_is_found() {
        let late = 4 * SOON;
        for all in [after(SOON, refused("all")), after(NEVER, refused("all"))] {
            let alone = vec![after(late, Ok(address(4))), after(SOON, Ok(of_ipv6(6)))];
            assert_eq!(run(all, alone).0.unwrap(), address(4));
        }
        let alone = vec![after(late, refused("four")), after(SOON, Ok(of_ipv6(6)))];
        let (found, _) = run(after(SOON, refused("all")), alone);
        assert_eq!(found.unwrap(), of_ipv6(6));
    }

    #[test]
    fn a_route_is_looked_for_in_the_kernel() {
        assert!(has_route(&SocketAddr::from(([127, 0, 0, 1], 0))));
        // Nothing is routed to the address that says "none", and a link-local one needs its link.
        assert!(!has_route(&SocketAddr::from((
            Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
            0
        ))));
    }

    #[test]
    fn the_reason_is_that_of_both_questions() {
        for time in [SOON, PATIENCE + 5 * SOON] {
            let alone = vec![
                after(SOON, refused("four")),
                after(2 * SOON, refused("six")),
            ];
            let (found, _) = run(after(time, refused("all")), alone);
            assert_eq!(found.unwrap_err().to_string(), "all");
        }
    }

    #[test]
    fn a_literal_and_the_machine_itself_need_no_server() {
        assert_eq!(
            of_family("192.0.2.4", AF_INET).unwrap(),
            [SocketAddr::from(([192, 0, 2, 4], 0))]
        );
        assert!(of_family("192.0.2.4", AF_INET6).is_err());
    }
}
