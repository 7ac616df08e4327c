//! Calls of lvmd's own clients: CreateBackup, asked again and again, and
//! volumes that are made of a backup.

use selvage_api::proto::{
    CreateBackupRequest, CreateLvRequest, DataSource, GetLvListRequest, RemoveLvRequest,
    ResizeLvRequest, StateType, data_source::S3, vg_service_client::VgServiceClient,
};
use selvage_api::selvage::volumes::{BackupLimits, ListBackupsRequest, SetBackupLimitsRequest};
use tonic::Code;

use crate::link::Link;
use crate::site::{
    CLASS, MIB, ObjectStore, PASSWORD, Restic, Site, directory, fill, hash_of, request,
    restore_request, with,
};

/// Makes a backup, changes the volume, makes another, and restores both.
async fn there_and_back(site: &Site, store: Option<&ObjectStore>, prefix: &str, volume: &str) {
    let place = store.map_or_else(|| directory(prefix), |store| store.place(prefix));
    let device = site.create(volume).await;
    fill(&device, 3 * MIB, 8 * MIB, 1);
    let first = hash_of(&device);
    let monday = site.backed_up("monday", volume, &place).await;
    // Done stays done, whoever asks.
    assert_eq!(site.backed_up("monday", volume, &place).await, monday);
    fill(&device, 700 * MIB, MIB, 2);
    let second = hash_of(&device);
    let tuesday = site.backed_up("tuesday", &format!("selvage/{volume}"), &place).await;
    assert_ne!(monday, tuesday);
    assert_eq!(site.names().await, [volume], "snapshots are gone");

    let mut volumes = site.volumes().await;
    let back = restore_request("back", with(&place, "@monday"), true);
    let made = volumes.create_lv(back).await.unwrap().into_inner().volume.unwrap();
    assert_eq!((made.name.as_str(), made.size_gb), ("back", 1));
    assert!(made.dev_minor > 0 || made.dev_major > 0);
    assert_eq!(hash_of(&site.device("back").await), first);
    let latest = restore_request("latest", with(&place, &format!("#{}", &tuesday[..8])), true);
    volumes.create_lv(latest).await.unwrap();
    assert_eq!(hash_of(&site.device("latest").await), second);
    let mut groups = VgServiceClient::new(site.channel().await);
    let listed = groups.get_lv_list(GetLvListRequest { device_class: CLASS.into() }).await;
    let listed = listed.unwrap().into_inner().volumes;
    let back = listed.iter().find(|volume| volume.name == "back").unwrap();
    assert_eq!(back.tags, ["owner=me"], "marks are gone");

    if let Some(restic) = Restic::on(site, store, prefix) {
        restic.check();
        assert_eq!(restic.hash(&monday, volume), first);
        assert_eq!(restic.hash(&tuesday, volume), second);
    }
    // The server may have ended a connection that slept while restic worked.
    let mut volumes = site.volumes().await;
    for name in ["back", "latest", volume] {
        let remove = RemoveLvRequest { name: name.into(), device_class: CLASS.into() };
        volumes.remove_lv(remove).await.unwrap();
    }
    site.assert_no_orphans(&[]).await;
}

#[tokio::test]
async fn to_a_directory_and_back() {
    let Some(site) = Site::new() else { return };
    there_and_back(&site, None, "a/b", "vol1").await;
}

#[tokio::test]
async fn to_object_stores_and_back() {
    let Some(site) = Site::new() else { return };
    // The same names in both: what is in the one is not in the other.
    for store in [ObjectStore::rclone(), ObjectStore::moto()].into_iter().flatten() {
        there_and_back(&site, Some(&store), "", "vol1").await;
    }
}

