//! `selvage.kubernetes.MemberService`.

use futures::{StreamExt, stream::BoxStream};
use selvage_api::selvage::kubernetes::{
    AddEtcdMemberRequest, AddEtcdMemberResponse, ApplyRequest, ApplyResponse, GetMemberRequest,
    GetMemberResponse, ListEtcdMembersRequest, ListEtcdMembersResponse, MemberStatus, Profile,
    PromoteEtcdMemberRequest, PromoteEtcdMemberResponse, PutArtifactRequest, PutArtifactResponse,
    RemoveEtcdMemberRequest, RemoveEtcdMemberResponse, RequestCertificatesRequest,
    RequestCertificatesResponse, ResetRequest, ResetResponse, RestoreEtcdRequest,
    RestoreEtcdResponse, SnapshotEtcdRequest, SnapshotEtcdResponse, WatchMemberRequest,
    member_service_server::{MemberService, MemberServiceServer},
};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{Error, MemberAgent, artifact, etcd_members, spec};

type Answer<T> = Result<Response<T>, Status>;

impl MemberAgent {
    /// The service to mount.
    pub fn service(&self) -> MemberServiceServer<Self> {
        MemberServiceServer::new(self.clone())
    }
}

fn invalid(text: &str) -> Status {
    Error::Invalid(vec![text.to_owned()]).into()
}

#[tonic::async_trait]
impl MemberService for MemberAgent {
    async fn request_certificates(
        &self,
        request: Request<RequestCertificatesRequest>,
    ) -> Answer<RequestCertificatesResponse> {
        let request = request.into_inner();
        if !spec::is_label(&request.cluster) {
            return Err(invalid("cluster: must be a DNS label"));
        }
        let profiles: Vec<Profile> = request.profiles().collect();
        if profiles.is_empty() || profiles.contains(&Profile::Unspecified) {
            return Err(invalid("profiles: at least one is needed, and only known ones"));
        }
        let requests = self.request(&request.cluster, profiles, request.renew).await?;
        Ok(Response::new(RequestCertificatesResponse { requests }))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Answer<ApplyResponse> {
        let Some(spec) = request.into_inner().spec else {
            return Err(invalid("spec: is needed"));
        };
        let generation = MemberAgent::apply(self, spec).await?;
        Ok(Response::new(ApplyResponse { generation }))
    }

    async fn get_member(&self, _: Request<GetMemberRequest>) -> Answer<GetMemberResponse> {
        let status = self.watch().borrow().clone();
        Ok(Response::new(GetMemberResponse { messages: vec![status] }))
    }

    type WatchMemberStream = BoxStream<'static, Result<MemberStatus, Status>>;

    async fn watch_member(
        &self,
        _: Request<WatchMemberRequest>,
    ) -> Answer<Self::WatchMemberStream> {
        Ok(Response::new(WatchStream::new(self.watch()).map(Ok).boxed()))
    }

    async fn reset(&self, request: Request<ResetRequest>) -> Answer<ResetResponse> {
        let cluster = request.into_inner().cluster;
        if !spec::is_label(&cluster) {
            return Err(invalid("cluster: must be a DNS label"));
        }
        let agent = self.clone();
        // It goes on when whoever asked has gone.
        let reset = tokio::spawn(async move { MemberAgent::reset(&agent, &cluster).await });
        let (removed, left) =
            reset.await.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Response::new(ResetResponse { removed, left }))
    }

    async fn list_etcd_members(
        &self,
        _: Request<ListEtcdMembersRequest>,
    ) -> Answer<ListEtcdMembersResponse> {
        let members = etcd_members::list(&mut self.etcd().await?).await?;
        Ok(Response::new(ListEtcdMembersResponse { members }))
    }

