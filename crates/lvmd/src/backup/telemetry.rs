//! Metrics of backups.

use std::{collections::BTreeMap, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};
use selvage_kit::telemetry::Metrics;
use selvage_restic::CLOCK_TOLERANCE;

use super::{
    Backups, Kind, Result, Shared, pick,
    record::{Job, LastGood, Schedule, State},
};

struct BackupMetrics(Backups);

impl fmt::Debug for BackupMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackupMetrics")
    }
}

impl Backups {
    /// Shows the age of backups to whoever watches the process.
    pub(crate) fn register(&self, metrics: &Metrics) {
        let shown = Box::new(BackupMetrics(self.clone()));
        metrics.with_registry(|registry| registry.register_collector(shown));
    }

    /// Returns when each volume was last backed up well, in milliseconds since
    /// 1970, by full name. A time that is still to come is from a clock that was wrong,
    /// and does not tell how old a backup is.
    pub(super) fn last_successes(&self, now: u64) -> BTreeMap<String, u64> {
        let mut last: BTreeMap<String, u64> = BTreeMap::new();
        let mut count = |volume: String, frozen_at: u64| {
            if frozen_at <= newest_credible(now) {
                let known = last.entry(volume).or_default();
                *known = (*known).max(frozen_at);
            }
        };
        for good in self.shared.last_good.list() {
            let LastGood { group, volume, frozen_at, .. } = &good.value;
            count(format!("{group}/{volume}"), *frozen_at);
        }
        // Earlier versions wrote down nothing else.
        for stored in self.shared.jobs.list() {
            let job = &stored.value;
            if job.kind() == Kind::Backup && job.state() == State::Complete {
                count(job.full_name(), job.frozen_at);
            }
        }
        last
    }

    /// Returns the volume of a schedule by its full name, if it is there.
    fn scheduled_volume(&self, schedule: &Schedule) -> String {
        match pick::volume(&self.shared.volumes, &schedule.handle) {
            Ok(picked) => format!("{}/{}", picked.group, picked.volume.name),
            Err(_) => schedule.handle.clone(),
        }
    }
}

/// Returns the last moment that a backup can be of, in milliseconds since 1970.
fn newest_credible(now: u64) -> u64 {
    let tolerance = u64::try_from(CLOCK_TOLERANCE.as_millis()).unwrap_or_default();
    now.saturating_add(tolerance)
}

impl Shared {
    /// Writes down that a backup is the last good one of its volume, unless a later one is
    /// known. The record of its job is taken over by the next one of that name.
    pub(super) async fn note_last_good(&self, job: &Job, now: u64) -> Result<()> {
        let newest = newest_credible(now);
        if job.kind() != Kind::Backup || job.frozen_at > newest {
            return Ok(());
        }
        let good = LastGood {
            group: job.group.clone(),
            volume: job.volume.clone(),
            snapshot: job.snapshot.clone(),
            frozen_at: job.frozen_at,
        };
        let known = self.last_good.get(&selvage_store::Record::key(&good));
        let is_later = |known: u64| (good.frozen_at..=newest).contains(&known);
        if !known.is_some_and(|known| is_later(known.value.frozen_at)) {
            self.last_good.put(good).await?;
        }
        Ok(())
    }

    /// Forgets that a backup was the last good one, for it is gone or its volume is.
    pub(super) async fn forget_last_good(&self, good: &LastGood) -> Result<()> {
        match self.last_good.delete(&selvage_store::Record::key(good)).await {
            Ok(_) | Err(selvage_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Collector for BackupMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = (
            "selvage_backup_age_seconds",
            "Seconds since the moment that the last good backup of a volume holds",
        );
        let mut ages = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let now = self.0.shared.clock.now();
        for (volume, at) in self.0.last_successes(now) {
            let age = now.saturating_sub(at) as f64 / 1000.0;
            let labels = [("volume", volume.as_str())];
            ConstGauge::new(age).encode(ages.encode_family(&labels)?)?;
        }
        let (name, help) =
            ("selvage_backup_schedule_period_seconds", "Seconds between two backups of a schedule");
        let schedules = self.0.schedules();
        let mut periods = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for schedule in &schedules {
            let volume = self.0.scheduled_volume(schedule);
            let labels = [("schedule", schedule.name.as_str()), ("volume", volume.as_str())];
            ConstGauge::new(schedule.every as f64).encode(periods.encode_family(&labels)?)?;
        }
        let (name, help) =
            ("selvage_backup_verify_failed", "1 if the last verify of a schedule failed");
        let mut failed = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for schedule in schedules.iter().filter(|schedule| schedule.verified_at > 0) {
            let labels = [("schedule", schedule.name.as_str())];
            let value = f64::from(u8::from(schedule.verify_failed));
            ConstGauge::new(value).encode(failed.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
