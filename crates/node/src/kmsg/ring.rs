//! The kernel's ring of records, one `read` each.

use std::{
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::Path,
};

use rustix::{
    fs::{self, Mode, OFlags, SeekFrom},
    io::Errno,
};

use super::record::{Malformed, Record, parse};

/// The longest record that the kernel makes.
const RECORD_SIZE: usize = 8192;

/// Source of records.
pub(super) trait Source {
    /// Reads one record. EAGAIN when there is none yet, EPIPE when some were
    /// overwritten.
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno>;
}

/// `/dev/kmsg`, open. Every opening has its own place in the ring.
#[derive(Debug)]
pub(super) struct Device(OwnedFd);

impl Device {
    /// Opens it at the oldest record.
    pub(super) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        fs::open(path, flags, Mode::empty()).map(Self)
    }

    /// Goes behind the newest record.
    pub(super) fn to_the_end(&self) -> Result<(), Errno> {
        fs::seek(&self.0, SeekFrom::End(0)).map(drop)
    }
}

impl Source for Device {
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.0, buffer)
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Result of one step through the ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RingStep {
    Record(Record),
    /// A record that cannot be parsed; the next one may be fine.
    Malformed(Malformed),
    /// No record yet.
    Nothing,
}

/// The next record. Those that were overwritten show in its sequence.
pub(super) fn next(source: &impl Source) -> Result<RingStep, Errno> {
    let mut buffer = [0; RECORD_SIZE];
    loop {
        return match source.read(&mut buffer) {
            // Overwritten: the next read gives the oldest that is left.
            Err(Errno::PIPE | Errno::INTR) => continue,
            Err(Errno::AGAIN) | Ok(0) => Ok(RingStep::Nothing),
            Err(other) => Err(other),
            Ok(length) => Ok(match parse(&buffer[..length]) {
                Ok(record) => RingStep::Record(record),
                Err(malformed) => RingStep::Malformed(malformed),
            }),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{cell::RefCell, collections::VecDeque};

    use super::*;

    struct Script(RefCell<VecDeque<Result<&'static str, Errno>>>);

    impl Source for Script {
        fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
            let record = self.0.borrow_mut().pop_front().unwrap_or(Err(Errno::AGAIN))?;
            buffer[..record.len()].copy_from_slice(record.as_bytes());
            Ok(record.len())
        }
    }

    #[test]
    fn an_overrun_is_no_end_and_neither_is_nonsense() {
        let script = Script(RefCell::new(VecDeque::from([
            Ok("6,1,0,-;a\n"),
            Err(Errno::PIPE),
            Err(Errno::INTR),
            Ok("6,9,0,-;b\n"),
            Ok("nonsense"),
        ])));
        let sequence = |found| match found {
            Ok(RingStep::Record(record)) => Some(record.sequence),
            _ => None,
        };
        assert_eq!(sequence(next(&script)), Some(1));
        assert_eq!(sequence(next(&script)), Some(9));
        assert_eq!(next(&script).unwrap(), RingStep::Malformed(Malformed::NoPrefix));
        assert_eq!(next(&script).unwrap(), RingStep::Nothing);
        let failing = Script(RefCell::new(VecDeque::from([Err(Errno::IO)])));
        assert_eq!(next(&failing).unwrap_err(), Errno::IO);
    }
}
