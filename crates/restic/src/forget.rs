//! Which snapshots to keep.

use std::collections::BTreeMap;

use jiff::{Timestamp, civil::ISOWeekDate, tz::TimeZone};

use crate::{
    Error, Id, Job, Repository, Result, Snapshot,
    backend::{File, Kind},
    format::is_ahead,
    lock::Lock,
    series::{AllSeries, Series},
};

/// Number of snapshots of each volume to keep: the newest ones, and of the
/// last so many hours, days, weeks, months and years that have any, the
/// newest of each. Times are UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// The newest.
    pub last: u32,
    /// One an hour.
    pub hourly: u32,
    /// One a day.
    pub daily: u32,
    /// One a week, which begins on Monday.
    pub weekly: u32,
    /// One a month.
    pub monthly: u32,
    /// One a year.
    pub yearly: u32,
}

/// Which snapshots to judge, and by which rules. Those of each volume of each
/// machine are judged by themselves; volumes in different groups are different ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forget {
    /// The rules.
    pub keep: Keep,
    /// Only those of this volume; of each that we made, if none.
    pub volume: Option<String>,
    /// Only those of volumes in this group.
    pub group: Option<String>,
    /// Only those that were made on this machine.
    pub hostname: Option<String>,
}

impl Forget {
    /// Refuses rules that keep nothing.
    pub(crate) fn check(&self) -> Result<()> {
        if self.keep.is_nothing() {
            let reason = "a rule that keeps nothing would remove every backup".to_owned();
            return Err(Error::Invalid { field: "keep", reason });
        }
        Ok(())
    }

    /// Divides those that are judged. Others are in neither part.
    pub(crate) fn divide(&self, snapshots: &[Snapshot], now: Timestamp) -> Forgotten {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|it| it == is);
        let all = AllSeries::of(snapshots);
        let mut judged: BTreeMap<Series<'_>, Vec<Snapshot>> = BTreeMap::new();
        for snapshot in snapshots {
            // What somebody else put here is not ours to judge.
            let Some(volume) = snapshot.volume() else { continue };
            if fits(&self.volume, volume)
                && fits(&self.hostname, &snapshot.hostname)
                && self.group.as_deref().is_none_or(|group| all.is_in(snapshot, group))
            {
                judged.entry(all.find(snapshot)).or_default().push(snapshot.clone());
            }
        }
        let mut forgotten = Forgotten::default();
        for snapshots in judged.into_values() {
            let Forgotten { kept, removed } = self.keep.divide(snapshots, now);
            forgotten.kept.extend(kept);
            forgotten.removed.extend(removed);
        }
        forgotten
    }
}

/// Result of forgetting, or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forgotten {
    /// Snapshots that stay, oldest first.
    pub kept: Vec<Snapshot>,
    /// Snapshots that went.
    pub removed: Vec<Snapshot>,
}

/// The period a snapshot falls into; the second figure is its place in time.
type Period = fn(&Snapshot, usize) -> i64;

impl Keep {
    /// Returns whether it would keep nothing at all.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Divides the snapshots of one volume. Those of a time that is still to come were
    /// made while a clock was wrong. They stay, and count for no rule: the ones that were
    /// made since would have to go in their place.
    pub fn divide(&self, mut snapshots: Vec<Snapshot>, now: Timestamp) -> Forgotten {
        snapshots.sort_by_key(|snapshot| (snapshot.time, snapshot.id));
        let ahead = snapshots.partition_point(|snapshot| !is_ahead(snapshot.time, now));
        let ahead = snapshots.split_off(ahead);
        let rules: [(u32, Period); 6] = [
            (self.last, |_, number| number as i64),
            (self.hourly, |snapshot, _| snapshot.time.as_second().div_euclid(3600)),
            (self.daily, |snapshot, _| snapshot.time.as_second().div_euclid(86_400)),
            (self.weekly, |snapshot, _| week(snapshot)),
            (self.monthly, |snapshot, _| month(snapshot)),
            (self.yearly, |snapshot, _| month(snapshot).div_euclid(12)),
        ];
        let mut left = rules.map(|(count, _)| count);
        let mut last = [None; 6];
        let mut divided = Forgotten::default();
        for (number, snapshot) in snapshots.into_iter().enumerate().rev() {
            let mut keep = false;
            for (rule, (_, period)) in rules.iter().enumerate() {
                let period = Some(period(&snapshot, number));
                if left[rule] > 0 && last[rule] != period {
                    (left[rule], last[rule], keep) = (left[rule] - 1, period, true);
                }
            }
            if keep { divided.kept.push(snapshot) } else { divided.removed.push(snapshot) }
        }
        divided.kept.reverse();
        divided.kept.extend(ahead);
        divided.removed.reverse();
        divided
    }
}

