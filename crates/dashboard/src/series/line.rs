//! One number over time.

use std::collections::VecDeque;

use super::{
    COARSE, COARSE_POINTS, FINE, FINE_POINTS,
    trend::{Trend, surest, trend},
};

/// The shorter of the pasts that growth is told by: daily ups and downs are within it.
const DAY: u64 = 86_400;

/// Several values of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) mean: f32,
    pub(crate) low: f32,
    pub(crate) high: f32,
}

/// Values of consecutive steps, the oldest first; steps without one between.
#[derive(Debug, Clone)]
struct Steps<T> {
    /// Number of the first step.
    first: u64,
    values: VecDeque<Option<T>>,
}

impl<T> Default for Steps<T> {
    fn default() -> Self {
        Self { first: 0, values: VecDeque::new() }
    }
}

impl<T> Steps<T> {
    fn put(&mut self, step: u64, value: T, most: usize) {
        let next = self.first + self.values.len() as u64;
        if self.values.is_empty() || step >= next + most as u64 {
            // So long ago that nothing of it is kept.
            self.values.clear();
            self.first = step;
        }
        if step < self.first {
            return;
        }
        let at = usize::try_from(step - self.first).unwrap_or(usize::MAX);
        while self.values.len() <= at {
            self.values.push_back(None);
        }
        self.values[at] = Some(value);
        while self.values.len() > most {
            self.values.pop_front();
            self.first += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let first = self.first;
        let numbered = self.values.iter().enumerate();
        numbered
            .filter_map(move |(at, value)| value.as_ref().map(|value| (first + at as u64, value)))
    }

    fn last(&self) -> Option<u64> {
        (!self.values.is_empty()).then(|| self.first + self.values.len() as u64 - 1)
    }
}

/// Values that came in the coarse step of now.
#[derive(Debug, Clone, Copy)]
struct Open {
    step: u64,
    count: u32,
    sum: f64,
    low: f32,
    high: f32,
}

/// A day at 15 seconds and a month at half an hour.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    fine: Steps<f32>,
    coarse: Steps<Summary>,
    open: Option<Open>,
}

impl Line {
    /// Takes a value; the coarse point that is finished by it.
    pub(crate) fn add(&mut self, now: u64, value: f64) -> Option<(u64, Summary)> {
        let value = value as f32;
        if !value.is_finite() {
            return None;
        }
        self.fine.put(now / FINE, value, FINE_POINTS);
        let step = now / COARSE;
        let mut finished = None;
        match &mut self.open {
            Some(open) if open.step == step => {
                open.count += 1;
                open.sum += f64::from(value);
                open.low = open.low.min(value);
                open.high = open.high.max(value);
            }
            open => {
                finished = open.take().map(|open| (open.step, open.summary()));
                let sum = f64::from(value);
                *open = Some(Open { step, count: 1, sum, low: value, high: value });
            }
        }
        if let Some((step, summary)) = finished {
            self.coarse.put(step, summary, COARSE_POINTS);
        }
        finished
    }

    /// Takes a coarse point of before the start.
    pub(crate) fn recall(&mut self, step: u64, summary: Summary) {
        self.coarse.put(step, summary, COARSE_POINTS);
    }

    /// Points of the last day: when, and mean, lowest and highest.
    pub(crate) fn fine(&self) -> impl Iterator<Item = (u64, Summary)> {
        let summary = |value: f32| Summary { mean: value, low: value, high: value };
        self.fine.iter().map(move |(step, value)| (step * FINE, summary(*value)))
    }

    /// Points of the last month, the one that is not over included.
    pub(crate) fn coarse(&self) -> impl Iterator<Item = (u64, Summary)> {
        let open = self.open.iter().map(|open| (open.step * COARSE, open.summary()));
        self.coarse.iter().map(|(step, summary)| (step * COARSE, *summary)).chain(open)
    }

    pub(crate) fn is_over(&self, now: u64) -> bool {
        let last = self.fine.last().map_or(0, |step| step * FINE);
        now.saturating_sub(last) > COARSE * COARSE_POINTS as u64
    }

    /// Growth by its past; None where too little of it is known.
    pub(crate) fn trend(&self, now: u64, shortest: u64, longest: u64) -> Option<Trend> {
        surest([longest, DAY].into_iter().filter_map(|span| self.trend_of(now, shortest, span)))
    }

    fn trend_of(&self, now: u64, shortest: u64, span: u64) -> Option<Trend> {
        let since = now.saturating_sub(span);
        let day = now.saturating_sub(FINE * FINE_POINTS as u64);
        let month = self.coarse().filter(|(at, _)| *at < day);
        let points: Vec<(f64, f64)> = month
            .chain(self.fine())
            .filter(|(at, _)| *at >= since)
            .map(|(at, summary)| (at.saturating_sub(since) as f64, f64::from(summary.mean)))
            .collect();
        let known = points.last()?.0 - points.first()?.0;
        (known >= shortest as f64).then(|| trend(&points)).flatten()
    }
}

impl Open {
    fn summary(&self) -> Summary {
        let mean = (self.sum / f64::from(self.count.max(1))) as f32;
        Summary { mean, low: self.low, high: self.high }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const START: u64 = 1_800_000_000;

    #[test]
    fn a_day_is_kept_at_fifteen_seconds_and_a_month_at_half_an_hour() {
        let mut line = Line::default();
        let month = 40 * 86_400;
        for second in (0..month).step_by(15) {
            line.add(START + second, second as f64);
        }
        assert_eq!(line.fine().count(), FINE_POINTS);
        assert_eq!(line.coarse().count(), COARSE_POINTS + 1);
        let (at, summary) = line.coarse().next().unwrap();
        assert_eq!(at % COARSE, 0);
        assert!(summary.low < summary.mean && summary.mean < summary.high);
    }

    #[test]
    fn gaps_are_gaps_and_a_clock_that_is_set_back_breaks_nothing() {
        let mut line = Line::default();
        line.add(START, 1.0);
        line.add(START + 600, 2.0);
        line.add(START - 86_400 * 3, 3.0);
        line.add(START + 615, f64::NAN);
        let values: Vec<f32> = line.fine().map(|(_, summary)| summary.mean).collect();
        assert_eq!(values, [1.0, 2.0]);
        line.add(START + 86_400 * 365 * 100, 4.0);
        assert_eq!(line.fine().count(), 1);
    }

    #[test]
    fn growth_is_found_within_a_tenth() {
        let mut line = Line::default();
        assert_eq!(line.trend(START, 3600, 7 * 86_400), None);
        // A gibibyte a day, with noise of a tenth of that.
        let rate = f64::from(1 << 30) / 86_400.0;
        for second in (0..3 * 86_400).step_by(15) {
            let noise = f64::from((second * 7919 % 200) as i32 - 100) / 100.0 * 1e8;
            line.add(START + second, 50e9 + rate * second as f64 + noise);
        }
        let found = line.trend(START + 3 * 86_400, 3600, 7 * 86_400).unwrap();
        assert!((found.rate / rate - 1.0).abs() < 0.1, "{found:?} is not {rate}");
        assert!(found.low < rate && rate < found.high, "{found:?} is not around {rate}");
    }
}
