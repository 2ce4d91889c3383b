use super::*;

fn request(json: &str) -> Result<Request, Vec<String>> {
    let text = format!(r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig",{json}}}"#);
    let config = crate::config::parse::parse(text.as_bytes()).unwrap();
    interpret(&config).map_err(|all| all.iter().map(ToString::to_string).collect())
}

const IMAGE: &str = r#""image":{"url":"https://example.org/a.raw"}"#;

#[test]
fn defaults_are_the_careful_ones() {
    let request = request(&format!(r#"{IMAGE},"disk":{{}}"#)).unwrap();
    let install = request.disk().unwrap();
    assert_eq!(install.overwrite, wire::Overwrite::IfBlank);
    assert_eq!(install.pick, wire::Pick::Only);
    assert_eq!(request.then, Then::Reboot);
    assert_eq!(request.generation, 1);
}

#[test]
fn what_is_not_carried_out_is_refused_by_name() {
    let all = request(&format!(
        r#"{IMAGE},"disk":{{}},"report":{{"events":true}},"network":{{}}"#
    ))
    .unwrap_err();
    for key in ["network", "report.events"] {
        assert!(
            all.iter()
                .any(|p| p == &format!("{key}: not supported in this version")),
            "{key}: {all:?}"
        );
    }
}

#[test]
fn partitions_are_labels_or_numbers_and_make_sense() {
    let disk = |json: &str| request(&format!(r#"{IMAGE},"disk":{json}"#));
    let read = disk(
        r#"{"keep":["ceph-*","3"],"grow":"root","guids":"New","partitions":[
            {"label":"data","size":"50%"},{"label":"var","size":"2GiB","type":"var","filesystem":"xfs"}]}"#,
    )
    .unwrap();
    let install = read.disk().unwrap();
    assert_eq!(
        install.keep,
        [Named::Label("ceph-*".to_owned()), Named::Number(3)]
    );
    assert_eq!(install.grow, Some(Named::Label("root".to_owned())));
    assert_eq!(
        install.partitions[0].kind,
        "0fc63daf-8483-4772-8e79-3d69d8477de4"
    );
    for (json, wrong) in [
        (
            r#"{"keep":["129"]}"#,
            "disk.keep[0]: partition numbers go from 1 to 128",
        ),
        (r#"{"keep":["0"]}"#, "disk.keep[0]: partition numbers"),
        (
            r#"{"keep":["99999999999999"]}"#,
            "disk.keep[0]: partition numbers",
        ),
        (
            r#"{"grow":""}"#,
            "disk.grow: a partition's label or number is needed",
        ),
        (
            r#"{"partitions":[{"label":"a","size":"1GiB","type":"esp"}]}"#,
            "disk.partitions[0].type: the image brings",
        ),
        (
            r#"{"partitions":[{"label":"a","size":"1GiB","type":"C12A7328-F81F-11D2-BA4B-00A0C93EC93B"}]}"#,
            "disk.partitions[0].type: the image brings",
        ),
        (
            r#"{"partitions":[{"label":"a","size":"1GiB","type":"nice"}]}"#,
            "is neither a GUID nor one of linux, home",
        ),
        (
            r#"{"partitions":[{"label":"a","size":"1GiB","filesystem":"zfs"}]}"#,
            "disk.partitions[0].filesystem",
        ),
        (
            r#"{"partitions":[{"label":"a","size":"1GiB","type":"swap","filesystem":"ext4"}]}"#,
            "a partition of type swap has none",
        ),
        (
            r#"{"partitions":[{"label":"a","size":"1GiB"},{"label":"a","size":"1GiB"}]}"#,
            "disk.partitions[1].label: another partition",
        ),
        (
            r#"{"partitions":[{"label":"a","size":"Rest"},{"label":"b","size":"Rest"}]}"#,
            "disk.partitions[1].size: only one",
        ),
        (
            r#"{"grow":"root","partitions":[{"label":"a","size":"Rest"}]}"#,
            "`disk.grow` takes the rest",
        ),
        (
            r#"{"partitions":[{"label":"","size":"1GiB"}]}"#,
            "needs a label",
        ),
        (
            r#"{"partitions":[{"label":"12","size":"1GiB"}]}"#,
            "not only digits",
        ),
        (
            r#"{"partitions":[{"label":"0123456789012345678901234567890123456x","size":"1GiB"}]}"#,
            "room for 36",
        ),
    ] {
        let all = disk(json).unwrap_err();
        assert!(all.iter().any(|p| p.contains(wrong)), "{json}: {all:?}");
    }
}

#[test]
fn plain_http_needs_a_digest() {
    let http = r#""image":{"url":"http://h/a.raw"EXTRA},"disk":{}"#;
    assert!(request(&http.replace("EXTRA", "")).unwrap_err()[0].contains("plain HTTP"));
    let digest = format!(r#","digest":"sha256:{}""#, "0".repeat(64));
    assert!(request(&http.replace("EXTRA", &digest)).is_ok());
    assert!(request(&http.replace("EXTRA", r#","insecure":true"#)).is_ok());
    for (checksums, enough) in [
        ("https://h/SUMS", true),
        ("file:///etc/SUMS", true),
        ("http://h/SUMS", false),
    ] {
        let checksums = format!(r#","checksums":"{checksums}""#);
        let read = request(&http.replace("EXTRA", &checksums));
        assert_eq!(read.is_ok(), enough, "{checksums}");
    }
    let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    let signed = format!(r#","signature":{{"type":"minisign","publicKey":"{key}"}}"#);
    assert!(request(&http.replace("EXTRA", &signed)).is_ok());
    let wrong = signed.replace(key, "hello");
    assert!(
        request(&http.replace("EXTRA", &wrong)).unwrap_err()[0]
            .starts_with("image.signature.publicKey: not a minisign public key")
    );
    let of = r#","signature":{"type":"openpgp","of":"Checksums"}"#;
    assert!(
        request(&http.replace("EXTRA", of)).unwrap_err()[0]
            .starts_with("image.signature.of: `Checksums` needs")
    );
    let mirror = r#""image":{"url":"https://h/a.raw","mirrors":["http://m/a.raw"]},"disk":{}"#;
    assert!(request(mirror).is_err());
}

#[test]
fn keys_of_registries_are_for_registries() {
    let with =
        |url: &str, more: &str| request(&format!(r#""image":{{"url":"{url}"{more}}},"disk":{{}}"#));
    let oci = "oci://h/os:v1";
    assert!(with(oci, "").is_ok());
    let pinned = format!("{oci}@sha256:{}", "a".repeat(64));
    assert!(with(&pinned, r#","plainHttp":true"#).is_ok());
    // A pinned image pins its mirrors, over whatever they come.
    let mirrored = r#","mirrors":["oci://m/os:v1"],"plainHttp":true"#;
    let read = with(&pinned, mirrored).unwrap();
    let mirror = &read.image().unwrap().locations[1];
    assert!(mirror.to_string().contains("@sha256:aaaa"));
    let other = format!(r#","mirrors":["oci://m/os@sha256:{}"]"#, "b".repeat(64));
    let all = with(&pinned, &other).unwrap_err();
    assert!(
        all[0].starts_with("image.mirrors[0]: it names another"),
        "{all:?}"
    );
    assert!(with(oci, r#","credentials":"{\"auths\":{}}""#).is_ok());
    assert!(with(oci, r#","credentials":"/etc/x.json""#).is_ok());
    for (url, more, part) in [
        (
            oci,
            r#","plainHttp":true"#,
            "image: an image over plain HTTP",
        ),
        (
            oci,
            r#","credentials":"s3cr3t""#,
            "image.credentials: neither",
        ),
        (
            oci,
            r#","mirrors":["oci://m/os","https://h/x"]"#,
            "image.mirrors[1]: either all",
        ),
        (
            oci,
            r#","signature":{"type":"minisign"}"#,
            "image.signature.url: needed",
        ),
        (
            "https://h/x",
            r#","plainHttp":true"#,
            "image.plainHttp: only",
        ),
        (
            "https://h/x",
            r#","credentials":"/x""#,
            "image.credentials: only",
        ),
    ] {
        let all = with(url, more).unwrap_err();
        assert!(all[0].starts_with(part), "{all:?}");
        assert!(!all[0].contains("s3cr3t"), "{all:?}");
    }
}

#[test]
fn proxies_that_cannot_be_used_are_named_by_their_key() {
    let with = |proxy: &str| request(&format!(r#"{IMAGE},"disk":{{}},"proxy":{proxy}"#));
    let given = with(r#"{"https":"p.example:3128","noProxy":["10.0.0.0/8"]}"#).unwrap();
    assert!(!given.proxies.unwrap().is_empty());
    // Nothing goes through a proxy, whatever the environment says.
    assert!(with("{}").unwrap().proxies.unwrap().is_empty());
    let all = with(r#"{"http":"socks5://h","noProxy":["a","b c"]}"#).unwrap_err();
    assert!(
        all[0].starts_with("proxy.http: a proxy of kind \"socks5\""),
        "{all:?}"
    );
    assert!(all[1].starts_with("proxy.noProxy[1]: "), "{all:?}");
}

#[test]
fn disk_and_memory_exclude_each_other_and_none_needs_neither() {
    assert!(
        request(&format!(r#"{IMAGE},"disk":{{}},"memory":{{}}"#)).unwrap_err()[0]
            .starts_with("memory: both")
    );
    assert!(request(IMAGE).unwrap_err()[0].contains("one of `disk` and `memory`"));
    assert!(request(r#""bootPolicy":"None""#).unwrap().image().is_none());
    assert!(
        request(r#""disk":{}"#)
            .unwrap_err()
            .iter()
            .any(|p| p.contains("`image`"))
    );
}