fn week(snapshot: &Snapshot) -> i64 {
    let date = ISOWeekDate::from(snapshot.time.to_zoned(TimeZone::UTC).date());
    i64::from(date.year()) * 100 + i64::from(date.week())
}

fn month(snapshot: &Snapshot) -> i64 {
    let date = snapshot.time.to_zoned(TimeZone::UTC).date();
    i64::from(date.year()) * 12 + i64::from(date.month()) - 1
}

impl Repository {
    /// Removes the snapshots that no rule keeps. What they held goes with the
    /// next prune. With `dry_run` it only says what it would do.
    pub async fn forget(&self, forget: &Forget, dry_run: bool, job: &Job) -> Result<Forgotten> {
        if dry_run {
            return self.divide(forget, &job.or_cancelled(self.snapshots()).await?);
        }
        forget.check()?;
        let lock = Lock::take(self, true, job).await?;
        let remove = async {
            let forgotten = forget.divide(&self.snapshots().await?, self.now());
            for snapshot in &forgotten.removed {
                self.backend().remove(File::Named(Kind::Snapshot, snapshot.id)).await?;
            }
            Ok(forgotten)
        };
        let outcome = job.or_cancelled(remove).await;
        lock.finish(outcome).await
    }

    /// Returns what would become of these snapshots now.
    pub fn divide(&self, forget: &Forget, snapshots: &[Snapshot]) -> Result<Forgotten> {
        forget.check()?;
        Ok(forget.divide(snapshots, self.now()))
    }

    /// Removes these snapshots. That one is not there is no error.
    pub async fn remove_snapshots(&self, ids: &[Id], job: &Job) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let lock = Lock::take(self, false, job).await?;
        let remove = async {
            self.check_removable().await?;
            for id in ids {
                self.backend().remove(File::Named(Kind::Snapshot, *id)).await?;
            }
            Ok(())
        };
        let outcome = job.or_cancelled(remove).await;
        lock.finish(outcome).await
    }
}

