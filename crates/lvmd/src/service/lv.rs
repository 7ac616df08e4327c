//! `proto.LVService`.

use selvage_api::{
    proto::{
        Backup, BackupState, CreateBackupRequest, CreateBackupResponse, CreateLvRequest,
        CreateLvResponse, Empty, LogicalVolume, RemoveLvRequest, ResizeLvRequest, StateType,
        lv_service_server::{LvService, LvServiceServer},
    },
    selvage::volumes::{BackupJob, JobKind, JobState},
};
use tonic::{Request, Response, Status};

use super::{GIB, backups::who, gib};
use crate::{
    Error, NewVolume, Volume, Volumes,
    backup::{self, Backups, Origin},
};

pub(crate) struct LvApi {
    pub(super) volumes: Volumes,
    /// None where they are not configured.
    pub(super) backups: Option<Backups>,
}

impl LvApi {
    pub(crate) fn service(volumes: Volumes, backups: Option<Backups>) -> LvServiceServer<Self> {
        LvServiceServer::new(Self { volumes, backups })
    }

    /// Refuses to change a volume that a job is about, whatever the job is
    /// doing at the moment, and what the job has made.
    fn check_idle(&self, class: &str, volume: &Volume) -> Result<(), Error> {
        let Some(backups) = &self.backups else { return Ok(()) };
        let classes = self.volumes.classes();
        let full_name = format!("{}/{}", classes.find(class)?.volume_group, volume.name);
        let about = backups.jobs(&full_name).into_iter();
        let made = volume.tags.iter().filter_map(|tag| {
            let operation =
                tag.strip_prefix(backup::BACKUP_TAG).or(tag.strip_prefix(backup::RESTORE_TAG))?;
            backups.find(operation).ok().map(|job| backups.describe(&job))
        });
        let changes = |kind| matches!(kind, JobKind::Backup | JobKind::Restore);
        let running = |job: &BackupJob| job.state() == JobState::JobRunning && changes(job.kind());
        let Some(job) = about.chain(made).find(running) else { return Ok(()) };
        let (name, id) = (&volume.name, &job.id);
        Err(Error::Precondition(match job.kind() {
            JobKind::Restore => {
                format!("logical volume {name} is being restored by job {id}: try again later")
            }
            _ => format!(
                "logical volume {name} is being backed up by job {id} ({}): try again later",
                job.name
            ),
        }))
    }

    /// Begins a backup, or tells how it stands.
    async fn back_up(
        &self,
        request: CreateBackupRequest,
        who: &str,
    ) -> backup::Result<BackupState> {
        let backups = self.backups.as_ref().ok_or(backup::Error::NotConfigured)?;
        // Clients know this sentence for it, where the original crashed.
        let Backup { name, volume_handle, data_source } =
            request.backup.ok_or(backup::Error::NotConfigured)?;
        let access = backups.access_of(data_source)?;
        let job = backups.backup(&name, &volume_handle, access, None, Origin::Poll, who).await?;
        Ok(backups.state(&job))
    }
}

#[tonic::async_trait]
impl LvService for LvApi {
    async fn create_lv(
        &self,
        request: Request<CreateLvRequest>,
    ) -> Result<Response<CreateLvResponse>, Status> {
        let who = who(&request);
        let CreateLvRequest { name, size_gb, tags, device_class, data_source } =
            request.into_inner();
        self.volumes.classes().find(&device_class)?;
        let size = gib(size_gb)?;
        let new = NewVolume { name, size, tags, ..NewVolume::default() };
        let made = match data_source {
            None => self.volumes.create(&device_class, new).await?,
            Some(source) => self.restored(&device_class, new, source, &who).await?,
        };
        let volume = LogicalVolume {
            name: made.name,
            size_gb: made.size / GIB,
            dev_major: made.major,
            dev_minor: made.minor,
            size_bytes: made.size.cast_signed(),
            ..LogicalVolume::default()
        };
        Ok(Response::new(CreateLvResponse { volume: Some(volume) }))
    }

    async fn remove_lv(
        &self,
        request: Request<RemoveLvRequest>,
    ) -> Result<Response<Empty>, Status> {
        let RemoveLvRequest { name, device_class } = request.into_inner();
        if let Ok(volume) = self.volumes.find(&device_class, &name) {
            self.check_idle(&device_class, &volume)?;
        }
        self.volumes.remove(&device_class, &name).await?;
        Ok(Response::new(Empty {}))
    }

    async fn resize_lv(
        &self,
        request: Request<ResizeLvRequest>,
    ) -> Result<Response<Empty>, Status> {
        let ResizeLvRequest { name, size_gb, device_class } = request.into_inner();
        let size = gib(size_gb)?;
        if let Ok(volume) = self.volumes.find(&device_class, &name)
            && volume.size < size
        {
            self.check_idle(&device_class, &volume)?;
        }
        self.volumes.resize(&device_class, &name, size).await?;
        Ok(Response::new(Empty {}))
    }

    async fn create_backup(
        &self,
        request: Request<CreateBackupRequest>,
    ) -> Result<Response<CreateBackupResponse>, Status> {
        let who = who(&request);
        let request = request.into_inner();
        let name = request.backup.as_ref().map(|backup| backup.name.clone()).unwrap_or_default();
        // What goes wrong is a state to these clients, never a failed call.
        let state = self.back_up(request, &who).await.unwrap_or_else(|error| BackupState {
            name,
            state: StateType::Error.into(),
            msg: error.text(),
        });
        Ok(Response::new(CreateBackupResponse { backup_state: Some(state) }))
    }
}
