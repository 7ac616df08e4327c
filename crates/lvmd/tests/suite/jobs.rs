//! Volumes that jobs are about, whatever keeps them. The default class is
//! `thick`, in group `tg`.

use selvage_api::selvage::volumes::{BackupJob, JobState};
use selvage_lvmd::NewSnapshot;
use tonic::{Code, Status};

use super::served::{Served, noise};

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
