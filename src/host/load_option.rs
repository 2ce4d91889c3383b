//! `EFI_LOAD_OPTION`, the value of a `Boot####` variable, and the device paths in it. Pure.
//!
//! UEFI specification 2.10: section 3.1.3 (load options), 10.3.1 (nodes), 10.3.5.1 (hard drive),
//! 10.3.5.4 (file path), 10.3.4 (messaging), 10.3.6 (BIOS boot specification).

/// The entry is offered by the boot manager.
pub const ACTIVE: u32 = 1;
/// The entry is not shown.
const HIDDEN: u32 = 8;
/// What kind of entry it is: zero boots, the others are applications of the firmware, such as its setup.
const CATEGORY: u32 = 0x1f00;

const MEDIA: u8 = 4;
const HARD_DRIVE: u8 = 1;
const FILE_PATH: u8 = 4;
const MESSAGING: u8 = 3;
const BBS: u8 = 5;
const END: [u8; 4] = [0x7f, 0xff, 4, 0];
/// A device path has a handful of nodes.
const NODES_LIMIT: usize = 64;

/// Where the EFI system partition is, as its own table says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EspLocation {
    /// Number of the partition.
    pub partition_number: u32,
    /// First block.
    pub start_lba: u64,
    /// Length in blocks.
    pub size_lba: u64,
    /// PARTUUID: a GUID, or `ssssssss-nn` of an MBR.
    pub partuuid: String,
}

/// A decoded load option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOption {
    /// `LOAD_OPTION_*` bits.
    pub attributes: u32,
    /// What the boot menu shows.
    pub description: String,
    /// Type, subtype and body of each node of the device paths, end nodes left out.
    pub nodes: Vec<Node>,
    /// What follows the paths: arguments of the loader.
    pub data: Vec<u8>,
}

/// A node of a device path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub kind: u8,
    /// Subtype.
    pub subtype: u8,
    /// What follows the four bytes of the header.
    pub body: Vec<u8>,
}

/// What a boot entry starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// PXE, HTTP, iSCSI over a network interface.
    Network,
    /// Something on a disk.
    Disk,
    /// A shell, the setup, a CD.
    Other,
}

/// The bytes of a load option that starts the file `loader` (such as `\EFI\BOOT\BOOTX64.EFI`) on `esp`.
/// `None` where `esp.partuuid` is no PARTUUID, or a text has a zero in it or is too long for its length
/// field.
pub fn encode(esp: &EspLocation, description: &str, loader: &str) -> Option<Vec<u8>> {
    if description.contains('\0') || loader.contains('\0') {
        return None;
    }
    let mut path = node(MEDIA, HARD_DRIVE, &hard_drive(esp)?)?;
    path.extend(node(MEDIA, FILE_PATH, &utf16(loader))?);
    path.extend(END);
    let mut option = ACTIVE.to_le_bytes().to_vec();
    option.extend(u16::try_from(path.len()).ok()?.to_le_bytes());
    option.extend(utf16(description));
    option.extend(path);
    Some(option)
}

/// Reads a load option; `None` where it makes no sense.
pub fn decode(bytes: &[u8]) -> Option<LoadOption> {
    let (attributes, rest) = bytes.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let zero = rest.chunks_exact(2).position(|unit| unit == [0, 0])?;
    let (description, rest) = rest.split_at_checked(zero.checked_add(1)?.checked_mul(2)?)?;
    let (path, data) = rest.split_at_checked(length)?;
    Some(LoadOption {
        attributes: u32::from_le_bytes(*attributes),
        description: text(description),
        nodes: nodes(path),
        data: data.to_vec(),
    })
}

impl LoadOption {
    /// PARTUUID of the partition that the first hard drive node names.
    pub fn partuuid(&self) -> Option<String> {
        let node = self
            .nodes
            .iter()
            .find(|n| (n.kind, n.subtype) == (MEDIA, HARD_DRIVE))?;
        let number = u32::from_le_bytes(*node.body.first_chunk::<4>()?);
        let signature = node.body.get(20..36)?;
        match node.body.get(36..38)? {
            [_, 2] => guid_text(signature.first_chunk::<16>()?),
            [_, 1] => {
                let signature = u32::from_le_bytes(*signature.first_chunk::<4>()?);
                Some(format!("{signature:08x}-{number:02x}"))
            }
            _ => None,
        }
    }