    async fn add_etcd_member(
        &self,
        request: Request<AddEtcdMemberRequest>,
    ) -> Answer<AddEtcdMemberResponse> {
        let peer = request.into_inner().peer.unwrap_or_default();
        if !spec::is_label(&peer.name) || peer.address.parse::<std::net::IpAddr>().is_err() {
            return Err(invalid("peer: needs a name and an IP address"));
        }
        let (member, peers) = etcd_members::add(&mut self.etcd().await?, &peer).await?;
        Ok(Response::new(AddEtcdMemberResponse { member: Some(member), peers }))
    }

    async fn promote_etcd_member(
        &self,
        request: Request<PromoteEtcdMemberRequest>,
    ) -> Answer<PromoteEtcdMemberResponse> {
        etcd_members::promote(&mut self.etcd().await?, &request.into_inner().name).await?;
        Ok(Response::new(PromoteEtcdMemberResponse {}))
    }

    async fn remove_etcd_member(
        &self,
        request: Request<RemoveEtcdMemberRequest>,
    ) -> Answer<RemoveEtcdMemberResponse> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(invalid("name: is needed"));
        }
        etcd_members::remove(&mut self.etcd().await?, &name).await?;
        Ok(Response::new(RemoveEtcdMemberResponse {}))
    }

    type SnapshotEtcdStream = BoxStream<'static, Result<SnapshotEtcdResponse, Status>>;

    async fn snapshot_etcd(
        &self,
        _: Request<SnapshotEtcdRequest>,
    ) -> Answer<Self::SnapshotEtcdStream> {
        let mut client = self.etcd().await?;
        let snapshot = client.snapshot().await.map_err(Error::from)?;
        let pieces = futures::stream::try_unfold(snapshot, |mut snapshot| async move {
            let piece = snapshot.message().await.map_err(Error::from)?;
            let data = piece.map(|piece| SnapshotEtcdResponse { data: piece.blob().to_vec() });
            Ok::<_, Status>(data.map(|data| (data, snapshot)))
        });
        Ok(Response::new(pieces.boxed()))
    }

    async fn restore_etcd(
        &self,
        request: Request<Streaming<RestoreEtcdRequest>>,
    ) -> Answer<RestoreEtcdResponse> {
        let mut pieces = request.into_inner();
        let first = pieces.message().await?.unwrap_or_default();
        let peer = first.peer.unwrap_or_default();
        if !spec::is_label(&first.cluster) {
            return Err(invalid("cluster: must be a DNS label"));
        }
        if !spec::is_label(&peer.name) || peer.address.parse::<std::net::IpAddr>().is_err() {
            return Err(invalid("peer: needs a name and an IP address"));
        }
        if !spec::is_version(&first.version) {
            return Err(invalid("version: is no version"));
        }
        let Some(mut coming) = self.restore(&first.cluster, peer, &first.version)? else {
            return Ok(Response::new(RestoreEtcdResponse {}));
        };
        coming.write(&first.data)?;
        while let Some(piece) = pieces.message().await? {
            coming.write(&piece.data)?;
        }
        coming.finish().await?;
        Ok(Response::new(RestoreEtcdResponse {}))
    }

    async fn put_artifact(
        &self,
        request: Request<Streaming<PutArtifactRequest>>,
    ) -> Answer<PutArtifactResponse> {
        let mut pieces = request.into_inner();
        let Some(first) = pieces.message().await? else {
            return Err(invalid("artifact: is needed"));
        };
        let artifact = first.artifact.clone().unwrap_or_default();
        let plain = |text: &str| {
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '~');
            !text.is_empty() && !text.starts_with('.') && text.chars().all(fine)
        };
        let known = artifact::FOLDERS.contains(&artifact.folder.as_str());
        if !known || !plain(&artifact.name) || !plain(&artifact.version) {
            return Err(invalid("artifact: needs a known folder, a name and a version"));
        }
        let mut coming =
            self.artifacts().begin(&artifact.folder, &artifact.version, &artifact.name)?;
        coming.write(&first.data)?;
        while let Some(piece) = pieces.message().await? {
            coming.write(&piece.data)?;
        }
        coming.finish(&first.sha256)?;
        self.reconcile_now();
        Ok(Response::new(PutArtifactResponse {}))
    }
}
