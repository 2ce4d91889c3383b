//! Debian's docker-registry, on the loopback device.
#![allow(dead_code)] // each test program uses a part

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// User "me", password "s3cr3t" (bcrypt, as the registry demands).
const HTPASSWD: &str = "me:$2y$05$abcdefghijklmnopqrstuu9Avu/WgbsK7g7xfCY1X3pdjsTgxqQLS\n";

/// Debian's docker-registry on a port of its own.
pub struct Registry {
    process: Child,
    pub port: u16,
    pub directory: tempfile::TempDir,
}

impl Registry {
    /// `more` is added to its configuration; ROOT stands for its directory.
    pub fn start(more: &str) -> Registry {
        let directory = tempfile::tempdir().unwrap();
        let port = {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port()
        };
        let root = directory.path().display();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {root}/data}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{}",
            more.replace("ROOT", &root.to_string())
        );
        let file = directory.path().join("config.yml");
        std::fs::write(&file, config).unwrap();
        std::fs::write(directory.path().join("htpasswd"), HTPASSWD).unwrap();
        let process = Command::new("docker-registry")
            .args(["serve", file.to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is installed (package docker-registry)");
        let registry = Registry {
            process,
            port,
            directory,
        };
        let end = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    pub fn reference(&self, rest: &str) -> String {
        format!("oci://127.0.0.1:{}/{rest}", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
