#![allow(clippy::all, clippy::unwrap_used)]
use axum::{Router, routing::get, response::IntoResponse, body::Body};
use selvage_api::edgeproto::{*, flavor_api_server::*};
use selvage_api::services::auth::{*, auth_service_server::*};
use selvage_api::selvage::identity::{WhoAmIResponse, Grant};
use tonic::{Response, Status};
use std::pin::Pin;
use futures::{Stream, StreamExt};
struct F; struct A;
#[tonic::async_trait]
impl FlavorApi for F {
    type ShowFlavorStream = Pin<Box<dyn Stream<Item = std::result::Result<Flavor, Status>> + Send>>;
    async fn create_flavor(&self, _: tonic::Request<Flavor>) -> std::result::Result<Response<selvage_api::edgeproto::Result>, Status> { Err(Status::already_exists("Key already exists")) }
    async fn delete_flavor(&self, _: tonic::Request<Flavor>) -> std::result::Result<Response<selvage_api::edgeproto::Result>, Status> { Ok(Response::new(Default::default())) }
    async fn update_flavor(&self, _: tonic::Request<Flavor>) -> std::result::Result<Response<selvage_api::edgeproto::Result>, Status> { Err(Status::unimplemented("flavors do not change")) }
    async fn show_flavor(&self, _: tonic::Request<Flavor>) -> std::result::Result<Response<Self::ShowFlavorStream>, Status> {
        Ok(Response::new(futures::stream::iter(0..3).map(|i| Ok(Flavor{ key: Some(FlavorKey{name: format!("x{i}.small")}), ram: 2048, vcpus: 2, disk: 2, ..Default::default()})).boxed()))
    }
}
#[tonic::async_trait]
impl AuthService for A {
    async fn login(&self, r: tonic::Request<LoginRequest>) -> std::result::Result<Response<LoginResponse>, Status> {
        if r.get_ref().password != "right" { return Err(Status::unauthenticated("wrong user name or password")); }
        let mut x = Response::new(LoginResponse::default());
        x.metadata_mut().insert("set-cookie", "sid=1; Path=/; HttpOnly".parse().unwrap());
        Ok(x)
    }
    async fn logout(&self, _: tonic::Request<LogoutRequest>) -> std::result::Result<Response<LogoutResponse>, Status> {
        let mut x = Response::new(LogoutResponse{success:true});
        x.metadata_mut().insert("set-cookie", "sid=; Path=/; Max-Age=0".parse().unwrap());
        Ok(x)
    }
    async fn check_token(&self, _: tonic::Request<CheckTokenRequest>) -> std::result::Result<Response<CheckTokenResponse>, Status> { Err(Status::deadline_exceeded("slow")) }
}
#[tokio::main]
async fn main() {
    let routes = tonic::service::Routes::new(FlavorApiServer::new(F)).add_service(AuthServiceServer::new(A)).prepare();
    let t = selvage_transcode::Transcoder::new(routes, selvage_transcode::Limits{max_request: 1<<20, max_response_unary: 1<<20});
    let page = |uri: http::Uri| async move { match selvage_transcode::page(uri.path()) {
        Some((c,b)) => ([("content-type", c), ("content-security-policy", selvage_transcode::CONTENT_SECURITY_POLICY)], b).into_response(), None => http::StatusCode::NOT_FOUND.into_response() } };
    let app = Router::new().route("/docs", get(page)).route("/docs/{f}", get(page))
        .route("/openapi.json", get(|| async { axum::Json(selvage_transcode::openapi("0.1.0", "__Host-sid")) }))
        .route("/selvage.identity.IdentityService/WhoAmI", axum::routing::post(|h: http::HeaderMap| async move {
            if h.get("cookie").is_some_and(|c| c.to_str().unwrap().contains("sid=1")) {
                (http::StatusCode::OK, axum::Json(serde_json::json!({"name":"admin","kind":"user","grants":[{"role":"admin"}]})))
            } else { (http::StatusCode::UNAUTHORIZED, axum::Json(serde_json::json!({"code":"unauthenticated","message":"log in first"}))) } }))
        .fallback_service(t);
    let _ = (WhoAmIResponse::default(), Grant::default(), Body::empty());
    let l = tokio::net::TcpListener::bind("127.0.0.1:18099").await.unwrap();
    axum::serve(l, app).await.unwrap();
}
