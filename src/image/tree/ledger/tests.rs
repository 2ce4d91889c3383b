use proptest::prelude::*;

use super::*;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::AtomicU64;

fn sum(pieces: &[(u64, &[u8])], size: u64) -> u64 {
    let mut content = Content::default();
    for (at, data) in pieces {
        content.put(*at, data);
    }
    content.finish(size)
}

#[test]
fn zeros_are_as_good_as_a_hole_and_everything_else_counts() {
    let size = 5 * PAGE as u64;
    let mut all = vec![0u8; usize::try_from(size).unwrap()];
    all[9000] = 1;
    all[20_000] = 2;
    let whole = sum(&[(0, &all)], size);
    assert_eq!(whole, sum(&[(9000, &[1]), (20_000, &[2])], size));
    assert_eq!(
        whole,
        sum(
            &[
                (8192, &all[8192..9100]),
                (9100, &[]),
                (19_000, &all[19_000..])
            ],
            size
        )
    );
    assert_ne!(whole, sum(&[(9001, &[1]), (20_000, &[2])], size));
    assert_ne!(whole, sum(&[(9000, &[1])], size));
    assert_ne!(whole, sum(&[(0, &all)], size + 1));
    assert_eq!(sum(&[], 1 << 50), sum(&[(7, &[0, 0])], 1 << 50));
}

proptest! {
    #[test]
    fn pieces_may_be_cut_anywhere(
        data in proptest::collection::vec(0u8..2, 0..3 * PAGE), cuts in proptest::collection::vec(0usize..3 * PAGE, 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(data.len())).chain([0, data.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<(u64, &[u8])> = cuts.windows(2).map(|w| (w[0] as u64, &data[w[0]..w[1]])).collect();
        let size = data.len() as u64;
        prop_assert_eq!(sum(&pieces, size), sum(&[(0, &data)], size));
    }
}

/// A copied tree, and what was remembered of it.
fn copied() -> (tempfile::TempDir, Ledger, Listing) {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    std::fs::create_dir_all(from.join("a/b")).unwrap();
    std::fs::write(from.join("a/b/file"), vec![7; 300_000]).unwrap();
    std::fs::write(from.join("empty"), "").unwrap();
    std::fs::hard_link(from.join("a/b/file"), from.join("again")).unwrap();
    std::os::unix::fs::symlink("a", from.join("link")).unwrap();
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.write_all_at(b"x", 1_000_000).unwrap();
    sparse.set_len(5_000_000).unwrap();
    std::fs::create_dir(folder.path().join("to")).unwrap();
    let mut ledger = Ledger::default();
    let none = Path::new("");
    let to = Root::open(&folder.path().join("to")).unwrap();
    let progress = AtomicU64::new(0);
    let from = Root::open(&from).unwrap();
    super::super::copy_remembering(&from, none, &to, none, (&progress, Some(&mut ledger))).unwrap();
    let listing = ledger.list(&to).unwrap();
    (folder, ledger, listing)
}

#[test]
fn what_is_there_is_what_was_written() {
    let (folder, ledger, listing) = copied();
    let root = Root::open(&folder.path().join("to")).unwrap();
    let compared = ledger.compare(&root, &listing).unwrap();
    assert_eq!(compared.files, 3);
    assert!(
        (300_000..1_400_000).contains(&compared.bytes.0),
        "{compared:?}"
    );
}

#[test]
fn each_kind_of_loss_is_found() {
    type Lose = fn(&Path);
    let losses: [(&str, Lose); 6] = [
        ("is not what was written", |p| {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(p.join("a/b/file"))
                .unwrap();
            let time = file.metadata().unwrap().modified().unwrap();
            file.write_all_at(b"x", 200_000).unwrap();
            file.set_modified(time).unwrap();
        }),
        ("\"/sparse\"", |p| {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(p.join("sparse"))
                .unwrap();
            file.write_all_at(&[0], 1_000_000).unwrap();
        }),
        ("attributes differ", |p| {
            std::fs::remove_file(p.join("again")).unwrap();
        }),
        ("attributes differ", |p| {
            let mode = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(p.join("a"), mode).unwrap();
        }),
        ("attributes differ", |p| {
            std::fs::rename(p.join("empty"), p.join("emptz")).unwrap();
        }),
        ("\"/new\"", |p| std::fs::write(p.join("new"), "").unwrap()),
    ];
    for (said, lose) in losses {
        let (folder, ledger, listing) = copied();
        let to = folder.path().join("to");
        lose(&to);
        let root = Root::open(&to).unwrap();
        let failure = ledger.compare(&root, &listing).unwrap_err();
        assert_eq!(failure.class(), Class::Media);
        let text = failure.to_string();
        assert!(text.contains(said), "{said}: {text}");
    }
}
