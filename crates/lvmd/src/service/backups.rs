//! The backups of `selvage.volumes`.

use futures::{StreamExt, stream::BoxStream};
use selvage_api::selvage::volumes::{
    AddRepositoryKeyRequest, BackupJob, BackupLimits, CancelBackupRequest, DeleteBackupRequest,
    DeleteBackupResponse, DeleteRepositoryKeyRequest, DeleteScheduleRequest,
    DeleteScheduleResponse, DiffBackupsRequest, DiffBackupsResponse, GetBackupLimitsRequest,
    GetRepositoryStatsRequest, ListBackupsRequest, ListBackupsResponse, ListOrphansRequest,
    ListOrphansResponse, ListRepositoryKeysRequest, ListRepositoryKeysResponse,
    ListSchedulesRequest, ListSchedulesResponse, Orphan, PruneBackupsRequest, Repository,
    RepositoryKey, RepositoryStats, Schedule, SetBackupLimitsRequest, SetScheduleRequest,
    StartBackupRequest, StartRestoreRequest, UnlockRepositoryRequest, UnlockRepositoryResponse,
    VerifyBackupRequest, WatchBackupRequest,
    backups_service_server::{BackupsService, BackupsServiceServer},
};
use selvage_kit::identity::Identity;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::backup::{
    Access, Backups, Error, Keep, NewRestore, Origin, Pruning, StoredLocation, stored,
};

pub(crate) struct BackupsApi {
    backups: Option<Backups>,
    stop: CancellationToken,
}

type Answer<T> = Result<Response<T>, Status>;

impl BackupsApi {
    /// `stop` ends the streams.
    pub(crate) fn service(
        backups: Option<Backups>,
        stop: CancellationToken,
    ) -> BackupsServiceServer<Self> {
        BackupsServiceServer::new(Self { backups, stop })
    }

    fn backups(&self) -> Result<&Backups, Error> {
        self.backups.as_ref().ok_or(Error::NotConfigured)
    }

    fn access(
        &self,
        repository: Option<Repository>,
    ) -> Result<(&Backups, Access, Option<StoredLocation>), Error> {
        let backups = self.backups()?;
        let repository = repository.ok_or(Error::Missing("repository"))?;
        let stored_location = StoredLocation::of(&repository);
        Ok((backups, backups.access(repository)?, stored_location))
    }
}

/// Returns the name of the caller, for the record.
pub(super) fn who<T>(request: &Request<T>) -> String {
    let caller = request.extensions().get::<Identity>();
    caller.map(|identity| identity.name.clone()).unwrap_or_default()
}

#[tonic::async_trait]
impl BackupsService for BackupsApi {
    type WatchBackupStream = BoxStream<'static, Result<BackupJob, Status>>;

    async fn start_backup(&self, request: Request<StartBackupRequest>) -> Answer<BackupJob> {
        let who = who(&request);
        let StartBackupRequest { name, volume, repository, request_id } = request.into_inner();
        let (backups, access, stored_location) = self.access(repository)?;
        let origin = Origin::Request(&request_id);
        let job = backups.backup(&name, &volume, access, stored_location, origin, &who).await?;
        Ok(Response::new(backups.describe(&job)))
    }

    async fn start_restore(&self, request: Request<StartRestoreRequest>) -> Answer<BackupJob> {
        let who = who(&request);
        let request = request.into_inner();
        let (backups, access, stored_location) = self.access(request.repository)?;
        let new = NewRestore {
            class: request.device_class,
            volume: request.volume,
            size: request.size_bytes,
            tags: request.tags,
            source_volume: request.source_volume,
            source_hostname: request.source_hostname,
            replace: request.replace,
        };
        let job = backups.restore(new, access, stored_location, &who).await?;
        Ok(Response::new(backups.describe(&job)))
    }

    async fn watch_backup(
        &self,
        request: Request<WatchBackupRequest>,
    ) -> Answer<Self::WatchBackupStream> {
        let jobs = self.backups()?.watch(&request.into_inner().id, self.stop.clone())?;
        Ok(Response::new(jobs.map(Ok).boxed()))
    }

    async fn list_backups(
        &self,
        request: Request<ListBackupsRequest>,
    ) -> Answer<ListBackupsResponse> {
        let ListBackupsRequest { repository, volume } = request.into_inner();
        let backups = self.backups()?;
        let mut held = Vec::new();
        if repository.is_some() {
            let (_, access, _) = self.access(repository)?;
            held = backups.stored(&access, &volume).await?.iter().map(stored).collect();
        }
        let jobs = backups.jobs(&volume);
        Ok(Response::new(ListBackupsResponse { jobs, backups: held }))
    }

    async fn cancel_backup(&self, request: Request<CancelBackupRequest>) -> Answer<BackupJob> {
        let who = who(&request);
        let backups = self.backups()?;
        let job = backups.cancel(&request.into_inner().id, &who).await?;
        Ok(Response::new(backups.describe(&job)))
    }

    async fn verify_backup(&self, request: Request<VerifyBackupRequest>) -> Answer<BackupJob> {
        let who = who(&request);
        let VerifyBackupRequest { repository, read_percent, heal_from } = request.into_inner();
        let (backups, access, stored_location) = self.access(repository)?;
        let job = backups.verify(access, stored_location, read_percent, &heal_from, &who).await?;
        Ok(Response::new(backups.describe(&job)))
    }

