//! The network for real: virtual cables between network namespaces, with dnsmasq or a scripted server at the other
//! end. Nothing here touches the machine's own network: a test first leaves it, and fails where it cannot.
//!
//! Needs root, iproute2 and dnsmasq (Debian: dnsmasq-base).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable as _, Decoder, Encodable as _};
use ironroot::config::cmdline::Cmdline;
use ironroot::error::Class;
use ironroot::init::network::board::Stage;
use ironroot::init::network::{self, Network};
use ironroot::report::jsonl::JsonLines;
use ironroot::report::{Reporter, Sink};
use ironroot::sys::clock::Deadline;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;

/// Runs `test` in a thread with a network and a host name of its own.
fn isolated(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS)
            .expect("a network namespace of its own (these tests need root)");
        nix::unistd::sethostname("(none)").unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(args: &str) -> String {
    run("ip", "iproute2", &args.split(' ').collect::<Vec<_>>())
}

fn run(program: &str, package: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program} (Debian: {package}) is needed for this test: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

type Job = Box<dyn FnOnce() + Send>;

/// The other end of the cables: a namespace that lives as long as this value.
struct Far {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

impl Far {
    fn new() -> Far {
        let (jobs, todo) = channel::<Job>();
        let (ready, wait) = channel();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ip("link set lo up");
            ready.send(nix::unistd::gettid().as_raw()).unwrap();
            for job in todo {
                job();
            }
        });
        Far {
            jobs: Some(jobs),
            thread: Some(thread),
            tid: wait.recv().unwrap(),
        }
    }

    /// Does something over there, and waits for it.
    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, wait) = channel();
        let job: Job = Box::new(move || drop(done.send(job())));
        self.jobs.as_ref().unwrap().send(job).unwrap();
        wait.recv().expect("the far end panicked; see above")
    }

    /// A cable: `near` here, `far` over there, with `address` and switched on unless it is empty.
    fn cable(&self, near: &str, mac: &str, far: &'static str, address: &'static str) {
        ip(&format!(
            "link add {near} address {mac} type veth peer name {far} netns {}",
            self.tid
        ));
        if !address.is_empty() {
            self.switch_on(far, address);
        }
    }

    fn switch_on(&self, far: &'static str, address: &'static str) {
        self.run(move || {
            ip(&format!("addr add {address} dev {far}"));
            ip(&format!("link set {far} up"));
        });
    }

    fn dnsmasq(&self, on: &'static str, more: &'static [&'static str]) -> Dnsmasq {
        let directory = tempfile::tempdir().unwrap();
        let leases = directory.path().join("leases").display().to_string();
        let log = directory.path().join("log");
        let log_out = std::fs::File::create(&log).unwrap();
        let child = self.run(move || {
            Command::new("dnsmasq")
                .args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0"])
                .args(["--bind-interfaces", "--except-interface=lo", "--user=root"])
                .args(["--pid-file=", "--no-ping", "--log-dhcp", "--log-facility=-"])
                .arg(format!("--interface={on}"))
                .arg(format!("--dhcp-leasefile={leases}"))
                .args(more)
                .stdin(Stdio::null())
                .stderr(log_out)
                .spawn()
                .unwrap_or_else(|e| {
                    panic!("dnsmasq (Debian: dnsmasq-base) is needed for this test: {e}")
                })
        });
        let dnsmasq = Dnsmasq {
            child,
            log,
            _directory: directory,
        };
        let deadline = Deadline::after(Duration::from_secs(10));
        while !dnsmasq.log().contains("DHCP, IP range") {
            assert!(
                !deadline.passed(),
                "dnsmasq did not start: {}",
                dnsmasq.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        // It opens its socket after it has said so.
        std::thread::sleep(Duration::from_millis(100));
        dnsmasq
    }

    /// A server that does what `script` says to each message; what it heard comes out of the channel.
    fn scripted(
        &self,
        on: &'static str,
        mut script: impl FnMut(usize, &Message) -> Option<Answer> + Send + 'static,
    ) -> Receiver<Heard> {
        let (tell, hear) = channel();
        self.run(move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).unwrap();
            socket.set_broadcast(true).unwrap();
            setsockopt(&socket, BindToDevice, &on.into()).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0u8; 2000];
                let mut count = 0;
                while let Ok((n, from)) = socket.recv_from(&mut buffer) {
                    let message = Message::decode(&mut Decoder::new(&buffer[..n])).unwrap();
                    count += 1;
                    let answer = script(count, &message);
                    let heard = Heard {
                        at: Instant::now(),
                        kind: message.opts().msg_type().unwrap(),
                        from: from.ip().to_string(),
                        ciaddr: message.ciaddr(),
                    };
                    if let Some(answer) = answer {
                        let bytes = answer.to(&message);
                        socket.send_to(&bytes, (Ipv4Addr::BROADCAST, 68)).unwrap();
                    }
                    if tell.send(heard).is_err() {
                        break;
                    }
                }
            });
        });
        hear
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Dnsmasq {
    child: Child,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Dnsmasq {
    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Dnsmasq {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
struct Heard {
    at: Instant,
    kind: MessageType,
    from: String,
    ciaddr: Ipv4Addr,
}

struct Answer(MessageType, Ipv4Addr, Vec<DhcpOption>);

impl Answer {
    fn to(&self, request: &Message) -> Vec<u8> {
        let zero = Ipv4Addr::UNSPECIFIED;
        let mut message =
            Message::new_with_id(request.xid(), zero, self.1, zero, zero, request.chaddr());
        message.set_opcode(Opcode::BootReply);
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(self.0));
        options.insert(DhcpOption::ServerIdentifier(SERVER));
        options.insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
        options.insert(DhcpOption::Router(vec![SERVER]));
        for option in &self.2 {
            options.insert(option.clone());
        }
        message.to_vec().unwrap()
    }
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 55, 0, 1);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 55, 0, 7);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 55, 0, 8);

