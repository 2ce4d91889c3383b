//! A driver for every device: those that are there (/sys/devices, until nothing new appears), and those that
//! come later (the kernel's events), until the handover.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Loader;
use crate::report::{Event, Reporter};
use crate::sys::clock::Deadline;
use crate::sys::uevent::{Heard, UeventSocket};

/// Loaded without a device that asks for them: `loop` because /dev/loop-control comes from it, `af_packet`
/// because DHCP begins on a raw socket. File systems, code pages and ciphers are loaded when the kernel asks.
pub const ALWAYS: [&str; 2] = ["loop", "af_packet"];

/// A bus driver's devices bring more drivers; real chains have five or six links.
const ROUNDS: usize = 16;

/// Nothing new for this long: the devices that are there have their drivers.
const QUIET: Duration = Duration::from_millis(300);

/// Some drivers wait for firmware or hardware inside their init; that is slow, and others need not wait.
const WORKERS: usize = 4;

/// Bounds of the walk over /sys/devices, far above any machine.
const DEEPEST: usize = 40;
const MOST_DIRECTORIES: usize = 500_000;

/// Keeps loading drivers for devices that appear, until it is dropped.
#[derive(Debug)]
pub struct Hotplug {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hotplug {
    /// Loads drivers for what is below `sys` (/sys) in a thread of its own, waits until that has settled or
    /// `patience` is over, and goes on in the background. A driver that hangs in its init holds up only that
    /// thread.
    pub fn start(loader: Loader, sys: &Path, patience: Duration, reporter: &Reporter) -> Hotplug {
        let stop = Arc::new(AtomicBool::new(false));
        let (settled, wait) = channel();
        let worker = Worker {
            loader,
            sys: sys.to_owned(),
            reporter: reporter.clone(),
            stop: Arc::clone(&stop),
            seen: HashSet::new(),
            loaded: 0,
        };
        let thread = std::thread::Builder::new()
            .name("modules".to_owned())
            .spawn(move || worker.run(&settled));
        let thread = match thread {
            Ok(thread) => Some(thread),
            Err(error) => {
                reporter.warn(format!(
                    "no thread to load kernel modules: {error}; only built-in drivers work"
                ));
                None
            }
        };
        let deadline = Deadline::after(patience);
        let mut told = false;
        loop {
            let patience_left = deadline.remaining();
            match wait.recv_timeout(patience_left.min(Duration::from_secs(3))) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if deadline.passed() => {
                    reporter.warn(format!(
                        "drivers are still being loaded after {} s; going on with what is there",
                        patience.as_secs()
                    ));
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if !std::mem::replace(&mut told, true) {
                        reporter.emit(Event::Waiting {
                            reason: "kernel drivers to find their devices".to_owned(),
                            deadline_seconds: deadline.remaining().as_secs(),
                        });
                    }
                }
            }
        }
        Hotplug { stop, thread }
    }

