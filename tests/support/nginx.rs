//! A real web server on the loopback device.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// nginx(8) with one file. Dropping it ends it.
pub struct Nginx {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Nginx {
    pub fn serving(name: &str, content: &[u8]) -> Nginx {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        std::fs::create_dir(directory.path().join("www")).unwrap();
        std::fs::write(directory.path().join("www").join(name), content).unwrap();
        // Its workers may be another user.
        for path in [at, &format!("{at}/www")] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, mode).unwrap();
        }
        let port = free_port();
        let config = format!(
            "daemon off; pid {at}/pid; error_log stderr; events {{}}
            http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;
            uwsgi_temp_path {at}/u; scgi_temp_path {at}/s; server {{ listen 127.0.0.1:{port}; root {at}/www; }} }}"
        );
        let path = directory.path().join("nginx.conf");
        std::fs::write(&path, config).unwrap();
        let child = Command::new("nginx")
            .args(["-p", at, "-e", "stderr", "-c", path.to_str().unwrap()])
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx");
        let end = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Nginx {
            child,
            port,
            _directory: directory,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers on SIGTERM, and would leave them on SIGKILL.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}
