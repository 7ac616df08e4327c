//! Our own service: what a repository holds, how it is kept sound and small.

use std::{fs, os::unix::fs::PermissionsExt};

use selvage_api::selvage::volumes::{
    BackupLimits, CancelBackupRequest, DeleteBackupRequest, DeleteScheduleRequest,
    GetBackupLimitsRequest, JobKind, JobState, ListBackupsRequest, ListSchedulesRequest,
    PruneBackupsRequest, Repository, Retention, Schedule, SetBackupLimitsRequest,
    SetScheduleRequest, StartBackupRequest, StartRestoreRequest, VerifyBackupRequest,
    WatchBackupRequest,
};
use tonic::Code;

use crate::site::{CLASS, MIB, PASSWORD, Restic, Site, directory, fill, hash_of, repository, with};

fn start(name: &str, place: &selvage_api::proto::data_source::S3) -> StartBackupRequest {
    StartBackupRequest {
        name: name.into(),
        volume: "vol1".into(),
        repository: Some(repository(place)),
        request_id: String::new(),
    }
}

#[tokio::test]
async fn a_job_is_watched_to_its_end_and_can_be_stopped() {
    let Some(site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, 24 * MIB, 5);
    let place = directory("watched");
    let mut backups = site.backups().await;
    let limits = BackupLimits { upload: 8 * MIB as u64, download: 0, read: 0 };
    let set = SetBackupLimitsRequest { limits: Some(limits) };
    backups.set_backup_limits(set).await.unwrap();
    let job = backups.start_backup(start("watched", &place)).await.unwrap().into_inner();
    assert_eq!((job.kind(), job.state()), (JobKind::Backup, JobState::JobRunning));
    let watch = WatchBackupRequest { id: job.id.clone() };
    let mut updates = backups.watch_backup(watch).await.unwrap().into_inner();
    let (mut seen, mut paced) = (Vec::new(), false);
    while let Some(job) = updates.message().await.unwrap() {
        paced |= job.bytes_per_second > 0;
        seen.push(job);
    }
    let last = seen.last().unwrap();
    assert_eq!(last.state(), JobState::JobComplete, "{last:?}");
    assert_eq!(last.done_bytes, 1 << 30);
    let new = last.new_bytes as usize;
    assert!((24 * MIB..27 * MIB).contains(&new), "zeros are not new, trees are: {new}");
    assert!(seen.len() > 3 && paced, "{seen:?}");
    // The copy that a snapshot needs is counted by itself.
    assert!(
        seen.windows(2).all(|pair| {
            pair[0].phase == "snapshot" || pair[0].done_bytes <= pair[1].done_bytes
        })
    );

    fill(&device, 0, 24 * MIB, 6);
    let job = backups.start_backup(start("stopped", &place)).await.unwrap().into_inner();
    let cancel = CancelBackupRequest { id: job.id.clone() };
    backups.cancel_backup(cancel).await.unwrap();
    let ended = site.ended(&job).await;
    assert_eq!((ended.state(), ended.error.as_str()), (JobState::JobFailed, "cancelled by local"));
    site.assert_no_orphans(&["vol1"]).await;
    let missing = backups.watch_backup(WatchBackupRequest { id: "none".into() }).await;
    assert_eq!(missing.err().unwrap().code(), Code::NotFound);
    // Limits outlive the process.
    let mut site = site;
    site.kill();
    site.start();
    let kept = site.backups().await.get_backup_limits(GetBackupLimitsRequest {}).await;
    assert_eq!(kept.unwrap().into_inner(), limits);
}

