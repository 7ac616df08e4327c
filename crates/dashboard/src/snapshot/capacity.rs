//! Room for data, and when there will be none.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use selvage_api::selvage::dashboard::{Capacity, Object};

use crate::{
    facts::{Exporter, Facts, Filesystem, Usage, each, object},
    rules::Thresholds,
    series::Trend,
    stamp,
};

const DAY: f64 = 86_400.0;
/// Nobody can tell further ahead than so many times the past that is known.
const AHEAD: f64 = 30.0;

/// File systems that are told of.
const MOST_FILESYSTEMS: usize = 20;

pub(super) fn capacity(
    facts: &Facts,
    growth: &HashMap<String, Trend>,
    now: Timestamp,
    thresholds: &Thresholds,
) -> Vec<Capacity> {
    let mut all = Vec::new();
    if let Some(storage) = &facts.storage
        && let Some(usage) = storage.usage
    {
        let cluster = object("ceph", storage.id.clone());
        all.push(entry("ceph", cluster, usage, growth, now));
    }
    for group in facts.volumes.iter().flat_map(|volumes| &volumes.groups) {
        let used = group.size.saturating_sub(group.free);
        let usage = Usage {
            used,
            available: group.free,
            total: group.size,
            ratio: 0.0,
            near_full: thresholds.near_full,
            full: thresholds.full,
        };
        all.push(entry("volumes", group.object.clone(), usage, growth, now));
    }
    for (host, disk) in fullest(facts) {
        let available = disk.available.unwrap_or_default();
        let usage = Usage {
            used: disk.size.saturating_sub(available),
            available,
            total: disk.size,
            ratio: 0.0,
            near_full: thresholds.near_full,
            full: thresholds.full,
        };
        all.push(entry("file systems", filesystem(host, disk), usage, growth, now));
    }
    all
}

/// The reference to a file system of a machine that Prometheus scrapes.
pub(crate) fn filesystem(host: &Exporter, disk: &Filesystem) -> Object {
    object("filesystem", format!("{} {}", host.instance, disk.mount))
}

/// File systems with the least room, of all machines.
fn fullest(facts: &Facts) -> Vec<(&Exporter, &Filesystem)> {
    let mut all: Vec<_> = each(&facts.exporters)
        .flat_map(|host| host.filesystems.iter().map(move |disk| (host, disk)))
        .collect();
    all.sort_by(|(_, a), (_, b)| b.share().total_cmp(&a.share()));
    all.truncate(MOST_FILESYSTEMS);
    all
}

fn entry(
    name: &str,
    object: Object,
    usage: Usage,
    growth: &HashMap<String, Trend>,
    now: Timestamp,
) -> Capacity {
    let growth = growth.get(&format!("{}/{}", object.kind, object.name));
    let forecast = growth.map(|growth| Forecast::new(usage, growth, now)).unwrap_or_default();
    Capacity {
        name: name.into(),
        object: Some(object),
        used_bytes: usage.used,
        available_bytes: usage.available,
        total_bytes: usage.total,
        near_full: usage.near_full,
        full: usage.full,
        bytes_per_day: growth.map(|growth| digits(growth.rate * DAY)),
        full_at: forecast.at.map(stamp),
        full_earliest: forecast.earliest.map(stamp),
        full_latest: forecast.latest.map(stamp),
        known_for: growth.map(|growth| prost_types::Duration {
            seconds: (growth.span / 3600.0).round() as i64 * 3600,
            nanos: 0,
        }),
    }
}

/// When something is full.
#[derive(Debug, Default)]
struct Forecast {
    at: Option<Timestamp>,
    earliest: Option<Timestamp>,
    latest: Option<Timestamp>,
}

impl Forecast {
    fn new(usage: Usage, growth: &Trend, now: Timestamp) -> Self {
        let at = |rate: f64| full_at(usage, rate, growth.span * AHEAD, now);
        Self {
            at: at(growth.rate).filter(|_| growth.grows()),
            earliest: at(growth.high),
            latest: at(growth.low),
        }
    }
}

fn full_at(usage: Usage, rate: f64, longest: f64, now: Timestamp) -> Option<Timestamp> {
    if rate <= 0.0 || usage.total == 0 {
        return None;
    }
    let seconds = usage.total.saturating_sub(usage.used) as f64 / rate;
    if !seconds.is_finite() || seconds > longest {
        return None;
    }
    // Two digits of hours, so that it does not change with every sample.
    let hours = digits(seconds / 3600.0).round() as i64;
    let whole = Timestamp::from_second(now.as_second() / 3600 * 3600).ok()?;
    whole.checked_add(SignedDuration::from_hours(hours)).ok()
}

/// The number with its first two digits alone.
fn digits(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return 0.0;
    }
    let unit = 10.0_f64.powf(number.abs().log10().floor() - 1.0);
    (number / unit).round() * unit
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GIB: f64 = (1_u64 << 30) as f64;

    fn forecast(low: f64, rate: f64, high: f64, days: f64) -> [Option<i64>; 3] {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let usage = Usage { used: 40 << 30, total: 100 << 30, ..Usage::default() };
        let per_second = |gib: f64| gib * GIB / DAY;
        let growth = Trend {
            rate: per_second(rate),
            low: per_second(low),
            high: per_second(high),
            span: days * DAY,
        };
        let found = Forecast::new(usage, &growth, now);
        [found.at, found.earliest, found.latest]
            .map(|at| at.map(|at| (at.as_second() - now.as_second() + 1800) / 86_400))
    }

    #[test]
    fn a_forecast_is_a_span_of_time() {
        assert_eq!(forecast(5.0, 6.0, 7.0, 7.0), [Some(10), Some(8), Some(12)]);
    }

    #[test]
    fn growth_that_is_not_sure_gives_no_date_but_the_earliest() {
        assert_eq!(forecast(-1.0, 2.0, 6.0, 7.0), [None, Some(10), None]);
        assert_eq!(forecast(-6.0, -4.0, -2.0, 7.0), [None, None, None]);
    }

    #[test]
    fn an_hour_says_nothing_about_next_year() {
        assert_eq!(forecast(0.1, 0.2, 0.3, 1.0 / 24.0), [None, None, None]);
        assert_eq!(forecast(55.0, 60.0, 65.0, 1.0 / 24.0), [Some(1), Some(0), Some(1)]);
    }

    #[test]
    fn small_changes_do_not_change_the_forecast() {
        assert_eq!(forecast(5.0, 6.0, 7.0, 7.0), forecast(5.01, 6.004, 7.01, 7.0));
        assert_eq!(digits(123_456.0), 120_000.0);
        assert_eq!(digits(-0.0456), -0.046);
        assert_eq!(digits(f64::NAN), 0.0);
    }
}
