//! Room for the changes of a thick volume while a snapshot of it is read.
//!
//! Such a snapshot is lost when its room is full. So the room is made as large
//! as the volume is written to, looked at while it is needed, and made larger
//! in time.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::Volumes;
use crate::{Result, Volume};

/// Time for which writes to a volume are watched.
const WATCH: Duration = Duration::from_secs(1);
/// Speed at which a volume is expected to be read at least, in bytes each second.
const READING: u64 = 50 << 20;
/// Time that opening, queueing and releasing add to reading.
const BESIDES: Duration = Duration::from_secs(10);

/// From how full it is made larger, in percent, and when it is lost.
const NEARLY_FULL: f64 = 70.0;
const LOST: f64 = 100.0;
/// It is made larger too if it would be full after so long,
const SOON: Duration = Duration::from_secs(10);
/// by half, or by what is written in so long, whichever is more,
const AHEAD: Duration = Duration::from_secs(30);
/// and by these bytes.
const MORE: u64 = 4 << 20;
/// Longest and shortest interval between looks.
const SELDOM: Duration = Duration::from_secs(1);
const OFTEN: Duration = Duration::from_millis(100);

/// A snapshot's room for changes, as it is looked after.
struct Room {
    volumes: Volumes,
    class: String,
    group: String,
    snapshot: String,
    /// When it was last looked at, and how many bytes were taken.
    seen: Option<(Instant, u64)>,
}

/// Result of a look.
#[derive(Debug, PartialEq, Eq)]
enum Looked {
    /// Nothing is lost; look again after so long.
    Whole(Duration),
    /// It was full: what is read from the snapshot is worth nothing.
    Lost,
}

impl Volumes {
    /// Returns the room that a snapshot of a thick volume needs: a part of the volume,
    /// or what is written while it is read, whichever is more, and no more
    /// than there is.
    pub(crate) async fn room_for_changes(
        &self,
        class: &str,
        volume: &Volume,
        percent: u64,
    ) -> Result<u64> {
        let part = (volume.size / 100).saturating_mul(percent);
        let rate = self.write_rate(volume).await;
        let group = self.group(&self.classes().find(class)?.volume_group)?;
        let most = group.free.max(part).min(volume.size.saturating_add(MORE));
        Ok(group.round_up(needed(part, rate, volume.size).min(most).max(1)))
    }

    /// Bytes that are written to a volume each second; 0 where nobody counts.
    async fn write_rate(&self, volume: &Volume) -> u64 {
        if volume.pool.is_some() || !self.inner.backend.counts_changes() {
            return 0;
        }
        let (number, start) = ((volume.major, volume.minor), Instant::now());
        let Some(before) = written(number) else { return 0 };
        tokio::time::sleep(WATCH).await;
        let after = written(number).unwrap_or(before);
        per_second(after.saturating_sub(before), start.elapsed())
    }

    /// Does something with the content of a snapshot while its room is looked
    /// after. None if the snapshot was lost meanwhile.
    pub(crate) async fn while_whole<T>(
        &self,
        class: &str,
        group: &str,
        snapshot: &str,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>> {
        let mut room = Room {
            volumes: self.clone(),
            class: class.to_owned(),
            group: group.to_owned(),
            snapshot: snapshot.to_owned(),
            seen: None,
        };
        let mut work = std::pin::pin!(work);
        let done = tokio::select! {
            done = &mut work => done,
            // Nothing more can be read, so it ends by itself, and leaves the
            // device to those who remove it.
            () = room.until_lost() => work.await,
        };
        Ok(match room.look().await? {
            Looked::Whole(_) => Some(done),
            Looked::Lost => None,
        })
    }
}

impl Room {
    async fn until_lost(&mut self) {
        loop {
            match self.look().await {
                Ok(Looked::Lost) => return,
                Ok(Looked::Whole(next)) => tokio::time::sleep(next).await,
                // Those who read will find out whether there is something to it.
                Err(error) => {
                    tracing::warn!(snapshot = %self.snapshot, %error, "room is not known");
                    tokio::time::sleep(SELDOM).await;
                }
            }
        }
    }