#[tokio::test]
async fn a_repository_is_listed_thinned_out_and_swept() {
    let Some(site) = Site::new() else { return };
    let device = site.create("vol1").await;
    let place = directory("kept");
    let mut snapshots = Vec::new();
    for (number, name) in ["one", "two", "three"].iter().enumerate() {
        fill(&device, number * 16 * MIB, 8 * MIB, number as u64);
        snapshots.push(site.backed_up(name, "vol1", &place).await);
    }
    let mut backups = site.backups().await;
    let list = ListBackupsRequest { repository: Some(repository(&place)), volume: "vol1".into() };
    let listed = backups.list_backups(list.clone()).await.unwrap().into_inner();
    let names: Vec<&str> = listed.backups.iter().map(|backup| backup.name.as_str()).collect();
    assert_eq!(names, ["one", "two", "three"]);
    assert!(listed.backups.iter().all(|b| b.volume == "vol1" && b.size_bytes == 1 << 30));
    assert_eq!(listed.jobs.len(), 3);
    assert_eq!(listed.jobs[0].name, "three", "the newest first");

    let delete = |place| DeleteBackupRequest {
        repository: Some(repository(place)),
        ..DeleteBackupRequest::default()
    };
    let by_nothing = delete(&place);
    let refused = backups.delete_backup(by_nothing).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let request = delete(&with(&place, "@one"));
    let removed = backups.delete_backup(request).await.unwrap().into_inner().backup.unwrap();
    assert_eq!(removed.snapshot, snapshots[0]);
    // The name is free again.
    assert_ne!(site.backed_up("one", "vol1", &place).await, snapshots[0]);

    let prune = |keep, dry_run| PruneBackupsRequest {
        repository: Some(repository(&place)),
        keep,
        dry_run,
        ..PruneBackupsRequest::default()
    };
    let nothing = backups.prune_backups(prune(Some(Retention::default()), false)).await;
    assert_eq!(nothing.unwrap_err().code(), Code::InvalidArgument);
    let keep = Some(Retention { last: 1, ..Retention::default() });
    let job = backups.prune_backups(prune(keep, true)).await.unwrap().into_inner();
    let message = site.done(&job).await.message;
    assert!(message.starts_with("forgotten=2 "), "{message}");
    let listed = backups.list_backups(list.clone()).await.unwrap().into_inner();
    assert_eq!(listed.backups.len(), 3, "it only said so");
    let job = backups.prune_backups(prune(keep, false)).await.unwrap().into_inner();
    site.done(&job).await;
    let listed = backups.list_backups(list).await.unwrap().into_inner();
    assert_eq!(listed.backups.len(), 1);
    if let Some(restic) = Restic::on(&site, None, "kept") {
        restic.check();
        let last = &listed.backups[0].snapshot;
        assert_eq!(restic.hash(last, "vol1"), hash_of(&device));
    }
}

#[tokio::test]
async fn damage_is_found_and_healed_from_the_live_volume() {
    let Some(site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, 8 * MIB, 9);
    let place = directory("hurt");
    site.backed_up("one", "vol1", &place).await;
    let mut backups = site.backups().await;
    let verify = |heal_from: &str| VerifyBackupRequest {
        repository: Some(repository(&place)),
        read_percent: 100,
        heal_from: heal_from.into(),
    };
    let job = backups.verify_backup(verify("")).await.unwrap().into_inner();
    let message = site.done(&job).await.message;
    assert!(message.starts_with("snapshots=1 packs="), "{message}");

    let packs = site.path("data/backups/backups/hurt/data");
    let largest = fs::read_dir(packs)
        .unwrap()
        .flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let mut content = fs::read(&largest).unwrap();
    content[1000] ^= 1;
    fs::set_permissions(&largest, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&largest, content).unwrap();
    let job = backups.verify_backup(verify("")).await.unwrap().into_inner();
    let ended = site.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobFailed);
    assert!(ended.error.starts_with("the repository is damaged: "), "{}", ended.error);
    let job = backups.verify_backup(verify("vol1")).await.unwrap().into_inner();
    let message = site.done(&job).await.message;
    assert!(message.contains(" bad-packs=1 healed="), "{message}");
    if let Some(restic) = Restic::on(&site, None, "hurt") {
        restic.check();
    }
}

