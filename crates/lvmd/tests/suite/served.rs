//! The whole service behind its socket, for tests of what calls meet.

use std::{future::Future, path::PathBuf, time::Duration};

use selvage_api::{
    proto::{
        GetLvListRequest, RemoveLvRequest, ResizeLvRequest, lv_service_client::LvServiceClient,
        vg_service_client::VgServiceClient,
    },
    selvage::volumes::{
        BackupJob, BackupLimits, CancelBackupRequest, ListBackupsRequest, ListOrphansRequest,
        Repository, SetBackupLimitsRequest, StartBackupRequest, StartRestoreRequest, StoredBackup,
        WatchBackupRequest, backups_service_client::BackupsServiceClient,
    },
};
use selvage_kit::{
    serve::{Limits, Server, Services, Socket, Trust},
    tasks::Tasks,
    telemetry::Metrics,
};
use selvage_lvmd::{
    Lvmd, NewVolume, Settings, Volume, Volumes,
    config::{BackendKind, Config},
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Served {
    lvmd: Lvmd,
    metrics: Metrics,
    tasks: Tasks,
    channel: Channel,
    images: Option<PathBuf>,
    /// Goes after the service, whatever is in it.
    _folder: Box<dyn std::any::Any>,
}

impl Served {
    /// Serves a configuration; what is kept is let go at the end.
    pub(crate) async fn start(config: Config, keep: Box<dyn std::any::Any>) -> Self {
        let socket = tempfile::tempdir().unwrap();
        let path = socket.path().join("lvmd.sock");
        let files = config.backend() == BackendKind::Loop;
        let images = files.then(|| config.loop_files.directory.join("tg"));
        let lvmd = Lvmd::open(Settings { config, path: None }).await.unwrap();
        let mut services = Services::default();
        lvmd.add_to(&mut services);
        let metrics = Metrics::new("test");
        lvmd.register(&metrics);
        let server = Server::new(services, metrics.clone(), Limits::default()).await.unwrap();
        let server = server.ready(lvmd.readiness());
        let tasks = Tasks::new(CancellationToken::new());
        let bound = Socket::unix(&path).await.unwrap();
        tasks.spawn("socket", server.run(bound, Trust::Socket, tasks.token().clone()));
        lvmd.spawn(&tasks);
        let endpoint = Endpoint::new(format!("unix:{}", path.display())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self { lvmd, metrics, tasks, channel, images, _folder: Box::new((keep, socket)) }
    }

    /// Ends as a process does that is told to.
    pub(crate) async fn stop(self) {
        self.tasks.token().cancel();
        let _ = self.tasks.shutdown(TIMEOUT).await;
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The page of metrics.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.render()
    }

    pub(crate) fn volumes(&self) -> &Volumes {
        self.lvmd.volumes()
    }

    pub(crate) fn backups(&self) -> BackupsServiceClient<Channel> {
        BackupsServiceClient::new(self.channel())
    }

    pub(crate) async fn create(&self, name: &str, size: u64) -> Volume {
        let new = NewVolume { name: name.into(), size, ..NewVolume::default() };
        self.volumes().create("", new).await.unwrap()
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<(), Status> {
        let request = RemoveLvRequest { name: name.into(), ..RemoveLvRequest::default() };
        LvServiceClient::new(self.channel()).remove_lv(request).await.map(|_| ())
    }

    pub(crate) async fn remove_from(&self, class: &str, name: &str) {
        assert!(self.volumes().remove(class, name).await.unwrap());
    }

    /// Returns the folder of the images of volumes, if they are in files.
    pub(crate) fn image_folder(&self) -> Option<PathBuf> {
        self.images.clone()
    }

    pub(crate) async fn resize(&self, name: &str, size_gb: u64) -> Result<(), Status> {
        let request = ResizeLvRequest { name: name.into(), size_gb, device_class: String::new() };
        LvServiceClient::new(self.channel()).resize_lv(request).await.map(|_| ())
    }

    /// The names that clients see.
    pub(crate) async fn names(&self) -> Result<Vec<String>, Status> {
        let mut groups = VgServiceClient::new(self.channel());
        let listed = groups.get_lv_list(GetLvListRequest::default()).await?.into_inner();
        Ok(listed.volumes.into_iter().map(|volume| volume.name).collect())
    }

    /// All names, also of what is not complete.
    pub(crate) fn all_names(&self) -> Vec<String> {
        let listed = self.volumes().list("").unwrap_or_default();
        listed.into_iter().map(|volume| volume.name).collect()
    }

    pub(crate) async fn limits(&self, read: u64, download: u64) {
        let limits = BackupLimits { read, download, upload: 0 };
        let request = SetBackupLimitsRequest { limits: Some(limits) };
        self.backups().set_backup_limits(request).await.unwrap();
    }

    pub(crate) async fn start_backup(&self, name: &str, volume: &str) -> Result<BackupJob, Status> {
        let request = StartBackupRequest {
            name: name.into(),
            volume: volume.into(),
            repository: Some(repository("")),
            request_id: String::new(),
        };
        Ok(self.backups().start_backup(request).await?.into_inner())
    }

    pub(crate) async fn start_restore(&self, backup: &str, volume: &str) -> BackupJob {
        let request = StartRestoreRequest {
            repository: Some(repository(&format!("@{backup}"))),
            volume: volume.into(),
            ..StartRestoreRequest::default()
        };
        self.backups().start_restore(request).await.unwrap().into_inner()
    }

    pub(crate) async fn cancel(&self, job: &BackupJob) {
        self.begin_to_cancel(job).await;
        self.ended(job).await;
    }

    pub(crate) async fn begin_to_cancel(&self, job: &BackupJob) {
        let request = CancelBackupRequest { id: job.id.clone() };
        self.backups().cancel_backup(request).await.unwrap();
    }

    /// Returns the backups in the repository.
    pub(crate) async fn stored(&self) -> Vec<StoredBackup> {
        let request =
            ListBackupsRequest { repository: Some(repository("")), volume: String::new() };
        self.backups().list_backups(request).await.unwrap().into_inner().backups
    }

    pub(crate) async fn orphans(&self) -> usize {
        let listed = self.backups().list_orphans(ListOrphansRequest {}).await.unwrap();
        listed.into_inner().orphans.len()
    }

    /// Waits until a job is at something.
    pub(crate) async fn until(
        &self,
        job: &BackupJob,
        fits: impl Fn(&BackupJob) -> bool,
    ) -> BackupJob {
        let request = WatchBackupRequest { id: job.id.clone() };
        let mut updates = self.backups().watch_backup(request).await.unwrap().into_inner();
        let waiting = async {
            let mut last = None;
            while let Some(job) = updates.message().await.unwrap() {
                if fits(&job) {
                    return job;
                }
                last = Some(job);
            }
            panic!("it came to an end: {last:?}")
        };
        tokio::time::timeout(TIMEOUT, waiting).await.expect("a job that gets on")
    }

    pub(crate) async fn ended(&self, job: &BackupJob) -> BackupJob {
        self.until(job, |job| job.ended_at.is_some()).await
    }

    /// Waits until something is so.
    pub(crate) async fn wait<F: Future<Output = bool>>(
        &self,
        what: &str,
        mut fits: impl FnMut() -> F,
    ) {
        selvage_testkit::wait_for(what, async || fits().await.then_some(())).await;
    }

    /// Writes something that cannot be guessed or made smaller.
    pub(crate) fn write(&self, group: &str, name: &str, offset: u64, length: usize, seed: u64) {
        let device = self.volumes().backend().open(group, name, true).unwrap();
        device.write_at(&noise(length, seed), offset).unwrap();
        device.sync().unwrap();
    }

    pub(crate) fn read(&self, group: &str, name: &str, offset: u64, length: usize) -> Vec<u8> {
        let device = self.volumes().backend().open(group, name, false).unwrap();
        let mut content = vec![0; length];
        device.read_at(&mut content, offset).unwrap();
        content
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.tasks.token().cancel();
    }
}

pub(crate) fn repository(selector: &str) -> Repository {
    Repository {
        path: format!("bucket/here{selector}"),
        endpoint: "file:".into(),
        encryption_key: "word".into(),
        ..Repository::default()
    }
}

/// Bytes that look random and are the same for the same seed.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
