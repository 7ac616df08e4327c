//! A disk that forgets what was not synced, writes half of what it was given,
//! runs full and breaks, as told by a seed.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redb::StorageBackend;

/// ENOSPC and EIO.
const NO_SPACE: i32 = 28;
const IO: i32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    WriteFails,
    /// The first part of the data is written, then an error.
    ShortWrite,
    Full,
    SyncFails,
    ReadFails,
}

pub(crate) const FAULTS: [Fault; 5] =
    [Fault::WriteFails, Fault::ShortWrite, Fault::Full, Fault::SyncFails, Fault::ReadFails];

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug)]
struct State {
    /// Bytes that are certain to be there after a power cut.
    synced: Vec<u8>,
    /// Bytes that readers see.
    seen: Vec<u8>,
    pending: Vec<Change>,
    /// Operations until the fault strikes.
    countdown: Option<(u64, Fault)>,
    struck: bool,
    random: StdRng,
}

#[derive(Debug, Clone)]
pub(crate) struct Disk {
    state: Arc<Mutex<State>>,
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, data) => {
            let from = usize::try_from(*offset).unwrap();
            if image.len() < from + data.len() {
                image.resize(from + data.len(), 0);
            }
            image[from..from + data.len()].copy_from_slice(data);
        }
        Change::Length(length) => image.resize(usize::try_from(*length).unwrap(), 0),
    }
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_content(Vec::new(), seed)
    }

    pub(crate) fn with_content(content: Vec<u8>, seed: u64) -> Self {
        let state = State {
            synced: content.clone(),
            seen: content,
            pending: Vec::new(),
            countdown: None,
            struck: false,
            random: StdRng::seed_from_u64(seed),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Lets the given fault strike at the nth operation that it fits.
    pub(crate) fn plan(&self, fault: Fault, after: u64) {
        self.state.lock().countdown = Some((after, fault));
    }

    pub(crate) fn struck(&self) -> bool {
        self.state.lock().struck
    }

    /// Power fails: of what was not synced, some is there, some is not, and
    /// the last that is there may be torn.
    pub(crate) fn power_cut(&self, seed: u64) -> Self {
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut image = state.synced.clone();
        let survivors: Vec<_> =
            state.pending.iter().filter(|_| state.random.random_bool(0.5)).cloned().collect();
        for (index, mut change) in survivors.iter().cloned().enumerate() {
            if let Change::Write(_, data) = &mut change
                && index + 1 == survivors.len()
            {
                let sectors = data.len().div_ceil(512);
                data.truncate(state.random.random_range(0..=sectors) * 512);
            }
            apply(&mut image, &change);
        }
        Self::with_content(image, seed)
    }
}

impl State {
    fn strikes(&mut self, fits: &[Fault]) -> Option<Fault> {
        let (left, fault) = self.countdown.as_mut()?;
        if !fits.contains(fault) {
            return None;
        }
        if *left > 0 {
            *left -= 1;
            return None;
        }
        self.struck = true;
        let fault = *fault;
        // A full disk stays full, the other faults pass.
        if fault != Fault::Full {
            self.countdown = None;
        }
        Some(fault)
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.seen, &change);
        self.pending.push(change);
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.state.lock().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock();
        if state.strikes(&[Fault::ReadFails]).is_some() {
            return Err(Error::from_raw_os_error(IO));
        }
        let from = usize::try_from(offset).unwrap();
        let data = state.seen.get(from..from + out.len());
        out.copy_from_slice(data.ok_or(Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let grows = len > state.seen.len() as u64;
        if grows && state.strikes(&[Fault::Full]).is_some() {
            return Err(Error::from_raw_os_error(NO_SPACE));
        }
        state.change(Change::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.strikes(&[Fault::SyncFails]).is_some() {
            // Some kernels forget data that could not be written, and the next
            // sync reports no error.
            let state = &mut *state;
            for change in std::mem::take(&mut state.pending) {
                if state.random.random_bool(0.5) {
                    apply(&mut state.synced, &change);
                }
            }
            return Err(Error::from_raw_os_error(IO));
        }
        state.synced = state.seen.clone();
        state.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        match state.strikes(&[Fault::WriteFails, Fault::ShortWrite, Fault::Full]) {
            Some(Fault::ShortWrite) => {
                let part = state.random.random_range(0..=data.len());
                state.change(Change::Write(offset, data[..part].to_vec()));
                Err(Error::from(ErrorKind::WriteZero))
            }
            Some(Fault::Full) => Err(Error::from_raw_os_error(NO_SPACE)),
            Some(_) => Err(Error::from_raw_os_error(IO)),
            None => {
                state.change(Change::Write(offset, data.to_vec()));
                Ok(())
            }
        }
    }
}