    /// What the entry starts.
    pub fn kind(&self) -> EntryKind {
        let is = |kind: u8, subtypes: &[u8]| {
            self.nodes
                .iter()
                .any(|n| n.kind == kind && subtypes.contains(&n.subtype))
        };
        let bbs = self.nodes.iter().find(|n| (n.kind, n.subtype) == (BBS, 1));
        let bbs_type = bbs
            .and_then(|n| n.body.first_chunk::<2>())
            .map(|b| u16::from_le_bytes(*b));
        // MAC 11, IPv4 12, IPv6 13, iSCSI 19, URI 24, Wi-Fi 28; BBS network 6, hard drive 2.
        if is(MESSAGING, &[11, 12, 13, 19, 24, 28]) || bbs_type == Some(6) {
            EntryKind::Network
        // A hard drive node; NVMe 23, SATA 18, SCSI by hardware (type 1) has no media node of its own.
        } else if is(MEDIA, &[HARD_DRIVE]) || is(MESSAGING, &[23, 18]) || bbs_type == Some(2) {
            EntryKind::Disk
        } else {
            EntryKind::Other
        }
    }

    /// Whether the boot manager offers the entry.
    pub fn is_active(&self) -> bool {
        self.attributes & ACTIVE != 0
    }

    /// Whether the firmware may start it by itself: active, and no application of its own.
    pub fn boots(&self) -> bool {
        self.is_active() && self.attributes & (HIDDEN | CATEGORY) == 0
    }
}

fn node(kind: u8, subtype: u8, body: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(body.len().checked_add(4)?).ok()?;
    let mut node = vec![kind, subtype];
    node.extend(length.to_le_bytes());
    node.extend(body);
    Some(node)
}

fn nodes(path: &[u8]) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut rest = path;
    while let Some((&[kind, subtype, low, high], _)) = rest.split_first_chunk::<4>() {
        let length = usize::from(u16::from_le_bytes([low, high]));
        let Some((node, after)) = rest.split_at_checked(length).filter(|_| length >= 4) else {
            break;
        };
        if kind != 0x7f {
            let body = node.get(4..).unwrap_or_default().to_vec();
            nodes.push(Node {
                kind,
                subtype,
                body,
            });
        }
        if nodes.len() >= NODES_LIMIT {
            break;
        }
        rest = after;
    }
    nodes
}

fn hard_drive(esp: &EspLocation) -> Option<Vec<u8>> {
    // Format of the table: 1 MBR, 2 GPT. Type of the signature: 1 a disk signature, 2 a GUID.
    let (signature, format) = match esp.partuuid.split_once('-') {
        Some((disk, _)) if esp.partuuid.len() == 11 => {
            let mut signature = [0; 16];
            let number = u32::from_str_radix(disk, 16).ok()?.to_le_bytes();
            signature.get_mut(..4)?.copy_from_slice(&number);
            (signature, 1)
        }
        _ => (guid_bytes(&esp.partuuid)?, 2),
    };
    let mut body = esp.partition_number.to_le_bytes().to_vec();
    body.extend(esp.start_lba.to_le_bytes());
    body.extend(esp.size_lba.to_le_bytes());
    body.extend(signature);
    body.extend([format, format]);
    Some(body)
}

/// The bytes of a GUID: its first three groups are little-endian numbers (UEFI specification, appendix A).
fn guid_bytes(text: &str) -> Option<[u8; 16]> {
    let dashes = text
        .char_indices()
        .filter(|(_, c)| *c == '-')
        .map(|(i, _)| i);
    if text.len() != 36 || !dashes.eq([8, 13, 18, 23]) {
        return None;
    }
    let digits = text.replace('-', "");
    let mut bytes = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
    swap(&mut bytes);
    Some(bytes)
}

fn guid_text(bytes: &[u8; 16]) -> Option<String> {
    let mut bytes = *bytes;
    swap(&mut bytes);
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let group = |from: usize, to: usize| digits.get(from..to);
    Some(format!(
        "{}-{}-{}-{}-{}",
        group(0, 8)?,
        group(8, 12)?,
        group(12, 16)?,
        group(16, 20)?,
        group(20, 32)?
    ))
}

fn swap(bytes: &mut [u8; 16]) {
    for (from, to) in [(0, 4), (4, 6), (6, 8)] {
        if let Some(group) = bytes.get_mut(from..to) {
            group.reverse();
        }
    }
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16()
        .chain([0])
        .flat_map(u16::to_le_bytes)
        .collect()
}

