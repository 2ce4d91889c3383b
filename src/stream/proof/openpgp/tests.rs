use std::process::{Command, Stdio};

use super::*;

/// GnuPG in a home of its own: the peer whose keys and signatures must be understood.
struct Gpg(tempfile::TempDir);

impl Gpg {
    fn new() -> Gpg {
        let home = tempfile::Builder::new()
            .prefix("gpg")
            .tempdir_in("/tmp")
            .unwrap();
        // gpg-agent refuses a home that others can read.
        let only_us = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(home.path(), only_us).unwrap();
        Gpg(home)
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Vec<u8> {
        let output = Command::new("gpg")
            .args(["--homedir", self.0.path().to_str().unwrap()])
            .args([
                "--batch",
                "--quiet",
                "--yes",
                "--pinentry-mode",
                "loopback",
                "--passphrase",
                "",
            ])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("gpg is installed (package gnupg)");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "gpg {arguments:?}: {error}");
        output.stdout
    }

    /// A new key; the time is that of its making, as `20200101T000000`.
    fn key(&self, user: &str, algorithm: &str, usage: &str, expire: &str, at: &str) {
        let time = format!("{at}!");
        let faked = if at.is_empty() {
            vec![]
        } else {
            vec!["--faked-system-time", &time]
        };
        self.run(
            &[
                &faked[..],
                &["--quick-gen-key", user, algorithm, usage, expire],
            ]
            .concat(),
        );
    }

    fn public(&self, user: &str) -> Vec<u8> {
        self.run(&["--armor", "--export", user])
    }

    fn fingerprint(&self, user: &str) -> String {
        let text = String::from_utf8(self.run(&["--with-colons", "--list-keys", user])).unwrap();
        let line = text.lines().find(|l| l.starts_with("fpr")).unwrap();
        line.split(':').nth(9).unwrap().to_owned()
    }

    fn sign(&self, user: &str, file: &str, more: &[&str]) -> Vec<u8> {
        self.run(
            &[
                &["--local-user", user, "--output", "-"],
                more,
                &["--detach-sign", file],
            ]
            .concat(),
        )
    }
}

impl Drop for Gpg {
    fn drop(&mut self) {
        let _ = Command::new("gpgconf")
            .args([
                "--homedir",
                self.0.path().to_str().unwrap(),
                "--kill",
                "all",
            ])
            .status();
    }
}

const DATA: &[u8] = b"an image\nof two lines\n";

fn verify(public: &[u8], signature: &[u8], data: &[u8]) -> Result<String, String> {
    let (prepared, by) = prepare(&keys(public)?, signature)?;
    prepared.verify(data).map(|()| by.to_string())
}

#[test]
fn signatures_of_gpg_are_good_for_every_usual_kind_of_key_and_nothing_else() {
    let gpg = Gpg::new();
    let file = gpg.file("x", DATA);
    for (user, algorithm) in [("ed", "ed25519"), ("rsa", "rsa3072"), ("nist", "nistp256")] {
        gpg.key(user, algorithm, "sign", "never", "");
        let public = gpg.public(user);
        let binary = gpg.run(&["--export", user]);
        let base64 = public
            .split(|b| *b == b'\n')
            .filter(|l| !l.starts_with(b"-") && !l.starts_with(b"="));
        let base64 = base64.collect::<Vec<_>>().concat();
        let name = format!("OpenPGP key {}", gpg.fingerprint(user));
        for armor in [&["--armor"][..], &[]] {
            let signature = gpg.sign(user, &file, armor);
            for public in [&public, &binary, &base64] {
                assert_eq!(
                    verify(public, &signature, DATA).as_ref(),
                    Ok(&name),
                    "{user}"
                );
            }
            for wrong in [
                &b"an image\nof two lines"[..],
                b"",
                b"an image\r\nof two lines\r\n",
            ] {
                assert!(verify(&public, &signature, wrong).is_err());
            }
        }
    }
    let unknown = gpg.sign("rsa", &file, &[]);
    let failure = verify(&gpg.public("ed"), &unknown, DATA).unwrap_err();
    assert!(
        failure.contains(&gpg.fingerprint("rsa")) && failure.contains(&gpg.fingerprint("ed")),
        "{failure}"
    );
    // Two certificates in one file, and two signatures of which only the second is by a known key.
    let both = [gpg.public("ed"), gpg.public("nist")].concat();
    assert_eq!(keys(&both).unwrap().len(), 2);
    let two = [gpg.sign("rsa", &file, &[]), gpg.sign("ed", &file, &[])].concat();
    assert!(verify(&both, &two, DATA).is_ok());
}

#[test]
fn a_subkey_signs_for_its_primary_until_it_is_revoked() {
    let gpg = Gpg::new();
    let file = gpg.file("x", DATA);
    gpg.key("ed", "ed25519", "cert", "never", "");
    let primary = gpg.fingerprint("ed");
    gpg.run(&["--quick-add-key", &primary, "ed25519", "sign", "never"]);
    let signature = gpg.sign("ed", &file, &[]);
    let public = gpg.public("ed");
    let by = verify(&public, &signature, DATA).unwrap();
    assert!(!by.contains(&primary), "the subkey is named: {by}");

    // Without the subkey's agreement, which is what binds it, it does not count.
    let certificate = &keys(&public).unwrap()[0].0;
    let mut stripped = certificate.clone();
    stripped.public_subkeys.clear();
    assert!(prepare(&[Key(stripped)], &signature).is_err());

    let home = gpg.0.path().to_str().unwrap().to_owned();
    let commands = gpg.file("commands", b"key 1\nrevkey\ny\n0\n\ny\nsave\n");
    let output = Command::new("gpg")
        .args([
            "--homedir",
            &home,
            "--command-fd",
            "0",
            "--status-fd",
            "2",
            "--no-tty",
        ])
        .args([
            "--pinentry-mode",
            "loopback",
            "--passphrase",
            "",
            "--edit-key",
            &primary,
        ])
        .stdin(std::fs::File::open(commands).unwrap())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let failure = verify(&gpg.public("ed"), &signature, DATA).unwrap_err();
    assert!(failure.contains("is revoked"), "{failure}");
}

