//! What this machine has for decoding.

/// The most that the blocks of a parallel xz decoder may take beside the pipeline's own buffers, in bytes.
const MEMORY_CAP: u64 = 256 << 20;

/// How much of the machine a decoder may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stream) struct Means {
    /// How many threads decode.
    pub(super) threads: u32,
    /// How much memory the blocks of xz may take, in bytes. The other formats do with the pipeline's share.
    pub(super) memory: u64,
}

impl Means {
    /// Every processor, and a quarter of the memory that is available now.
    pub(in crate::stream) fn of_this_machine() -> Means {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Means {
            threads: u32::try_from(threads).unwrap_or(u32::MAX),
            memory: (available(&meminfo) / 4).min(MEMORY_CAP),
        }
    }
}

/// `MemAvailable` of /proc/meminfo (proc(5)) in bytes; 0 where it does not say.
fn available(meminfo: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_or_none() {
        let text = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(available(text), 8 << 20);
        for text in ["", "MemAvailable:", "MemAvailable: 99999999999999999999 kB"] {
            assert_eq!(available(text), 0);
        }
        let means = Means::of_this_machine();
        assert!(means.threads > 0 && means.memory <= MEMORY_CAP);
    }
}
