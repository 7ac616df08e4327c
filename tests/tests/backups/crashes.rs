//! Sudden ends, at any point of any kind of work.

use std::{fs, io::Write, path::Path, time::Duration};

use selvage_api::{
    proto::{GetLvListRequest, StateType, data_source::S3, vg_service_client::VgServiceClient},
    selvage::volumes::{
        BackupLimits, CreateSnapshotRequest, JobState, ListBackupsRequest, PruneBackupsRequest,
        Retention, RevertVolumeRequest, SetBackupLimitsRequest,
        volumes_service_client::VolumesServiceClient,
    },
};
use tonic::Code;

use crate::site::{
    MIB, Numbers, Restic, Site, directory, fill, hash_of, repository, request, restore_request,
};

/// Number of bytes that are written before a round.
const CONTENT: usize = 24 * MIB;

/// Number of kills in each kind of work. With what the tests
/// of `selvage-restic` add, where a process does nothing else, it is 200.
fn rounds() -> u64 {
    variable("SELVAGE_TEST_CRASHES").unwrap_or(10)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Points at which the process is killed: told, so that they can be had again.
fn points(work: &str) -> Numbers {
    let seed = variable("SELVAGE_CRASH_SEED").unwrap_or_else(|| std::process::id().into());
    let _ = writeln!(std::io::stderr(), "crashes of a {work}: SELVAGE_CRASH_SEED={seed}");
    Numbers::new(seed)
}

/// Bytes in packs; what was on its way when the process ended is none.
fn packed(site: &Site, prefix: &str) -> u64 {
    fn below(path: &Path) -> u64 {
        let entries = fs::read_dir(path).unwrap().flatten();
        entries
            .map(|entry| match entry.file_type().unwrap().is_dir() {
                true => below(&entry.path()),
                false if entry.file_name().len() == 64 => entry.metadata().unwrap().len(),
                false => 0,
            })
            .sum()
    }
    below(&site.path("data/backups/backups").join(prefix).join("data"))
}

async fn limit(site: &Site, bytes: u64) {
    let limits = BackupLimits { upload: bytes, download: bytes, read: 0 };
    let request = SetBackupLimitsRequest { limits: Some(limits) };
    site.backups().await.set_backup_limits(request).await.unwrap();
}

/// Waits until the newest job has dealt with so much, or has ended, and a
/// random moment more.
async fn until(site: &Site, numbers: &mut Numbers, done: u64, bytes: fn(u64, u64) -> u64) {
    let mut backups = site.backups().await;
    loop {
        let listed = backups.list_backups(ListBackupsRequest::default()).await.unwrap();
        let job = &listed.into_inner().jobs[0];
        if job.state() != JobState::JobRunning
            || bytes(job.uploaded_bytes, job.downloaded_bytes) >= done
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(numbers.next() % 150)).await;
}

#[tokio::test]
async fn a_backup_goes_on_after_a_sudden_end() {
    let Some(mut site) = Site::new() else { return };
    let device = site.create("vol1").await;
    let mut numbers = points("backup");
    let mut snapshot = String::new();
    for round in 0..rounds() {
        fill(&device, 0, CONTENT, 100 + round);
        let (prefix, name) = (format!("b{round}"), format!("round{round}"));
        let place = directory(&prefix);
        limit(&site, 24 * MIB as u64).await;
        let mut volumes = site.volumes().await;
        let begun = volumes.create_backup(request(&name, "vol1", Some(place.clone()))).await;
        assert_eq!(
            begun.unwrap().into_inner().backup_state.unwrap().state(),
            StateType::Inprogress
        );
        let done = numbers.next() % (CONTENT as u64 * 9 / 10);
        until(&site, &mut numbers, done, |up, _| up).await;
        site.kill();
        site.start();
        limit(&site, 0).await;
        snapshot = site.backed_up(&name, "vol1", &place).await;
        site.assert_no_orphans(&["vol1"]).await;
        let stored = packed(&site, &prefix);
        assert!(stored <= CONTENT as u64 * 105 / 100, "{stored} bytes for {CONTENT}");
    }
    let last = format!("b{}", rounds() - 1);
    if let Some(restic) = Restic::on(&site, None, &last) {
        restic.check();
        assert_eq!(restic.hash(&snapshot, "vol1"), hash_of(&device));
    }
}

#[tokio::test]
async fn half_a_restore_is_never_adopted() {
    let Some(mut site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, CONTENT, 7);
    let place = directory("r");
    site.backed_up("one", "vol1", &place).await;
    let whole = hash_of(&device);
    let mut numbers = points("restore");
    for round in 0..rounds() {
        let name = format!("back{round}");
        limit(&site, 24 * MIB as u64).await;
        let mut volumes = site.volumes().await;
        volumes.create_lv(restore_request(&name, place.clone(), false)).await.unwrap();
        let done = numbers.next() % (CONTENT as u64 * 9 / 10);
        until(&site, &mut numbers, done, |_, down| down).await;
        site.kill();
        site.start();
        limit(&site, 0).await;
        let (_, _, pending) =
            site.all().await.into_iter().find(|(known, ..)| *known == name).unwrap();
        let mut volumes = site.volumes().await;
        let again = volumes.create_lv(restore_request(&name, place.clone(), true)).await;
        match again {
            Ok(_) => {}
            // It was whole already when the process ended.
            Err(status) => {
                assert_eq!(status.code(), Code::AlreadyExists, "{status:?}");
                assert!(!pending);
            }
        }
        assert_eq!(hash_of(&site.device(&name).await), whole);
        let remove =
            selvage_api::proto::RemoveLvRequest { name, device_class: crate::site::CLASS.into() };
        volumes.remove_lv(remove).await.unwrap();
        site.assert_no_orphans(&["vol1"]).await;
    }
}

/// Whatever clients see of a volume is all of its snapshot, or what it held before.
#[tokio::test]
async fn half_a_revert_is_never_adopted() {
    let Some(mut site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, CONTENT, 7);
    let whole = hash_of(&device);
    let snapshot = CreateSnapshotRequest {
        source: "vol1".into(),
        name: "before".into(),
        device_class: crate::site::CLASS.into(),
        ..CreateSnapshotRequest::default()
    };
    VolumesServiceClient::new(site.channel().await).create_snapshot(snapshot).await.unwrap();
    let mut numbers = points("revert");
    for round in 0..rounds() {
        let device = site.device("vol1").await;
        fill(&device, 0, CONTENT, 300 + round);
        let written = hash_of(&device);
        let request = RevertVolumeRequest {
            volume: "vol1".into(),
            snapshot: "before".into(),
            device_class: crate::site::CLASS.into(),
        };
        let channel = site.channel().await;
        let asked = tokio::spawn(async move {
            VolumesServiceClient::new(channel).revert_volume(request).await.is_ok()
        });
        tokio::time::sleep(Duration::from_millis(numbers.next() % 600)).await;
        site.kill();
        let done = asked.await.unwrap();
        site.start();
        let listed = GetLvListRequest { device_class: crate::site::CLASS.into() };
        let mut groups = VgServiceClient::new(site.channel().await);
        selvage_testkit::wait_for("the volume is shown", async || {
            let shown = groups.get_lv_list(listed.clone()).await.unwrap().into_inner().volumes;
            shown.iter().any(|volume| volume.name == "vol1").then_some(())
        })
        .await;
        let found = hash_of(&site.device("vol1").await);
        assert!(found == whole || (found == written && !done), "round {round}: half of it");
    }
    site.assert_no_orphans(&["before", "vol1"]).await;
}

#[tokio::test]
async fn a_prune_that_was_cut_off_leaves_a_sound_repository() {
    let Some(mut site) = Site::new() else { return };
    let device = site.create("vol1").await;
    let place = directory("p");
    let mut numbers = points("prune");
    for round in 0..rounds() {
        for part in 0..2 {
            fill(&device, part as usize * 4 * MIB, 8 * MIB, 1000 + 10 * round + part);
            site.backed_up(&format!("r{round}p{part}"), "vol1", &place).await;
        }
        let job = site.backups().await.prune_backups(prune(&place)).await.unwrap().into_inner();
        tokio::time::sleep(Duration::from_millis(numbers.next() % 400)).await;
        site.kill();
        site.start();
        // Whoever asks again brings the keys along.
        let again = site.backups().await.prune_backups(prune(&place)).await.unwrap().into_inner();
        let ended = site.done(&again).await;
        assert!(ended.id >= job.id);
        if round.is_multiple_of(3)
            && let Some(restic) = Restic::on(&site, None, "p")
        {
            restic.check();
        }
    }
    let list = ListBackupsRequest {
        repository: Some(repository(&place)),
        ..ListBackupsRequest::default()
    };
    let listed = site.backups().await.list_backups(list).await;
    let listed = listed.unwrap().into_inner().backups;
    assert_eq!(listed.len(), 1);
    if let Some(restic) = Restic::on(&site, None, "p") {
        restic.check();
        assert_eq!(restic.hash(&listed[0].snapshot, "vol1"), hash_of(&device));
    }
    site.assert_no_orphans(&["vol1"]).await;
}

fn prune(place: &S3) -> PruneBackupsRequest {
    PruneBackupsRequest {
        repository: Some(repository(place)),
        keep: Some(Retention { last: 1, ..Retention::default() }),
        ..PruneBackupsRequest::default()
    }
}
