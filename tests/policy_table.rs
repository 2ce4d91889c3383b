//! The three boot policies over what a disk says of itself and over the firmware: what a network boot comes to.
#![allow(clippy::unwrap_used, clippy::panic)]

use ironroot::config::request::Request;
use ironroot::config::{parse, source};
use ironroot::host::tables::{CopyState, Gpt, PartitionKind, Table, TablePartition};
use ironroot::host::{
    BootEntries, BootEntry, Disk, DiskTries, Facts, Firmware, Machine, Place, RecordFound,
    RecordIdentity,
};
use ironroot::plan::step::Start;
use ironroot::plan::{self, Handoff, Plan, Refusal, Step, identity};
use ironroot::units::{Bytes, MIB, SectorSize};

const NOW: u64 = 1_796_200_000;

fn request(policy: &str, overwrite: &str) -> Request {
    request_then(policy, overwrite, "Reboot")
}

fn request_then(policy: &str, overwrite: &str, then: &str) -> Request {
    let text = format!(
        r#"{{ "apiVersion": "ironroot.dev/v1alpha1", "kind": "BootConfig", "metadata": {{ "claim": "a" }},
             "bootPolicy": "{policy}", "image": {{ "url": "https://images.example/os.raw" }},
             "disk": {{ {overwrite} }}, "then": "{then}" }}"#
    );
    let config = parse::parse(text.as_bytes()).unwrap_or_else(|p| panic!("{p:?}"));
    source::interpret(&config, "test", text.as_bytes()).unwrap()
}

/// The same config under the default policy, which has an identity.
fn own_identity() -> String {
    let request = request("NetworkBootOnce", "");
    identity::identity(&request, &request.disk().unwrap().image)
}

fn record(identity: &str) -> RecordIdentity {
    RecordIdentity {
        identity: identity.to_owned(),
        claim: "a".to_owned(),
        ..RecordIdentity::default()
    }
}

fn installed_table() -> Table {
    Table::Gpt(Gpt {
        sector: SectorSize::S512,
        disk_guid: "99999999-2222-3333-4444-555555555555".to_owned(),
        protective: true,
        primary: CopyState::Valid,
        primary_end: Bytes(34 * 512),
        backup: CopyState::Valid,
        copies_agree: true,
        backup_lists: None,
        backup_at_end: true,
        usable: (34, 2_000_000),
        entries: 128,
        partitions: vec![TablePartition {
            number: 1,
            start: Bytes(MIB),
            size: Bytes(64 * MIB),
            kind: PartitionKind::Guid("c12a7328-f81f-11d2-ba4b-00a0c93ec93b".to_owned()),
            partuuid: "11111111-2222-3333-4444-555555555555".to_owned(),
            name: None,
            attributes: 0,
        }],
        flaws: vec![],
    })
}

fn boot(tried: Option<DiskTries>, network_only: bool) -> BootEntries {
    let entry = |number, description: &str, network, active| BootEntry {
        number,
        description: description.to_owned(),
        network,
        active,
    };
    let mut order = vec![entry(0, "Setup", false, false), entry(4, "PXE", true, true)];
    if !network_only {
        order.push(entry(2, "debian", false, true));
        order.push(entry(1, "windows", false, true));
    }
    BootEntries {
        order,
        disk_tried: tried,
    }
}

fn facts(record: RecordFound, firmware: Firmware) -> Facts {
    let blank = matches!(record, RecordFound::None | RecordFound::Mark(_));
    Facts {
        disks: vec![Disk {
            name: "sda".to_owned(),
            path: "/dev/sda".into(),
            size: Bytes(1024 * MIB),
            sector: Some(SectorSize::S512),
            table: if blank {
                Table::None
            } else {
                installed_table()
            },
            record,
            ..Disk::default()
        }],
        machine: Machine {
            firmware,
            boot: (firmware == Firmware::Uefi).then(|| boot(None, false)),
            ..Machine::default()
        },
        now: NOW,
        ..Facts::default()
    }
}

