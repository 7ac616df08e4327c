//! Memory that a process has and does not use, given back to the machine.
//!
//! A program that starts touches far more of itself than it needs afterwards,
//! and an allocator keeps what was needed once. For a daemon on every machine
//! that is most of its resident memory. This crate knows nothing of what the
//! process does; it only asks the allocator and the kernel.
//!
//! The workspace's one use of `unsafe` is here, in `system`.

mod maps;
mod system;

use std::{fs, io};

use maps::Mapping;

/// Tells the allocator that memory matters more than many threads that
/// allocate at once, and remembers what the program was started from. To be
/// called first in `main`.
pub fn frugal() -> Frugal {
    system::few_arenas();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    Frugal { of_program: maps::read(&maps).filter(Mapping::is_read_only_file).collect() }
}

/// A process that is frugal with memory.
#[derive(Debug, Clone)]
pub struct Frugal {
    /// The program and the libraries that it was linked with. They stay where
    /// they are for as long as the process lives.
    of_program: Vec<Mapping>,
}

impl Frugal {
    /// Gives back what is free, and pages of the program that are in its file
    /// as well: those that are used again come back one by one.
    pub fn give_back(&self) -> io::Result<()> {
        system::trim();
        let maps = fs::read_to_string("/proc/self/smaps")?;
        for mapping in maps::read(&maps) {
            let same = self.of_program.iter().any(|known| known.range == mapping.range);
            if same && mapping.is_read_only_file() && mapping.is_as_in_file() {
                system::forget(&mapping)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Large, and read in full below.
    static TEXT: &[u8] = include_bytes!("lib.rs");

    #[test]
    fn the_program_goes_on_as_it_was() {
        let frugal = frugal();
        assert!(!frugal.of_program.is_empty(), "the program itself is mapped");
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let before = sum(TEXT);
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(move || (0..200).map(|_| sum(TEXT)).max().unwrap()))
            .collect();
        for _ in 0..20 {
            frugal.give_back().unwrap();
        }
        for thread in threads {
            assert_eq!(thread.join().unwrap(), before);
        }
        assert_eq!(format!("{before}").parse::<u64>().unwrap(), before);
    }
}
