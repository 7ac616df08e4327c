//! Volumes that get another content: that of a snapshot, or of a backup. The
//! default class is `thick`, in group `tg`.

use std::os::unix::fs::OpenOptionsExt;

use selvage_api::selvage::volumes::{
    BackupJob, JobState, RevertVolumeRequest, StartRestoreRequest, Volume,
    volumes_service_client::VolumesServiceClient,
};
use selvage_lvmd::{NewSnapshot, REVERT_TAG};
use tonic::{Code, Status};

use super::served::{Served, noise, repository};

const MIB: u64 = 1 << 20;
const CONTENT: usize = 8 << 20;

async fn replace(served: &Served, backup: &str) -> Result<BackupJob, Status> {
    let request = StartRestoreRequest {
        repository: Some(repository(&format!("@{backup}"))),
        volume: "data".into(),
        replace: true,
        ..StartRestoreRequest::default()
    };
    Ok(served.backups().start_restore(request).await?.into_inner())
}

async fn revert(served: &Served, snapshot: &str) -> Result<Volume, Status> {
    let request = RevertVolumeRequest {
        volume: "data".into(),
        snapshot: snapshot.into(),
        device_class: String::new(),
    };
    let mut volumes = VolumesServiceClient::new(served.channel());
    Ok(volumes.revert_volume(request).await?.into_inner())
}

fn assert_holds(served: &Served, name: &str, seed: u64) {
    assert!(served.read("tg", name, 0, CONTENT) == noise(CONTENT, seed), "{name}");
    assert!(served.read("tg", name, 32 * MIB, CONTENT) == noise(CONTENT, 9), "{name}");
}

/// A backup is written over a volume, and what it held before can be had again.
/// A volume whose restore fails, or that is in use, stays as it was.
pub(crate) async fn a_restore_over_a_volume_can_be_undone(served: &Served) {
    let device = served.create("data", 64 * MIB).await.path;
    served.write("tg", "data", 0, CONTENT, 1);
    served.write("tg", "data", 32 * MIB, CONTENT, 9);
    let job = served.start_backup("one", "data").await.unwrap();
    assert_eq!(served.ended(&job).await.state(), JobState::JobComplete);
    served.write("tg", "data", 0, CONTENT, 2);

    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let user = std::fs::OpenOptions::new().read(true).custom_flags(exclusively).open(&device);
    let in_use = replace(served, "one").await.unwrap_err();
    assert_eq!(in_use.code(), Code::FailedPrecondition, "{in_use:?}");
    drop(user);
    // One that claims nothing, as a database on a raw device.
    let user = std::fs::File::open(&device).unwrap();
    let in_use = replace(served, "one").await.unwrap_err();
    assert_eq!(in_use.code(), Code::FailedPrecondition, "{in_use:?}");
    assert!(in_use.message().contains("in use: end the process"), "{in_use:?}");
    drop(user);

    // One that is stopped half way gives everything back.
    served.limits(0, 256 << 10).await;
    let job = replace(served, "one").await.unwrap();
    let half = |job: &BackupJob| job.phase == "download" && job.downloaded_bytes > 0;
    served.until(&job, half).await;
    assert_eq!(served.names().await.unwrap().len(), 1, "it is no volume for clients meanwhile");
    served.cancel(&job).await;
    served.limits(0, 0).await;
    assert_eq!(served.all_names(), ["data"]);
    assert_eq!(served.names().await.unwrap(), ["data"]);
    assert_holds(served, "data", 2);

    let job = replace(served, "one").await.unwrap();
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    assert_holds(served, "data", 1);
    let before = &ended.safety_snapshot;
    assert!(before.starts_with("data-before-2"), "{ended:?}");
    assert_holds(served, before, 2);
    assert_eq!(served.names().await.unwrap(), ["data", before]);
    let none = StartRestoreRequest {
        repository: Some(repository("@one")),
        volume: "none".into(),
        replace: true,
        ..StartRestoreRequest::default()
    };
    let missing = served.backups().start_restore(none).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound, "{missing:?}");

    revert(served, before).await.unwrap();
    assert_holds(served, "data", 2);
    served.remove(before).await.unwrap();
    served.remove("data").await.unwrap();
    assert_eq!(served.orphans().await, 0);
}

