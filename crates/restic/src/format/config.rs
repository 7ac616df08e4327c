use serde::{Deserialize, Serialize};

use crate::Id;

/// The versions of the format we can work with.
pub(crate) const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;

/// The first version that compresses.
pub(crate) const COMPRESSES: u32 = 2;

/// The file that makes a folder a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Of the format.
    pub version: u32,
    /// Of the repository.
    pub id: Id,
    /// Polynomial that stock restic cuts files by. We cut at fixed places, but whoever
    /// adds files to our repositories needs one.
    pub chunker_polynomial: String,
}

impl Config {
    /// For a new repository.
    pub fn new() -> Self {
        Self {
            version: COMPRESSES,
            id: Id::random(),
            chunker_polynomial: format!("{:x}", polynomial::random()),
        }
    }

    /// Returns whether blobs and files may be compressed.
    pub fn compresses(&self) -> bool {
        self.version >= COMPRESSES
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

/// Irreducible polynomials of degree 53 over GF(2), each a bit set.
mod polynomial {
    const DEGREE: u32 = 53;

    pub(super) fn random() -> u64 {
        loop {
            let low = rand::random::<u64>() & ((1 << DEGREE) - 1);
            // An even one is divisible by x.
            let candidate = (1 << DEGREE) | low | 1;
            if is_irreducible(candidate) {
                return candidate;
            }
        }
    }

    fn degree(of: u64) -> u32 {
        63 - of.leading_zeros().min(63)
    }

    fn remainder(mut of: u128, by: u64) -> u64 {
        let by_degree = degree(by);
        while of >> by_degree != 0 {
            let shift = (127 - of.leading_zeros()) - by_degree;
            of ^= u128::from(by) << shift;
        }
        of as u64
    }

    fn square(value: u64, modulo: u64) -> u64 {
        let mut spread = 0u128;
        for bit in 0..64 {
            spread |= u128::from((value >> bit) & 1) << (2 * bit);
        }
        remainder(spread, modulo)
    }

    fn common_divisor(mut a: u64, mut b: u64) -> u64 {
        while b != 0 {
            (a, b) = (b, remainder(u128::from(a), b));
        }
        a
    }

    /// Ben-Or: no divisor of degree up to half of ours.
    pub(super) fn is_irreducible(candidate: u64) -> bool {
        let mut power = 2;
        for _ in 0..degree(candidate) / 2 {
            power = square(power, candidate);
            if common_divisor(candidate, power ^ 2) != 1 {
                return false;
            }
        }
        true
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn known_polynomials_are_distinguished() {
            // Those that stock tests use, and products of smaller ones.
            assert!(is_irreducible(0x3D_A335_8B4D_C173));
            assert!(is_irreducible(0b111));
            assert!(is_irreducible(0b1011));
            assert!(!is_irreducible(0b101));
            assert!(!is_irreducible(0b1111));
            assert!(!is_irreducible(0x3D_A335_8B4D_C171));
            assert!(is_irreducible(random()));
        }
    }
}
