//! Working memory for hashing, kept from one password to the next.
//!
//! Argon2 wants some 20 MB for every password. Were they allocated each time,
//! on whatever thread is free, the allocator would keep as much for every
//! thread that ever hashed. There is one buffer for each hash that is being
//! computed at once, and no more.

use std::sync::Arc;

use argon2::Block;
use parking_lot::Mutex;
use zeroize::Zeroize;

use crate::error::{Error, Result};

/// Buffers that nobody uses at this moment. There are never more than were
/// taken at once.
pub(crate) struct HashMemory {
    /// Blocks in each.
    size: usize,
    spare: Mutex<Vec<Vec<Block>>>,
}

impl HashMemory {
    /// Of hashes that take `size` blocks.
    pub(crate) fn new(size: usize) -> Self {
        Self { size, spare: Mutex::default() }
    }

    #[cfg(test)]
    pub(crate) fn spare_buffers(&self) -> usize {
        self.spare.lock().len()
    }

    /// A buffer of so many blocks, all zero.
    pub(crate) fn take(self: &Arc<Self>, size: usize) -> Result<Buffer> {
        let spare = if size == self.size { self.spare.lock().pop() } else { None };
        let blocks = match spare {
            Some(blocks) => blocks,
            None => allocate(size)?,
        };
        Ok(Buffer { blocks, home: Arc::clone(self) })
    }
}

fn allocate(size: usize) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    blocks.try_reserve_exact(size).map_err(|error| Error::Hashing(error.to_string()))?;
    blocks.resize(size, Block::new());
    Ok(blocks)
}

/// Memory for one hash. Wiped when it is done with, and kept unless it is of
/// another size than most need.
pub(crate) struct Buffer {
    blocks: Vec<Block>,
    home: Arc<HashMemory>,
}

impl AsMut<[Block]> for Buffer {
    fn as_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.blocks.iter_mut().for_each(Zeroize::zeroize);
        if self.blocks.len() == self.home.size {
            self.home.spare.lock().push(std::mem::take(&mut self.blocks));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn is_wiped(blocks: &[Block]) -> bool {
        blocks.iter().all(|block| block.as_ref().iter().all(|word| *word == 0))
    }

    #[test]
    fn buffers_come_back_wiped_and_are_used_again() {
        let memory = Arc::new(HashMemory::new(4));
        let (mut first, second) = (memory.take(4).unwrap(), memory.take(4).unwrap());
        first.as_mut()[3].as_mut()[127] = 7;
        let place = first.blocks.as_ptr();
        drop(first);
        drop(second);
        assert_eq!(memory.spare.lock().len(), 2);
        assert!(memory.spare.lock().iter().all(|blocks| is_wiped(blocks)));
        let (again, other) = (memory.take(4).unwrap(), memory.take(4).unwrap());
        assert!([again.blocks.as_ptr(), other.blocks.as_ptr()].contains(&place));
        assert!(memory.spare.lock().is_empty());
    }

    #[test]
    fn memory_of_another_size_is_not_kept() {
        let memory = Arc::new(HashMemory::new(4));
        for size in [1, 8] {
            let buffer = memory.take(size).unwrap();
            assert_eq!(buffer.blocks.len(), size);
        }
        assert!(memory.spare.lock().is_empty());
        assert!(memory.take(usize::MAX).is_err());
    }
}