/// As a process leaves it that is killed half way, with a device that somebody has open.
pub(crate) async fn half_a_revert_is_shown_to_nobody(served: &Served) {
    let device = served.create("data", 64 * MIB).await.path;
    served.write("tg", "data", 0, CONTENT, 1);
    served.write("tg", "data", 32 * MIB, CONTENT, 9);
    let before = NewSnapshot {
        source: "data".into(),
        name: "before".into(),
        read_only: true,
        change_room: Some(80 * MIB),
        ..NewSnapshot::default()
    };
    served.volumes().snapshot("", before).await.unwrap();
    served.write("tg", "data", 0, CONTENT, 2);
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let user = std::fs::OpenOptions::new().read(true).custom_flags(exclusively).open(&device);
    let mark = format!("{REVERT_TAG}before");
    served.volumes().tag("", "data", vec![mark.clone()], Vec::new()).await.unwrap();

    assert_eq!(served.names().await.unwrap(), ["before"]);
    assert_eq!(served.orphans().await, 1, "and it is said why");
    let refused = served.start_backup("half", "data").await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
    let copy = NewSnapshot { source: "data".into(), name: "copy".into(), ..Default::default() };
    let refused = Status::from(served.volumes().snapshot("", copy).await.unwrap_err());
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let in_use = revert(served, "before").await.unwrap_err();
    assert_eq!(in_use.code(), Code::FailedPrecondition, "{in_use:?}");
    assert!(served.volumes().find("", "data").unwrap().tags.contains(&mark));

    drop(user);
    let whole = async || served.names().await.unwrap() == ["before", "data"];
    served.wait("it is reverted", whole).await;
    assert_holds(served, "data", 1);
    assert_eq!(served.volumes().find("", "data").unwrap().tags, Vec::<String>::new());
    assert_eq!(served.orphans().await, 0);
    for name in ["before", "data"] {
        served.remove(name).await.unwrap();
    }
}

pub(crate) async fn a_volume_is_reverted_to_its_snapshot_alone(served: &Served) {
    let device = served.create("data", 64 * MIB).await.path;
    served.create("other", 64 * MIB).await;
    served.write("tg", "data", 0, CONTENT, 1);
    served.write("tg", "data", 32 * MIB, CONTENT, 9);
    let new = |source: &str, name: &str| NewSnapshot {
        source: source.into(),
        name: name.into(),
        read_only: true,
        change_room: Some(80 * MIB),
        ..NewSnapshot::default()
    };
    served.volumes().snapshot("", new("data", "before")).await.unwrap();
    served.volumes().snapshot("", new("other", "others")).await.unwrap();
    served.write("tg", "data", 0, CONTENT, 2);
    served.write("tg", "data", 32 * MIB, CONTENT, 3);
    for (snapshot, code) in [("others", Code::InvalidArgument), ("none", Code::NotFound)] {
        let refused = revert(served, snapshot).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
    }
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let user = std::fs::OpenOptions::new().read(true).custom_flags(exclusively).open(&device);
    assert_eq!(revert(served, "before").await.unwrap_err().code(), Code::FailedPrecondition);
    drop(user);
    let user = std::fs::File::open(&device).unwrap();
    assert_eq!(revert(served, "before").await.unwrap_err().code(), Code::FailedPrecondition);
    drop(user);
    assert!(served.read("tg", "data", 0, CONTENT) == noise(CONTENT, 2), "nothing was done");
    let reverted = revert(served, "before").await.unwrap();
    assert!(reverted.tags.is_empty(), "{reverted:?}");
    assert_holds(served, "data", 1);
    assert_holds(served, "before", 1);
    for name in ["before", "others", "other", "data"] {
        served.remove(name).await.unwrap();
    }
}