pub(super) fn text(bytes: &[u8]) -> String {
    let units = bytes
        .chunks_exact(2)
        .filter_map(|pair| pair.first_chunk::<2>());
    let units: Vec<u16> = units
        .map(|pair| u16::from_le_bytes(*pair))
        .take_while(|u| *u != 0)
        .collect();
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn esp() -> EspLocation {
        EspLocation {
            partition_number: 15,
            start_lba: 0x2800,
            size_lba: 0x0003_5000,
            partuuid: "01020304-0506-0708-090a-0b0c0d0e0f10".to_owned(),
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let option = encode(&esp(), "Ab", "\\E").unwrap();
        #[rustfmt::skip]
        let golden = [
            1, 0, 0, 0,                    // active
            56, 0,                         // 42 + 10 + 4 bytes of paths
            b'A', 0, b'b', 0, 0, 0,
            4, 1, 42, 0,                   // hard drive
            15, 0, 0, 0,
            0, 0x28, 0, 0, 0, 0, 0, 0,
            0, 0x50, 3, 0, 0, 0, 0, 0,
            4, 3, 2, 1, 6, 5, 8, 7, 9, 10, 11, 12, 13, 14, 15, 16,
            2, 2,                          // GPT, GUID
            4, 4, 10, 0,                   // file path
            b'\\', 0, b'E', 0, 0, 0,
            0x7f, 0xff, 4, 0,
        ];
        assert_eq!(option, golden);
        let decoded = decode(&option).unwrap();
        assert_eq!(decoded.description, "Ab");
        assert_eq!(decoded.partuuid().as_deref(), Some(esp().partuuid.as_str()));
        assert_eq!(decoded.kind(), EntryKind::Disk);
        assert!(decoded.is_active() && decoded.data.is_empty());
    }

    #[test]
    fn an_esp_of_an_mbr() {
        let mbr = EspLocation {
            partuuid: "deadbeef-0f".to_owned(),
            ..esp()
        };
        let option = decode(&encode(&mbr, "x", "\\E").unwrap()).unwrap();
        assert_eq!(
            &option.nodes[0].body[20..38],
            b"\xef\xbe\xad\xde\0\0\0\0\0\0\0\0\0\0\0\0\x01\x01"
        );
        assert_eq!(option.partuuid().as_deref(), Some("deadbeef-0f"));
    }

    #[test]
    fn what_is_no_partuuid_is_refused() {
        for wrong in [
            "",
            "x",
            "0102030405060708090a0b0c0d0e0f10",
            "01020304-0506-0708-090a-0b0c0d0e0f1g",
        ] {
            let esp = EspLocation {
                partuuid: wrong.to_owned(),
                ..esp()
            };
            assert_eq!(encode(&esp, "x", "\\E"), None, "{wrong}");
        }
        assert_eq!(encode(&esp(), "x", &"y".repeat(40_000)), None);
        assert_eq!(encode(&esp(), "x\0y", "\\E"), None);
    }

    /// A load option with nodes given by type, subtype and body.
    fn option(description: &str, nodes: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let mut path: Vec<u8> = nodes
            .iter()
            .flat_map(|(kind, sub, body)| node(*kind, *sub, body).unwrap())
            .collect();
        path.extend(END);
        let mut option = vec![1, 0, 0, 0];
        option.extend(u16::try_from(path.len()).unwrap().to_le_bytes());
        option.extend(utf16(description));
        option.extend(path);
        option
    }

    #[test]
    fn entries_are_told_apart_by_their_paths() {
        let pci: (u8, u8, &[u8]) = (1, 1, &[0, 3]);
        for (nodes, want) in [
            (
                vec![pci, (3, 11, &[0; 33]), (3, 12, &[0; 23])],
                EntryKind::Network,
            ),
            (vec![pci, (3, 13, &[0; 56])], EntryKind::Network),
            (vec![pci, (3, 24, b"http://x/")], EntryKind::Network),
            (vec![(5, 1, &[6, 0, 0, 0, b'N', 0])], EntryKind::Network),
            (vec![(5, 1, &[2, 0, 0, 0, b'D', 0])], EntryKind::Disk),
            (vec![pci, (3, 23, &[0; 12])], EntryKind::Disk),
            (vec![(4, 7, &[0; 16]), (4, 6, &[0; 16])], EntryKind::Other),
            (vec![], EntryKind::Other),
        ] {
            let entry = decode(&option("x", &nodes)).unwrap();
            assert_eq!(entry.kind(), want, "{nodes:?}");
            assert_eq!(entry.nodes.len(), nodes.len());
        }
    }

    #[test]
    fn arguments_follow_the_paths() {
        let mut bytes = encode(&esp(), "x", "\\E").unwrap();
        bytes.extend(b"quiet");
        assert_eq!(decode(&bytes).unwrap().data, b"quiet");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(option) = decode(&bytes) {
                let _ = (option.partuuid(), option.kind());
            }
        }

        #[test]
        fn what_was_encoded_is_decoded(description in "\\PC{0,30}", number in any::<u32>(), start in any::<u64>()) {
            let esp = EspLocation { partition_number: number, start_lba: start, ..esp() };
            let option = decode(&encode(&esp, &description, "\\EFI\\BOOT\\BOOTX64.EFI").unwrap()).unwrap();
            prop_assert_eq!(&option.description, &description);
            prop_assert_eq!(option.partuuid(), Some(esp.partuuid));
        }
    }
}
