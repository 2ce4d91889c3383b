//! Network controllers that no driver took, for the explanation why there is no interface.

use std::path::Path;

/// One line for each PCI network controller without driver below `sys` (/sys).
pub fn without_driver(sys: &Path) -> Vec<String> {
    let Ok(devices) = std::fs::read_dir(sys.join("bus/pci/devices")) else {
        return Vec::new();
    };
    let mut lines: Vec<String> = devices
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let read = |name: &str| {
                let text = std::fs::read_to_string(path.join(name)).ok()?;
                Some(text.trim().trim_start_matches("0x").to_owned())
            };
            // PCI class 02: network controller.
            if !read("class")?.starts_with("02") || path.join("driver").exists() {
                return None;
            }
            Some(format!(
                "the network controller {} ({}:{}) has no driver: add its module to the initramfs, and its \
                 firmware where it needs one",
                entry.file_name().to_string_lossy(),
                read("vendor").unwrap_or_default(),
                read("device").unwrap_or_default(),
            ))
        })
        .collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_network_controllers_without_driver_are_named() {
        let sys = tempfile::tempdir().unwrap();
        for (name, class, driver) in [
            ("0000:00:02.0", "0x020000", true),
            ("0000:00:03.0", "0x020000", false),
            ("0000:00:04.0", "0x010601", false),
        ] {
            let device = sys.path().join("bus/pci/devices").join(name);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("class"), format!("{class}\n")).unwrap();
            std::fs::write(device.join("vendor"), "0x8086\n").unwrap();
            std::fs::write(device.join("device"), "0x100e\n").unwrap();
            if driver {
                std::fs::create_dir(device.join("driver")).unwrap();
            }
        }
        let lines = without_driver(sys.path());
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("the network controller 0000:00:03.0 (8086:100e) has no driver")
        );
        assert!(without_driver(Path::new("/nonexistent")).is_empty());
    }
}
