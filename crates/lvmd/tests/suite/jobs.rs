//! Volumes that jobs are about, whatever keeps them. The default class is
//! `thick`, in group `tg`.

use selvage_api::selvage::volumes::{BackupJob, JobState, StartRestoreRequest};
use selvage_lvmd::{NewSnapshot, NewVolume};
use tonic::{Code, Status};

use super::served::{Served, noise, repository};

const MIB: u64 = 1 << 20;
const CONTENT: usize = 16 << 20;

fn assert_refused(result: Result<(), Status>, name: &str, doing: &str, job: &BackupJob) {
    let refused = result.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let expected = format!("logical volume {name} is being {doing} by job {}", job.id);
    assert!(refused.message().starts_with(&expected), "{refused:?}");
}

/// While a job is about a volume, it is neither removed nor resized, and so is
/// what the job has made.
pub(crate) async fn are_left_alone(served: &Served) {
    served.create("data", 256 * MIB).await;
    served.write("tg", "data", 0, CONTENT, 1);
    backed_up(served).await;
    restored(served).await;
    served.remove("data").await.unwrap();
    assert_eq!(served.all_names(), Vec::<String>::new());
    assert_eq!(served.orphans().await, 0);
}

async fn backed_up(served: &Served) {
    served.limits(256 << 10, 0).await;
    let job = served.start_backup("one", "data").await.unwrap();
    served.until(&job, |job| job.phase == "upload").await;
    let snapshot = format!("snap-{}", job.id);
    assert_eq!(served.all_names(), ["data".to_owned(), snapshot.clone()]);
    assert_eq!(served.names().await.unwrap(), ["data"], "its snapshot is nobody's business");
    assert_refused(served.remove("data").await, "data", "backed up", &job);
    assert_refused(served.resize("data", 1).await, "data", "backed up", &job);
    assert_refused(served.remove(&snapshot).await, &snapshot, "backed up", &job);
    let shrunk = served.resize("data", 0).await.unwrap_err();
    assert_eq!(shrunk.code(), Code::OutOfRange, "what is wrong anyway is told first");
    served.cancel(&job).await;
    assert_eq!(served.all_names(), ["data"]);

    served.limits(0, 0).await;
    served.resize("data", 1).await.unwrap();
    let job = served.start_backup("two", "data").await.unwrap();
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
}

async fn restored(served: &Served) {
    served.limits(0, 256 << 10).await;
    let job = served.start_restore("two", "back").await;
    served.until(&job, |job| job.phase == "download").await;
    assert_eq!(served.names().await.unwrap(), ["data"], "nobody adopts it half done");
    assert_refused(served.remove("back").await, "back", "restored", &job);
    assert_refused(served.resize("back", 2).await, "back", "restored", &job);
    let half = NewSnapshot { source: "back".into(), name: "half".into(), ..NewSnapshot::default() };
    let refused = Status::from(served.volumes().snapshot("", half).await.unwrap_err());
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    served.cancel(&job).await;
    assert_eq!(served.all_names(), ["data"], "it went with its job");

    let cancelled = served.start_restore("two", "back").await;
    served.until(&cancelled, |job| job.phase == "download").await;
    served.begin_to_cancel(&cancelled).await;
    served.limits(0, 0).await;
    let job = served.start_restore("two", "back").await;
    assert_ne!(job.id, cancelled.id, "one that is being cancelled is no answer");
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    assert_eq!(served.names().await.unwrap(), ["back", "data"]);
    assert!(served.read("tg", "back", 0, CONTENT) == noise(CONTENT, 1));
    served.remove("back").await.unwrap();
}

/// A restore that has filled the pool has taken the room of what others write. What a
/// backup holds counts, not how large its volume is.
pub(crate) async fn restores_that_fill_the_pool_are_refused(served: &Served, filled: u64) {
    const LARGE: u64 = 160;
    for (volume, written) in [("small", 8), ("large", LARGE)] {
        let new = NewVolume { name: volume.into(), size: 320 * MIB, ..NewVolume::default() };
        served.volumes().create("thin", new).await.unwrap();
        for at in 0..written {
            served.write("tg", volume, at * MIB, 1 << 20, at + 1);
        }
        let job = served.start_backup(volume, volume).await.unwrap();
        let ended = served.ended(&job).await;
        assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    }
    let new = NewVolume { name: "filler".into(), size: filled, ..NewVolume::default() };
    served.volumes().create("thin", new).await.unwrap();
    for at in 0..filled / MIB {
        served.write("tg", "filler", at * MIB, 1 << 20, 1000 + at);
    }
    let restored = async |backup: &str, volume: &str| {
        let request = StartRestoreRequest {
            repository: Some(repository(&format!("@{backup}"))),
            volume: volume.into(),
            device_class: "thin".into(),
            ..StartRestoreRequest::default()
        };
        let job = served.backups().start_restore(request).await.unwrap().into_inner();
        served.ended(&job).await
    };
    let refused = restored("large", "back").await;
    assert_eq!(refused.state(), JobState::JobFailed, "{refused:?}");
    assert!(refused.error.contains("left for thin volumes"), "{refused:?}");
    assert!(!served.all_names().contains(&"back".to_owned()));
    let made = restored("small", "again").await;
    assert_eq!(made.state(), JobState::JobComplete, "{made:?}");
    assert_eq!(served.read("tg", "again", 0, 8 << 20), served.read("tg", "small", 0, 8 << 20));
    for volume in ["again", "filler", "large", "small"] {
        served.remove_from("thin", volume).await;
    }
}
