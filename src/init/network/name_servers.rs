//! Name servers that somebody else's DHCP client was told. In an initrd with a PID 1 of its own the network is brought
//! up by networkd, NetworkManager, dhclient or klibc's ipconfig; some of them (networkd without resolved,
//! ipconfig) leave no /etc/resolv.conf, and without one this program's C library resolves no name.
//!
//! To support another client, begin in [`known`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::arguments::Wanted;
use super::resolv;
use crate::config::cmdline::Cmdline;
use crate::error::chain;
use crate::report::Reporter;

/// A lease may come while a fetch is being retried.
const GLANCE: Duration = Duration::from_secs(1);

/// No such file is larger; what is, is not read.
const LONGEST: u64 = 64 << 10;

/// Name servers and search domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// In the order in which they are asked.
    pub servers: Vec<IpAddr>,
    /// Search domains.
    pub search: Vec<String>,
}

/// Writes /etc/resolv.conf below `root` from what the initrd's network programs know, now and whenever that
/// changes. A file with a name server in it, which one of them wrote, is left alone.
pub fn adopt(root: &Path, cmdline: &Cmdline, reporter: &Reporter) {
    let given = Wanted::of(cmdline).nameservers;
    let mut written = None;
    refresh(root, &given, &mut written, reporter);
    let (root, reporter) = (root.to_owned(), reporter.clone());
    let thread = std::thread::Builder::new().spawn(move || {
        loop {
            std::thread::sleep(GLANCE);
            refresh(&root, &given, &mut written, &reporter);
        }
    });
    // Without a thread, what was known at the beginning has to do.
    drop(thread);
}

fn refresh(root: &Path, given: &[IpAddr], written: &mut Option<String>, reporter: &Reporter) {
    let etc = root.join("etc");
    let now = read(&etc.join("resolv.conf")).unwrap_or_default();
    if !is_ours_to_write(&now, written.as_deref()) {
        return;
    }
    let mut known = known(root);
    known.servers.splice(0..0, given.iter().copied());
    let mut told = BTreeSet::new();
    known.servers.retain(|server| told.insert(*server));
    if known.servers.is_empty() {
        return;
    }
    let text = resolv::text(&known.servers, &known.search);
    if written.as_ref() == Some(&text) {
        return;
    }
    match resolv::write(&etc, &text) {
        Ok(()) => {
            let list: Vec<String> = known.servers.iter().map(IpAddr::to_string).collect();
            reporter.info(format!("names are asked for at {}", list.join(", ")));
        }
        Err(failure) => {
            reporter.warn(format!("names will not be resolved: {}", chain(&failure)));
        }
    }
    // Also after a failure, which is told once.
    *written = Some(text);
}

/// Whether /etc/resolv.conf with the content `now` names no server, or is what was `written` here.
fn is_ours_to_write(now: &str, written: Option<&str>) -> bool {
    written == Some(now) || nameserver_lines(now).servers.is_empty()
}

/// What the network programs below `root` know, in the order of trust; the first that knows anything counts.
pub fn known(root: &Path) -> Known {
    // networkd: what it holds together, and its leases (`sd_dhcp_lease_save` of systemd).
    let networkd = || {
        let run = root.join("run/systemd/netif");
        let mut files = vec![run.join("state")];
        files.extend(entries(&run.join("leases"), ""));
        assignments(&files, &["DNS"], &["DOMAINS", "DOMAINNAME"])
    };
    let resolv_conf = |path: &str| {
        read(&root.join(path)).map_or_else(Known::default, |text| nameserver_lines(&text))
    };
    // klibc's ipconfig (`dump_device_config`).
    let ipconfig = || {
        let files = entries(&root.join("run"), "net-");
        assignments(&files, &["IPV4DNS0", "IPV4DNS1"], &["DNSDOMAIN"])
    };
    let sources: [&dyn Fn() -> Known; 4] = [
        &|| resolv_conf("run/systemd/resolve/resolv.conf"),
        &networkd,
        &|| resolv_conf("run/NetworkManager/no-stub-resolv.conf"),
        &ipconfig,
    ];
    sources
        .iter()
        .map(|source| source())
        .find(|known| !known.servers.is_empty())
        .unwrap_or_default()
}

/// `nameserver` and `search` lines (resolv.conf(5)). A stub on the loopback interface counts only where it runs, which
/// in an initrd it does not.
fn nameserver_lines(text: &str) -> Known {
    let mut known = Known::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => {
                let address = words.next().and_then(address);
                known.servers.extend(address.filter(|a| !a.is_loopback()));
            }
            Some("search" | "domain") => known.search.extend(words.filter_map(domain)),
            _ => {}
        }
    }
    known
}

