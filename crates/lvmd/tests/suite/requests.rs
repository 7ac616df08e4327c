//! Requests that come while others are under way, or that were made before: no
//! one of them is answered with what another one did.

use selvage_api::selvage::volumes::{
    BackupJob, JobState, PruneBackupsRequest, Retention, StartBackupRequest,
};
use tonic::Code;

use super::served::{Served, repository};

const MIB: u64 = 1 << 20;

async fn prune(served: &Served, volume: &str, dry_run: bool) -> BackupJob {
    let request = PruneBackupsRequest {
        repository: Some(repository("")),
        keep: Some(Retention { last: 1, ..Retention::default() }),
        volume: volume.into(),
        dry_run,
        ..PruneBackupsRequest::default()
    };
    served.backups().prune_backups(request).await.unwrap().into_inner()
}

async fn backed_up(served: &Served, name: &str, volume: &str) -> BackupJob {
    let job = served.start_backup(name, volume).await.unwrap();
    let ended = served.ended(&job).await;
    assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
    ended
}

/// Those that differ are all done, one after the other; those that are the same
/// are one.
pub(crate) async fn prunes_that_differ_are_all_done(served: &Served) {
    for volume in ["data", "other"] {
        served.create(volume, 64 * MIB).await;
        served.write("tg", volume, 0, 4 << 20, 1);
    }
    let mut made = Vec::new();
    for name in ["one", "two"] {
        for volume in ["data", "other"] {
            made.push(backed_up(served, name, volume).await.snapshot);
        }
    }
    // While this one goes on, none of them gets its turn.
    served.limits(256 << 10, 0).await;
    served.write("tg", "data", 0, 4 << 20, 2);
    let slow = served.start_backup("slow", "data").await.unwrap();
    served.until(&slow, |job| job.phase == "upload").await;
    let only_said = prune(served, "data", true).await;
    let data = prune(served, "data", false).await;
    let other = prune(served, "other", false).await;
    let same = prune(served, "other", false).await;
    assert_eq!(other.id, same.id);
    let mut ids = vec![&only_said.id, &data.id, &other.id];
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each is a job of its own");
    served.limits(0, 0).await;
    assert_eq!(served.ended(&slow).await.state(), JobState::JobComplete);
    let forgotten = async |job: &BackupJob| -> Vec<String> {
        let ended = served.ended(job).await;
        assert_eq!(ended.state(), JobState::JobComplete, "{ended:?}");
        ended.forgotten.into_iter().map(|backup| backup.snapshot).collect()
    };
    assert_eq!(forgotten(&only_said).await, [made[0].clone(), made[2].clone()]);
    assert_eq!(forgotten(&data).await, [made[0].clone(), made[2].clone()]);
    assert_eq!(forgotten(&other).await, [made[1].clone()]);
    let left: Vec<String> = served.stored().await.into_iter().map(|it| it.name).collect();
    assert_eq!(left, ["two", "slow"]);
    for volume in ["data", "other"] {
        served.remove(volume).await.unwrap();
    }
}

/// Another request by the same name is another backup; the same request again
/// is the same.
pub(crate) async fn a_name_is_no_request(served: &Served) {
    served.create("data", 64 * MIB).await;
    served.write("tg", "data", 0, 4 << 20, 1);
    let first = backed_up(served, "nightly", "data").await;
    served.write("tg", "data", 0, 4 << 20, 2);
    let second = backed_up(served, "nightly", "data").await;
    assert_ne!((&first.id, &first.snapshot), (&second.id, &second.snapshot));
    assert_eq!(served.ended(&first).await, first, "its end is known still");

    let request = |id: &str| StartBackupRequest {
        name: "nightly".into(),
        volume: "data".into(),
        repository: Some(repository("")),
        request_id: id.into(),
    };
    served.limits(256 << 10, 0).await;
    served.write("tg", "data", 0, 4 << 20, 3);
    let start = async |id: &str| served.backups().start_backup(request(id)).await;
    let third = start("a").await.unwrap().into_inner();
    assert_eq!(start("a").await.unwrap().into_inner().id, third.id);
    for other in ["b", ""] {
        let refused = start(other).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused:?}");
        assert!(refused.message().contains(&third.id), "{refused:?}");
    }
    served.limits(0, 0).await;
    assert_eq!(served.ended(&third).await.state(), JobState::JobComplete);
    assert_eq!(start("a").await.unwrap().into_inner().id, third.id, "also when it is done");
    assert_eq!(served.stored().await.len(), 3);
    served.remove("data").await.unwrap();
}