fn kind(message: &Message) -> MessageType {
    message.opts().msg_type().unwrap()
}

/// A server that grants `address` for `lease` seconds.
fn grant(message: &Message, address: Ipv4Addr, lease: u32) -> Option<Answer> {
    let reply = match kind(message) {
        MessageType::Discover => MessageType::Offer,
        MessageType::Request => MessageType::Ack,
        _ => return None,
    };
    Some(Answer(
        reply,
        address,
        vec![DhcpOption::AddressLeaseTime(lease)],
    ))
}

/// A root directory for what is written, and a log of the events.
struct Room {
    root: tempfile::TempDir,
    reporter: Reporter,
}

impl Room {
    fn new() -> Room {
        let root = tempfile::tempdir().unwrap();
        let events = std::fs::File::create(root.path().join("events")).unwrap();
        let sink = Sink::JsonLines(JsonLines::new(Box::new(events)));
        Room {
            root,
            reporter: Reporter::new(vec![sink]),
        }
    }

    fn bring_up(&self, cmdline: &str, seconds: u64) -> ironroot::error::Result<Network> {
        network::bring_up(
            &Cmdline::parse(cmdline),
            network::places_below(self.root.path()),
            Deadline::after(Duration::from_secs(seconds)),
            &self.reporter,
        )
    }

    fn resolv_conf(&self) -> String {
        std::fs::read_to_string(self.root.path().join("etc/resolv.conf")).unwrap()
    }

    fn events(&self) -> String {
        std::fs::read_to_string(self.root.path().join("events")).unwrap()
    }
}

