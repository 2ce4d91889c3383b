//! The allocator: the system's, with a few blocks of one large size kept for their next use.
//!
//! The HTTP library reads into a new buffer of some 256 KiB for every chunk. musl maps and unmaps each block of
//! 128 KiB or more (`MMAP_THRESHOLD` of its malloc), so that a download would fault in, clear and give back every
//! page that it passes through. With the last blocks kept, the pages are there already.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What musl takes from the kernel and gives back at once begins a little below this size, in bytes.
const FROM: usize = 128 * 1024;
/// The size that a kept block has, in bytes: the largest buffer that the HTTP library grows to is 408 KiB.
const BLOCK: usize = 512 * 1024;
/// Blocks that are kept, so that at most 1.5 MiB lie idle: one is being filled, one read, one on its way.
const KEPT: usize = 3;
/// The alignment of every block, in bytes: what malloc(3) promises on 64-bit machines.
const ALIGN: usize = 16;

/// The system's allocator, which keeps up to [`KEPT`] free blocks of [`BLOCK`] bytes.
#[derive(Debug)]
pub struct Recycling {
    free: [AtomicPtr<u8>; KEPT],
}

impl Recycling {
    /// One that keeps nothing yet.
    #[must_use]
    pub const fn new() -> Recycling {
        Recycling {
            free: [const { AtomicPtr::new(null_mut()) }; KEPT],
        }
    }

    /// The layout of the block that serves `layout`, where it is one that is kept.
    fn block(layout: Layout) -> Option<Layout> {
        if layout.align() > ALIGN || !(FROM..=BLOCK).contains(&layout.size()) {
            return None;
        }
        Layout::from_size_align(BLOCK, ALIGN).ok()
    }

    /// A block that was kept; from then on it belongs to the caller.
    fn take(&self) -> Option<*mut u8> {
        self.free
            .iter()
            .map(|slot| slot.swap(null_mut(), Ordering::Acquire))
            .find(|block| !block.is_null())
    }

    /// Keeps `block`; false where there is no room for it.
    fn keep(&self, block: *mut u8) -> bool {
        self.free.iter().any(|slot| {
            slot.compare_exchange(null_mut(), block, Ordering::Release, Ordering::Relaxed)
                .is_ok()
        })
    }
}

impl Default for Recycling {
    fn default() -> Recycling {
        Recycling::new()
    }
}

// SAFETY: what `block` does not name goes to the system's allocator unchanged. What it does name is always a
// whole block of BLOCK bytes and ALIGN alignment from that allocator, which is at least what was asked for; an
// atomic swap hands a kept block to one caller only; and since `block` depends on the layout alone, a block is
// given back with the layout that it was allocated with. Nothing here allocates or unwinds.
unsafe impl GlobalAlloc for Recycling {
    // Never inlined: at every place that allocates, all this adds a tenth to the program.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(block) = Recycling::block(layout) else {
            // SAFETY: the caller's promise about `layout` is passed on.
            return unsafe { System.alloc(layout) };
        };
        match self.take() {
            Some(kept) => kept,
            // SAFETY: BLOCK is not zero.
            None => unsafe { System.alloc(block) },
        }
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // Fresh pages are zero already: a kept block would have to be cleared.
        // SAFETY: the caller's promise about `layout` is passed on; BLOCK is not zero.
        unsafe { System.alloc_zeroed(Recycling::block(layout).unwrap_or(layout)) }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match Recycling::block(layout) {
            Some(_) if self.keep(pointer) => {}
            // SAFETY: the layout that `alloc` or `realloc` asked the system for.
            Some(block) => unsafe { System.dealloc(pointer, block) },
            // SAFETY: as above.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Recycling::block(layout), Recycling::block(wanted)) {
            (Some(_), Some(_)) => pointer,
            // SAFETY: both layouts are the system's.
            (None, None) => unsafe { System.realloc(pointer, layout, size) },
            _ => {
                // SAFETY: `wanted` is a layout of more than zero bytes, by the caller's promise.
                let new = unsafe { self.alloc(wanted) };
                if !new.is_null() {
                    // SAFETY: both are valid for the smaller size, and a new block overlaps no other.
                    unsafe {
                        std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                        self.dealloc(pointer, layout);
                    }
                }
                new
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 1).unwrap()
    }

    #[test]
    fn a_block_that_was_given_back_is_the_next_one_of_any_size_of_its_class() {
        let all = Recycling::new();
        // SAFETY: every pointer is used within its size, and given back once with its layout.
        unsafe {
            let first = all.alloc(layout(FROM));
            first.write_bytes(7, FROM);
            all.dealloc(first, layout(FROM));
            let second = all.alloc(layout(BLOCK));
            assert_eq!(first, second, "nothing was kept");
            let other = all.alloc(layout(BLOCK));
            assert_ne!(second, other, "one block for two");
            second.write_bytes(1, BLOCK);
            other.write_bytes(2, BLOCK);
            assert_eq!(*second.add(BLOCK - 1), 1);
            all.dealloc(second, layout(BLOCK));
            all.dealloc(other, layout(BLOCK));
            let zeroed = all.alloc_zeroed(layout(FROM));
            assert!((0..FROM).all(|at| *zeroed.add(at) == 0));
            all.dealloc(zeroed, layout(FROM));
        }
    }

    #[test]
    fn no_more_than_a_few_are_kept() {
        let all = Recycling::new();
        // SAFETY: as above.
        unsafe {
            let blocks: Vec<_> = (0..KEPT + 3).map(|_| all.alloc(layout(FROM))).collect();
            for block in blocks {
                all.dealloc(block, layout(FROM));
            }
        }
        let kept = |slot: &&AtomicPtr<u8>| !slot.load(Ordering::Relaxed).is_null();
        assert_eq!(all.free.iter().filter(kept).count(), KEPT);
    }

    #[test]
    fn growing_and_shrinking_over_both_limits_keeps_the_bytes() {
        let all = Recycling::new();
        let sizes = [
            100,
            FROM - 1,
            FROM,
            300_000,
            BLOCK,
            BLOCK + 1,
            900_000,
            BLOCK,
            FROM,
            50,
        ];
        // SAFETY: as above; `realloc` is given the layout of the step before.
        unsafe {
            let mut at = all.alloc(layout(100));
            at.write_bytes(9, 50);
            for pair in sizes.windows(2) {
                at = all.realloc(at, layout(pair[0]), pair[1]);
                at.add(50).write_bytes(1, pair[1] - 50);
                assert!((0..50).all(|byte| *at.add(byte) == 9), "{pair:?}");
            }
            all.dealloc(at, layout(50));
        }
    }

    #[test]
    fn threads_never_get_the_same_block() {
        let all = Recycling::new();
        std::thread::scope(|scope| {
            for mark in 1..=8_u8 {
                let all = &all;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        // SAFETY: as above.
                        unsafe {
                            let block = all.alloc(layout(FROM));
                            block.write(mark);
                            block.add(FROM - 1).write(mark);
                            std::thread::yield_now();
                            assert_eq!((*block, *block.add(FROM - 1)), (mark, mark));
                            all.dealloc(block, layout(FROM));
                        }
                    }
                });
            }
        });
    }
}
