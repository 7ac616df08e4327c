//! Hands the keys in the store to engines elsewhere.

use std::sync::Arc;

use selvage_api::selvage::matching::{
    ListCookieKeysRequest, ListCookieKeysResponse,
    matching_service_server::{MatchingService, MatchingServiceServer},
};
use tonic::{Request, Response, Status};

use super::KeySource;

/// `selvage.matching`, served where the store is.
pub struct KeyService(Arc<dyn KeySource>);

impl KeyService {
    pub fn service(source: Arc<dyn KeySource>) -> MatchingServiceServer<Self> {
        MatchingServiceServer::new(Self(source))
    }
}

#[tonic::async_trait]
impl MatchingService for KeyService {
    async fn list_cookie_keys(
        &self,
        _: Request<ListCookieKeysRequest>,
    ) -> Result<Response<ListCookieKeysResponse>, Status> {
        let keys = self.0.keys().await?;
        Ok(Response::new(ListCookieKeysResponse { keys }))
    }
}
