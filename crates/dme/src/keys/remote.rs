//! Keys from a controller elsewhere.

use async_trait::async_trait;
use selvage_api::selvage::matching::{
    CookieKey, ListCookieKeysRequest, matching_service_client::MatchingServiceClient,
};
use tonic::transport::Channel;

use super::KeySource;
use crate::error::{Error, Result};

/// Timeout of a call to the controller.
const CONTROLLER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Keys that the controller hands out.
#[derive(Debug, Clone)]
pub struct RemoteKeys(MatchingServiceClient<Channel>);

impl RemoteKeys {
    /// Creates a source of keys on a connection on which the engine shows its
    /// certificate.
    pub fn new(channel: Channel) -> Self {
        Self(MatchingServiceClient::new(channel))
    }
}

#[async_trait]
impl KeySource for RemoteKeys {
    async fn keys(&self) -> Result<Vec<CookieKey>> {
        let mut request = tonic::Request::new(ListCookieKeysRequest {});
        request.set_timeout(CONTROLLER_TIMEOUT);
        let answer = self.0.clone().list_cookie_keys(request).await;
        Ok(answer.map_err(|status| Error::Controller(Box::new(status)))?.into_inner().keys)
    }
}
