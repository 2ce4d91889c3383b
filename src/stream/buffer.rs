//! Memory for bytes on their way: a bounded pool of page-aligned buffers, each filled once, then shared
//! read-only, and returned to the pool by its last user.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The size of a [`Block`], in bytes.
pub const BLOCK: usize = 4 << 20;
/// The size of a piece of compressed download, in bytes: small enough to stay in a cache between the
/// network, the hash and the decoder.
pub(super) const CHUNK: usize = 512 << 10;
/// How many blocks exist: one being filled, one being hashed, the consumer's [`MAX_HELD`], and the rest
/// queued, so that a stall of one stage does not stall the others at once.
pub(super) const BLOCKS: usize = 10;
/// How many chunks exist.
pub(super) const CHUNKS: usize = 16;
/// How many blocks exist where several threads decode frames: what those decode [`AHEAD`] is their queue.
pub(super) const BLOCKS_PARALLEL: usize = MAX_HELD + 2;
/// How much memory those threads take together, in bytes: what they decoded ahead of its turn, and all but
/// one of their windows.
pub(super) const AHEAD: usize = 17 << 20;
/// How many [`Block`]s a consumer may hold at a time; [`super::ImageStream::next_block`] refuses to give more,
/// because the pipeline would starve.
pub const MAX_HELD: usize = BLOCKS - 4;
/// What blocks must be aligned to for O_DIRECT on every disk: a page, and the largest common sector.
pub const ALIGNMENT: usize = 4096;

// Invariant I7: at most 64 MiB beside the decoder's window. 4 MiB are left for what the HTTP and TLS
// libraries, the kernel's share of thread stacks and the decoders' tables take.
const REST: usize = CHUNKS * (CHUNK + ALIGNMENT) + (4 << 20);
const _: () = assert!(BLOCKS * (BLOCK + ALIGNMENT) + REST <= 64 << 20);
const _: () = assert!(BLOCKS_PARALLEL * (BLOCK + ALIGNMENT) + AHEAD + REST <= 64 << 20);
const _: () = assert!(BLOCK.is_multiple_of(ALIGNMENT) && CHUNK.is_multiple_of(ALIGNMENT));

/// A bounded set of buffers of one size.
#[derive(Clone)]
pub(super) struct Pool(Arc<Shelf>);

struct Shelf {
    size: usize,
    limit: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<Aligned>,
    made: usize,
    closed: bool,
}

/// Memory whose start is aligned: a longer vector, of which the aligned part is used.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Pool {
    /// At most `limit` buffers of `size` bytes; they are made when needed.
    pub(super) fn new(size: usize, limit: usize) -> Pool {
        Pool(Arc::new(Shelf {
            size,
            limit,
            state: Mutex::default(),
            returned: Condvar::new(),
        }))
    }

    /// A buffer to fill, as soon as one is free; `None` once the pool is closed.
    pub(super) fn take(&self) -> Option<Filling> {
        let mut state = self.0.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(memory) = state.free.pop() {
                return Some(self.filling(memory));
            }
            if state.made < self.0.limit {
                state.made += 1;
                drop(state);
                return Some(self.filling(Aligned::new(self.0.size)));
            }
            state = self
                .0
                .returned
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes and refuses everybody who waits for a buffer.
    pub(super) fn close(&self) {
        self.0.lock().closed = true;
        self.0.returned.notify_all();
    }

    fn filling(&self, memory: Aligned) -> Filling {
        Filling {
            memory: Some(memory),
            pool: self.clone(),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} x {} bytes)", self.0.limit, self.0.size)
    }
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Aligned {
    fn new(size: usize) -> Aligned {
        let memory = vec![0; size + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Aligned { memory, start }
    }

    fn get(&self, len: usize) -> &[u8] {
        self.memory
            .get(self.start..self.start.saturating_add(len))
            .unwrap_or_default()
    }
}

/// A buffer that one thread fills.
pub(super) struct Filling {
    memory: Option<Aligned>,
    pool: Pool,
}

impl Filling {
    /// All of the buffer.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let size = self.pool.0.size;
        self.memory
            .as_mut()
            .and_then(|m| m.memory.get_mut(m.start..m.start.saturating_add(size)))
            .unwrap_or_default()
    }

    /// The first `len` bytes, from now on read-only and shared.
    pub(super) fn share(self, len: usize) -> Slab {
        let len = len.min(self.pool.0.size);
        Slab(Arc::new((self, len)))
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.0.lock().free.push(memory);
            self.pool.0.returned.notify_one();
        }
    }
}

/// Bytes that several threads read; the memory returns to its pool with the last clone.
#[derive(Clone)]
pub(super) struct Slab(Arc<(Filling, usize)>);

impl Slab {
    /// Whether both are the same memory.
    pub(super) fn is(&self, other: &Slab) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (filling, len) = &*self.0;
        filling
            .memory
            .as_ref()
            .map(|m| m.get(*len))
            .unwrap_or_default()
    }
}

/// A piece of an image's decoded content, at most [`BLOCK`] bytes, whose memory starts at a multiple of
/// [`ALIGNMENT`]. Dropping it gives the memory back.
pub struct Block {
    slab: Slab,
    held: Arc<AtomicUsize>,
}

impl Block {
    pub(super) fn new(slab: Slab, held: &Arc<AtomicUsize>) -> Block {
        held.fetch_add(1, Ordering::SeqCst);
        Block {
            slab,
            held: Arc::clone(held),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slab
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn buffers_are_aligned_bounded_and_come_back() {
        let pool = Pool::new(BLOCK, 2);
        let first = pool.take().unwrap();
        let mut second = pool.take().unwrap();
        second.space().fill(7);
        let slab = second.share(1000);
        let copy = slab.clone();
        assert_eq!(slab.len(), 1000);
        assert!(copy.iter().all(|b| *b == 7));
        assert_eq!(slab.as_ptr().align_offset(ALIGNMENT), 0);

        let waiting = pool.clone();
        let (tx, rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || tx.send(waiting.take().is_some()));
        assert!(
            rx.recv_timeout(Duration::from_millis(30)).is_err(),
            "a third buffer"
        );
        drop(slab);
        assert!(
            rx.recv_timeout(Duration::from_millis(30)).is_err(),
            "still shared"
        );
        drop(copy);
        assert_eq!(rx.recv_timeout(Duration::from_secs(10)), Ok(true));
        thread.join().unwrap().unwrap();
        drop(first);
    }

    #[test]
    fn closing_wakes_who_waits() {
        let pool = Pool::new(ALIGNMENT, 1);
        let only = pool.take().unwrap();
        let waiting = pool.clone();
        let thread = std::thread::spawn(move || waiting.take().is_none());
        std::thread::sleep(Duration::from_millis(10));
        pool.close();
        assert!(thread.join().unwrap());
        drop(only);
        assert!(pool.take().is_none());
    }
}
