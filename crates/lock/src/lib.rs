//! Files that one process at a time has.
//!
//! The kernel lets a lock go with the last process that has the file open. Of
//! a process that was killed, a program that it was just starting has its files
//! too, until that program has begun. Whoever comes right after therefore waits
//! a moment before it believes that somebody is there.
//!
//! Callers know what a lock guards, and what to say when somebody has it.

use std::{
    fs::{File, TryLockError},
    thread,
    time::{Duration, Instant},
};

/// Longest time that a lock may outlive its holder.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Takes the lock of a file for as long as the file is open. Blocks for up to a
/// second while somebody else has it.
pub fn take(file: &File) -> Result<(), TryLockError> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    take_while(file, || {
        thread::sleep(RETRY_INTERVAL);
        Instant::now() < deadline
    })
}

/// Tries again for as long as that seems worth it.
fn take_while(file: &File, mut again: impl FnMut() -> bool) -> Result<(), TryLockError> {
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if again() => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn twice_open() -> (File, File, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        (File::create(&path).unwrap(), File::create(&path).unwrap(), folder)
    }

    #[test]
    fn a_lock_that_is_let_go_meanwhile_is_taken() {
        let (holder, comer, _folder) = twice_open();
        holder.lock().unwrap();
        let mut holder = Some(holder);
        let mut tries = 0;
        take_while(&comer, || {
            tries += 1;
            if tries == 3 {
                holder = None;
            }
            tries <= 3
        })
        .unwrap();
        assert_eq!(tries, 3);
    }

    #[test]
    fn a_lock_that_is_held_on_to_is_not() {
        let (holder, comer, _folder) = twice_open();
        take(&holder).unwrap();
        assert!(matches!(take(&comer), Err(TryLockError::WouldBlock)));
        drop(holder);
        take(&comer).unwrap();
    }
}
