use super::*;
use crate::report::Reporter;
use crate::stream::{FetchOptions, SignatureKind};

const TEXT: &str =
    r#"{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig","bootPolicy":"None"}"#;

fn loaded(source: &Source, expected: Option<&Digest>) -> Result<Loaded> {
    loaded_with(source, expected, &Keyring::default())
}

fn loaded_with(source: &Source, expected: Option<&Digest>, keys: &Keyring) -> Result<Loaded> {
    let fetcher = Fetcher::new(FetchOptions::default(), Reporter::default()).unwrap();
    let mut budget = Budget::new(Duration::ZERO);
    load(source, &fetcher, &mut budget, expected, keys)
}

#[test]
fn the_command_line_wins_over_the_initrd() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("etc/ironroot")).unwrap();
    std::fs::write(root.path().join("etc/ironroot/config.json"), TEXT).unwrap();
    let machine = Machine {
        arch: "x86_64".into(),
        ..Machine::default()
    };
    let at = |line: &str| locate(None, &Cmdline::parse(line), root.path(), &machine).unwrap();
    assert!(matches!(at("quiet"), Source::Initrd(_)));
    assert_eq!(
        at("ironroot.config=http://h/${arch}.json").origin(),
        "http://h/x86_64.json"
    );
    assert!(at("ironroot.config=http://h/a").needs_network());
    assert!(matches!(at("ironroot.config=data:,x"), Source::Data(_)));
}

#[test]
fn nothing_found_says_what_was_tried() {
    let root = tempfile::tempdir().unwrap();
    let failure = locate(None, &Cmdline::default(), root.path(), &Machine::default()).unwrap_err();
    assert_eq!(failure.class(), Class::Config);
    assert!(
        failure.to_string().contains("ironroot.config=")
            && failure.to_string().contains(INITRD_CONFIG)
    );
}

#[test]
fn an_ignition_config_carries_it_in_a_file_entry_and_something_else_counts_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.ign");
    let percent = TEXT.replace('"', "%22");
    let entry = format!(
        r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{{"path":"/ironroot/config","contents":{{"source":"data:,{percent}"}}}}]}}}}"#
    );
    let line = format!(
        "ignition.config.url={} gl.url=http://h/x.squashfs gl.ovl=/:tmpfs",
        path.display()
    );
    let at = |line: &str| {
        let machine = Machine {
            uuid: Some("a-b".into()),
            ..Machine::default()
        };
        locate(None, &Cmdline::parse(line), folder.path(), &machine).unwrap()
    };
    std::fs::write(&path, &entry).unwrap();
    let found = loaded(&at(&line), None).unwrap();
    assert_eq!(found.text, TEXT.as_bytes());
    assert!(
        found
            .origin
            .starts_with("/ironroot/config of the Ignition config"),
        "{}",
        found.origin
    );
    std::fs::write(&path, r#"{"ignition":{"version":"3.4.0"}}"#).unwrap();
    assert!(
        loaded(&at(&line), None)
            .unwrap()
            .origin
            .starts_with("gl.url=")
    );
    let alone = line.split_whitespace().next().unwrap();
    let failure = loaded(&at(alone), None).unwrap_err();
    assert!(
        failure
            .to_string()
            .contains("no file entry /ironroot/config"),
        "{failure}"
    );
    std::fs::write(&path, "oops").unwrap();
    assert!(
        loaded(&at(&line), None)
            .unwrap_err()
            .to_string()
            .contains("no JSON")
    );

    let Source::Ignition { location, .. } =
        at("ignition.config.url=http://h/ignition ignition.config.url.append.uuid=true")
    else {
        panic!("another source");
    };
    assert_eq!(location.to_string(), "http://h/ignition/a-b");
}

#[test]
fn a_data_url_is_the_config_in_both_encodings() {
    let percent = TEXT.replace('"', "%22");
    assert!(
        loaded(
            &Source::Data(format!("data:application/json,{percent}")),
            None
        )
        .is_ok()
    );
    let failure = loaded(
        &Source::Data("data:application/json;base64,@@".into()),
        None,
    )
    .unwrap_err();
    assert_eq!(failure.class(), Class::Config);
}

#[test]
fn keys_demand_a_signature_of_all_but_the_initrds_own_config() {
    let pair = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
    let public = pair.pk.to_box().unwrap().to_string();
    let keys = Keyring::parse(SignatureKind::Minisign, public.as_bytes()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.json");
    std::fs::write(&path, TEXT).unwrap();
    let named = Source::Named(Location::File(path.clone()));
    let initrd = Source::Initrd(path.clone());
    assert!(
        loaded_with(&initrd, None, &keys)
            .unwrap()
            .signed_by
            .is_none()
    );

    let class = |source: &Source| loaded_with(source, None, &keys).unwrap_err().class();
    let data = Source::Data(format!("data:,{}", TEXT.replace('"', "%22")));
    let digest = loaded(&data, None).unwrap().digest;
    assert_eq!(class(&data), Class::Integrity);
    let failure = loaded_with(&data, Some(&digest), &keys).unwrap_err();
    assert_eq!(
        failure.class(),
        Class::Integrity,
        "a digest is no signature"
    );
    let failure = loaded_with(&named, Some(&digest), &keys).unwrap_err();
    assert!(
        failure.to_string().contains("config.json.minisig"),
        "{failure}"
    );
    assert!(failure.to_string().ends_with("is missing"), "{failure}");

    let sign = |text: &str| minisign::sign(None, &pair.sk, text.as_bytes(), None, None).unwrap();
    let beside = directory.path().join("config.json.minisig");
    std::fs::write(&beside, sign("{}").to_bytes()).unwrap();
    assert_eq!(class(&named), Class::Integrity);
    std::fs::write(&beside, "hello").unwrap();
    assert_eq!(class(&named), Class::Integrity);
    std::fs::write(&beside, sign(TEXT).to_bytes()).unwrap();
    let by = loaded_with(&named, None, &keys).unwrap().signed_by.unwrap();
    assert!(by.to_string().starts_with("minisign key "));

    // The signature is looked at first: what is not signed is not read, however broken.
    std::fs::write(&path, "not JSON").unwrap();
    assert_eq!(class(&named), Class::Integrity);
}

#[test]
fn a_wrong_digest_names_both() {
    let source = Source::Data(format!("data:,{}", TEXT.replace('"', "%22")));
    let digest = loaded(&source, None).unwrap().digest;
    assert!(loaded(&source, Some(&digest)).is_ok());
    let other: Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    let failure = loaded(&source, Some(&other)).unwrap_err();
    assert_eq!(failure.class(), Class::Integrity);
    assert!(
        failure.to_string().contains(digest.hex()) && failure.to_string().contains(other.hex())
    );
}