#[tokio::test]
async fn a_restore_takes_the_size_of_the_backup() {
    let Some(site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 100 * MIB, MIB, 11);
    let place = directory("sized");
    site.backed_up("one", "vol1", &place).await;
    let request = StartRestoreRequest {
        repository: Some(repository(&place)),
        volume: "copy".into(),
        device_class: CLASS.into(),
        ..StartRestoreRequest::default()
    };
    let mut backups = site.backups().await;
    let job = backups.start_restore(request.clone()).await.unwrap().into_inner();
    assert_eq!((job.kind(), job.volume.as_str()), (JobKind::Restore, "selvage/copy"));
    site.done(&job).await;
    assert_eq!(hash_of(&site.device("copy").await), hash_of(&device));
    let again = backups.start_restore(request).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
}

#[tokio::test]
async fn schedules_keep_no_keys() {
    let Some(site) = Site::new() else { return };
    site.create("vol1").await;
    let mut backups = site.backups().await;
    let schedule = Schedule {
        name: "nightly".into(),
        volume: "vol1".into(),
        repository: Some(Repository {
            path: "backups/nightly".into(),
            endpoint: "file:".into(),
            credentials: "nightly".into(),
            ..Repository::default()
        }),
        every_seconds: 60,
        keep: Some(Retention { last: 2, ..Retention::default() }),
        verify_every_seconds: 86_400,
        verify_read_percent: 100,
        ..Schedule::default()
    };
    let set = |schedule: Schedule| SetScheduleRequest { schedule: Some(schedule) };
    let with_key =
        Repository { encryption_key: PASSWORD.into(), ..schedule.repository.clone().unwrap() };
    let bad = [
        (Schedule { name: "a b".into(), ..schedule.clone() }, "name: "),
        (Schedule { every_seconds: 5, ..schedule.clone() }, "every_seconds: "),
        (Schedule { offset_seconds: 60, ..schedule.clone() }, "offset_seconds: "),
        (Schedule { verify_read_percent: 101, ..schedule.clone() }, "verify_read_percent: "),
        (Schedule { verify_every_seconds: 0, ..schedule.clone() }, "verify_every_seconds is"),
        (Schedule { keep: Some(Retention::default()), ..schedule.clone() }, "keep: "),
        (Schedule { repository: Some(with_key), ..schedule.clone() }, "repository: "),
        (Schedule { repository: None, ..schedule.clone() }, "repository is required"),
        (schedule.clone(), "credentials nightly: "),
    ];
    for (schedule, text) in bad {
        let status = backups.set_schedule(set(schedule)).await.unwrap_err();
        assert!(status.message().starts_with(text), "{status:?}");
    }
    let file = site.path("data/lvmd/credentials/nightly");
    fs::write(&file, format!("RESTIC_PASSWORD={PASSWORD}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let made = backups.set_schedule(set(schedule)).await.unwrap().into_inner();
    assert!(made.next_at.is_some());
    let listed = backups.list_schedules(ListSchedulesRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.schedules.len(), 1);
    // The next minute comes.
    let job = loop {
        let listed = backups.list_schedules(ListSchedulesRequest {}).await.unwrap().into_inner();
        assert_eq!(listed.schedules[0].error, "");
        if !listed.schedules[0].last_job.is_empty() {
            break listed.schedules[0].last_job.clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    };
    let mut updates =
        backups.watch_backup(WatchBackupRequest { id: job }).await.unwrap().into_inner();
    let mut last = None;
    while let Some(job) = updates.message().await.unwrap() {
        last = Some(job);
    }
    let last = last.unwrap();
    assert_eq!(last.state(), JobState::JobComplete, "{last:?}");
    assert!(last.name.starts_with("nightly-20"), "{}", last.name);
    let verified = loop {
        let listed = backups.list_schedules(ListSchedulesRequest {}).await.unwrap().into_inner();
        let schedule = listed.schedules.into_iter().next().unwrap();
        assert_eq!(schedule.error, "");
        if schedule.verified_at.is_some() {
            break schedule;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    };
    assert!(verified.verify_report.starts_with("snapshots=1 packs="), "{verified:?}");
    let gone = DeleteScheduleRequest { name: "nightly".into() };
    backups.delete_schedule(gone.clone()).await.unwrap();
    assert_eq!(backups.delete_schedule(gone).await.unwrap_err().code(), Code::NotFound);
}
