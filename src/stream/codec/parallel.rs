//! Decoding on several threads what consists of frames or members that are each decoded by itself:
//!
//! ```text
//! chunks ──gather──► run 1 ──► decoded here, straight into the block
//!                    run 2 ──► helper ──pieces──┐
//!                    run 3 ──► helper ──pieces──┴► copied into the block when their turn comes
//! ```
//!
//! Whoever has nothing to do gathers the next run of whole frames, which then is decoded by the same decoder
//! that one thread would use for all. What cannot be gathered is decoded here, straight from the source,
//! until its end; the helpers wait as long. Every run that comes first can go on without any other, so that
//! no bound on memory makes two wait for each other.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::frames::{Framing, Plan};
use super::source::{Parts, copy};
use super::{Chunks, Decoder, damaged, gzip, zstd};
use crate::stream::cancel::Cancel;

/// How many pieces the run whose turn it is may have beyond the bound.
const EXEMPT: usize = 2;

/// A decoder of frames or members, each decoded by itself.
pub(super) trait Framed: Decoder {
    /// Goes on with `source`, which begins between two frames. Returns the former one.
    fn replace_source(&mut self, source: Chunks) -> Chunks;

    /// Whether all that was decoded were whole frames, and all of their content was given out.
    fn at_boundary(&self) -> bool;
}

pub(super) struct Parallel {
    table: Arc<Table>,
    decoder: Box<dyn Framed>,
    doing: Doing,
    /// A helper's piece, and how much of it was copied.
    piece: Option<(Piece, usize)>,
    helpers: Vec<JoinHandle<()>>,
    /// How many helpers there are to be.
    wanted: u32,
}

/// What the decoder here is at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Nothing.
    Idle,
    /// A run that was gathered.
    Run,
    /// The source itself, until the end of a frame.
    Source,
    /// All is decoded.
    Ended,
}

/// Decoded bytes: memory of one piece's size, and how many are filled.
struct Piece {
    memory: Vec<u8>,
    filled: usize,
}

/// What the threads share.
struct Table {
    state: Mutex<State>,
    /// A helper decoded a piece, or put the source back.
    progress: Condvar,
    /// There is room again, the source is back, or all is over.
    room: Condvar,
    cancel: Cancel,
    plan: Plan,
}

struct State {
    /// `None` while somebody gathers or decodes from it.
    source: Option<Chunks>,
    /// What comes next cannot be gathered.
    ungatherable: bool,
    closed: bool,
    /// The runs of the helpers, in order.
    runs: VecDeque<Run>,
    /// The number of the first of them.
    first: u64,
    free: Vec<Vec<u8>>,
    /// How many pieces are filled or being filled.
    used: usize,
}

/// A run that a helper decodes.
#[derive(Default)]
struct Run {
    pieces: VecDeque<Piece>,
    /// How it ended.
    result: Option<io::Result<()>>,
}

impl Parallel {
    pub(super) fn new(plan: Plan, source: Chunks, cancel: Cancel) -> io::Result<Parallel> {
        let nothing = Chunks::of_parts(Parts::default(), cancel.clone());
        Ok(Parallel {
            wanted: plan.helpers,
            decoder: decoder(plan.framing, nothing)?,
            table: Arc::new(Table {
                state: Mutex::new(State {
                    source: Some(source),
                    ungatherable: false,
                    closed: false,
                    runs: VecDeque::new(),
                    first: 0,
                    free: Vec::new(),
                    used: 0,
                }),
                progress: Condvar::new(),
                room: Condvar::new(),
                cancel,
                plan,
            }),
            doing: Doing::Idle,
            piece: None,
            helpers: Vec::new(),
        })
    }

    /// Finds something to decode or to copy.
    fn next(&mut self) -> io::Result<()> {
        let table = Arc::clone(&self.table);
        let mut state = table.lock();
        loop {
            if let Some(run) = state.runs.front_mut() {
                if let Some(piece) = run.pieces.pop_front() {
                    self.piece = Some((piece, 0));
                    return Ok(());
                }
                match run.result.take() {
                    None => state = wait(&table.progress, state),
                    Some(Err(error)) => return Err(error),
                    Some(Ok(())) => {
                        state.runs.pop_front();
                        state.first += 1;
                        // Another run's turn has come.
                        table.room.notify_all();
                    }
                }
            } else if let Some(mut source) = state.source.take() {
                let gathered = if state.ungatherable {
                    None
                } else {
                    drop(state);
                    table.plan.gather(&mut source)?
                };
                if let Some(parts) = gathered {
                    table.put_back(source, false);
                    self.start_helpers();
                    let source = Chunks::of_parts(parts, table.cancel.clone());
                    self.decoder.replace_source(source);
                    self.doing = Doing::Run;
                } else {
                    self.decoder.replace_source(source);
                    self.doing = Doing::Source;
                }
                return Ok(());
            } else {
                state = wait(&table.progress, state);
            }
        }
    }

    /// Starts the helpers, now that there is more than one frame.
    fn start_helpers(&mut self) {
        while self.helpers.len() < self.wanted as usize {
            let table = Arc::clone(&self.table);
            let spawned = std::thread::Builder::new()
                .name("ir-decode-help".to_owned())
                .spawn(move || table.help());
            match spawned {
                Ok(helper) => self.helpers.push(helper),
                // It can be done with fewer.
                Err(_) => self.wanted = 0,
            }
        }
    }