#[test]
fn expired_and_revoked_keys_and_expired_signatures_are_refused() {
    let gpg = Gpg::new();
    let file = gpg.file("x", DATA);
    gpg.key(
        "old",
        "ed25519",
        "sign",
        "20200201T000000",
        "20200101T000000",
    );
    let at = ["--faked-system-time", "20200110T000000!"];
    let signature = gpg.sign("old", &file, &at);
    let failure = verify(&gpg.public("old"), &signature, DATA).unwrap_err();
    assert!(
        failure.contains("has expired") && failure.contains("key"),
        "{failure}"
    );

    gpg.key("ed", "ed25519", "sign", "never", "20200101T000000");
    let short = gpg.sign(
        "ed",
        &file,
        &[&at[..], &["--default-sig-expire", "1d"]].concat(),
    );
    let failure = verify(&gpg.public("ed"), &short, DATA).unwrap_err();
    assert!(failure.contains("signature has expired"), "{failure}");

    let good = gpg.sign("ed", &file, &[]);
    assert!(verify(&gpg.public("ed"), &good, DATA).is_ok());
    let revocation = gpg
        .0
        .path()
        .join("openpgp-revocs.d")
        .join(format!("{}.rev", gpg.fingerprint("ed")));
    let text = std::fs::read_to_string(revocation).unwrap();
    // GnuPG puts a colon there so that nobody imports it by accident.
    let usable = gpg.file("rev", text.replace(":-----BEGIN", "-----BEGIN").as_bytes());
    gpg.run(&["--import", &usable]);
    let failure = verify(&gpg.public("ed"), &good, DATA).unwrap_err();
    assert!(failure.contains("is revoked"), "{failure}");
}

#[test]
fn weak_hashes_and_keys_that_may_not_sign_are_refused() {
    let gpg = Gpg::new();
    let file = gpg.file("x", DATA);
    gpg.key("rsa", "rsa2048", "sign", "never", "");
    for hash in ["SHA1", "RIPEMD160"] {
        let options = ["--digest-algo", hash, "--allow-weak-digest-algos"];
        let signature = gpg.sign("rsa", &file, &options);
        let failure = verify(&gpg.public("rsa"), &signature, DATA).unwrap_err();
        assert!(failure.contains(hash), "{failure}");
    }
    // A text signature covers other bytes than those of the file.
    let text = gpg.sign("rsa", &file, &["--textmode"]);
    assert!(
        verify(&gpg.public("rsa"), &text, DATA)
            .unwrap_err()
            .contains("another type")
    );
}

#[test]
fn a_cleartext_signature_gives_back_what_was_signed_and_no_more() {
    let gpg = Gpg::new();
    gpg.key("ed", "ed25519", "sign", "never", "");
    let file = gpg.file("SUMS", b"# comment\nSHA256 (x) = ab\n- dashed\n");
    let signed = gpg.run(&["--local-user", "ed", "--output", "-", "--clear-sign", &file]);
    assert!(is_cleartext(&signed));
    let trusted = keys(&gpg.public("ed")).unwrap();
    let (text, by) = open_cleartext(&trusted, &signed).unwrap();
    let lines: Vec<&[u8]> = text
        .split(|b| *b == b'\n')
        .map(<[u8]>::trim_ascii_end)
        .collect();
    assert_eq!(
        lines[..3],
        [&b"# comment"[..], b"SHA256 (x) = ab", b"- dashed"]
    );
    assert!(by.to_string().contains(&gpg.fingerprint("ed")));

    let changed = String::from_utf8(signed.clone())
        .unwrap()
        .replace("= ab", "= ac");
    assert!(open_cleartext(&trusted, changed.as_bytes()).is_err());
    assert!(open_cleartext(&[], &signed).is_err());
    for (before, after) in [("evil\n", ""), ("", "evil\n")] {
        let around = [before.as_bytes(), &signed, after.as_bytes()].concat();
        if let Ok((text, _)) = open_cleartext(&trusted, &around) {
            assert!(!text.windows(4).any(|w| w == b"evil"));
        }
    }
}

#[test]
fn what_is_no_key_and_no_signature_is_said() {
    for text in [
        &b""[..],
        b"hello",
        b"\x99\x01",
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n",
    ] {
        assert!(keys(text).is_err(), "{text:?}");
        assert!(prepare(&[], text).is_err(), "{text:?}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_never_panic(mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..300), armored: bool) {
        if armored {
            bytes.splice(0..0, b"-----BEGIN PGP SIGNATURE-----\n\n".iter().copied());
        } else {
            bytes[0] |= 0x80;
        }
        let _ = keys(&bytes);
        let _ = prepare(&[], &bytes);
        let _ = open_cleartext(&[], &bytes);
    }
}
