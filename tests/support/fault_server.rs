//! An HTTP server that breaks in chosen ways: a list of [`Act`]s answers each request, so that a test can
//! cut, stall, lie and reset at any byte. It listens on an ephemeral port of the loopback device, and every
//! wait in it is bounded.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The longest that a connection lives.
const LIFETIME: Duration = Duration::from_secs(30);

/// The CA that signed the server's certificate for `127.0.0.1` and `localhost`.
pub const CA_PEM: &[u8] = include_bytes!("tls/ca.pem");

/// The CA that signed [`EXPIRED_PEM`] (2020 to 2021, for 127.0.0.1), [`FUTURE_PEM`] (from 2100 on, for
/// 127.0.0.1) and [`OTHER_NAME_PEM`] (for `images.example` and `mirror.example`).
pub const ODD_CA_PEM: &[u8] = include_bytes!("tls/odd-ca.pem");
pub const EXPIRED_PEM: &[u8] = include_bytes!("tls/expired.pem");
pub const FUTURE_PEM: &[u8] = include_bytes!("tls/future.pem");
pub const OTHER_NAME_PEM: &[u8] = include_bytes!("tls/other-name.pem");

/// What the server does next on a connection. After the last act it closes in order.
#[derive(Clone, Debug)]
pub enum Act {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits.
    Sleep(Duration),
    /// Says nothing more until the peer goes away.
    Silence,
    /// Breaks the connection with a TCP reset.
    Reset,
}

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Counts from 0.
    pub number: usize,
    pub method: String,
    /// With the query.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// When it came.
    pub at: Option<Instant>,
}

impl Request {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    /// The `N` of `Range: bytes=N-`.
    pub fn range_from(&self) -> Option<usize> {
        self.header("range")?
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    }
}

type Respond = dyn Fn(&Request) -> Vec<Act> + Send + Sync;

/// The server. Dropping it closes the port and joins its threads.
pub struct FaultServer {
    address: SocketAddr,
    scheme: &'static str,
    requests: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FaultServer {
    /// Serves plain HTTP on 127.0.0.1.
    pub fn start(respond: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static) -> FaultServer {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        FaultServer::bind(address, None, Arc::new(respond))
    }

    /// Serves plain HTTP on ::1.
    pub fn start_v6(respond: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static) -> FaultServer {
        let address = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
        FaultServer::bind(address, None, Arc::new(respond))
    }

    /// Serves HTTPS on 127.0.0.1; clients must trust [`CA_PEM`].
    pub fn start_tls(
        respond: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static,
    ) -> FaultServer {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth();
        FaultServer::start_with(config, Arc::new(respond))
    }

    /// Serves HTTPS with another certificate, one that [`ODD_CA_PEM`] signed.
    pub fn start_odd_tls(
        certificate: &[u8],
        respond: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static,
    ) -> FaultServer {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth();
        let key = include_bytes!("tls/odd.key");
        FaultServer::start_with_certificate(config, certificate, key, Arc::new(respond))
    }

    /// Serves HTTPS to clients with a certificate of the test client CA only.
    pub fn start_mutual_tls(
        respond: impl Fn(&Request) -> Vec<Act> + Send + Sync + 'static,
    ) -> FaultServer {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(include_bytes!("tls/client-ca.pem")) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&provider),
        )
        .build()
        .unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier);
        FaultServer::start_with(config, Arc::new(respond))
    }

    fn start_with(
        config: rustls::ConfigBuilder<rustls::ServerConfig, rustls::server::WantsServerCert>,
        respond: Arc<Respond>,
    ) -> FaultServer {
        let certificate = include_bytes!("tls/server.pem");
        let key = include_bytes!("tls/server.key");
        FaultServer::start_with_certificate(config, certificate, key, respond)
    }

    fn start_with_certificate(
        config: rustls::ConfigBuilder<rustls::ServerConfig, rustls::server::WantsServerCert>,
        certificate: &[u8],
        key: &[u8],
        respond: Arc<Respond>,
    ) -> FaultServer {
        let chain = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<Vec<_>, _>>()
            .unwrap();
        let key = PrivateKeyDer::from_pem_slice(key).unwrap();
        let config = config.with_single_cert(chain, key).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        FaultServer::bind(address, Some(Arc::new(config)), respond)
    }

    fn bind(
        address: SocketAddr,
        tls: Option<Arc<rustls::ServerConfig>>,
        respond: Arc<Respond>,
    ) -> FaultServer {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let requests = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopped) = (Arc::clone(&requests), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let (seen, stopped, respond, tls) = (
                    Arc::clone(&seen),
                    Arc::clone(&stopped),
                    Arc::clone(&respond),
                    tls.clone(),
                );
                connections.push(std::thread::spawn(move || {
                    // A client that goes away is what many tests are about.
                    let _ = serve(&stream, tls, &seen, &stopped, respond.as_ref());
                }));
            }
            for connection in connections {
                connection.join().unwrap();
            }
        });
        FaultServer {
            address,
            scheme,
            requests,
            stop,
            thread: Some(thread),
        }
    }

    /// A URL of this server.
    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes `incoming`.
        drop(TcpStream::connect_timeout(
            &self.address,
            Duration::from_secs(1),
        ));
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            if !std::thread::panicking() {
                joined.unwrap();
            }
        }
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn serve(
    tcp: &TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    seen: &Mutex<Vec<Request>>,
    stop: &AtomicBool,
    respond: &Respond,
) -> std::io::Result<()> {
    // Short, so that Silence notices the end of the test.
    tcp.set_read_timeout(Some(Duration::from_millis(50)))?;
    tcp.set_write_timeout(Some(LIFETIME))?;
    let deadline = Instant::now() + LIFETIME;
    let mut stream: Box<dyn Stream> = match tls {
        None => Box::new(tcp.try_clone()?),
        Some(config) => {
            let connection = rustls::ServerConnection::new(config).unwrap();
            Box::new(rustls::StreamOwned::new(connection, tcp.try_clone()?))
        }
    };
    let go_on = || !stop.load(Ordering::SeqCst) && Instant::now() < deadline;
    let Some(mut request) = read_request(stream.as_mut(), &go_on)? else {
        return Ok(());
    };
    {
        let mut all = seen.lock().unwrap();
        request.number = all.len();
        request.at = Some(Instant::now());
        all.push(request.clone());
    }
    for act in respond(&request) {
        match act {
            Act::Send(bytes) => {
                stream.write_all(&bytes)?;
                stream.flush()?;
            }
            Act::Sleep(time) => {
                let end = Instant::now() + time;
                while Instant::now() < end && go_on() {
                    std::thread::sleep(Duration::from_millis(2).min(time));
                }
            }
            Act::Silence => {
                let mut byte = [0];
                while go_on() {
                    match stream.read(&mut byte) {
                        Err(e) if is_timeout(&e) => {}
                        Ok(0) | Err(_) => break,
                        Ok(_) => {}
                    }
                }
            }
            Act::Reset => {
                // Lets what was sent arrive first: a reset may overtake it.
                std::thread::sleep(Duration::from_millis(5));
                let now = linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                setsockopt(tcp, sockopt::Linger, &now).unwrap();
                return Ok(());
            }
        }
    }
    Ok(())
}