/// `KEY=value value` lines, quoted or not.
fn assignments(files: &[PathBuf], servers: &[&str], search: &[&str]) -> Known {
    let mut known = Known::default();
    for text in files.iter().filter_map(|file| read(file)) {
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let words = value
                .trim_matches(['\'', '"'])
                .split([' ', ','])
                .filter(|word| !word.is_empty());
            if servers.contains(&key) {
                known.servers.extend(words.filter_map(address));
            } else if search.contains(&key) {
                known.search.extend(words.filter_map(domain));
            }
        }
    }
    known
}

/// An address that can be asked. networkd appends `#name` for DNS over TLS; ipconfig writes 0.0.0.0 for none.
fn address(word: &str) -> Option<IpAddr> {
    let address: IpAddr = word.split('#').next()?.parse().ok()?;
    (!address.is_unspecified()).then_some(address)
}

/// A search domain; `~domain` of networkd is for routing only.
fn domain(word: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!word.is_empty() && word.chars().all(plain)).then(|| word.to_owned())
}

/// The files of a directory whose names begin with `prefix`, by name.
fn entries(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .take(256)
        .collect();
    found.sort();
    found
}

fn read(path: &Path) -> Option<String> {
    let size = std::fs::metadata(path).ok()?.len();
    (size <= LONGEST).then_some(())?;
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn servers(files: &[(&str, &str)]) -> Vec<String> {
        let known = known(machine(files).path());
        known.servers.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn each_network_program_is_understood() {
        let lease = "# This is private data.\nADDRESS=10.0.2.15\nDNS=10.0.2.3 10.0.2.4\nDOMAINNAME=lab.example\n";
        let known = known(machine(&[("run/systemd/netif/leases/2", lease)]).path());
        assert_eq!(known.servers.len(), 2);
        assert_eq!(known.search, ["lab.example"]);
        for (path, text, wanted) in [
            (
                "run/systemd/netif/state",
                "OPER_STATE=routable\nDNS=fd00::53#dns.example 10.9.9.9\nDOMAINS=~.\n",
                &["fd00::53", "10.9.9.9"][..],
            ),
            (
                "run/systemd/resolve/resolv.conf",
                "# resolved\nnameserver 10.1.1.1\n",
                &["10.1.1.1"],
            ),
            (
                "run/NetworkManager/no-stub-resolv.conf",
                "search a b\nnameserver\t10.1.1.2\n",
                &["10.1.1.2"],
            ),
            (
                "run/net-ens3.conf",
                "DEVICE='ens3'\nIPV4DNS0='10.0.2.3'\nIPV4DNS1='0.0.0.0'\n",
                &["10.0.2.3"],
            ),
            (
                "run/systemd/resolve/resolv.conf",
                "nameserver 127.0.0.53\n",
                &[],
            ),
            ("run/other", "DNS=1.1.1.1\n", &[]),
        ] {
            assert_eq!(servers(&[(path, text)]), wanted, "{path}");
        }
    }

    #[test]
    fn a_file_with_a_server_in_it_is_left_alone_and_our_own_follows_the_lease() {
        let lease = "run/systemd/netif/leases/2";
        let root = machine(&[(lease, "DNS=10.0.2.3\n")]);
        let file = root.path().join("etc/resolv.conf");
        let now = || std::fs::read_to_string(&file).unwrap();
        let mut written = None;
        let mut look = || refresh(root.path(), &[], &mut written, &Reporter::default());
        look();
        assert!(now().contains("nameserver 10.0.2.3\n"), "{}", now());
        std::fs::write(root.path().join(lease), "DNS=10.0.2.4\n").unwrap();
        look();
        assert!(now().contains("nameserver 10.0.2.4\n"), "{}", now());
        std::fs::write(&file, "nameserver 10.7.7.7\n").unwrap();
        std::fs::write(root.path().join(lease), "DNS=10.0.2.5\n").unwrap();
        look();
        assert_eq!(now(), "nameserver 10.7.7.7\n");
    }

    #[test]
    fn the_command_line_comes_first() {
        let root = machine(&[("run/systemd/netif/leases/2", "DNS=10.0.2.3\n")]);
        let given = ["10.8.8.8".parse().unwrap()];
        refresh(root.path(), &given, &mut None, &Reporter::default());
        let text = std::fs::read_to_string(root.path().join("etc/resolv.conf")).unwrap();
        assert!(
            text.contains("nameserver 10.8.8.8\nnameserver 10.0.2.3\n"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn whatever_stands_there_only_addresses_and_domains_come_out(text in "(DNS=|nameserver |search )?\\PC{0,60}") {
            let root = machine(&[("run/systemd/netif/state", &text), ("run/systemd/resolve/resolv.conf", &text)]);
            let known = known(root.path());
            prop_assert!(known.search.iter().all(|d| !d.contains(char::is_whitespace)));
            prop_assert!(known.servers.iter().all(|s| !s.is_unspecified()));
        }
    }
}
