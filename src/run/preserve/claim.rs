//! To whom a place belongs. Nobody sees what another claim left, whether by its own name or inside or above it;
//! and where it is erased, a marker that outlives a power cut says so before the first file goes.

use std::path::Path;

use super::record::{self, Record, Stage};
use super::remove;
use super::source::Source;
use super::{earlier, patience, place, same_place, seed};
use crate::config::request::preserve::overlap;
use crate::config::wire::OtherClaim;
use crate::error::{Class, Context as _, Failure, Result, printable};
use crate::plan::preserve::Binding;
use crate::report::Reporter;

/// Where a check puts what it found no name for, in the root of the file system: it was somebody's.
const LOST: &str = "lost+found";

/// What is to be done before a place can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing.
    Use,
    /// Write down that it belongs to this claim.
    Take,
    /// Remove what is there first.
    Erase,
}

/// What is known of a place before anything changes.
#[derive(Debug)]
struct Judged {
    verdict: Verdict,
    /// The records of the source, but for those in what is `unfinished`.
    records: Vec<Record>,
    /// Places around this one, or in it, that a session began to erase: what is left of them is nobody's.
    unfinished: Vec<Record>,
}

/// Makes sure that the place of `binding` may be used by this session; its record, where it has or needs one.
pub fn settle(binding: &Binding, source: &Source, reporter: &Reporter) -> Result<Option<Record>> {
    let Judged {
        verdict,
        mut records,
        unfinished,
    } = judged(binding, source)?;
    for place in &unfinished {
        reporter.warn(format!(
            "{}: an erasure of {} that was cut off goes on",
            source.name,
            shown(&place.path)
        ));
        finish(place, source, reporter)?;
    }
    // Whatever this session wants there: half of it must not be seen.
    for record in records.iter_mut().filter(|r| is_half_filled(r, binding)) {
        if verdict != Verdict::Erase || !record.path.starts_with(&binding.subdir) {
            seed::go_on(record, source, reporter)?;
        }
    }
    let own = records.iter().find(|r| r.path == binding.subdir).cloned();
    let claim = binding.claim_bound.then(|| binding.claim.clone());
    match verdict {
        Verdict::Use => Ok(own),
        Verdict::Take => {
            let record = Record {
                claim,
                ..own.unwrap_or_else(|| Record::new(&binding.subdir))
            };
            record::write(source, &record)?;
            Ok(Some(record))
        }
        Verdict::Erase => {
            reporter.warn(format!(
                "{}: erasing what another claim left on {}",
                binding.target.display(),
                source.name
            ));
            let marker = Record {
                stage: Stage::Erasing,
                seeded: false,
                ..own.unwrap_or_else(|| Record::new(&binding.subdir))
            };
            let old: Vec<&Record> = records
                .iter()
                .filter(|r| r.path.starts_with(&binding.subdir))
                .collect();
            record::mark(source, &marker, &old)?;
            empty(&binding.subdir, source, reporter)?;
            let record = Record {
                claim,
                ..Record::new(&binding.subdir)
            };
            record::write(source, &record)?;
            Ok(Some(record))
        }
    }
}

/// Whether a cut left the place of `record`, which is, is in or is around that of `binding`, filled in part.
fn is_half_filled(record: &Record, binding: &Binding) -> bool {
    record.stage == Stage::Placing && overlap(&record.path, &binding.subdir)
}

/// Erases the place `path`, and what is known of places in it.
fn empty(path: &Path, source: &Source, reporter: &Reporter) -> Result<()> {
    let what = format!("erasing {} on {}", shown(path), source.name);
    let state = || "until all of it is gone".to_owned();
    patience::telling(&what, state, reporter, || erase(source, path))?;
    for inside in record::all(source)? {
        if inside.path != path && inside.path.starts_with(path) {
            record::remove(source, &inside)?;
        }
    }
    Ok(())
}

/// Erases what is left of a place. Its record goes last: it says that this was begun.
fn finish(place: &Record, source: &Source, reporter: &Reporter) -> Result<()> {
    empty(&place.path, source, reporter)?;
    let root = source.root.directory(Path::new("."), record::WALK)?;
    nix::unistd::syncfs(&root).context(Class::Preserve, || format!("flushing {}", source.name))?;
    record::remove(source, place)
}

