//! A step that is stuck in a device or a program says nothing; the console learns all the same that it goes on.

use std::time::Duration;

use super::meanwhile;
use crate::report::{Event, Reporter};

/// Somebody in front of the console begins to wonder.
const LONG: Duration = Duration::from_secs(45);

/// Does `work`, which is the step `name`, and breaks every silence of 45 seconds.
pub fn broken<T>(name: &str, reporter: &Reporter, work: impl FnOnce() -> T) -> T {
    broken_after(LONG, name, reporter, work)
}

fn broken_after<T>(long: Duration, name: &str, reporter: &Reporter, work: impl FnOnce() -> T) -> T {
    let mut said = 0;
    let tick = || {
        let silent = reporter.silent_for();
        let times = silent.as_millis() / long.as_millis().max(1);
        if times > said {
            let text = format!(
                "{name} goes on; nothing was heard of it for {} s",
                silent.as_secs()
            );
            reporter.emit_of_silence(Event::Info { text });
        }
        said = times;
    };
    meanwhile::ticking(long / 3, tick, work)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::report::Sink;
    use crate::report::jsonl::JsonLines;

    #[test]
    fn only_silence_is_broken_and_once_in_its_length() {
        const LONG: Duration = Duration::from_millis(300);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        // How often it was told, and how often at most: a machine with much else to do has longer silences than this
        // test makes.
        let told = |speak: bool| {
            let file = std::fs::File::create(&path).unwrap();
            let reporter = Reporter::new(vec![Sink::JsonLines(JsonLines::new(Box::new(file)))]);
            let mut spoke = Instant::now();
            let mut silences = 0;
            reporter.info("begins");
            broken_after(LONG, "it", &reporter, || {
                for _ in 0..20 {
                    std::thread::sleep(Duration::from_millis(50));
                    if speak {
                        let now = Instant::now();
                        reporter.info("moves");
                        silences += spoke.elapsed().as_millis() / LONG.as_millis();
                        spoke = now;
                    }
                }
            });
            silences += spoke.elapsed().as_millis() / LONG.as_millis();
            let text = std::fs::read_to_string(&path).unwrap();
            let told = text
                .matches("it goes on; nothing was heard of it for")
                .count();
            (told as u128, silences)
        };
        let (times, silences) = told(true);
        assert!(times <= silences, "{times} times in {silences} silences");
        let (times, silences) = told(false);
        assert!(
            (1..=silences).contains(&times),
            "{times} times in {silences}"
        );
    }
}
