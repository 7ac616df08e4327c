//! Volumes of a service that says what it is told to say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use selvage_api::proto::{
    CreateBackupRequest, CreateBackupResponse, CreateLvRequest, CreateLvResponse, Empty,
    GetFreeBytesRequest, GetFreeBytesResponse, GetLvListRequest, GetLvListResponse, LogicalVolume,
    RemoveLvRequest, ResizeLvRequest, WatchItem, WatchResponse,
    lv_service_server::{LvService, LvServiceServer},
    vg_service_server::{VgService, VgServiceServer},
};
use tonic::{Request, Response, Status};

use super::*;

/// A service with one volume of the instance `web`, which is in use for so
/// many more requests.
#[derive(Clone)]
struct Service {
    in_use: Arc<AtomicUsize>,
    code: tonic::Code,
}

type Answer<T> = std::result::Result<Response<T>, Status>;

#[tonic::async_trait]
impl LvService for Service {
    async fn create_lv(&self, _: Request<CreateLvRequest>) -> Answer<CreateLvResponse> {
        Err(Status::unimplemented("create"))
    }

    async fn remove_lv(&self, _: Request<RemoveLvRequest>) -> Answer<Empty> {
        let left = self.in_use.load(Ordering::SeqCst);
        if left == 0 {
            return Ok(Response::new(Empty {}));
        }
        self.in_use.store(left - 1, Ordering::SeqCst);
        Err(Status::new(self.code, "Logical volume web-data contains a filesystem in use."))
    }

    async fn resize_lv(&self, _: Request<ResizeLvRequest>) -> Answer<Empty> {
        Err(Status::unimplemented("resize"))
    }

    async fn create_backup(&self, _: Request<CreateBackupRequest>) -> Answer<CreateBackupResponse> {
        Err(Status::unimplemented("backup"))
    }
}

#[tonic::async_trait]
impl VgService for Service {
    type WatchStream =
        futures::stream::BoxStream<'static, std::result::Result<WatchResponse, Status>>;

    async fn get_lv_list(&self, _: Request<GetLvListRequest>) -> Answer<GetLvListResponse> {
        let tags = vec![format!("{TAG}=web")];
        let volume = LogicalVolume { name: "web-data".into(), tags, ..LogicalVolume::default() };
        Ok(Response::new(GetLvListResponse { volumes: vec![volume] }))
    }

    async fn get_free_bytes(
        &self,
        _: Request<GetFreeBytesRequest>,
    ) -> Answer<GetFreeBytesResponse> {
        Err(Status::unimplemented("free"))
    }

    async fn watch(&self, _: Request<Empty>) -> Answer<Self::WatchStream> {
        let items = vec![WatchItem { device_class: "ssd".into(), ..WatchItem::default() }];
        let response = WatchResponse { items, ..WatchResponse::default() };
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(response)]))))
    }
}

/// Removes the volumes of `web`: what comes of it, how many refusals are left,
/// and whether the folder is.
async fn removed(in_use: usize, code: tonic::Code) -> (Result<()>, usize, bool) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("lvmd.sock");
    let service = Service { in_use: Arc::new(AtomicUsize::new(in_use)), code };
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(LvServiceServer::new(service.clone()))
        .add_service(VgServiceServer::new(service.clone()))
        .serve_with_incoming(tokio_stream::wrappers::UnixListenerStream::new(listener));
    let server = tokio::spawn(server);
    let volumes = Volumes::new(socket, directory.path());
    let folder = directory.path().join("volumes/web");
    fs::create_dir_all(folder.join("data")).unwrap();
    let outcome = volumes.remove("web").await;
    server.abort();
    (outcome, service.in_use.load(Ordering::SeqCst), folder.exists())
}

#[tokio::test]
async fn a_volume_that_is_in_use_for_a_moment_is_removed_after_it() {
    let (outcome, refusals, left) = removed(3, tonic::Code::FailedPrecondition).await;
    outcome.unwrap();
    assert_eq!((refusals, left), (0, false));
}

#[tokio::test]
async fn what_is_refused_for_another_reason_is_not_tried_again() {
    let (outcome, refusals, left) = removed(3, tonic::Code::Internal).await;
    let text = outcome.unwrap_err().to_string();
    assert!(text.starts_with("volume web-data: Logical volume"), "{text}");
    assert_eq!((refusals, left), (2, true));
}