/// Waits until `done`.
fn until(what: &str, seconds: u64, mut done: impl FnMut() -> bool) {
    let deadline = Deadline::after(Duration::from_secs(seconds));
    while !done() {
        assert!(!deadline.passed(), "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

const MAC: &str = "52:54:00:55:00:01";
const MAC2: &str = "52:54:00:55:00:02";

#[test]
fn a_lease_of_dnsmasq_is_put_into_force() {
    isolated(|| {
        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "10.55.0.1/24");
        let server = far.dnsmasq(
            "srv0",
            &[
                "--dhcp-range=10.55.0.50,10.55.0.60,255.255.255.0,2h",
                "--dhcp-host=52:54:00:55:00:01,10.55.0.55,node7",
                "--dhcp-option=option:router,10.55.0.1",
                "--dhcp-option=option:dns-server,10.55.0.53,10.55.0.54",
                "--dhcp-option=option:domain-search,one.example,two.example",
                "--dhcp-option=option:mtu,1400",
            ],
        );
        let room = Room::new();
        let start = Instant::now();
        let network = room.bring_up("quiet ip=dhcp", 20).unwrap();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        let address = ip("-4 addr show dev eth0");
        assert!(
            address.contains("inet 10.55.0.55/24 metric 102 brd 10.55.0.255"),
            "{address}"
        );
        assert!(address.contains("mtu 1400"), "{address}");
        let routes = ip("-4 route");
        let default = routes
            .lines()
            .find(|l| l.starts_with("default"))
            .expect(&routes);
        assert!(
            default.contains("via 10.55.0.1 dev eth0 proto dhcp metric 10"),
            "{routes}"
        );
        assert_eq!(
            room.resolv_conf(),
            "# written by ironroot\nnameserver 10.55.0.53\nnameserver 10.55.0.54\n\
             search one.example two.example\n"
        );
        assert_eq!(nix::unistd::gethostname().unwrap(), "node7");
        assert!(ip("link show lo").contains("LOWER_UP"));
        let log = server.log();
        assert!(log.contains("vendor class: ironroot"), "{log}");
        assert!(
            room.events()
                .contains("eth0: 10.55.0.55/24 leased by 10.55.0.1 for 7200 s")
        );
        // The way there works.
        far.run(|| drop(std::net::TcpListener::bind("10.55.0.1:7007").unwrap()));
        let refused = std::net::TcpStream::connect("10.55.0.1:7007").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        drop(network);
    });
}

#[test]
fn classless_routes_of_dnsmasq_take_the_place_of_the_router() {
    isolated(|| {
        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "10.55.0.1/24");
        let _server = far.dnsmasq(
            "srv0",
            &[
                "--dhcp-range=10.55.0.50,10.55.0.60,255.255.255.0,2h",
                "--dhcp-option=option:router,10.55.0.99",
                "--dhcp-option=option:classless-static-route,192.168.0.0/16,10.55.0.2,0.0.0.0/0,10.55.0.1,\
                 172.16.5.1/32,0.0.0.0,10.77.0.0/16,172.16.5.1,10.78.0.0/16,172.16.5.2",
            ],
        );
        let room = Room::new();
        let _network = room.bring_up("", 20).unwrap();
        let routes = ip("-4 route");
        for expected in [
            "default via 10.55.0.1 dev eth0",
            "192.168.0.0/16 via 10.55.0.2 dev eth0",
            "172.16.5.1 dev eth0 proto dhcp scope link",
            "10.77.0.0/16 via 172.16.5.1 dev eth0",
            "10.78.0.0/16 via 172.16.5.2 dev eth0 proto dhcp metric 10",
        ] {
            assert!(routes.contains(expected), "{expected}: {routes}");
        }
        assert!(!routes.contains("10.55.0.99"), "{routes}");
    });
}

#[test]
fn an_interface_without_carrier_holds_nothing_up_and_follows_later() {
    isolated(|| {
        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "");
        far.cable("eth1", MAC2, "srv1", "10.56.0.1/24");
        let _one = far.dnsmasq(
            "srv1",
            &["--dhcp-range=10.56.0.50,10.56.0.60,255.255.255.0,2h"],
        );
        let room = Room::new();
        let start = Instant::now();
        let network = room.bring_up("BOOTIF=01-52-54-00-55-00-02", 20).unwrap();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        let interfaces = network.interfaces();
        assert_eq!(interfaces[0].name, "eth1");
        assert!(interfaces[0].lease().is_some());
        assert_eq!(
            (interfaces[1].name.as_str(), &interfaces[1].stage),
            ("eth0", &Stage::NoCarrier)
        );
        assert!(ip("-4 route").contains("default via 10.56.0.1 dev eth1 proto dhcp metric 50"));

        far.switch_on("srv0", "10.57.0.1/24");
        let _two = far.dnsmasq(
            "srv0",
            &["--dhcp-range=10.57.0.50,10.57.0.60,255.255.255.0,2h"],
        );
        until("a lease on eth0", 15, || {
            ip("-4 addr show dev eth0").contains("inet 10.57.0.")
        });
        let routes = ip("-4 route");
        assert_eq!(routes.matches("default via").count(), 2, "{routes}");
    });
}

#[test]
fn a_server_that_answers_only_the_third_discover() {
    isolated(|| {
        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "10.55.0.1/24");
        let mut discovers = 0;
        let heard = far.scripted("srv0", move |_, message| {
            discovers += u32::from(kind(message) == MessageType::Discover);
            if discovers < 3 {
                None
            } else {
                grant(message, FIRST, 3600)
            }
        });
        let room = Room::new();
        let _network = room.bring_up("", 40).unwrap();
        assert!(ip("-4 addr show dev eth0").contains("inet 10.55.0.7/24"));
        let heard: Vec<Heard> = heard.try_iter().collect();
        assert_eq!(heard.len(), 4, "{heard:?}");
        let gap = |n: usize| heard[n].at.duration_since(heard[n - 1].at).as_secs_f64();
        assert!(
            (2.9..5.5).contains(&gap(1)) && (6.9..9.5).contains(&gap(2)),
            "{heard:?}"
        );
        assert!(heard.iter().all(|h| h.from == "0.0.0.0"), "{heard:?}");
    });
}

