use proptest::prelude::*;

use super::*;

/// A record with the length that it needs.
fn one(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = 3 + key.len() + value.len();
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length += 1;
    }
    let mut out = format!("{length} {key}=").into_bytes();
    out.extend_from_slice(value);
    out.push(b'\n');
    out
}

fn read(records: &[(&str, &[u8])]) -> Result<Extended, String> {
    let mut extended = Extended::default();
    let header: Vec<u8> = records
        .iter()
        .flat_map(|(key, value)| one(key, value))
        .collect();
    extended.read(&header, &Limits::default())?;
    Ok(extended)
}

#[test]
fn values_may_hold_any_bytes() {
    let got = read(&[
        ("path", b"a\nb=c \xff"),
        (
            "SCHILY.xattr.security.capability",
            b"\x01\0\0\x02\n\n9 x=y\n",
        ),
        ("SCHILY.xattr.user.a%3Db%25%zz", b""),
        ("LIBARCHIVE.xattr.user.%2dx", b"AAEK"),
        ("LIBARCHIVE.xattr.user.pad", b"AA=="),
        ("LIBARCHIVE.xattr.user.nopad", b"AA"),
        ("RHT.security.selinux", b"system_u:object_r:etc_t:s0"),
        ("SCHILY.acl.access", b"user::rw-\nuser:7:r--\n"),
        ("uid", b"4294967294"),
        ("size", b"99999999999"),
        ("comment", b"x"),
    ])
    .unwrap();
    assert_eq!(got.path.unwrap(), b"a\nb=c \xff");
    let xattrs: Vec<(&[u8], &[u8])> = got
        .xattrs
        .iter()
        .map(|(name, value)| (&name[..], &value[..]))
        .collect();
    assert_eq!(
        xattrs,
        [
            (&b"security.capability"[..], &b"\x01\0\0\x02\n\n9 x=y\n"[..]),
            (b"user.a=b%%zz", b""),
            (b"user.-x", b"\0\x01\n"),
            (b"user.pad", b"\0"),
            (b"user.nopad", b"\0"),
            (b"security.selinux", b"system_u:object_r:etc_t:s0\0"),
        ]
    );
    assert_eq!(got.acl_access.unwrap(), b"user::rw-\nuser:7:r--\n");
    assert_eq!(
        (got.uid, got.size),
        (Some(4_294_967_294), Some(99_999_999_999))
    );
}

#[test]
fn the_last_word_counts_and_an_empty_one_takes_back() {
    let got = read(&[("path", b"a"), ("path", b"b"), ("uid", b"5"), ("uid", b"")]).unwrap();
    assert_eq!((got.path.unwrap(), got.uid), (b"b".to_vec(), None));
    let got = read(&[("SCHILY.xattr.user.x", b"1"), ("SCHILY.xattr.user.x", b"2")]).unwrap();
    assert_eq!(got.xattrs, [(b"user.x".to_vec(), b"2".to_vec())]);
}

#[test]
fn times_before_1970_and_of_any_precision() {
    let at = |text: &[u8]| time(text).map(|t| (t.seconds, t.nanoseconds));
    assert_eq!(
        at(b"1700000000.123456789"),
        Ok((1_700_000_000, 123_456_789))
    );
    assert_eq!(at(b"5.5"), Ok((5, 500_000_000)));
    assert_eq!(at(b"5.1234567899"), Ok((5, 123_456_789)));
    assert_eq!(at(b"-1.25"), Ok((-2, 750_000_000)));
    assert_eq!(at(b"-3"), Ok((-3, 0)));
    assert_eq!(at(b"7."), Ok((7, 0)));
    for wrong in [
        &b""[..],
        b"x",
        b"1.x",
        b"--1",
        b"1e9",
        b"99999999999999999999",
    ] {
        assert!(at(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn maps_of_the_two_older_sparse_formats() {
    let old = read(&[
        ("GNU.sparse.size", b"100"),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.offset", b"0"),
        ("GNU.sparse.numbytes", b"5"),
        ("GNU.sparse.offset", b"50"),
        ("GNU.sparse.numbytes", b"6"),
    ]);
    let new = read(&[("GNU.sparse.size", b"100"), ("GNU.sparse.map", b"0,5,50,6")]);
    assert_eq!(old.unwrap().sparse.map, [(0, 5), (50, 6)]);
    assert_eq!(new.unwrap().sparse.map, [(0, 5), (50, 6)]);
    assert!(read(&[("GNU.sparse.map", b"0,5,50")]).is_err());
    assert!(read(&[("GNU.sparse.numbytes", b"5")]).is_err());
}

#[test]
fn what_is_wrong_is_refused() {
    let mut extended = Extended::default();
    for header in [
        &b"6 a=b"[..],
        b"7 a=b\n",
        b"5 a=b\n",
        b"6 =bc\n",
        b"6 abc\n",
        b"x a=b\n",
        b"99999999999999999999 a=b\n",
        b"0 a=b\n",
        b"\0\0\0",
    ] {
        assert!(
            extended.read(header, &Limits::default()).is_err(),
            "{header:?}"
        );
    }
    assert!(read(&[("SCHILY.xattr.user.big", &vec![0; 65537])]).is_err());
    assert!(read(&[("SCHILY.xattr.user.a\0b", b"")]).is_err());
    assert!(read(&[("LIBARCHIVE.xattr.user.x", b"*")]).is_err());
    assert!(read(&[("size", b"-1")]).is_err());
    assert!(read(&[("mtime", b"soon")]).is_err());
    let many: Vec<String> = (0..300).map(|n| format!("SCHILY.xattr.user.{n}")).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|key| (&key[..], &b"x"[..])).collect();
    assert!(read(&many).is_err());
}

proptest! {
    #[test]
    fn any_header_is_read_without_a_panic(header: Vec<u8>) {
        let _ = Extended::default().read(&header, &Limits::default());
    }

    #[test]
    fn what_was_written_is_read(key in "[a-zA-Z.]{1,20}", value: Vec<u8>) {
        let header = one(&key, &value);
        let got: Vec<_> = records(&header).collect();
        prop_assert_eq!(got, [Ok((key.as_bytes(), &value[..]))]);
    }
}