/// One word for what a plan comes to, and how it ends.
fn word(outcome: &Result<Plan, Refusal>) -> String {
    let Ok(plan) = outcome else {
        return "refused".to_owned();
    };
    let end = match plan.steps.last().unwrap() {
        Step::Handoff(Handoff::Reboot) => "reboot",
        Step::Handoff(Handoff::Park { .. }) => "park",
        other => panic!("{other}"),
    };
    let what = if plan.is_destructive() {
        "install"
    } else if plan
        .steps
        .iter()
        .any(|s| matches!(s, Step::BootDisk { .. }))
    {
        "disk next"
    } else if plan
        .steps
        .iter()
        .any(|s| matches!(s, Step::BootEntry { .. }))
    {
        "boot it"
    } else {
        "nothing"
    };
    format!("{what}, {end}")
}

#[test]
fn policies_over_records_and_firmware() {
    let own = own_identity();
    let states = [
        ("none", RecordFound::None),
        ("own mark", RecordFound::Mark(record(&own))),
        ("other mark", RecordFound::Mark(record("1:other"))),
        ("own", RecordFound::Installed(record(&own))),
        ("other", RecordFound::Installed(record("1:other"))),
        (
            "foreign",
            RecordFound::Foreign {
                why: "a copy".to_owned(),
                of: None,
            },
        ),
    ];
    // Record; then Once, Always and None on UEFI; then the same on BIOS.
    let table = [
        (
            "none",
            [
                "install, reboot",
                "install, reboot",
                "disk next, reboot",
                "install, reboot",
                "install, park",
                "nothing, park",
            ],
        ),
        (
            "own mark",
            [
                "install, reboot",
                "install, reboot",
                "disk next, reboot",
                "install, reboot",
                "install, park",
                "nothing, park",
            ],
        ),
        (
            "other mark",
            [
                "refused",
                "install, reboot",
                "disk next, reboot",
                "refused",
                "install, park",
                "nothing, park",
            ],
        ),
        (
            "own",
            [
                "boot it, reboot",
                "install, reboot",
                "boot it, reboot",
                "nothing, park",
                "install, park",
                "nothing, park",
            ],
        ),
        (
            "other",
            [
                "refused",
                "install, reboot",
                "disk next, reboot",
                "refused",
                "install, park",
                "nothing, park",
            ],
        ),
        (
            "foreign",
            [
                "refused",
                "refused",
                "disk next, reboot",
                "refused",
                "refused",
                "nothing, park",
            ],
        ),
    ];
    for ((name, state), (row, want)) in states.into_iter().zip(table) {
        assert_eq!(name, row);
        let mut got = Vec::new();
        for firmware in [Firmware::Uefi, Firmware::Bios] {
            for policy in ["NetworkBootOnce", "NetworkBootAlways", "None"] {
                let facts = facts(state.clone(), firmware);
                got.push(word(&plan::plan(&request(policy, ""), &facts)));
            }
        }
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn none_never_writes_a_block_device_whatever_overwrite_says() {
    for overwrite in ["IfBlank", "IfOurs", "Always"] {
        let request = request("None", &format!(r#""overwrite": "{overwrite}""#));
        for firmware in [
            Firmware::Uefi,
            Firmware::UefiWithoutVariables,
            Firmware::Bios,
        ] {
            let plan = plan::plan(&request, &facts(RecordFound::None, firmware)).unwrap();
            assert!(!plan.is_destructive() && !plan.needs_image());
            assert!(
                plan.steps.iter().all(|s| matches!(
                    s,
                    Step::BootDisk { .. } | Step::ForgetDiskBoot | Step::Handoff(_)
                )),
                "{:?}",
                plan.lines()
            );
        }
    }
}

/// The disk that holds this very installation is started, whatever stands first in the boot order; on a machine that
/// cannot be told so, from here. `then` ends nothing before that.
#[test]
fn none_starts_what_is_installed() {
    let own = || RecordFound::Installed(record(&own_identity()));
    for then in ["Reboot", "PowerOff", "Park", "Kexec", "Boot"] {
        let request = request_then("None", "", then);
        let plan = plan::plan(&request, &facts(own(), Firmware::Uefi)).unwrap();
        assert!(!plan.is_destructive() && !plan.needs_image());
        assert_eq!(word(&Ok(plan.clone())), "boot it, reboot", "{then}");
        let started = plan
            .steps
            .iter()
            .any(|s| matches!(s, Step::StartInstalled { .. }));
        assert_eq!(started, ["Kexec", "Boot"].contains(&then), "{then}");

        let plan = plan::plan(&request, &facts(own(), Firmware::Bios)).unwrap();
        assert!(!plan.is_destructive() && !plan.needs_image());
        assert!(
            matches!(plan.steps.first(), Some(Step::StartInstalled { .. })),
            "{then}: {:?}",
            plan.lines()
        );
        // Nobody asks what comes next on a system that runs.
        let running = Facts {
            place: Place::Running,
            ..facts(own(), Firmware::Uefi)
        };
        assert_eq!(word(&plan::plan(&request, &running)), "nothing, park");
    }
    // Two disks that say so: nobody guesses.
    let mut two = facts(own(), Firmware::Uefi);
    let second = Disk {
        name: "sdb".to_owned(),
        path: "/dev/sdb".into(),
        ..two.disks[0].clone()
    };
    two.disks.push(second);
    let refused = plan::plan(&request("None", ""), &two);
    assert_eq!(word(&refused), "refused");
}

#[test]
fn none_boots_the_first_entry_that_is_not_a_network_one_and_not_for_ever() {
    let request = request("None", "");
    let plan_with = |boot: BootEntries| {
        let mut facts = facts(RecordFound::None, Firmware::Uefi);
        facts.machine.boot = Some(boot);
        plan::plan(&request, &facts).unwrap()
    };
    let fresh = plan_with(boot(None, false));
    let Step::BootDisk {
        number,
        description,
        tries,
    } = &fresh.steps[0]
    else {
        panic!("{:?}", fresh.lines())
    };
    assert_eq!((*number, description.as_str()), (2, "debian"));
    let tried = |since, count| Some(DiskTries { since, count });
    assert_eq!(Some(*tries), tried(NOW, 1));

    // Two restarts within an hour are nothing special, and they are counted.
    for (since, count) in [(NOW - 60, 1), (NOW - 3600, 2), (NOW, 2), (NOW + 60, 1)] {
        let plan = plan_with(boot(tried(since, count), false));
        assert_eq!(word(&Ok(plan.clone())), "disk next, reboot");
        assert!(
            matches!(&plan.steps[0], Step::BootDisk { tries, .. }
                if Some(*tries) == tried(since, count + 1)),
            "{:?}",
            plan.lines()
        );
    }
    // It comes back again and again, however long each round takes, and with a clock that stands still: it parks,
    // and forgets.
    for (since, count) in [
        (NOW - 20 * 3600, 3),
        (NOW, 3),
        (NOW + 60, 3),
        (NOW - 60, 200),
    ] {
        let plan = plan_with(boot(tried(since, count), false));
        assert!(
            matches!(
                plan.steps.as_slice(),
                [Step::ForgetDiskBoot, Step::Handoff(Handoff::Park { .. })]
            ),
            "{:?}",
            plan.lines()
        );
    }
    // A row ends after a day.
    let later = plan_with(boot(tried(NOW - 25 * 3600, 3), false));
    assert!(
        matches!(&later.steps[0], Step::BootDisk { tries, .. } if Some(*tries) == tried(NOW, 1))
    );
    // On a running Linux nobody asks what the firmware boots next.
    let mut running = facts(RecordFound::None, Firmware::Uefi);
    running.place = Place::Running;
    let plan = plan::plan(&request, &running);
    assert_eq!(word(&plan), "nothing, park");
    let nothing = plan_with(boot(None, true));
    assert_eq!(word(&Ok(nothing)), "nothing, park");
}

/// What the machine is told, how the system is started from here, and how the run ends.
fn ending(plan: &Plan) -> String {
    let mut words = Vec::new();
    for step in &plan.steps {
        match step {
            Step::BootEntry { efi, .. } if efi.boot_next => words.push("next"),
            Step::BootEntry { .. } => words.push("entry"),
            Step::CountStart { .. } => words.push("count"),
            Step::GiveUp { .. } => words.push("give up"),
            Step::StartInstalled { start, .. } => words.push(match start {
                Start::Root => "root",
                Start::Kexec => "kexec",
            }),
            Step::Handoff(Handoff::Reboot) => words.push("reboot"),
            Step::Handoff(Handoff::PowerOff) => words.push("off"),
            Step::Handoff(Handoff::Park { .. }) => words.push("park"),
            _ => {}
        }
    }
    words.join(" ")
}

/// A disk that does not boot brings its machine back each time: the firmware is not told for ever.
#[test]
fn an_installed_disk_that_does_not_boot_ends_in_a_failure() {
    let own = RecordFound::Installed(record(&own_identity()));
    let plan_at = |then: &str, place: Place, count: u8| {
        let mut facts = facts(own.clone(), Firmware::Uefi);
        facts.place = place;
        let since = NOW - 3600;
        let tries = (count > 0).then_some(DiskTries { since, count });
        facts.machine.boot = Some(boot(tries, false));
        plan::plan(&request_then("NetworkBootOnce", "", then), &facts).unwrap()
    };
    let ends: Vec<String> = (0..=13)
        .map(|count| ending(&plan_at("Reboot", Place::Init, count)))
        .collect();
    assert_eq!(ends[..3], ["next reboot"; 3]);
    // A system that can be started from here is, however often: the rest comes only where it cannot.
    assert_eq!(ends[3..12], ["count kexec next reboot"; 9]);
    assert_eq!(ends[12..], ["count kexec give up"; 2]);
    for count in 0..3 {
        let plan = plan_at("Reboot", Place::Init, count);
        let Step::BootEntry {
            tries, otherwise, ..
        } = &plan.steps[0]
        else {
            panic!("{:?}", plan.lines())
        };
        assert_eq!(tries.unwrap().count, count + 1);
        // Where the firmware's memory takes nothing, the machine starts all the same.
        assert!(
            matches!(otherwise.as_deref(), Some(Step::StartInstalled { start, .. }) if *start == Start::Kexec)
        );
    }
    let gone = plan_at("Reboot", Place::Init, 12);
    assert!(
        gone.steps
            .iter()
            .any(|step| matches!(step, Step::ForgetDiskBoot))
    );
    // Who is told again must be counted, and a firmware that takes nothing must end it.
    let is_counted = |step: &Step, count: u8| match step {
        Step::BootEntry {
            required, tries, ..
        } => *required && tries.is_some_and(|tries| tries.count == count),
        _ => false,
    };
    assert!(is_counted(&plan_at("Reboot", Place::Init, 7).steps[2], 8));
    // Who starts it from here at each network boot is not counted, unless that does not work.
    for (then, start) in [("Kexec", "kexec"), ("Boot", "root")] {
        let told = plan_at(then, Place::Init, 0);
        assert_eq!(ending(&told), format!("next {start} next reboot"));
        assert!(
            matches!(told.steps[0], Step::BootEntry { required, tries, .. } if !required && tries.is_none())
        );
        assert!(is_counted(&told.steps[2], 1));
        assert_eq!(
            ending(&plan_at(then, Place::Init, 12)),
            format!("next {start} give up")
        );
        assert_eq!(ending(&plan_at(then, Place::Running, 0)), "next reboot");
    }
    assert_eq!(ending(&plan_at("PowerOff", Place::Init, 12)), "next off");
}

/// No row goes round for ever: who restarts has told the firmware, or finds its record next time.
#[test]
fn what_comes_after_an_installation_and_after_a_second_network_boot() {
    let own = RecordFound::Installed(record(&own_identity()));
    // Policy, record, `then`; UEFI, UEFI without variables, BIOS.
    let table: [(&str, &RecordFound, &str, [&str; 3]); 15] = [
        (
            "NetworkBootOnce",
            &RecordFound::None,
            "Reboot",
            ["next reboot", "reboot", "reboot"],
        ),
        (
            "NetworkBootOnce",
            &RecordFound::None,
            "Kexec",
            ["next kexec reboot", "kexec reboot", "kexec reboot"],
        ),
        (
            "NetworkBootOnce",
            &RecordFound::None,
            "Boot",
            ["next root reboot", "root reboot", "root reboot"],
        ),
        (
            "NetworkBootOnce",
            &RecordFound::None,
            "PowerOff",
            ["next off", "off", "off"],
        ),
        (
            "NetworkBootOnce",
            &RecordFound::None,
            "Park",
            ["next park", "park", "park"],
        ),
        (
            "NetworkBootOnce",
            &own,
            "Reboot",
            ["next reboot", "kexec park", "kexec park"],
        ),
        (
            "NetworkBootOnce",
            &own,
            "Kexec",
            ["next kexec next reboot", "kexec park", "kexec park"],
        ),
        (
            "NetworkBootOnce",
            &own,
            "Boot",
            ["next root next reboot", "root park", "root park"],
        ),
        (
            "NetworkBootOnce",
            &own,
            "PowerOff",
            ["next off", "off", "off"],
        ),
        (
            "NetworkBootOnce",
            &own,
            "Park",
            ["next park", "park", "park"],
        ),
        (
            "NetworkBootAlways",
            &own,
            "Reboot",
            ["next reboot", "park", "park"],
        ),
        (
            "NetworkBootAlways",
            &own,
            "Kexec",
            ["entry kexec park", "kexec park", "kexec park"],
        ),
        (
            "NetworkBootAlways",
            &own,
            "Boot",
            ["entry root park", "root park", "root park"],
        ),
        (
            "NetworkBootAlways",
            &own,
            "PowerOff",
            ["next off", "off", "off"],
        ),
        (
            "NetworkBootAlways",
            &own,
            "Park",
            ["next park", "park", "park"],
        ),
    ];
    let firmwares = [
        Firmware::Uefi,
        Firmware::UefiWithoutVariables,
        Firmware::Bios,
    ];
    for (policy, state, then, want) in table {
        let got = firmwares.map(|firmware| {
            let request = request_then(policy, "", then);
            ending(&plan::plan(&request, &facts(state.clone(), firmware)).unwrap())
        });
        assert_eq!(got, want, "{policy} {then}");
    }
    // Without BootNext, and without a record, a restart would install again.
    for disk in [r#""efi": { "bootNext": false }"#, r#""record": "Skip""#] {
        let request = request_then("NetworkBootAlways", disk, "Reboot");
        let plan = plan::plan(&request, &facts(own.clone(), Firmware::Uefi)).unwrap();
        let end = ending(&plan);
        assert_eq!(end == "entry park", disk.contains("bootNext"), "{end}");
    }
    let request = request_then("NetworkBootOnce", r#""record": "Skip""#, "Reboot");
    let plan = plan::plan(&request, &facts(RecordFound::None, Firmware::Bios)).unwrap();
    assert_eq!(ending(&plan), "park");
    // On a running Linux nothing is started.
    let mut running = facts(RecordFound::None, Firmware::Bios);
    running.place = Place::Running;
    let request = request_then("NetworkBootOnce", "", "Boot");
    assert_eq!(ending(&plan::plan(&request, &running).unwrap()), "reboot");
}
