//! lvmd: room, volumes and their backups.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use selvage_api::selvage::volumes::{
    DeviceClass, JobKind, ListBackupsRequest, ListDeviceClassesRequest, ListSchedulesRequest,
    ListVolumesRequest, Volume, backups_service_client::BackupsServiceClient,
    volumes_service_client::VolumesServiceClient,
};
use tonic::transport::Channel;

use super::{Failure, Probe, failure, time};
use crate::facts::{self, Data, Group, Job, Schedule, Section, object};

const LARGEST: usize = 64 << 20;

pub(super) struct Volumes {
    client: VolumesServiceClient<Channel>,
    every: Duration,
}

impl Volumes {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let client = VolumesServiceClient::new(channel).max_decoding_message_size(LARGEST);
        Self { client, every }
    }
}

#[async_trait]
impl Probe for Volumes {
    fn section(&self) -> Section {
        Section::Volumes
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let classes = self.client.list_device_classes(ListDeviceClassesRequest {}).await;
        let classes = classes.map_err(|status| failure(&status))?.into_inner().device_classes;
        let volumes = self.client.list_volumes(ListVolumesRequest::default()).await;
        let volumes = volumes.map_err(|status| failure(&status))?.into_inner().volumes;
        let mut found = facts::Volumes {
            groups: groups(&classes),
            classes: u32::try_from(classes.len()).unwrap_or(u32::MAX),
            volumes: volumes.into_iter().map(volume).collect(),
        };
        found.volumes.sort_by(|a, b| (&a.group, &a.name).cmp(&(&b.group, &b.name)));
        Ok(Data::Volumes(found.into()))
    }
}

fn volume(wire: Volume) -> facts::Volume {
    facts::Volume {
        snapshot: !wire.origin.is_empty(),
        group: wire.group,
        name: wire.name,
        pending: wire.pending,
    }
}

/// Room is shared by all classes of one group and pool: each is told once.
fn groups(classes: &[DeviceClass]) -> Vec<Group> {
    let mut found = BTreeMap::new();
    for class in classes {
        let (name, parent) = match class.pool.as_str() {
            "" => (class.group.clone(), None),
            pool => (format!("{}/{pool}", class.group), Some(class.group.clone())),
        };
        let written = match class.used_bytes {
            // Not every pool can be asked.
            0 => class.promised_bytes.min(class.size_bytes),
            known => known,
        };
        // What is kept spare is free all the same.
        let free = class.free_bytes.saturating_add(class.spare_bytes).min(class.size_bytes);
        let entry = found.entry(name.clone()).or_insert_with(|| Group {
            object: object("volume_group", name),
            size: class.size_bytes,
            free,
            missing: class.missing,
            written: if parent.is_some() { written } else { 0 },
            parent,
        });
        entry.free = entry.free.max(free);
    }
    found.into_values().collect()
}

pub(super) struct Backups {
    client: BackupsServiceClient<Channel>,
    every: Duration,
}

impl Backups {
    pub(super) fn new(channel: Channel, every: Duration) -> Self {
        let client = BackupsServiceClient::new(channel).max_decoding_message_size(LARGEST);
        Self { client, every }
    }
}

#[async_trait]
impl Probe for Backups {
    fn section(&self) -> Section {
        Section::Backups
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        let listed = self.client.list_backups(ListBackupsRequest::default()).await;
        let listed = match listed {
            // Volumes without a place for backups.
            Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                return Err(Failure::Absent);
            }
            listed => listed.map_err(|status| failure(&status))?.into_inner(),
        };
        let schedules = self.client.list_schedules(ListSchedulesRequest {}).await;
        let schedules = schedules.map_err(|status| failure(&status))?.into_inner().schedules;
        let job = |job: selvage_api::selvage::volumes::BackupJob| Job {
            backup: job.kind() == JobKind::Backup,
            state: job.state(),
            ended: time(job.ended_at),
            volume: job.volume,
            error: job.error,
        };
        let schedule = |schedule: selvage_api::selvage::volumes::Schedule| Schedule {
            object: object("backup", schedule.name),
            volume: schedule.volume,
            every_seconds: schedule.every_seconds,
            error: schedule.error,
        };
        let found = facts::Backups {
            jobs: listed.jobs.into_iter().map(job).collect(),
            schedules: schedules.into_iter().map(schedule).collect(),
        };
        Ok(Data::Backups(found.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_one_group_share_its_room() {
        let class = |name: &str, pool: &str, free| DeviceClass {
            name: name.into(),
            group: "vg".into(),
            pool: pool.into(),
            size_bytes: 100,
            free_bytes: free,
            spare_bytes: 5,
            ..DeviceClass::default()
        };
        let found = groups(&[class("a", "", 40), class("b", "", 40), class("c", "thin", 99)]);
        let rooms: Vec<_> = found
            .iter()
            .map(|group| (group.object.name.as_str(), group.size, group.free))
            .collect();
        assert_eq!(rooms, [("vg", 100, 45), ("vg/thin", 100, 100)]);
        assert_eq!((&found[0].parent, found[1].parent.as_deref()), (&None, Some("vg")));
    }

    #[test]
    fn a_pool_that_tells_nothing_counts_what_it_promised() {
        let class = |used_bytes, promised_bytes| DeviceClass {
            group: "vg".into(),
            pool: "thin".into(),
            size_bytes: 100,
            promised_bytes,
            used_bytes,
            ..DeviceClass::default()
        };
        let written = |used, promised| groups(&[class(used, promised)])[0].written;
        assert_eq!((written(7, 300), written(0, 30), written(0, 300)), (7, 30, 100));
    }
}
