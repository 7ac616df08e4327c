//! Calls of a member to its controller.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use selvage_api::selvage::identity::{
    CertificateResponse, CheckAssertionRequest, CheckCertificateRequest, IssueAssertionsRequest,
    IssueAssertionsResponse, JoinRequest, RenewRequest, ReportRequest, ReportResponse,
    WatchBlockedMachinesRequest, WhoAmIRequest, WhoAmIResponse,
    identity_service_client::IdentityServiceClient,
};
use selvage_kit::{
    dial::{self, Endpoint},
    identity::Secret,
    serve::UNATTENDED,
};
use tonic::{Request, Response, Status, metadata::MetadataValue, transport::Channel};

/// Timeout of the controller's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Lists of blocked machines, one after another.
pub type BlockedLists = BoxStream<'static, Result<Vec<String>, Status>>;

/// The controller, as its members see it.
#[async_trait]
pub trait Controller: Send + Sync + 'static {
    /// Trades a token for a first certificate.
    async fn join(&self, token: &Secret, csr_pem: &str) -> Result<CertificateResponse, Status>;

    /// A new certificate for the one that is shown.
    async fn renew(&self, csr_pem: &str) -> Result<CertificateResponse, Status>;

    /// Takes down where the machine is and tells of the others.
    async fn report(&self, report: ReportRequest) -> Result<ReportResponse, Status>;

    /// Returns the list of blocked machines, and a new one after every change.
    async fn blocked_machines(&self) -> Result<BlockedLists, Status>;

    /// Returns the owner of this token. Unless that is attended to, asking is no
    /// use of the owner's session.
    async fn who_is(&self, token: &Secret, attended: bool) -> Result<WhoAmIResponse, Status>;

    /// Returns the owner of a person's certificate with this digest.
    async fn whose_certificate(&self, sha256: &str) -> Result<WhoAmIResponse, Status>;

    /// Has the owner of this token vouched for, at each of these machines for
    /// this method.
    async fn issue_assertions(
        &self,
        token: &Secret,
        asked: IssueAssertionsRequest,
    ) -> Result<IssueAssertionsResponse, Status>;

    /// Returns the caller of an assertion, if the right to the call is left.
    async fn check_assertion(&self, assertion: &Secret) -> Result<WhoAmIResponse, Status>;
}

/// A controller elsewhere. It is called when it is needed and may be away.
#[derive(Clone)]
pub struct RemoteController(IdentityServiceClient<Channel>);

impl RemoteController {
    /// Of several, the first that is there whenever a connection is made.
    pub(super) fn new(
        endpoints: &[Endpoint],
        tls: Arc<rustls::ClientConfig>,
    ) -> Result<Self, Status> {
        let channel = dial::channel(Some(tls), endpoints)?;
        Ok(Self(IdentityServiceClient::new(channel).max_decoding_message_size(32 << 20)))
    }
}

async fn in_time<T>(
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    let late = || Status::deadline_exceeded("the controller did not answer in time");
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(late()));
    answer.map(Response::into_inner).map_err(with_causes)
}

/// A request with the token of a person.
fn showing<T>(token: &Secret, message: T) -> Result<Request<T>, Status> {
    let mut shown: MetadataValue<_> = format!("Bearer {}", token.expose())
        .parse()
        .map_err(|_| Status::unauthenticated("the token is not text"))?;
    shown.set_sensitive(true);
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", shown);
    Ok(request)
}

/// Of a connection that fails, only the causes say why.
fn with_causes(status: Status) -> Status {
    let cause = std::error::Error::source(&status);
    Status::new(status.code(), selvage_api::with_causes(status.message().to_owned(), cause))
}

#[async_trait]
impl Controller for RemoteController {
    async fn join(&self, token: &Secret, csr_pem: &str) -> Result<CertificateResponse, Status> {
        let request = JoinRequest { token: token.expose().to_owned(), csr: csr_pem.to_owned() };
        in_time(self.0.clone().join(request)).await
    }

    async fn renew(&self, csr_pem: &str) -> Result<CertificateResponse, Status> {
        in_time(self.0.clone().renew(RenewRequest { csr: csr_pem.to_owned() })).await
    }

    async fn report(&self, report: ReportRequest) -> Result<ReportResponse, Status> {
        in_time(self.0.clone().report(report)).await
    }

    async fn blocked_machines(&self) -> Result<BlockedLists, Status> {
        let mut client = self.0.clone();
        let lists = in_time(client.watch_blocked_machines(WatchBlockedMachinesRequest {})).await?;
        Ok(lists.map(|list| list.map(|list| list.blocked).map_err(with_causes)).boxed())
    }

    async fn who_is(&self, token: &Secret, attended: bool) -> Result<WhoAmIResponse, Status> {
        let mut request = showing(token, WhoAmIRequest {})?;
        if !attended {
            request.metadata_mut().insert(UNATTENDED, MetadataValue::from_static("1"));
        }
        in_time(self.0.clone().who_am_i(request)).await
    }

    async fn whose_certificate(&self, sha256: &str) -> Result<WhoAmIResponse, Status> {
        let request = CheckCertificateRequest { sha256: sha256.to_owned() };
        in_time(self.0.clone().check_certificate(request)).await
    }

    async fn issue_assertions(
        &self,
        token: &Secret,
        asked: IssueAssertionsRequest,
    ) -> Result<IssueAssertionsResponse, Status> {
        in_time(self.0.clone().issue_assertions(showing(token, asked)?)).await
    }

    async fn check_assertion(&self, assertion: &Secret) -> Result<WhoAmIResponse, Status> {
        let request = CheckAssertionRequest { assertion: assertion.expose().to_owned() };
        in_time(self.0.clone().check_assertion(request)).await
    }
}