/// Whether the place of `binding` may be used, before anything changes anywhere.
pub fn may_use(binding: &Binding, source: &Source) -> Result<()> {
    let Judged {
        verdict,
        records,
        unfinished,
    } = judged(binding, source)?;
    if !source.read_only {
        return Ok(());
    }
    if let Some(half) = records.iter().find(|r| is_half_filled(r, binding)) {
        return Err(Failure::new(
            Class::Preserve,
            format!(
                "filling {} was cut off and cannot go on: {} is read-only",
                shown(&half.path),
                source.name
            ),
        )
        .hint("leave the option ro away for one session, which fills it"));
    }
    match verdict {
        Verdict::Use | Verdict::Take if unfinished.is_empty() => {
            let own = records.iter().find(|r| r.path == binding.subdir);
            earlier::needs_no_write(binding, source, own)
        }
        Verdict::Use | Verdict::Take | Verdict::Erase => Err(Failure::new(
            Class::Preserve,
            format!(
                "{} cannot be erased: {} is read-only",
                shown(&binding.subdir),
                source.name
            ),
        )
        .hint("leave the option ro away for one session, which erases it")),
    }
}

fn judged(binding: &Binding, source: &Source) -> Result<Judged> {
    let path = &binding.subdir;
    let mut records = record::all(source)?;
    same_place::refuse(path, source, &records)?;
    let is_cut_off = |r: &&Record| {
        let overlaps = path.starts_with(&r.path) || r.path.starts_with(path);
        r.stage == Stage::Erasing && r.path != *path && overlaps
    };
    let unfinished: Vec<Record> = records.iter().filter(is_cut_off).cloned().collect();
    records.retain(|r| {
        !unfinished
            .iter()
            .any(|place| r.path.starts_with(&place.path))
    });
    let goes = unfinished.iter().any(|place| path.starts_with(&place.path));
    let is_root = path.as_os_str().is_empty();
    let has_content = !goes
        && (place::has_content(source, path)?
            || (is_root && binding.claim_bound && place::has_content(source, Path::new(LOST))?));
    let verdict = judge(binding, &records, has_content).map_err(|why| {
        Failure::new(Class::Preserve, format!("{why} ({})", source.name)).hint(
            "use another place, or set `otherClaim` to Erase with `claimBound` if what is there may be lost",
        )
    })?;
    if verdict != Verdict::Erase && !goes {
        let own = records.iter().find(|r| r.path == binding.subdir);
        earlier::check(binding, source, own)?;
    }
    Ok(Judged {
        verdict,
        records,
        unfinished,
    })
}

/// Decides from the records; or why the place must not be used.
fn judge(binding: &Binding, records: &[Record], has_content: bool) -> Result<Verdict, String> {
    let mut erase = false;
    for record in records {
        let (inside, same) = (
            record.path.starts_with(&binding.subdir),
            record.path == binding.subdir,
        );
        if !inside && !binding.subdir.starts_with(&record.path) {
            continue;
        }
        if same && record.stage == Stage::Erasing {
            erase = true;
            continue;
        }
        let Some(owner) = record.claim.as_deref() else {
            continue;
        };
        if owner == binding.claim {
            continue;
        }
        if !inside || binding.other_claim == OtherClaim::Refuse {
            return Err(format!(
                "{} belongs to claim {}, and this machine boots for {}",
                shown(&record.path),
                printable(owner),
                if binding.claim.is_empty() {
                    "none".to_owned()
                } else {
                    printable(&binding.claim)
                }
            ));
        }
        erase = true;
    }
    if erase {
        return Ok(Verdict::Erase);
    }
    let own = records.iter().find(|r| r.path == binding.subdir);
    let taken = own.is_some_and(|r| r.claim.is_some());
    if !binding.claim_bound || taken {
        return Ok(Verdict::Use);
    }
    // Content without an owner may be anybody's.
    match (has_content, binding.other_claim) {
        (false, _) => Ok(Verdict::Take),
        (true, OtherClaim::Erase) => Ok(Verdict::Erase),
        (true, OtherClaim::Refuse) => Err(format!(
            "{} has content and belongs to no claim that is known",
            shown(&binding.subdir)
        )),
    }
}

fn shown(path: &Path) -> String {
    if path.as_os_str().is_empty() {
        "the file system".to_owned()
    } else {
        path.display().to_string()
    }
}