#[tokio::test]
async fn what_cannot_be_backed_up_is_a_state_and_leaves_nothing() {
    let Some(site) = Site::new() else { return };
    site.create("vol1").await;
    let mut volumes = site.volumes().await;
    let place = directory("x");
    let none = "No logical volume named \"nope\" found. Stop backing up. Exit script.";
    let cases: [(CreateBackupRequest, &str); 8] = [
        (CreateBackupRequest { backup: None }, "backup is not configured"),
        (request("a", "nope", Some(place.clone())), none),
        (request("", "vol1", Some(place.clone())), "name is required"),
        (request("a", "vol1", None), "data_source.s3 is required"),
        (
            request("a", "vol1", Some(S3 { encryption_key: "".into(), ..place.clone() })),
            "encryption_key is required",
        ),
        (
            request("a", "vol1", Some(S3 { path: "/".into(), ..place.clone() })),
            "path: it has no bucket: bucket/prefix is needed",
        ),
        (
            request("a", "vol1", Some(S3 { endpoint: "ftp://x".into(), ..place.clone() })),
            "endpoint: it is not http://HOST or https://HOST, nor rest: before one of these",
        ),
        (
            request("a", "vol1", Some(S3 { path: "a/../b".into(), ..place.clone() })),
            "path: a part of it is '.' or '..'",
        ),
    ];
    for (request, expected) in cases {
        let state = volumes.create_backup(request).await.unwrap().into_inner();
        let state = state.backup_state.unwrap();
        assert_eq!((state.state(), state.msg.as_str()), (StateType::Error, expected));
    }
    site.assert_no_orphans(&["vol1"]).await;
}

#[tokio::test]
async fn a_failure_is_reported_for_a_while_and_leaves_no_snapshot() {
    let Some(site) = Site::new() else { return };
    site.create("vol1").await;
    let place = directory("keyed");
    site.backed_up("first", "vol1", &place).await;
    let wrong = S3 { encryption_key: "another".into(), ..place.clone() };
    let state = site.back_up("second", "vol1", &wrong).await;
    assert_eq!(state.state(), StateType::Error);
    assert!(state.msg.contains("does not open the repository"), "{}", state.msg);
    // It is the same failure still.
    assert_eq!(site.back_up("second", "vol1", &wrong).await, state);
    site.assert_no_orphans(&["vol1"]).await;
    // A key that was put right is used at once.
    site.backed_up("second", "vol1", &place).await;
}