    fn decode(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let made = match self.decoder.read(out) {
            Err(error) if self.doing == Doing::Run => return Err(in_run(error)),
            result => result?,
        };
        let nothing = || Chunks::of_parts(Parts::default(), self.table.cancel.clone());
        match (self.doing, made) {
            (Doing::Run, 0) => self.doing = Doing::Idle,
            (Doing::Source, 0) => self.doing = Doing::Ended,
            (Doing::Source, _) if self.decoder.at_boundary() => {
                let source = self.decoder.replace_source(nothing());
                self.table.put_back(source, false);
                self.doing = Doing::Idle;
            }
            _ => {}
        }
        Ok(made)
    }
}

impl Decoder for Parallel {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some((piece, copied)) = &mut self.piece {
                let rest = piece.memory.get(*copied..piece.filled).unwrap_or_default();
                let count = copy(rest, out);
                *copied += count;
                if *copied >= piece.filled
                    && let Some((piece, _)) = self.piece.take()
                {
                    self.table.free(piece);
                }
                if count > 0 {
                    return Ok(count);
                }
            } else {
                match self.doing {
                    Doing::Idle => self.next()?,
                    Doing::Ended => return Ok(0),
                    Doing::Run | Doing::Source => {
                        let made = self.decode(out)?;
                        if made > 0 {
                            return Ok(made);
                        }
                    }
                }
            }
        }
    }
}

impl Drop for Parallel {
    /// Waits for the helpers: each looks after every piece whether it is still wanted. One that waits for
    /// the download waits until that ends or is cut off.
    fn drop(&mut self) {
        self.table.lock().closed = true;
        self.table.room.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper that died is of no interest any more.
            let _ = helper.join();
        }
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_back(&self, source: Chunks, ungatherable: bool) {
        let mut state = self.lock();
        state.source = Some(source);
        state.ungatherable = ungatherable;
        self.progress.notify_all();
        self.room.notify_all();
    }

    /// A helper's life.
    fn help(&self) {
        let nothing = Chunks::of_parts(Parts::default(), self.cancel.clone());
        let mut decoder = decoder(self.plan.framing, nothing);
        while let Some((number, gathered)) = self.gather() {
            let result = match (gathered, &mut decoder) {
                (Err(error), _) => Err(error),
                // The same error cannot be given twice; the helper is not needed a second time.
                (_, Err(error)) => Err(io::Error::from(error.kind())),
                (Ok(parts), Ok(decoder)) => {
                    decoder.replace_source(Chunks::of_parts(parts, self.cancel.clone()));
                    self.decode(number, decoder.as_mut())
                }
            };
            let failed = result.is_err();
            self.change(number, |run| run.result = Some(result));
            if failed {
                return;
            }
        }
    }

    /// Waits for the source and gathers the next run; its number and bytes. `None` when all is over.
    fn gather(&self) -> Option<(u64, io::Result<Parts>)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if !state.ungatherable
                && let Some(mut source) = state.source.take()
            {
                drop(state);
                let gathered = self.plan.gather(&mut source);
                state = self.lock();
                state.ungatherable = matches!(gathered, Ok(None));
                state.source = Some(source);
                self.progress.notify_all();
                self.room.notify_all();
                let Some(gathered) = gathered.transpose() else {
                    continue;
                };
                state.runs.push_back(Run::default());
                let last = state.runs.len() as u64 - 1;
                return Some((state.first + last, gathered));
            }
            state = wait(&self.room, state);
        }
    }

    /// Decodes a run into pieces.
    fn decode(&self, number: u64, decoder: &mut dyn Framed) -> io::Result<()> {
        loop {
            let Some(mut piece) = self.piece(number) else {
                return Err(ErrorKind::BrokenPipe.into());
            };
            let result = loop {
                let Some(space) = piece.memory.get_mut(piece.filled..) else {
                    break Ok(false);
                };
                if space.is_empty() {
                    break Ok(false);
                }
                match decoder.read(space) {
                    Ok(0) => break Ok(true),
                    Ok(made) => piece.filled += made,
                    Err(error) => break Err(in_run(error)),
                }
            };
            self.change(number, |run| run.pieces.push_back(piece));
            if result? {
                return Ok(());
            }
        }
    }

    /// An empty piece for run `number`, as soon as there is room; `None` when all is over.
    fn piece(&self, number: u64) -> Option<Piece> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let waiting = state.runs.front().map_or(0, |run| run.pieces.len());
            let exempt = state.first == number && waiting < EXEMPT;
            if state.used < self.plan.ahead / self.plan.grain.piece || exempt {
                state.used += 1;
                let memory = state.free.pop();
                drop(state);
                return Some(Piece {
                    memory: memory.unwrap_or_else(|| vec![0; self.plan.grain.piece]),
                    filled: 0,
                });
            }
            state = wait(&self.room, state);
        }
    }

    fn free(&self, piece: Piece) {
        let mut state = self.lock();
        state.used -= 1;
        state.free.push(piece.memory);
        self.room.notify_all();
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Run)) {
        let mut state = self.lock();
        // A run is removed only after its result.
        let index = usize::try_from(number.saturating_sub(state.first)).unwrap_or(usize::MAX);
        if let Some(run) = state.runs.get_mut(index) {
            change(run);
        }
        self.progress.notify_all();
    }
}

fn wait<'a>(what: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    what.wait(state).unwrap_or_else(PoisonError::into_inner)
}

fn decoder(framing: Framing, source: Chunks) -> io::Result<Box<dyn Framed>> {
    Ok(match framing {
        Framing::Gzip => Box::new(gzip::Gzip::new(source)),
        Framing::Zstd { .. } => Box::new(zstd::Zstd::new(source)?),
    })
}

/// What an error of a decoder means in a run, which has an end that is not the download's.
fn in_run(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => damaged("a member is not as long as its header says"),
        _ => error,
    }
}