    async fn delete_backup(
        &self,
        request: Request<DeleteBackupRequest>,
    ) -> Answer<DeleteBackupResponse> {
        let DeleteBackupRequest { repository, volume, dry_run, hostname } = request.into_inner();
        let (backups, access, _) = self.access(repository)?;
        let removed = backups.delete(&access, &volume, &hostname, dry_run).await?;
        Ok(Response::new(DeleteBackupResponse { backup: Some(stored(&removed)) }))
    }

    async fn prune_backups(&self, request: Request<PruneBackupsRequest>) -> Answer<BackupJob> {
        let who = who(&request);
        let PruneBackupsRequest { repository, keep, volume, dry_run, hostname } =
            request.into_inner();
        let (backups, access, stored_location) = self.access(repository)?;
        let keep = keep.map(Keep::from);
        let what = Pruning { keep, volume: &volume, hostname: &hostname, dry_run };
        let job = backups.prune(access, stored_location, what, &who).await?;
        Ok(Response::new(backups.describe(&job)))
    }

    async fn set_schedule(&self, request: Request<SetScheduleRequest>) -> Answer<Schedule> {
        let schedule = request.into_inner().schedule.ok_or(Error::Missing("schedule"))?;
        let backups = self.backups()?;
        let schedule = backups.set_schedule(schedule).await?;
        Ok(Response::new(backups.describe_schedule(&schedule)))
    }

    async fn list_schedules(
        &self,
        _: Request<ListSchedulesRequest>,
    ) -> Answer<ListSchedulesResponse> {
        let backups = self.backups()?;
        let schedules = backups.schedules();
        let schedules = schedules.iter().map(|one| backups.describe_schedule(one)).collect();
        Ok(Response::new(ListSchedulesResponse { schedules }))
    }

    async fn delete_schedule(
        &self,
        request: Request<DeleteScheduleRequest>,
    ) -> Answer<DeleteScheduleResponse> {
        self.backups()?.delete_schedule(&request.into_inner().name).await?;
        Ok(Response::new(DeleteScheduleResponse {}))
    }

    async fn set_backup_limits(
        &self,
        request: Request<SetBackupLimitsRequest>,
    ) -> Answer<BackupLimits> {
        let limits = request.into_inner().limits.ok_or(Error::Missing("limits"))?;
        self.backups()?.set_speeds(limits.into()).await?;
        Ok(Response::new(limits))
    }

    async fn get_backup_limits(&self, _: Request<GetBackupLimitsRequest>) -> Answer<BackupLimits> {
        Ok(Response::new(self.backups()?.speeds().into()))
    }

    async fn unlock_repository(
        &self,
        request: Request<UnlockRepositoryRequest>,
    ) -> Answer<UnlockRepositoryResponse> {
        let UnlockRepositoryRequest { repository, all } = request.into_inner();
        let (backups, access, _) = self.access(repository)?;
        Ok(Response::new(backups.unlock(&access, all).await?))
    }

    async fn get_repository_stats(
        &self,
        request: Request<GetRepositoryStatsRequest>,
    ) -> Answer<RepositoryStats> {
        let (backups, access, _) = self.access(request.into_inner().repository)?;
        Ok(Response::new(backups.stats(&access).await?))
    }

    async fn list_repository_keys(
        &self,
        request: Request<ListRepositoryKeysRequest>,
    ) -> Answer<ListRepositoryKeysResponse> {
        let (backups, access, _) = self.access(request.into_inner().repository)?;
        Ok(Response::new(ListRepositoryKeysResponse { keys: backups.keys(&access).await? }))
    }

    async fn add_repository_key(
        &self,
        request: Request<AddRepositoryKeyRequest>,
    ) -> Answer<RepositoryKey> {
        let AddRepositoryKeyRequest { repository, new_encryption_key } = request.into_inner();
        let (backups, access, _) = self.access(repository)?;
        Ok(Response::new(backups.add_key(&access, new_encryption_key).await?))
    }

    async fn delete_repository_key(
        &self,
        request: Request<DeleteRepositoryKeyRequest>,
    ) -> Answer<RepositoryKey> {
        let DeleteRepositoryKeyRequest { repository, id } = request.into_inner();
        let (backups, access, _) = self.access(repository)?;
        Ok(Response::new(backups.delete_key(&access, &id).await?))
    }

    async fn diff_backups(
        &self,
        request: Request<DiffBackupsRequest>,
    ) -> Answer<DiffBackupsResponse> {
        let DiffBackupsRequest { repository, older, volume, hostname } = request.into_inner();
        let (backups, access, _) = self.access(repository)?;
        Ok(Response::new(backups.diff(&access, &older, &volume, &hostname).await?))
    }

    async fn list_orphans(&self, _: Request<ListOrphansRequest>) -> Answer<ListOrphansResponse> {
        let orphans = self.backups()?.orphans().into_iter();
        let orphans = orphans.map(|left| Orphan {
            group: left.group,
            name: left.name,
            reason: left.reason.to_owned(),
        });
        Ok(Response::new(ListOrphansResponse { orphans: orphans.collect() }))
    }
}