#[tokio::test]
async fn what_cannot_be_restored_makes_no_volume() {
    let Some(site) = Site::new() else { return };
    let mut volumes = site.volumes().await;
    site.create("vol1").await;
    let big = CreateLvRequest {
        name: "big".into(),
        size_gb: 2,
        device_class: CLASS.into(),
        ..CreateLvRequest::default()
    };
    volumes.create_lv(big).await.unwrap();
    let place = directory("some");
    site.backed_up("one", "vol1", &place).await;
    site.backed_up("big", "big", &place).await;
    let wrong = S3 { encryption_key: "another".into(), ..place.clone() };
    let nowhere = S3 { path: "backups/nowhere".into(), ..place.clone() };
    let cases = [
        (wrong, Code::PermissionDenied, "does not open the repository"),
        (nowhere, Code::NotFound, "there is no repository at"),
        (with(&place, "@never"), Code::NotFound, "there is no snapshot 'never'"),
        (with(&place, "@big"), Code::OutOfRange, "is smaller than source logical volume"),
        (with(&place, "#xyz"), Code::InvalidArgument, "path: "),
    ];
    for (place, code, text) in cases {
        for synchronous in [true, false] {
            let request = restore_request("new", place.clone(), synchronous);
            let status = volumes.create_lv(request).await.unwrap_err();
            assert_eq!(status.code(), code, "{status:?}");
            assert!(status.message().contains(text), "{status:?}");
        }
    }
    let taken = volumes.create_lv(restore_request("vol1", place.clone(), true)).await;
    assert_eq!(taken.unwrap_err().code(), Code::AlreadyExists);
    let mut without = restore_request("new", place, true);
    without.data_source = Some(DataSource { synchronous_restore: true, r#type: None });
    let status = volumes.create_lv(without).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    site.assert_no_orphans(&["big", "vol1"]).await;
}

#[tokio::test]
async fn a_volume_stays_as_it_is_while_work_is_done_on_it() {
    let Some(site) = Site::new() else { return };
    let device = site.create("vol1").await;
    fill(&device, 0, 32 * MIB, 3);
    let place = directory("slow");
    slow(&site, 4 * MIB as u64).await;
    let mut volumes = site.volumes().await;
    let begun = volumes.create_backup(request("slow", "vol1", Some(place.clone()))).await;
    let begun = begun.unwrap().into_inner().backup_state.unwrap();
    assert_eq!(begun.state(), StateType::Inprogress, "{begun:?}");
    assert!(begun.msg.starts_with("phase="), "{begun:?}");
    until_in_phase(&site, "upload").await;
    let remove = RemoveLvRequest { name: "vol1".into(), device_class: CLASS.into() };
    let refused = volumes.remove_lv(remove).await.unwrap_err();
    let why = "logical volume vol1 is being backed up by job ";
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().starts_with(why), "{refused:?}");
    assert!(refused.message().ends_with(" (slow): try again later"), "{refused:?}");
    let resize = ResizeLvRequest { name: "vol1".into(), size_gb: 2, device_class: CLASS.into() };
    let refused = volumes.resize_lv(resize.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().starts_with(why), "{refused:?}");
    // The limit is lifted while it runs.
    slow(&site, 0).await;
    site.backed_up("slow", "vol1", &place).await;
    volumes.resize_lv(resize).await.unwrap();

    limit(&site, BackupLimits { download: 4 * MIB as u64, ..BackupLimits::default() }).await;
    let asynchronous = CreateLvRequest { size_gb: 2, ..restore_request("back", place, false) };
    let made = volumes.create_lv(asynchronous.clone()).await.unwrap().into_inner();
    assert_eq!(made.volume.unwrap().size_gb, 2);
    let (_, _, pending) = site.all().await.into_iter().find(|(name, ..)| name == "back").unwrap();
    assert!(pending, "it is marked");
    let mut groups = VgServiceClient::new(site.channel().await);
    let listed = groups.get_lv_list(GetLvListRequest { device_class: CLASS.into() }).await;
    let listed = listed.unwrap().into_inner().volumes;
    assert_eq!(listed.len(), 1, "nobody adopts it: {listed:?}");
    // Asked again, it is the same restore.
    slow(&site, 0).await;
    let mut synchronous = asynchronous;
    synchronous.data_source.as_mut().unwrap().synchronous_restore = true;
    volumes.create_lv(synchronous).await.unwrap();
    site.assert_no_orphans(&["back", "vol1"]).await;
    assert!(!site.selvage().log().contains(PASSWORD));
}

/// While its object store is away a job waits and says so.
#[tokio::test]
async fn a_store_that_is_away_is_waited_for() {
    let Some(site) = Site::new() else { return };
    let Some(store) = ObjectStore::rclone() else { return };
    let link = Link::to(store.address()).await;
    let device = site.create("vol1").await;
    fill(&device, 0, 24 * MIB, 4);
    let place = S3 { endpoint: link.endpoint(), ..store.place("away") };
    slow(&site, 2 * MIB as u64).await;
    let mut volumes = site.volumes().await;
    let ask = request("away", "vol1", Some(place.clone()));
    volumes.create_backup(ask.clone()).await.unwrap();
    until_in_phase(&site, "upload").await;
    link.cut();
    until_in_phase(&site, "retrying").await;
    let state = volumes.create_backup(ask).await.unwrap().into_inner().backup_state.unwrap();
    assert_eq!(state.state(), StateType::Inprogress, "{state:?}");
    assert!(state.msg.contains(" does not answer: "), "{state:?}");
    let listed = site.backups().await.list_backups(ListBackupsRequest::default()).await.unwrap();
    let job = listed.into_inner().jobs.remove(0);
    assert!(job.waiting.contains("; trying again until "), "{job:?}");
    slow(&site, 0).await;
    link.mend();
    let snapshot = site.backed_up("away", "vol1", &place).await;
    if let Some(restic) = Restic::on(&site, Some(&store), "away") {
        restic.check();
        assert_eq!(restic.hash(&snapshot, "vol1"), hash_of(&device));
    }
}

async fn slow(site: &Site, bytes: u64) {
    limit(site, BackupLimits { upload: bytes, ..BackupLimits::default() }).await;
}

async fn limit(site: &Site, limits: BackupLimits) {
    let request = SetBackupLimitsRequest { limits: Some(limits) };
    site.backups().await.set_backup_limits(request).await.unwrap();
}

async fn until_in_phase(site: &Site, phase: &str) {
    let mut backups = site.backups().await;
    loop {
        let listed =
            backups.list_backups(ListBackupsRequest::default()).await.unwrap().into_inner();
        if listed.jobs[0].phase == phase {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
