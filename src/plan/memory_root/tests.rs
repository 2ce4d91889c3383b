use super::*;
use crate::host::Machine;

const GIB: u64 = 1 << 30;

fn facts(total: u64, available: u64) -> Facts {
    Facts {
        machine: Machine {
            memory_total: Bytes(total),
            memory_available: Bytes(available),
            arch: "x86_64".to_owned(),
            ..Machine::default()
        },
        ..Facts::default()
    }
}

fn request(memory: &str) -> Request {
    let text = format!(
        r#"{{"apiVersion":"ironroot.dev/v1alpha1","kind":"BootConfig",
            "image":{{"url":"https://h/root"}},"memory":{memory}}}"#
    );
    let config = crate::config::parse::parse(text.as_bytes()).unwrap();
    crate::config::request::interpret(&config).unwrap()
}

fn of(memory: &str, facts: &Facts) -> Result<Plan, Refusal> {
    crate::plan::plan(&request(memory), facts)
}

fn room_of(memory: &str, facts: &Facts) -> Room {
    of(memory, facts)
        .unwrap()
        .steps
        .into_iter()
        .find_map(|step| match step {
            Step::OpenRoot { room, .. } => Some(room),
            _ => None,
        })
        .unwrap()
}

#[test]
fn no_step_writes_to_a_disk_and_the_last_one_switches() {
    let plan = of("{}", &facts(GIB, GIB)).unwrap();
    assert!(!plan.is_destructive());
    assert!(plan.needs_image());
    assert!(matches!(
        plan.steps.last(),
        Some(Step::Handoff(Handoff::SwitchRoot { .. }))
    ));
    let mut helper = facts(GIB, GIB);
    helper.place = Place::Initrd {
        sysroot: "/sysroot".into(),
    };
    let plan = of("{}", &helper).unwrap();
    assert!(matches!(
        plan.steps.last(),
        Some(Step::Handoff(Handoff::Sysroot { root })) if root == std::path::Path::new("/sysroot")
    ));
    helper.place = Place::Running;
    assert_eq!(of("{}", &helper).unwrap_err(), Refusal::NotInAnInitrd);
}