impl Repository {
    /// Refuses if the store only lets us add files, before anything is copied or half of
    /// what was asked for is done. Asks it to remove what is not there.
    pub(crate) async fn check_removable(&self) -> Result<()> {
        let nothing = File::Named(Kind::Snapshot, Id::from_bytes(rand::random()));
        match self.backend().remove(nothing).await {
            Err(Error::Refused { status: 401 | 403 | 405, .. }) => {
                Err(Error::AppendOnly(self.backend().location()))
            }
            asked => asked,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn at(time: &str) -> Snapshot {
        let id = Id::of(time.as_bytes());
        Snapshot {
            id,
            time: time.parse().unwrap(),
            parent: None,
            tree: id,
            paths: Vec::new(),
            hostname: String::new(),
            username: String::new(),
            tags: Vec::new(),
            program_version: String::new(),
        }
    }

    fn of(hostname: &str, group: &str, time: &str) -> Snapshot {
        let mut tags = vec!["volume=data".to_owned()];
        tags.extend(Some(format!("group={group}")).filter(|_| !group.is_empty()));
        let id = Id::of(format!("{hostname} {group} {time}").as_bytes());
        Snapshot { id, hostname: hostname.into(), tags, ..at(time) }
    }

    fn removed(forget: &Forget, snapshots: &[Snapshot]) -> Vec<usize> {
        let gone = forget.divide(snapshots, "2026-06-01T00:00:00Z".parse().unwrap()).removed;
        let place = |one: &Snapshot| snapshots.iter().position(|it| it.id == one.id).unwrap();
        let mut gone: Vec<usize> = gone.iter().map(place).collect();
        gone.sort_unstable();
        gone
    }

    /// Volumes called alike in two groups, and backups that do not say which group.
    #[test]
    fn groups_are_judged_by_themselves() {
        let [first, second, third] =
            ["2026-01-01T10:00:00Z", "2026-01-02T10:00:00Z", "2026-01-03T10:00:00Z"];
        let keep = Keep { last: 1, ..Keep::default() };
        let all = Forget { keep, ..Forget::default() };
        let only = |group: &str| Forget { group: Some(group.into()), ..all.clone() };
        let apart = [of("a", "vg1", first), of("a", "vg2", second), of("b", "vg1", third)];
        assert!(removed(&all, &apart).is_empty());
        let own = Forget { hostname: Some("a".into()), ..only("vg1") };
        let more = [&apart[..], &[of("a", "vg1", third), of("b", "vg1", first)]].concat();
        assert_eq!(removed(&own, &more), [0]);
        // Older ones count to the one group that is known.
        let older = [of("a", "", first), of("a", "", second), of("a", "vg1", third)];
        assert_eq!(removed(&all, &older), [0, 1]);
        assert_eq!(removed(&only("vg1"), &older), [0, 1]);
        assert!(removed(&only("vg2"), &older).is_empty());
        assert_eq!(removed(&only("vg1"), &older[..2]), [0]);
        // Of two, they are of neither.
        let two = [&older[..], &[of("a", "vg2", third)]].concat();
        assert_eq!(removed(&all, &two), [0]);
        assert!(removed(&only("vg1"), &two).is_empty());
    }

    fn kept(keep: Keep, times: &[&str]) -> Vec<String> {
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        let divided = keep.divide(times.iter().map(|time| at(time)).collect(), now);
        assert_eq!(divided.kept.len() + divided.removed.len(), times.len());
        divided.kept.iter().map(|snapshot| snapshot.time.to_string()).collect()
    }

    #[test]
    fn the_newest_of_each_period_stays() {
        let times = [
            "2025-12-28T10:00:00Z",
            "2025-12-29T10:00:00Z",
            "2026-01-01T10:00:00Z",
            "2026-01-01T10:30:00Z",
            "2026-01-01T11:00:00Z",
            "2026-02-01T00:00:00Z",
        ];
        let nothing = Keep::default();
        for (keep, expected) in [
            (Keep { last: 2, ..nothing }, vec![4, 5]),
            (Keep { hourly: 3, ..nothing }, vec![3, 4, 5]),
            (Keep { daily: 3, ..nothing }, vec![1, 4, 5]),
            // The 29th of December and the 1st of January share a week.
            (Keep { weekly: 3, ..nothing }, vec![0, 4, 5]),
            (Keep { monthly: 9, ..nothing }, vec![1, 4, 5]),
            (Keep { yearly: 2, ..nothing }, vec![1, 5]),
            (Keep { last: 1, yearly: 2, ..nothing }, vec![1, 5]),
            (Keep { last: 99, ..nothing }, vec![0, 1, 2, 3, 4, 5]),
        ] {
            let expected: Vec<&str> = expected.into_iter().map(|n: usize| times[n]).collect();
            assert_eq!(kept(keep, &times), expected, "{keep:?}");
        }
    }

    /// The clock was wrong when the last two were made, and was put right since.
    #[test]
    fn backups_from_the_future_take_no_place_of_others() {
        let times = [
            "2026-05-30T10:00:00Z",
            "2026-05-31T10:00:00Z",
            "2026-06-01T00:05:00Z",
            "2029-01-01T10:00:00Z",
            "2029-01-02T10:00:00Z",
        ];
        let nothing = Keep::default();
        for (keep, expected) in [
            // A clock may be ahead by a little.
            (Keep { last: 1, ..nothing }, vec![2, 3, 4]),
            (Keep { daily: 2, ..nothing }, vec![1, 2, 3, 4]),
            (Keep { yearly: 1, ..nothing }, vec![2, 3, 4]),
        ] {
            let expected: Vec<&str> = expected.into_iter().map(|n: usize| times[n]).collect();
            assert_eq!(kept(keep, &times), expected, "{keep:?}");
        }
    }
}
