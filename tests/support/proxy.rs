//! A small HTTP proxy: it tunnels CONNECT to a fixed address, forwards plain requests there, and may ask
//! for a password. Every wait in it is bounded.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest that a peer may be silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// The proxy. Dropping it closes the port.
pub struct Proxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Sends everything to `port` of this machine, whatever host is asked for. With `authorization`, it
    /// answers 407 to requests without that Proxy-Authorization.
    pub fn start(port: u16, authorization: Option<&'static str>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopped) = (Arc::clone(&heads), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(client) = client else { continue };
                let seen = Arc::clone(&seen);
                // They end with their peers, at the latest after PATIENCE.
                std::thread::spawn(move || {
                    let _ = serve(client, port, authorization, &seen);
                });
            }
        });
        Proxy {
            address,
            heads,
            stop,
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The first line of every request.
    pub fn lines(&self) -> Vec<String> {
        let heads = self.heads.lock().unwrap();
        let first = |head: &String| head.lines().next().unwrap_or_default().to_owned();
        heads.iter().map(first).collect()
    }

    /// The heads of all requests.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect_timeout(
            &self.address,
            Duration::from_secs(1),
        ));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut client: TcpStream,
    port: u16,
    authorization: Option<&str>,
    heads: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1 << 16 {
        client.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    heads.lock().unwrap().push(text.clone());
    let given = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("proxy-authorization")
            .then_some(value)
    });
    if authorization.is_some() && given != authorization {
        let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        return client.write_all(refusal.as_bytes());
    }
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(PATIENCE))?;
    if text.starts_with("CONNECT ") {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    } else {
        server.write_all(&head)?;
    }
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    let up = std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    let _ = std::io::copy(&mut server, &mut client);
    let _ = client.shutdown(std::net::Shutdown::Both);
    let _ = up.join();
    Ok(())
}
