//! Lines on disk: what is measured is added every 15 seconds, coarse points
//! when they are finished, each to a journal of its own.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::Path,
    time::Duration,
};

use prost::Message;

use super::{
    COARSE, COARSE_POINTS, FINE, FINE_POINTS, Key,
    line::{Line, Summary},
};
use crate::journal::{self, Journal, Limits};

const DAY: Limits = Limits {
    file_bytes: 1 << 20,
    total_bytes: 256 << 20,
    keep: Duration::from_secs(FINE * FINE_POINTS as u64 + 3600),
};
const MONTH: Limits = Limits {
    file_bytes: 1 << 20,
    total_bytes: 256 << 20,
    keep: Duration::from_secs(COARSE * COARSE_POINTS as u64 + 86_400),
};

/// Values of one moment.
#[derive(Clone, PartialEq, Message)]
struct Row {
    /// Seconds since 1970, of a coarse row the begin of its step.
    #[prost(uint64, tag = "1")]
    time: u64,
    /// Lines that the file has not named before.
    #[prost(message, repeated, tag = "2")]
    names: Vec<Name>,
    #[prost(message, repeated, tag = "3")]
    values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(string, tag = "2")]
    metric: String,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(string, tag = "4")]
    object: String,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(float, tag = "2")]
    mean: f32,
    /// Of coarse rows alone.
    #[prost(float, tag = "3")]
    low: f32,
    #[prost(float, tag = "4")]
    high: f32,
}

/// A journal, and the numbers by which its file of now calls lines.
struct Rows {
    journal: Journal,
    numbers: HashMap<Key, u32>,
}

impl Rows {
    fn open(folder: &Path, limits: Limits) -> io::Result<Self> {
        Ok(Self { journal: Journal::open(folder, limits)?, numbers: HashMap::new() })
    }

    fn write<'a>(
        &mut self,
        time: u64,
        values: impl Iterator<Item = (&'a Key, Summary)>,
    ) -> io::Result<()> {
        if self.journal.is_at_begin() {
            self.numbers.clear();
        }
        let mut row = Row { time, ..Row::default() };
        for (key, Summary { mean, low, high }) in values {
            let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            let number = *self.numbers.entry(key.clone()).or_insert_with(|| {
                let Key { metric, kind, object } = key.clone();
                row.names.push(Name { number: next, metric, kind, object });
                next
            });
            row.values.push(Value { number, mean, low, high });
        }
        let written = self.journal.append(&row.encode_to_vec());
        if written.is_err() {
            // A file that is given up takes its names along.
            self.numbers.clear();
        }
        written.map(drop)
    }
}

pub(super) struct Keeper {
    day: Rows,
    month: Rows,
}

impl Keeper {
    pub(super) fn open(
        folder: &Path,
        lines: &mut BTreeMap<Key, Line>,
        now: u64,
    ) -> io::Result<Self> {
        let (day, month) = (folder.join("day"), folder.join("month"));
        let keeper = Self { day: Rows::open(&day, DAY)?, month: Rows::open(&month, MONTH)? };
        replay(&month, |key, time, value| {
            let Value { mean, low, high, .. } = *value;
            lines
                .entry(key.clone())
                .or_default()
                .recall(time / COARSE, Summary { mean, low, high });
        })?;
        let oldest = now.saturating_sub(FINE * FINE_POINTS as u64);
        replay(&day, |key, time, value| {
            // Of a clock that was ahead nothing is kept: it would hide what
            // comes.
            if time >= oldest && time <= now {
                lines.entry(key.clone()).or_default().add(time, value.mean.into());
            }
        })?;
        Ok(keeper)
    }

    pub(super) fn write(
        &mut self,
        now: u64,
        values: &[(Key, f64)],
        finished: &[(Key, (u64, Summary))],
    ) -> io::Result<()> {
        let fine = values.iter().map(|(key, value)| {
            let mean = *value as f32;
            (key, Summary { mean, low: 0.0, high: 0.0 })
        });
        self.day.write(now, fine)?;
        let mut steps: BTreeMap<u64, Vec<(&Key, Summary)>> = BTreeMap::new();
        for (key, (step, summary)) in finished {
            steps.entry(*step).or_default().push((key, *summary));
        }
        for (step, points) in steps {
            self.month.write(step * COARSE, points.into_iter())?;
        }
        Ok(())
    }

    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.day.journal.sync()?;
        self.month.journal.sync()
    }
}

fn replay(folder: &Path, mut each: impl FnMut(&Key, u64, &Value)) -> io::Result<()> {
    for (_, path) in journal::files(folder)? {
        let mut names: HashMap<u32, Key> = HashMap::new();
        for record in journal::read(&path)? {
            let Ok(row) = Row::decode(record.as_slice()) else { continue };
            for Name { number, metric, kind, object } in row.names {
                names.insert(number, Key { metric, kind, object });
            }
            for value in &row.values {
                if let Some(key) = names.get(&value.number) {
                    each(key, row.time, value);
                }
            }
        }
    }
    Ok(())
}