fn is_timeout(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
    )
}

fn read_request(
    stream: &mut dyn Stream,
    go_on: &dyn Fn() -> bool,
) -> std::io::Result<Option<Request>> {
    let mut bytes = Vec::new();
    let mut wanted = None;
    while go_on() && bytes.len() < 1 << 20 {
        if wanted.is_none() {
            wanted = head_end(&bytes).map(|end| {
                let request = parse(&bytes[..end]);
                let body = request
                    .header("content-length")
                    .map_or(0, |v| v.parse().unwrap());
                (request, end, end + body)
            });
        }
        if let Some((request, end, len)) = &wanted
            && bytes.len() >= *len
        {
            return Ok(Some(Request {
                body: bytes[*end..*len].to_vec(),
                ..request.clone()
            }));
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
            Err(e) if is_timeout(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .map(|at| at + 4)
}

fn parse(head: &[u8]) -> Request {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    Request {
        method: first.next().unwrap_or_default().to_owned(),
        target: first.next().unwrap_or_default().to_owned(),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect(),
        ..Request::default()
    }
}

/// The head of a response.
pub fn head(status: &str, headers: &[(&str, &str)]) -> Act {
    let mut text = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    text.push_str("Connection: close\r\n\r\n");
    Act::Send(text.into_bytes())
}

/// A response without a body.
pub fn status(status: &str, headers: &[(&str, &str)]) -> Vec<Act> {
    let mut all = headers.to_vec();
    all.push(("Content-Length", "0"));
    vec![head(status, &all)]
}

/// A whole response.
pub fn ok(body: &[u8]) -> Vec<Act> {
    let length = body.len().to_string();
    vec![
        head("200 OK", &[("Content-Length", &length)]),
        Act::Send(body.to_vec()),
    ]
}

/// How [`file`] serves.
#[derive(Clone, Copy, Debug)]
pub struct Serve<'a> {
    /// Extra headers, such as ETag.
    pub headers: &'a [(&'a str, &'a str)],
    /// Answers a range with a range.
    pub ranges: bool,
    /// Breaks off after that many bytes of body, with what follows.
    pub stop_after: Option<usize>,
}

/// The file `data`, from where the request asks, as a right server does it, except for what `serve` says.
pub fn file(request: &Request, data: &[u8], serve: Serve<'_>) -> Vec<Act> {
    let total = data.len();
    let from = request.range_from().filter(|_| serve.ranges).unwrap_or(0);
    if from >= total && from > 0 {
        let range = format!("bytes */{total}");
        return status("416 Range Not Satisfiable", &[("Content-Range", &range)]);
    }
    let length = (total - from).to_string();
    let range = format!("bytes {from}-{}/{total}", total.saturating_sub(1));
    let mut headers = serve.headers.to_vec();
    headers.push(("Content-Length", &length));
    let line = if from > 0 {
        headers.push(("Content-Range", &range));
        "206 Partial Content"
    } else {
        "200 OK"
    };
    let rest = &data[from..];
    let body = &rest[..serve.stop_after.unwrap_or(total).min(rest.len())];
    vec![head(line, &headers), Act::Send(body.to_vec())]
}
