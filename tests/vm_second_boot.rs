//! The second network boot of an installed machine: what its firmware refuses, what it forgets, and a disk that does
//! not boot. It ends in the installed system or in a failure with a reason, and never goes round for ever.
//!
//! Needs root and the artifacts of `scripts/lab` (`scripts/test` makes them).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/machine.rs"]
mod machine;
#[path = "support/script_machine.rs"]
mod script_machine;
#[path = "support/second_boot.rs"]
mod second_boot;
#[path = "support/small_system.rs"]
mod small_system;

use second_boot::{BOOTED, Machine};

/// Fills the firmware's memory until it takes nothing more.
const FILL: &str = r#"
i=0
for size in 4000 400 40 4; do
    full=no
    while [ $full = no ]; do
        i=$((i+1))
        [ $i -lt 800 ] || fail "it takes all"
        { busybox printf '\7\0\0\0'; dd if=/dev/zero bs=$size count=1 2>/log; } >/tmp/variable
        dd if=/tmp/variable of=/efi/Fill$i-fb29877e-e25b-4497-8ab6-85504c45f96b bs=8192 2>/log || full=yes
    done
    cat /log
done
echo "filled with $i"
"#;

/// Ours, where tries are counted.
const TRIED: &str = "/efi/IronrootDiskTried-fb29877e-e25b-4497-8ab6-85504c45f96a";

const INSTALLED: &str = "--until=already: boot it, write nothing";
const RESTARTS: &str = "--until=done: the machine restarts now";

/// A firmware whose memory takes nothing can neither be told nor count.
#[test]
fn matrix_a_full_firmware_is_not_asked_twice_and_the_installed_system_starts() {
    let full = Machine::installed();
    let before = full.hash();
    // What the firmware frees at its next start is taken too.
    for turn in ["A", "B"] {
        println!("{}", full.script(&FILL.replace("Fill", turn)));
    }
    let markers = [
        INSTALLED,
        "--until=is started from here: writing the UEFI variable .*: No space left on device",
        "--until=loaded .*BOOTX64.EFI",
        BOOTED,
    ];
    full.copy().start("Reboot", "", &markers).good();
    // Who starts it from here anyway only warns.
    let markers = [
        INSTALLED,
        "--until=writing the UEFI variable .*: No space left on device",
        "--until=the run goes on without it",
        "--until=loaded .*BOOTX64.EFI",
        BOOTED,
    ];
    full.copy().start("Kexec", "", &markers).good();
    // And where nothing can be started from here either, it stays where it is and says why.
    for then in ["Reboot", "Kexec"] {
        let markers = [INSTALLED, "--until=FAILED .code 17.", "--until=parked"];
        let machine = full.copy();
        let console = machine.start(then, "lockdown=integrity", &markers).good();
        assert!(!console.contains("the machine restarts now"), "{console}");
        assert!(console.contains("remove stale boot entries"), "{console}");
        // The system that started above writes to its root; nothing started here.
        assert_eq!(machine.hash(), before, "a second network boot wrote");
    }
}

/// The kernel without the firmware's services (a word that some machines need).
#[test]
fn matrix_without_runtime_services_the_installed_system_starts_from_here() {
    let machine = Machine::installed();
    for then in ["Reboot", "Boot"] {
        let markers = [INSTALLED, "--until=loaded .*BOOTX64.EFI", BOOTED];
        machine.start(then, "efi=noruntime", &markers).good();
    }
}

/// A disk that the firmware does not start brings the machine back: here each start is from the network.
#[test]
fn matrix_who_comes_back_three_times_starts_from_here_and_is_given_up_where_it_cannot() {
    let machine = Machine::installed();
    let loader = machine.get("/EFI/BOOT/BOOTX64.EFI");
    // What the firmware starts is garbage; the kernel that is on the disk besides is not.
    machine.put("/EFI/BOOT/BOOTX64.EFI", b"garbage");
    machine.put("/EFI/Linux/tiny.efi", &loader);
    for _ in 0..3 {
        let console = machine.start("Reboot", "", &[INSTALLED, RESTARTS]).good();
        assert!(console.contains("next to boot"), "{console}");
        assert!(!console.contains("ironroot: loaded "), "{console}");
    }
    let markers = [
        INSTALLED,
        "--until=came back over the network 3 times within a day",
        "--until=loaded .*EFI/Linux/tiny.efi",
        BOOTED,
    ];
    machine.start("Reboot", "", &markers).good();
    // That was the fourth, and it is not forgotten; the twelfth comes sooner here.
    let script = format!(
        "echo TRIED $(dd if={TRIED} bs=1 skip=12 2>/log | busybox od -An -tu1) TIMES\n(dd if={TRIED} bs=1 count=12 2>/log; busybox printf '\\014') >/tmp/tried\nchattr -i {TRIED}\ndd if=/tmp/tried of={TRIED} bs=13 2>/log || fail write\n"
    );
    let console = machine.script(&script);
    assert!(console.contains("TRIED 4 TIMES"), "{console}");
    let markers = [
        "--until=came back over the network 12 times within a day",
        BOOTED,
    ];
    machine.start("Reboot", "", &markers).good();
    // What can be started from here is, however often. What cannot is given up, once.
    let markers = [
        "--until=came back over the network 13 times within a day",
        "--until=FAILED .code 17.",
        "--until=parked",
    ];
    let console = machine
        .start("Reboot", "lockdown=integrity", &markers)
        .good();
    assert!(!console.contains("the machine restarts now"), "{console}");
    let console = machine.start("Reboot", "", &[INSTALLED, RESTARTS]).good();
    assert!(!console.contains("came back"), "{console}");
}

