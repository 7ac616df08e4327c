//! In front of a real tonic router, as the listener uses it.

use axum::body::Body;
use futures::{Stream, StreamExt, stream};
use http::Request;
use http_body_util::BodyExt;
use selvage_api::{
    edgeproto::{
        Flavor, FlavorKey, Result as EdgeResult,
        flavor_api_server::{FlavorApi, FlavorApiServer},
    },
    services::auth::{
        CheckTokenRequest, CheckTokenResponse, LoginRequest, LoginResponse, LogoutRequest,
        LogoutResponse,
        auth_service_server::{AuthService, AuthServiceServer},
    },
};
use selvage_transcode::Transcoder;
use std::pin::Pin;
use tonic::{Response, Status, metadata::MetadataValue, service::Routes};
use tower::ServiceExt;

use crate::harness::{LIMITS, envelopes, post, raw_frame};

struct Flavors;

#[tonic::async_trait]
impl FlavorApi for Flavors {
    type ShowFlavorStream = Pin<Box<dyn Stream<Item = Result<Flavor, Status>> + Send>>;

    async fn create_flavor(
        &self,
        _: tonic::Request<Flavor>,
    ) -> Result<Response<EdgeResult>, Status> {
        Err(Status::unknown("Key already exists"))
    }

    async fn delete_flavor(
        &self,
        _: tonic::Request<Flavor>,
    ) -> Result<Response<EdgeResult>, Status> {
        Ok(Response::new(EdgeResult::default()))
    }

    async fn update_flavor(
        &self,
        _: tonic::Request<Flavor>,
    ) -> Result<Response<EdgeResult>, Status> {
        Err(Status::unimplemented("flavors do not change"))
    }

    async fn show_flavor(
        &self,
        request: tonic::Request<Flavor>,
    ) -> Result<Response<Self::ShowFlavorStream>, Status> {
        let name = request.into_inner().key.unwrap_or_default().name;
        if name == "none" {
            return Err(Status::not_found("no such flavor"));
        }
        let flavor =
            Flavor { key: Some(FlavorKey { name: name.clone() }), ram: 1, ..Default::default() };
        let mut items = vec![Ok(flavor)];
        if name == "late" {
            items.push(Err(Status::aborted("lost the store")));
        }
        Ok(Response::new(stream::iter(items).boxed()))
    }
}

struct Auth;

#[tonic::async_trait]
impl AuthService for Auth {
    async fn login(
        &self,
        request: tonic::Request<LoginRequest>,
    ) -> Result<Response<LoginResponse>, Status> {
        assert_eq!(request.metadata().get("x-selvage-protocol").unwrap(), "connect");
        let login = request.into_inner();
        if login.password != "right" {
            let mut refused = Status::unauthenticated("wrong user name or password");
            refused.metadata_mut().insert("retry-after", MetadataValue::from_static("3"));
            return Err(refused);
        }
        let mut response =
            Response::new(LoginResponse { account_id: login.username, ..Default::default() });
        response.metadata_mut().insert("set-cookie", MetadataValue::from_static("sid=1"));
        Ok(response)
    }

    async fn logout(
        &self,
        _: tonic::Request<LogoutRequest>,
    ) -> Result<Response<LogoutResponse>, Status> {
        Ok(Response::new(LogoutResponse { success: true }))
    }

    async fn check_token(
        &self,
        _: tonic::Request<CheckTokenRequest>,
    ) -> Result<Response<CheckTokenResponse>, Status> {
        Err(Status::deadline_exceeded("slow"))
    }
}

async fn answer(request: Request<Body>) -> (u16, http::HeaderMap, Vec<u8>) {
    let routes =
        Routes::new(FlavorApiServer::new(Flavors)).add_service(AuthServiceServer::new(Auth));
    let response = Transcoder::new(routes.prepare(), LIMITS).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    (parts.status.as_u16(), parts.headers, body)
}

fn rest(path: &str, body: &'static str) -> Request<Body> {
    post(path, "application/json", body)
}

#[tokio::test]
async fn rest_calls_reach_handlers() {
    let (status, _, body) = answer(rest("/create/flavor", "{}")).await;
    assert_eq!(status, 500);
    let text = String::from_utf8(body).unwrap();
    assert!(text.contains("\"Key already exists\"") && text.contains("\"code\": 2"), "{text}");

    let (status, _, body) = answer(rest("/show/flavor", r#"{"key":{"name":"late"}}"#)).await;
    let text = String::from_utf8(body).unwrap();
    assert_eq!(status, 200);
    assert!(text.contains("\"ram\": \"1\"") && text.contains("lost the store"), "{text}");

    let (status, _, _) = answer(rest("/show/flavor", r#"{"key":{"name":"none"}}"#)).await;
    assert_eq!(status, 404);
    // A contract whose part is not in this router.
    let (status, _, _) = answer(rest("/show/app", "{}")).await;
    assert_eq!(status, 501);
}

#[tokio::test]
async fn connect_calls_reach_handlers() {
    let path = "/api/services.auth.AuthService/Login";
    let (status, headers, body) =
        answer(rest(path, r#"{"username":"ann","password":"right"}"#)).await;
    assert_eq!((status, body.as_slice()), (200, br#"{"accountId":"ann"}"#.as_slice()));
    assert_eq!(headers["set-cookie"], "sid=1");

    let (status, headers, body) = answer(rest(path, "{}")).await;
    assert_eq!(status, 401);
    assert_eq!(headers["retry-after"], "3");
    let expected = br#"{"code":"unauthenticated","message":"wrong user name or password"}"#;
    assert_eq!(body, expected);

    let request = raw_frame(0, br#"{"key":{"name":"late"}}"#);
    let show = post("/edgeproto.FlavorApi/ShowFlavor", "application/connect+json", request);
    let (_, _, body) = answer(show).await;
    let found = envelopes(&body);
    assert_eq!(found[0].1, br#"{"key":{"name":"late"},"ram":"1"}"#);
    assert_eq!(found[1].0, 2);
    assert_eq!(found[1].1, br#"{"error":{"code":"aborted","message":"lost the store"}}"#);
}
