//! /etc/resolv.conf: what the resolver of this program's C library reads.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;

use crate::error::{Class, Context as _, Result};

/// musl and glibc read no more (`MAXNS` of resolv.h).
const SERVERS: usize = 3;

/// musl's buffer for the search list.
const SEARCH: usize = 255;

/// The text of the file.
pub fn text(servers: &[IpAddr], search: &[String]) -> String {
    let mut text = String::from("# written by ironroot\n");
    let mut distinct: Vec<IpAddr> = Vec::new();
    for server in servers {
        if !distinct.contains(server) && distinct.len() < SERVERS {
            distinct.push(*server);
            text.push_str(&format_args!("nameserver {server}\n").to_string());
        }
    }
    let mut list = String::new();
    for domain in search {
        let known = list.split(' ').any(|d| d == domain);
        let length = list.len().saturating_add(domain.len()).saturating_add(1);
        if !known && length <= SEARCH {
            if !list.is_empty() {
                list.push(' ');
            }
            list.push_str(domain);
        }
    }
    if !list.is_empty() {
        text.push_str("search ");
        text.push_str(&list);
        text.push('\n');
    }
    text
}

/// Writes `text` as `etc`/resolv.conf in one step: a resolver never sees half of it.
pub fn write(etc: &Path, text: &str) -> Result<()> {
    let place = etc.join("resolv.conf");
    let fresh = etc.join(".resolv.conf.ironroot");
    let what = || format!("writing {}", place.display());
    std::fs::create_dir_all(etc).context(Class::Media, what)?;
    let mut file = std::fs::File::create(&fresh).context(Class::Media, what)?;
    file.write_all(text.as_bytes())
        .context(Class::Media, what)?;
    std::fs::rename(&fresh, &place).context(Class::Media, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_three_distinct_servers_and_one_search_line() {
        let servers: Vec<IpAddr> = ["10.0.0.1", "10.0.0.1", "fd00::53", "10.0.0.2", "10.0.0.3"]
            .map(|s| s.parse().unwrap())
            .into();
        let search = ["a.example", "b.example", "a.example"].map(str::to_owned);
        assert_eq!(
            text(&servers, &search),
            "# written by ironroot\nnameserver 10.0.0.1\nnameserver fd00::53\nnameserver 10.0.0.2\n\
             search a.example b.example\n"
        );
        let long: Vec<String> = (0..100).map(|i| format!("domain{i}.example")).collect();
        let line = text(&servers, &long);
        assert!(line.lines().last().unwrap().len() <= SEARCH + "search ".len());
    }

    #[test]
    fn the_file_is_replaced_also_where_it_is_a_link() {
        let etc = tempfile::tempdir().unwrap();
        let elsewhere = etc.path().join("elsewhere");
        std::fs::write(&elsewhere, "untouched").unwrap();
        std::os::unix::fs::symlink(&elsewhere, etc.path().join("resolv.conf")).unwrap();
        write(etc.path(), "new\n").unwrap();
        let read = |name: &str| std::fs::read_to_string(etc.path().join(name)).unwrap();
        assert_eq!(read("resolv.conf"), "new\n");
        assert_eq!(read("elsewhere"), "untouched");
    }
}