    /// Looks how full it is, and makes it larger before it is full.
    async fn look(&mut self) -> Result<Looked> {
        let (group, name) = (self.group.clone(), self.snapshot.clone());
        let used = self
            .volumes
            .blocking(move |inner| inner.backend.change_room_used(&group, &name))
            .await?;
        let now = Instant::now();
        let room = self.volumes.find(&self.class, &self.snapshot)?.change_room;
        let (Some(used), Some(room)) = (used, room) else { return Ok(Looked::Whole(SELDOM)) };
        if used >= LOST {
            return Ok(Looked::Lost);
        }
        let taken = (room as f64 * used / 100.0) as u64;
        let before = self.seen.replace((now, taken));
        let rate = before.map_or(0, |(at, taken_then)| {
            per_second(taken.saturating_sub(taken_then), now.duration_since(at))
        });
        let left = room.saturating_sub(taken);
        if used >= NEARLY_FULL || left < in_time(rate, SOON) {
            self.extend(room, rate).await;
        }
        Ok(Looked::Whole(next_look(left, rate)))
    }

    async fn extend(&self, room: u64, rate: u64) {
        let more = (room / 2).max(in_time(rate, AHEAD)).saturating_add(MORE);
        let Ok(group) = self.volumes.group(&self.group) else { return };
        // What is left of the group is better than nothing.
        let more = more.min(group.free);
        if more < group.extent {
            tracing::warn!(snapshot = %self.snapshot, "there is no more room for changes");
            return;
        }
        let larger = group.round_up(room + more);
        tracing::info!(snapshot = %self.snapshot, room = larger, "more room for changes");
        let extended = self.volumes.extend_change_room(&self.class, &self.snapshot, larger).await;
        if let Err(error) = extended {
            tracing::warn!(snapshot = %self.snapshot, %error, "there is no more room for changes");
        }
    }
}

/// Returns the bytes that the kernel has counted as written to a device.
fn written((major, minor): (u32, u32)) -> Option<u64> {
    const SECTORS_WRITTEN: usize = 6;
    const SECTOR: u64 = 512;
    let path = Path::new("/sys/dev/block").join(format!("{major}:{minor}/stat"));
    let text = std::fs::read_to_string(path).ok()?;
    let sectors: u64 = text.split_whitespace().nth(SECTORS_WRITTEN)?.parse().ok()?;
    Some(sectors.saturating_mul(SECTOR))
}

fn needed(part: u64, rate: u64, size: u64) -> u64 {
    let reading = Duration::from_secs(size / READING) + BESIDES;
    part.max(in_time(rate, reading))
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64().max(0.001)) as u64
}

fn in_time(rate: u64, time: Duration) -> u64 {
    rate.saturating_mul(time.as_secs())
}

/// Long before it can be full.
fn next_look(left: u64, rate: u64) -> Duration {
    let seconds = left as f64 / rate.max(1) as f64 / 4.0;
    Duration::try_from_secs_f64(seconds).unwrap_or(SELDOM).clamp(OFTEN, SELDOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_written_while_a_volume_is_read_has_room() {
        let (part, size) = (100 * MIB, 1000 * MIB);
        assert_eq!(needed(part, 0, size), part, "nothing is written");
        assert_eq!(needed(part, MIB, size), part, "little is written");
        assert_eq!(needed(part, 10 * MIB, size), 300 * MIB, "20 s to read it, and 10");
    }

    #[test]
    fn the_sooner_it_is_full_the_sooner_it_is_looked_at() {
        assert_eq!(next_look(100 * MIB, 0), SELDOM);
        assert_eq!(next_look(100 * MIB, 50 * MIB), Duration::from_millis(500));
        assert_eq!(next_look(MIB, 500 * MIB), OFTEN);
    }

    #[test]
    fn the_kernel_counts() {
        assert_eq!(written((0, 0)), None, "no such device");
    }
}