/// What it takes from the program's first line to its last, firmware and kernel left out; an emulated machine is ten
/// times slower than a real one.
#[test]
fn a_second_network_boot_takes_seconds() {
    let machine = Machine::installed();
    let before = machine.hash();
    let start = "--until=ironroot: starting";
    for (then, end) in [
        ("Reboot", RESTARTS),
        ("Boot", "--until=loaded .*BOOTX64.EFI"),
    ] {
        let began = std::time::Instant::now();
        machine.start(then, "", &[start, INSTALLED, end]).good();
        let times = machine.times();
        let took = times[2] - times[0];
        println!(
            "{then}: {took:.1} s of {:.1} s",
            began.elapsed().as_secs_f64()
        );
        assert!(took < 20.0, "{then}: {times:?}");
    }
    assert_eq!(machine.hash(), before, "a second network boot wrote");
}

/// Two kernels in the menu of the disk's boot loader: what starts is what that would start.
#[test]
fn matrix_kexec_starts_the_entry_that_the_loaders_configuration_names() {
    let machine = Machine::installed();
    let words = "console=ttyS0 quiet panic=-1 tiny.firmware";
    // A unified kernel image in its place would ask no configuration.
    let image = machine.get("/EFI/BOOT/BOOTX64.EFI");
    let systemd_boot = std::fs::read("/usr/lib/systemd/boot/efi/systemd-bootx64.efi").unwrap();
    machine.put("/EFI/BOOT/BOOTX64.EFI", &systemd_boot);
    machine.put("/EFI/Linux/z-image.efi", &image);
    for (name, version, said) in [("a", "6.1", "alpha"), ("b", "6.2", "beta")] {
        let entry = format!(
            "title {name}\nsort-key a\nversion {version}\nlinux /vmlinuz\ninitrd /initrd\noptions {words}={said}\n"
        );
        machine.put(&format!("/loader/entries/{name}.conf"), entry.as_bytes());
    }
    let starts = |name: &str, said: &str| {
        let loaded =
            format!("--until=loaded /vmlinuz of .*/loader/entries/{name}.conf: .*firmware={said}");
        let booted = format!("--until=IRONROOT-TINY-BOOTED root=.* firmware={said} payload=ok");
        machine
            .start("Kexec", "", &[INSTALLED, &loaded, &booted])
            .good();
    };
    starts("b", "beta");
    machine.put("/loader/loader.conf", b"timeout 3\ndefault a*\n");
    starts("a", "alpha");
    machine.put("/loader/loader.conf", b"timeout 3\ndefault z-*.efi\n");
    let loaded = "--until=loaded .*/EFI/Linux/z-image.efi: ";
    machine
        .start("Kexec", "", &[INSTALLED, loaded, BOOTED])
        .good();
    // GRUB keeps its choice elsewhere.
    machine.put("/EFI/BOOT/BOOTX64.EFI", b"GRUB");
    machine.put("/loader/loader.conf", b"timeout 3\n");
    machine.put(
        "/grub/grubenv",
        b"# GRUB Environment Block\nsaved_entry=a\n",
    );
    starts("a", "alpha");
}

/// What systemd-stub would add to the words of an image, and the root that systemd would find by its type, are there; what
/// only the stub can hand over leaves the start to the firmware.
#[test]
fn matrix_kexec_starts_a_unified_kernel_image_as_its_stub_does() {
    let machine = Machine::installed();
    let mut image = machine.get("/EFI/BOOT/BOOTX64.EFI");
    // As if it were of a systemd that reads addons: here nobody runs the stub.
    let magic = b"LoaderInfo: systemd-stub ";
    let at = image.windows(magic.len()).position(|w| w == magic).unwrap() + magic.len();
    image[at..at + 3].copy_from_slice(b"257");
    machine.put("/EFI/BOOT/BOOTX64.EFI", &image);
    let addon = ironroot::image::boot::addon::addon(0x8664, "tiny.firmware=addon").unwrap();
    machine.put("/loader/addons/a.addon.efi", &addon);
    let markers = [
        INSTALLED,
        "--until=loaded .*BOOTX64.EFI: .*tiny.firmware=addon root=PARTUUID=[0-9a-f-]*a3",
        "--until=IRONROOT-TINY-BOOTED root=.* firmware=addon payload=ok",
    ];
    machine.start("Kexec", "", &markers).good();

    machine.put("/loader/credentials/x.cred", b"x");
    let before = machine.hash();
    let markers = [
        INSTALLED,
        "--until=its systemd-stub gives .*loader/credentials/x.cred to its initrd",
        RESTARTS,
    ];
    let console = machine.start("Kexec", "", &markers).good();
    assert!(console.contains("next to boot"), "{console}");
    assert_eq!(machine.hash(), before, "a second network boot wrote");
}