/// Removes what is at `path`, and what was being made ready for it.
fn erase(source: &Source, path: &Path) -> Result<()> {
    match place::look(source, path)? {
        place::Found::Nothing => {}
        place::Found::File(_) => remove::file(source, path)?,
        place::Found::Directory(fd) if path.as_os_str().is_empty() => {
            remove::children(&fd, &place::OWN, path)?;
            if let place::Found::Directory(lost) = place::look(source, Path::new(LOST))? {
                remove::children(&lost, &[], Path::new(LOST))?;
            }
            place::strip(&fd, path)?;
        }
        // Mode, owner and attributes were the other claim's as well.
        place::Found::Directory(_) => remove::directory(source, path)?,
    }
    seed::discard(source, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::request::preserve::MountFlags;
    use crate::config::wire::Seed;
    use crate::plan::preserve::Attach;

    fn binding(subdir: &str, claim: &str, bound: bool, other_claim: OtherClaim) -> Binding {
        Binding {
            target: "/t".into(),
            source: 0,
            subdir: subdir.into(),
            attach: Attach::Directory,
            seed: Seed::None,
            mode: None,
            owner: None,
            flags: MountFlags::default(),
            claim: claim.to_owned(),
            claim_bound: bound,
            other_claim,
            required: true,
        }
    }

    fn of(path: &str, claim: Option<&str>, stage: Stage) -> Record {
        Record {
            claim: claim.map(str::to_owned),
            stage,
            ..Record::new(Path::new(path))
        }
    }

    /// Place, claim, bound, otherClaim; records; content; what comes out.
    type Case<'a> = (
        &'a str,
        &'a str,
        bool,
        OtherClaim,
        Vec<Record>,
        bool,
        Option<Verdict>,
    );

    #[test]
    fn nobody_sees_what_another_claim_left() {
        use OtherClaim::{Erase, Refuse};
        use Verdict::{Erase as Wipe, Take, Use};
        let ready = |path, claim| of(path, Some(claim), Stage::Ready);
        let cases: Vec<Case<'_>> = vec![
            ("a", "x", true, Refuse, vec![], false, Some(Take)),
            ("a", "x", true, Refuse, vec![], true, None),
            ("a", "x", true, Erase, vec![], true, Some(Wipe)),
            ("a", "x", false, Refuse, vec![], true, Some(Use)),
            (
                "a",
                "x",
                true,
                Refuse,
                vec![ready("a", "x")],
                true,
                Some(Use),
            ),
            ("a", "y", true, Refuse, vec![ready("a", "x")], true, None),
            ("a", "y", true, Refuse, vec![ready("a", "x")], false, None),
            (
                "a",
                "y",
                true,
                Erase,
                vec![ready("a", "x")],
                true,
                Some(Wipe),
            ),
            // Who does not ask for a place of his own does not get another's either.
            ("a", "y", false, Refuse, vec![ready("a", "x")], true, None),
            ("a", "", false, Refuse, vec![ready("a", "x")], true, None),
            (
                "a",
                "x",
                false,
                Refuse,
                vec![ready("a", "x")],
                true,
                Some(Use),
            ),
            // Above and below.
            ("", "y", false, Refuse, vec![ready("a", "x")], true, None),
            (
                "",
                "y",
                true,
                Erase,
                vec![ready("a", "x")],
                true,
                Some(Wipe),
            ),
            ("a/b", "y", true, Erase, vec![ready("a", "x")], true, None),
            (
                "ab",
                "y",
                true,
                Refuse,
                vec![ready("a", "x")],
                false,
                Some(Take),
            ),
            // What was being erased is erased to the end, for whomever.
            (
                "a",
                "x",
                true,
                Refuse,
                vec![of("a", Some("x"), Stage::Erasing)],
                true,
                Some(Wipe),
            ),
            (
                "a",
                "y",
                false,
                Refuse,
                vec![of("a", Some("x"), Stage::Erasing)],
                true,
                Some(Wipe),
            ),
            // Filled, but never claimed.
            (
                "a",
                "x",
                true,
                Refuse,
                vec![of("a", None, Stage::Ready)],
                true,
                None,
            ),
            (
                "a",
                "x",
                true,
                Refuse,
                vec![of("a", None, Stage::Ready)],
                false,
                Some(Take),
            ),
        ];
        for (path, claim, bound, other, records, content, wanted) in cases {
            let binding = binding(path, claim, bound, other);
            let verdict = judge(&binding, &records, content);
            assert_eq!(
                verdict.clone().ok(),
                wanted,
                "{binding:?} {records:?}: {verdict:?}"
            );
        }
    }
}