#[test]
fn sizes_are_shares_of_the_memory() {
    let machine = facts(2 * GIB, GIB);
    let room = room_of("{}", &machine);
    assert!((GIB - 100..=GIB).contains(&room.size.0), "{room:?}");
    assert_eq!(room.available, Bytes(GIB - RESERVE.0));
    assert!(!room.explicit && !room.interleave);
    let room = room_of(r#"{"size":"700MiB","inodes":77}"#, &machine);
    assert_eq!((room.size, room.inodes), (Bytes(700 * MIB), 77));
    let mut numa = machine.clone();
    numa.machine.numa_nodes = 2;
    assert!(room_of("{}", &numa).interleave);
}

#[test]
fn what_cannot_fit_is_refused_with_both_numbers() {
    let refusal = of("{}", &facts(GIB, 100 * MIB)).unwrap_err();
    assert!(matches!(refusal, Refusal::NoRoom { .. }), "{refusal}");
    let refusal = of(r#"{"size":"1MiB"}"#, &facts(GIB, GIB)).unwrap_err();
    assert!(refusal.to_string().contains("16.0 MiB"), "{refusal}");
    let failure: crate::error::Failure = refusal.into();
    assert_eq!(failure.class(), crate::error::Class::Space);
}

fn squashfs(length: u64) -> Vec<u8> {
    let mut head = vec![0; 4096];
    head[..4].copy_from_slice(b"hsqs");
    head[40..48].copy_from_slice(&length.to_le_bytes());
    head
}

fn tar() -> Vec<u8> {
    let mut head = vec![0; 512];
    head[257..262].copy_from_slice(b"ustar");
    head
}

fn judge(
    head: &[u8],
    lengths: Lengths,
    method: MemoryMethod,
    room: &Room,
) -> Result<RootLayout, Refusal> {
    adopt(head, lengths, (ImageKind::Auto, method), "x86_64", room)
}

#[test]
fn a_file_system_is_kept_and_an_archive_unpacked() {
    let room = room_of("{}", &facts(4 * GIB, 3 * GIB));
    let lengths = Lengths::default();
    let layout = judge(&squashfs(GIB), lengths, MemoryMethod::Auto, &room).unwrap();
    assert!(layout.overlay);
    assert_eq!(layout.at_least, Bytes(GIB));
    // Beside the image there is less than half of the memory.
    assert_eq!(layout.size, Bytes(2 * GIB - RESERVE.0));
    let layout = judge(&tar(), lengths, MemoryMethod::Auto, &room).unwrap();
    assert!(!layout.overlay);
    assert!(judge(&tar(), lengths, MemoryMethod::Overlay, &room).is_err());
    for head in [vec![0; 4096], b"<html>".to_vec()] {
        let refusal = judge(&head, lengths, MemoryMethod::Auto, &room).unwrap_err();
        assert!(matches!(refusal, Refusal::NotARoot { .. }), "{refusal}");
    }
}

#[test]
fn an_image_that_does_not_fit_or_is_cut_is_refused_by_its_head() {
    let room = room_of("{}", &facts(4 * GIB, GIB));
    let refusal = judge(
        &squashfs(GIB),
        Lengths::default(),
        MemoryMethod::Auto,
        &room,
    )
    .unwrap_err();
    let Refusal::NoRoom { need, have, .. } = refusal else {
        panic!("{refusal}");
    };
    assert_eq!((need, have), (Bytes(GIB + RESERVE.0), Bytes(GIB)));
    let cut = Lengths {
        exact: Some(Bytes(1000)),
        ..Lengths::default()
    };
    let refusal = judge(&squashfs(2000), cut, MemoryMethod::Auto, &room).unwrap_err();
    assert!(refusal.to_string().contains("cut short"), "{refusal}");
    let declared = Lengths {
        declared: Some(Bytes(3 * GIB)),
        ..Lengths::default()
    };
    let room = room_of(r#"{"size":"2GiB"}"#, &facts(8 * GIB, 7 * GIB));
    let refusal = judge(&tar(), declared, MemoryMethod::Auto, &room).unwrap_err();
    assert!(refusal.to_string().contains("3.0 GiB"), "{refusal}");
}

#[test]
fn an_explicit_size_stays_and_is_warned_of() {
    let room = room_of(r#"{"size":"3GiB"}"#, &facts(4 * GIB, 3 * GIB));
    let layout = judge(
        &squashfs(GIB),
        Lengths::default(),
        MemoryMethod::Auto,
        &room,
    )
    .unwrap();
    assert_eq!(layout.size, Bytes(3 * GIB));
    assert!(layout.note.unwrap().contains("memory.size"));
}

#[test]
fn image_and_tree_have_to_fit_together() {
    let room = room_of("{}", &facts(4 * GIB, 3 * GIB));
    let layout = judge(
        &squashfs(GIB),
        Lengths::default(),
        MemoryMethod::Extract,
        &room,
    )
    .unwrap();
    assert!(!layout.overlay && layout.image.is_mounted());
    let size = |bytes| crate::image::tree::Size {
        bytes: Bytes(bytes),
        inodes: 1,
    };
    let judge = |tree, held| unpacked(&layout.image, &size(tree), Bytes(held), &room);
    // Beside the image there is less than may be written.
    assert_eq!(judge(GIB, GIB + 1), Ok(Bytes(2 * GIB - RESERVE.0 - 1)));
    assert_eq!(judge(GIB, 10), Ok(room.size));
    let Err(Refusal::NoRoom { need, have, .. }) = judge(2 * GIB, GIB) else {
        panic!("it does not fit");
    };
    assert_eq!((need, have), (Bytes(3 * GIB + RESERVE.0), Bytes(3 * GIB)));
    let Err(Refusal::NoRoom { need, have, .. }) = judge(2 * GIB + 4096, 0) else {
        panic!("more than may be written");
    };
    assert_eq!((need, have), (Bytes(2 * GIB + 4096), room.size));
    // An image of any size is held, and its tree is what `memory.size` limits.
    let small = room_of(r#"{"size":"100MiB"}"#, &facts(4 * GIB, 3 * GIB));
    let head = squashfs(GIB);
    assert!(
        super::adopt(
            &head,
            Lengths::default(),
            (ImageKind::Auto, MemoryMethod::Extract),
            "x86_64",
            &small
        )
        .is_ok()
    );
}