#[test]
fn a_refused_request_is_followed_by_a_new_discover() {
    isolated(|| {
        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "10.55.0.1/24");
        let mut refused = false;
        let heard = far.scripted("srv0", move |_, message| {
            if kind(message) == MessageType::Request && !refused {
                refused = true;
                return Some(Answer(MessageType::Nak, Ipv4Addr::UNSPECIFIED, Vec::new()));
            }
            grant(message, SECOND, 3600)
        });
        let room = Room::new();
        let _network = room.bring_up("", 20).unwrap();
        assert!(ip("-4 addr show dev eth0").contains("inet 10.55.0.8/24"));
        let kinds: Vec<MessageType> = heard.try_iter().map(|h| h.kind).collect();
        let (discover, request) = (MessageType::Discover, MessageType::Request);
        assert_eq!(kinds, [discover, request, discover, request]);
    });
}

#[test]
fn a_lease_is_renewed_by_the_kernels_way_and_given_up_when_it_is_refused() {
    isolated(|| {
        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "10.55.0.1/24");
        let mut renewals = 0;
        let heard = far.scripted("srv0", move |_, message| {
            let renewal = !message.ciaddr().is_unspecified();
            assert!(!renewal || !message.opts().contains(OptionCode::ServerIdentifier));
            renewals += u32::from(renewal);
            match (renewal, renewals) {
                (true, 1) | (false, 0) => grant(message, FIRST, 12),
                (true, _) => Some(Answer(MessageType::Nak, Ipv4Addr::UNSPECIFIED, Vec::new())),
                (false, _) => grant(message, SECOND, 3600),
            }
        });
        let room = Room::new();
        let _network = room.bring_up("", 20).unwrap();
        assert!(ip("-4 addr show dev eth0").contains("inet 10.55.0.7/24"));
        until("the second address", 25, || {
            ip("-4 addr show dev eth0").contains("inet 10.55.0.8/24")
        });
        let address = ip("-4 addr show dev eth0");
        assert!(!address.contains("10.55.0.7"), "{address}");
        let routes = ip("-4 route");
        assert_eq!(
            routes.matches("default via 10.55.0.1").count(),
            1,
            "{routes}"
        );
        let renewals: Vec<Heard> = heard
            .try_iter()
            .filter(|h| !h.ciaddr.is_unspecified())
            .collect();
        assert_eq!(renewals.len(), 2, "{renewals:?}");
        // By unicast, from the address itself.
        assert!(
            renewals.iter().all(|h| h.from == "10.55.0.7"),
            "{renewals:?}"
        );
        assert!(room.events().contains("the server took the lease back"));
    });
}

#[test]
fn without_a_server_or_an_interface_the_failure_says_so() {
    isolated(|| {
        let room = Room::new();
        let failure = room.bring_up("", 1).unwrap_err();
        assert_eq!(failure.class(), Class::Network);
        assert!(failure.is_transient());
        assert!(
            failure
                .to_string()
                .starts_with("there is no network interface"),
            "{failure}"
        );

        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "10.55.0.1/24");
        far.cable("eth1", MAC2, "srv1", "");
        let failure = room.bring_up("", 6).unwrap_err();
        let text = failure.to_string();
        assert!(
            text.contains("eth0 (52:54:00:55:00:01): no DHCP offer after 2 tries"),
            "{text}"
        );
        assert!(
            text.contains("eth1 (52:54:00:55:00:02): no carrier"),
            "{text}"
        );
        assert!(
            room.events().contains("an address from the network"),
            "{}",
            room.events()
        );
    });
}

#[test]
fn a_fixed_address_and_no_network_at_all() {
    isolated(|| {
        let far = Far::new();
        far.cable("eth0", MAC, "srv0", "10.55.0.1/24");
        far.cable("eth1", MAC2, "srv1", "10.56.0.1/24");
        let room = Room::new();
        let network = room.bring_up("ip=off", 5).unwrap();
        assert!(network.interfaces().is_empty());
        assert!(!ip("link show eth0").contains("UP"));
        drop(network);

        let words =
            "ip=10.56.0.9::10.56.0.1:255.255.255.0:node9:eth1:none:10.56.0.53 nameserver=10.9.9.9";
        let _network = room.bring_up(words, 10).unwrap();
        assert!(ip("-4 addr show dev eth1").contains("inet 10.56.0.9/24"));
        assert!(ip("-4 route").contains("default via 10.56.0.1 dev eth1"));
        assert!(!ip("-4 addr show dev eth0").contains("inet "));
        assert_eq!(nix::unistd::gethostname().unwrap(), "node9");
        assert_eq!(
            room.resolv_conf(),
            "# written by ironroot\nnameserver 10.9.9.9\nnameserver 10.56.0.53\n"
        );
    });
}
