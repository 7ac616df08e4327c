//! Zeros: found fast, hashed once.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::Id;

/// Compared with by whole blocks, which the C library does at memory speed.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Returns whether there is nothing but zeros in it.
pub(crate) fn all_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()])
}

/// The ids of chunks of zeros, by their length.
#[derive(Debug, Default)]
pub(crate) struct ZeroIds(Mutex<HashMap<usize, Id>>);

impl ZeroIds {
    pub(crate) fn of(&self, length: usize) -> Id {
        *self.0.lock().entry(length).or_insert_with(|| Id::of(&vec![0; length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_is_seen() {
        for length in [0, 1, 65_535, 65_536, 65_537, 200_000] {
            let mut bytes = vec![0; length];
            assert!(all_zero(&bytes));
            for at in [0, length / 2, length.saturating_sub(1)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = 1;
                    assert!(!all_zero(&bytes));
                    bytes[at] = 0;
                }
            }
        }
        let ids = ZeroIds::default();
        assert_eq!(ids.of(5), Id::of(&[0; 5]));
    }
}
