//! `ironroot initrd` as another PID 1 starts and ends it, in a mount namespace of its own. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// ironroot with `line` as the kernel command line; `unshare` and `sh` become the program itself.
fn with_cmdline(line: &str, args: &[&str]) -> Child {
    let script = r#"mount -t tmpfs tmp /run; printf '%s\n' "$1" >/run/cmdline
        mount --bind /run/cmdline /proc/cmdline; mkdir /run/sysroot; shift; exec "$@""#;
    Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-euc",
            script,
            "sh",
            line,
        ])
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn scripts_learn_from_the_exit_code_whether_a_boot_asks_for_ironroot() {
    for (line, code) in [
        ("quiet ironroot.config=http://h/c.json", 0),
        ("gl.url=http://h/x gl.live=1", 0),
        ("ignition.config.url=http://h/", 0),
        ("ignition.config.url=http://h/ root=/dev/sda1", 1),
        ("root=PARTUUID=1 ro", 1),
        ("ironroot.config=http://h/c.json ironroot.skip", 1),
        ("", 1),
    ] {
        let output = with_cmdline(line, &["initrd", "--is-wanted"])
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{line:?}: {output:?}");
        // It is asked by hooks and generators at every boot.
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
}

#[test]
fn skip_on_the_command_line_ends_the_helper_at_once() {
    let line = "ironroot.config=http://127.0.0.1:9/ ironroot.skip";
    let output = with_cmdline(line, &["initrd", "--sysroot", "/run/sysroot"])
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("ironroot.skip"));
}

#[test]
fn a_config_that_is_named_counts_beside_skip() {
    let line = "ironroot.skip ironroot.timeout=0";
    let args = [
        "initrd",
        "--sysroot",
        "/run/sysroot",
        "--config",
        "/run/no.json",
    ];
    let output = with_cmdline(line, &args).wait_with_output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("/run/no.json"), "{said}");
}

#[test]
fn a_pid_1_that_ends_the_helper_gets_a_reason_and_a_code() {
    // It takes connections and never answers.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let line = format!(
        "ironroot.config=http://{}/c.json",
        server.local_addr().unwrap()
    );
    let mut child = with_cmdline(&line, &["initrd", "--sysroot", "/run/sysroot"]);
    // At work: the request is there.
    let (_connection, _) = server.accept().unwrap();
    kill(
        Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "it did not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(status.code(), Some(17), "{said}");
    assert!(said.contains("ended by SIGTERM while at work"), "{said}");
    assert!(said.contains("next:"), "{said}");
}

/// In an initrd without systemd stderr is the console; this one has been stopped (Ctrl-S), and full before the program
/// starts.
#[test]
fn a_console_that_takes_nothing_does_not_stop_the_helper_in_an_initrd() {
    let pty = nix::pty::openpty(None, None).unwrap();
    let full = std::fs::File::from(pty.slave.try_clone().unwrap());
    let flags = nix::fcntl::OFlag::O_NONBLOCK;
    nix::fcntl::fcntl(&full, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
    while (&full).write(&[b'x'; 512]).is_ok() {}
    nix::fcntl::fcntl(
        &full,
        nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()),
    )
    .unwrap();
    let script = r#"mount -t tmpfs tmp /run; mkdir /run/upper /run/work /run/sysroot; : >/run/upper/initrd-release
        mount -t overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work overlay /etc
        echo ironroot.timeout=1s ironroot.config=http://127.0.0.1:9/c.json >/run/cmdline
        mount --bind /run/cmdline /proc/cmdline; exec "$@""#;
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-euc", script])
        .arg("sh")
        .arg(env!("CARGO_BIN_EXE_ironroot"))
        .args(["initrd", "--sysroot", "/run/sysroot"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(40) {
            child.kill().unwrap();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(11));
}

/// From the kernel command line and /etc/ironroot/keys to the exit code: nothing of a config counts that neither the
/// digest nor a key vouches for. `{}` is no boot config, so that one that is believed ends with 10.
#[test]
fn a_config_that_is_not_the_proven_one_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let pair = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let sign = |text: &[u8]| {
        let signature = minisign::sign(None, &pair.sk, text, None, None).unwrap();
        signature.to_bytes()
    };
    let key = pair.pk.to_box().unwrap().to_string();
    write("upper/ironroot/keys/a.pub", key.as_bytes());
    let bare = write("bare.json", b"{}");
    let signed = write("signed.json", b"{}");
    write("signed.json.minisig", &sign(b"{}"));
    let foreign = write("foreign.json", b"{}");
    write("foreign.json.minisig", &sign(b"{ }"));
    let right = "ironroot.config.digest=sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    let wrong = right.replace("44136f", "44136e");
    let with_keys = r#"mkdir /run/upper /run/work; cp -r "$2" /run; shift
        mount -t overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work overlay /etc"#;
    for (keys, path, digest, code, part) in [
        (false, &bare, right, 10, "bare.json"),
        (false, &bare, &wrong, 12, "config.digest= demands"),
        (true, &signed, right, 10, "signed.json"),
        (true, &signed, &wrong, 12, "config.digest= demands"),
        (true, &bare, right, 12, "bare.json.minisig"),
        (true, &foreign, right, 12, "foreign.json"),
    ] {
        let script = format!(
            r#"mount -t tmpfs tmp /run; printf '%s\n' "$1" >/run/cmdline
            mount --bind /run/cmdline /proc/cmdline; mkdir /run/sysroot
            {}; shift; exec "$@""#,
            if keys { with_keys } else { "shift" }
        );
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-euc", &script])
            .args(["sh", &format!("ironroot.config={path} {digest}")])
            .arg(folder.path().join("upper"))
            .arg(env!("CARGO_BIN_EXE_ironroot"))
            .args(["initrd", "--sysroot", "/run/sysroot", "--retry-for", "1s"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{path} {digest}: {said}");
        assert!(said.contains(part), "{said}");
    }
}