    /// Stops loading, for the handover. A driver that hangs in its init is not waited for.
    pub fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Deadline::after(Duration::from_secs(2));
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && !deadline.passed() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Hotplug {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Worker {
    loader: Loader,
    sys: PathBuf,
    reporter: Reporter,
    stop: Arc<AtomicBool>,
    /// Device ids that were looked up.
    seen: HashSet<String>,
    loaded: usize,
}

impl Worker {
    fn run(mut self, settled: &Sender<()>) {
        // Opened first, so that no device falls between the walk and the events.
        let events = match UeventSocket::open() {
            Ok(socket) => Some(socket),
            Err(error) => {
                self.reporter.warn(format!(
                    "no device events from the kernel: {error}; devices that appear later stay without driver"
                ));
                None
            }
        };
        self.load(ALWAYS.map(str::to_owned).into());
        for _ in 0..ROUNDS {
            let walked = self.walk();
            let heard = events.as_ref().is_some_and(|e| self.listen(e, QUIET));
            if !walked && !heard || self.stopped() {
                break;
            }
        }
        let known = self.loader.tree().len();
        self.reporter.info(format!(
            "{} kernel modules loaded for {} device ids ({known} modules to choose from)",
            self.loaded,
            self.seen.len()
        ));
        let _ = settled.send(());
        while let Some(events) = events.as_ref().filter(|_| !self.stopped()) {
            self.listen(events, Duration::from_millis(500));
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the devices in sysfs brought modules.
    fn walk(&mut self) -> bool {
        let ids = modaliases(&self.sys.join("devices"));
        self.handle(ids)
    }

    /// Whether events within `quiet` brought modules. Events keep it listening, within bounds.
    fn listen(&mut self, events: &UeventSocket, quiet: Duration) -> bool {
        let deadline = Deadline::after(quiet * 10);
        let mut ids = BTreeSet::new();
        let mut lost = false;
        while !deadline.passed() && !self.stopped() {
            match events.next(quiet) {
                Ok(Heard::Event(event)) if event.action != "remove" => {
                    // Later events of a driver that is being loaded are heard in the next turn.
                    if let Some(id) = event.modalias.filter(|id| !self.seen.contains(id)) {
                        ids.insert(id);
                        break;
                    }
                }
                Ok(Heard::Event(_)) => {}
                Ok(Heard::Nothing) => break,
                Ok(Heard::Lost) => {
                    lost = true;
                    break;
                }
                Err(error) => {
                    log::warn!("device events: {error}");
                    std::thread::sleep(quiet);
                    break;
                }
            }
        }
        if lost {
            ids.extend(modaliases(&self.sys.join("devices")));
        }
        self.handle(ids)
    }

    fn handle(&mut self, ids: BTreeSet<String>) -> bool {
        let new: Vec<String> = ids
            .into_iter()
            .filter(|id| self.seen.insert(id.clone()))
            .collect();
        let mut wanted = VecDeque::new();
        let mut queued = BTreeSet::new();
        for id in new {
            for module in self.loader.find(&id) {
                if queued.insert(module.clone()) {
                    wanted.push_back(module);
                }
            }
        }
        self.load(wanted)
    }

    /// Whether the kernel took any of them.
    fn load(&mut self, wanted: VecDeque<String>) -> bool {
        let workers = wanted.len().min(WORKERS);
        let queue = Mutex::new(wanted);
        let next = || {
            queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front()
        };
        let work = || {
            let mut loaded = 0usize;
            while let Some(name) = next() {
                let outcome = self.loader.request(&name);
                loaded = loaded.saturating_add(outcome.loaded.len());
                for line in outcome.failed {
                    self.reporter.warn(line);
                }
            }
            loaded
        };
        let loaded = std::thread::scope(|scope| {
            let mut others = Vec::new();
            for _ in 1..workers {
                if let Ok(thread) = std::thread::Builder::new().spawn_scoped(scope, work) {
                    others.push(thread);
                }
            }
            let mine = work();
            others
                .into_iter()
                .map(|t| t.join().unwrap_or_default())
                .fold(mine, usize::saturating_add)
        });
        self.loaded = self.loaded.saturating_add(loaded);
        loaded > 0
    }
}

/// The device ids below `devices` (/sys/devices), each once. Links are not followed: sysfs has each device at
/// one place.
pub fn modaliases(devices: &Path) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    let mut visited = 0usize;
    let mut todo = vec![(devices.to_owned(), 0usize)];
    while let Some((directory, depth)) = todo.pop() {
        visited = visited.saturating_add(1);
        if depth > DEEPEST || visited > MOST_DIRECTORIES {
            continue;
        }
        let Ok(entries) = std::fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => todo.push((entry.path(), depth.saturating_add(1))),
                Ok(kind) if kind.is_file() && entry.file_name() == "modalias" => {
                    if let Ok(bytes) = std::fs::read(entry.path()) {
                        let text = String::from_utf8_lossy(&bytes);
                        let id = text.trim();
                        if !id.is_empty() {
                            ids.insert(id.to_owned());
                        }
                    }
                }
                _ => {}
            }
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::modules::settings::Settings;
    use crate::init::modules::tree::Tree;
    use crate::report::Sink;
    use crate::report::jsonl::JsonLines;

    fn machine(ids: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (path, id) in ids {
            let directory = sys.path().join("devices").join(path);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("modalias"), format!("{id}\n")).unwrap();
        }
        sys
    }

    #[test]
    fn every_device_id_once_without_following_links() {
        let sys = machine(&[
            ("pci0000:00/0000:00:01.0", "pci:v1"),
            ("pci0000:00/0000:00:01.0/virtio0", "virtio:d1"),
            ("pci0000:00/0000:00:02.0", "pci:v1"),
            ("empty", ""),
        ]);
        std::os::unix::fs::symlink("..", sys.path().join("devices/pci0000:00/loop")).unwrap();
        let ids: Vec<_> = modaliases(&sys.path().join("devices"))
            .into_iter()
            .collect();
        assert_eq!(ids, ["pci:v1", "virtio:d1"]);
        assert!(modaliases(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn it_settles_reports_and_stops_although_a_module_cannot_be_loaded() {
        let sys = machine(&[("a", "pci:v1")]);
        let tree = Tree::parse("kernel/no/such.ko:\n", "alias pci:v1* such\n", "", "");
        let log = tempfile::NamedTempFile::new().unwrap();
        let sink = JsonLines::new(Box::new(log.reopen().unwrap()));
        let reporter = Reporter::new(vec![Sink::JsonLines(sink)]);
        let loader = Loader::new(tree, Settings::default());
        let hotplug = Hotplug::start(loader, sys.path(), Duration::from_secs(20), &reporter);
        hotplug.stop();
        let events = std::fs::read_to_string(log.path()).unwrap();
        assert!(
            events.contains("kernel module such was not loaded"),
            "{events}"
        );
        assert!(
            events.contains("0 kernel modules loaded for 1 device ids"),
            "{events}"
        );
    }
}
