//! `selvage.clusters`.

use std::pin::Pin;

use selvage_api::selvage::clusters::{
    AbortUpgradeRequest, AbortUpgradeResponse, BackupClusterRequest, BackupClusterResponse,
    DeleteBackupRequest, DeleteBackupResponse, GetClusterRequest, GetClusterResponse,
    HibernateClusterRequest, HibernateClusterResponse, ListBackupsRequest, ListBackupsResponse,
    ListEventsRequest, ListEventsResponse, ListQuarantinedMachinesRequest,
    ListQuarantinedMachinesResponse, ListVersionsRequest, ListVersionsResponse,
    PauseClusterRequest, PauseClusterResponse, PlanClusterRequest, PlanClusterResponse,
    ReleaseQuarantinedMachineRequest, ReleaseQuarantinedMachineResponse, RestoreClusterRequest,
    RestoreClusterResponse, ResumeClusterRequest, ResumeClusterResponse, RotateCertificatesRequest,
    RotateCertificatesResponse, Version, WakeClusterRequest, WakeClusterResponse,
    WatchClusterRequest, WatchClusterResponse,
    cluster_service_server::{ClusterService, ClusterServiceServer},
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{caller, describe, origin};
use crate::{Caller, Error, Manager, plan::Snapshot};

/// Changes that wait for a slow reader.
const BACKLOG: usize = 4;

/// `selvage.clusters`: methods beyond the published contract.
#[derive(Debug)]
pub struct Clusters {
    manager: Manager,
    stop: CancellationToken,
}

impl Clusters {
    /// Streams end when the token is cancelled.
    pub fn new(manager: Manager, stop: CancellationToken) -> Self {
        Self { manager, stop }
    }

    pub(crate) fn service(manager: Manager, stop: CancellationToken) -> ClusterServiceServer<Self> {
        ClusterServiceServer::new(Self::new(manager, stop))
    }

    fn seen(&self, caller: &Caller, name: &str) -> Result<Snapshot, Error> {
        let snapshot = self.manager.find(name)?;
        caller.check_sees(&snapshot.cluster)?;
        Ok(snapshot)
    }

    fn shown(&self, snapshot: &Snapshot) -> selvage_api::selvage::clusters::Cluster {
        describe::cluster(&self.manager, snapshot)
    }
}

#[tonic::async_trait]
impl ClusterService for Clusters {
    async fn get_cluster(
        &self,
        request: Request<GetClusterRequest>,
    ) -> Result<Response<GetClusterResponse>, Status> {
        let snapshot = self.seen(&caller(&request), &request.get_ref().name)?;
        Ok(Response::new(GetClusterResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    type WatchClusterStream =
        Pin<Box<dyn Stream<Item = Result<WatchClusterResponse, Status>> + Send>>;

    async fn watch_cluster(
        &self,
        request: Request<WatchClusterRequest>,
    ) -> Result<Response<Self::WatchClusterStream>, Status> {
        let name = request.get_ref().name.clone();
        let uid = self.seen(&caller(&request), &name)?.cluster.uid;
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let (manager, stop) = (self.manager.clone(), self.stop.clone());
        tokio::spawn(async move {
            let watched = watch(&manager, &name, &uid, &sender);
            tokio::select! {
                () = watched => {}
                () = stop.cancelled() => {
                    let _ = sender.send(Err(Status::unavailable("the process is stopping"))).await;
                }
                () = sender.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn list_events(
        &self,
        request: Request<ListEventsRequest>,
    ) -> Result<Response<ListEventsResponse>, Status> {
        let snapshot = self.seen(&caller(&request), &request.get_ref().name)?;
        Ok(Response::new(ListEventsResponse { events: describe::events(&snapshot) }))
    }

    async fn plan_cluster(
        &self,
        request: Request<PlanClusterRequest>,
    ) -> Result<Response<PlanClusterResponse>, Status> {
        let (caller, origin) = (caller(&request), origin(&request));
        let actions = self.manager.plan(&caller, &origin, request.get_ref()).await?;
        let steps = actions.iter().map(ToString::to_string).collect();
        Ok(Response::new(PlanClusterResponse { steps }))
    }

    async fn pause_cluster(
        &self,
        request: Request<PauseClusterRequest>,
    ) -> Result<Response<PauseClusterResponse>, Status> {
        let caller = caller(&request);
        let snapshot = self.manager.pause(&caller, &request.get_ref().name, true).await?;
        Ok(Response::new(PauseClusterResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    async fn resume_cluster(
        &self,
        request: Request<ResumeClusterRequest>,
    ) -> Result<Response<ResumeClusterResponse>, Status> {
        let caller = caller(&request);
        let snapshot = self.manager.pause(&caller, &request.get_ref().name, false).await?;
        Ok(Response::new(ResumeClusterResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    async fn abort_upgrade(
        &self,
        request: Request<AbortUpgradeRequest>,
    ) -> Result<Response<AbortUpgradeResponse>, Status> {
        let caller = caller(&request);
        let snapshot = self.manager.abort_upgrade(&caller, &request.get_ref().name).await?;
        Ok(Response::new(AbortUpgradeResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    async fn hibernate_cluster(
        &self,
        request: Request<HibernateClusterRequest>,
    ) -> Result<Response<HibernateClusterResponse>, Status> {
        let caller = caller(&request);
        let snapshot = self.manager.hibernate(&caller, &request.get_ref().name).await?;
        Ok(Response::new(HibernateClusterResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    async fn wake_cluster(
        &self,
        request: Request<WakeClusterRequest>,
    ) -> Result<Response<WakeClusterResponse>, Status> {
        let caller = caller(&request);
        let snapshot = self.manager.wake(&caller, &request.get_ref().name).await?;
        Ok(Response::new(WakeClusterResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    async fn rotate_certificates(
        &self,
        request: Request<RotateCertificatesRequest>,
    ) -> Result<Response<RotateCertificatesResponse>, Status> {
        let caller = caller(&request);
        let snapshot = self.manager.rotate(&caller, &request.get_ref().name).await?;
        Ok(Response::new(RotateCertificatesResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    async fn list_quarantined_machines(
        &self,
        _: Request<ListQuarantinedMachinesRequest>,
    ) -> Result<Response<ListQuarantinedMachinesResponse>, Status> {
        let machines = self.manager.quarantined().iter().map(describe::quarantined).collect();
        Ok(Response::new(ListQuarantinedMachinesResponse { machines }))
    }

    async fn release_quarantined_machine(
        &self,
        request: Request<ReleaseQuarantinedMachineRequest>,
    ) -> Result<Response<ReleaseQuarantinedMachineResponse>, Status> {
        self.manager.release_quarantined(&request.get_ref().provider_id).await?;
        Ok(Response::new(ReleaseQuarantinedMachineResponse {}))
    }

    async fn backup_cluster(
        &self,
        request: Request<BackupClusterRequest>,
    ) -> Result<Response<BackupClusterResponse>, Status> {
        let caller = caller(&request);
        let taken = self.manager.backup(&caller, &request.get_ref().name).await?;
        let backup = Some(describe::backup(&self.manager, &taken));
        Ok(Response::new(BackupClusterResponse { backup }))
    }

    async fn list_backups(
        &self,
        request: Request<ListBackupsRequest>,
    ) -> Result<Response<ListBackupsResponse>, Status> {
        let known = self.manager.backups(&caller(&request), &request.get_ref().name);
        let backups = known.iter().map(|one| describe::backup(&self.manager, one)).collect();
        Ok(Response::new(ListBackupsResponse { backups }))
    }

    async fn delete_backup(
        &self,
        request: Request<DeleteBackupRequest>,
    ) -> Result<Response<DeleteBackupResponse>, Status> {
        self.manager.delete_backup(&caller(&request), &request.get_ref().id).await?;
        Ok(Response::new(DeleteBackupResponse {}))
    }

    async fn restore_cluster(
        &self,
        request: Request<RestoreClusterRequest>,
    ) -> Result<Response<RestoreClusterResponse>, Status> {
        let caller = caller(&request);
        let RestoreClusterRequest { id, name } = request.into_inner();
        let snapshot = self.manager.restore(&caller, &id, &name).await?;
        Ok(Response::new(RestoreClusterResponse { cluster: Some(self.shown(&snapshot)) }))
    }

    async fn list_versions(
        &self,
        _: Request<ListVersionsRequest>,
    ) -> Result<Response<ListVersionsResponse>, Status> {
        let releases = self.manager.catalogue().releases();
        let version = |release: &crate::catalogue::Release| Version {
            kubernetes: release.version.to_string(),
            etcd: release.etcd.clone(),
            containerd: release.containerd.clone(),
            cni: release.cni.clone(),
            coredns: release.coredns.clone(),
        };
        let provider = self.manager.provider();
        Ok(Response::new(ListVersionsResponse {
            versions: releases.iter().map(version).collect(),
            provider: provider.name().to_owned(),
            problem: provider.capabilities().problem.unwrap_or_default(),
        }))
    }
}

/// Sends a cluster after each of its changes, until it is gone.
async fn watch(
    manager: &Manager,
    name: &str,
    uid: &str,
    sender: &mpsc::Sender<Result<WatchClusterResponse, Status>>,
) {
    let mut clusters = manager.clusters().subscribe_key(name);
    let mut machines = manager.machines().subscribe();
    let mut last = None;
    loop {
        let known = manager.snapshot(name).filter(|known| known.cluster.uid == uid);
        let cluster = known.as_ref().map(|known| describe::cluster(manager, known));
        let gone = cluster.is_none();
        if last.as_ref() != Some(&cluster) {
            let answer = WatchClusterResponse { cluster: cluster.clone() };
            if sender.send(Ok(answer)).await.is_err() {
                return;
            }
            last = Some(cluster);
        }
        if gone {
            return;
        }
        let more = tokio::select! {
            change = clusters.next() => change.is_some(),
            change = machines.next() => change.is_some(),
        };
        if !more {
            return;
        }
    }
}
