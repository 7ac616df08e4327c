//! `securityapi.SecurityService`: a machine's first certificate for a token.
//!
//! The token in the metadata is a join token: good for one certificate, for
//! the machine that it was made for, and for a while. Whatever names the
//! request carries are not looked at. The contract's files of trust are not
//! served at all: in the original they gave every holder of a token the whole
//! machine.

use async_trait::async_trait;
use selvage_api::{
    securityapi::{
        CertificateRequest, CertificateResponse, ReadFileRequest, ReadFileResponse,
        WriteFileRequest, WriteFileResponse,
        security_service_server::{SecurityService, SecurityServiceServer},
    },
    selvage::identity::{JoinRequest, identity_service_client::IdentityServiceClient},
};
use tonic::{Request, Response, Status, body::Body, client::GrpcService, codegen::StdError};

/// Metadata that carries the token.
const TOKEN: &str = "token";

/// A certificate, and whom to believe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// Certificate of the authority, PEM.
    pub ca_pem: String,
    /// The signed certificate, PEM.
    pub certificate_pem: String,
}

/// Trades tokens for certificates.
#[async_trait]
pub trait Enroller: Send + Sync + 'static {
    /// Signs the request for whom the token was made.
    async fn enroll(&self, token: &str, csr_pem: &str) -> Result<Enrolled, Status>;
}

/// Asks the identity service, in this process or over the network.
#[derive(Debug, Clone)]
pub struct IdentityEnroller<T>(IdentityServiceClient<T>);

impl<T> IdentityEnroller<T>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    /// Over a channel, or by the service itself.
    pub fn new(service: T) -> Self {
        Self(IdentityServiceClient::new(service))
    }
}

#[async_trait]
impl<T> Enroller for IdentityEnroller<T>
where
    T: GrpcService<Body> + Clone + Send + Sync + 'static,
    T::Future: Send,
    T::Error: Into<StdError>,
    T::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
{
    async fn enroll(&self, token: &str, csr_pem: &str) -> Result<Enrolled, Status> {
        let request = JoinRequest { token: token.into(), csr: csr_pem.into() };
        let signed = self.0.clone().join(request).await?.into_inner();
        Ok(Enrolled { ca_pem: signed.ca, certificate_pem: signed.certificate })
    }
}

/// Serves the contract.
#[derive(Debug, Clone)]
pub struct SecurityApi<E>(E);

impl<E: Enroller> SecurityApi<E> {
    /// Certificates come from this enroller.
    pub fn new(enroller: E) -> Self {
        Self(enroller)
    }

    /// The server to mount.
    pub fn service(self) -> SecurityServiceServer<Self> {
        SecurityServiceServer::new(self)
    }
}

#[tonic::async_trait]
impl<E: Enroller> SecurityService for SecurityApi<E> {
    async fn certificate(
        &self,
        request: Request<CertificateRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let mut tokens = request.metadata().get_all(TOKEN).iter();
        let (Some(token), None) = (tokens.next(), tokens.next()) else {
            return Err(Status::unauthenticated("token metadata must be given, exactly once"));
        };
        let token = token.to_str().map_err(|_| Status::unauthenticated("token is not text"))?;
        if token.is_empty() {
            return Err(Status::unauthenticated("token is empty"));
        }
        let csr = std::str::from_utf8(&request.get_ref().csr)
            .map_err(|_| Status::invalid_argument("csr: is not PEM"))?;
        let enrolled = self.0.enroll(token, csr).await?;
        let (ca, crt) = (enrolled.ca_pem.into(), enrolled.certificate_pem.into());
        Ok(Response::new(CertificateResponse { ca, crt }))
    }

    async fn read_file(
        &self,
        _: Request<ReadFileRequest>,
    ) -> Result<Response<ReadFileResponse>, Status> {
        Err(Status::unimplemented(
            "files of trust are not served: administrators have machine.MachineService/Read",
        ))
    }

    async fn write_file(
        &self,
        _: Request<WriteFileRequest>,
    ) -> Result<Response<WriteFileResponse>, Status> {
        Err(Status::unimplemented("files of trust are not written over the network"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tonic::Code;

    use super::*;

    struct One;

    #[async_trait]
    impl Enroller for One {
        async fn enroll(&self, token: &str, csr_pem: &str) -> Result<Enrolled, Status> {
            match token {
                "good" => Ok(Enrolled { ca_pem: "ca".into(), certificate_pem: csr_pem.into() }),
                _ => Err(Status::unauthenticated("join token unknown")),
            }
        }
    }

    fn request(tokens: &[&'static str]) -> Request<CertificateRequest> {
        let mut request = Request::new(CertificateRequest { csr: b"csr".to_vec() });
        for token in tokens {
            request.metadata_mut().append(TOKEN, token.parse().unwrap());
        }
        request
    }

    #[tokio::test]
    async fn only_one_good_token_gets_a_certificate() {
        let api = SecurityApi::new(One);
        let signed = api.certificate(request(&["good"])).await.unwrap().into_inner();
        assert_eq!((signed.ca, signed.crt), (b"ca".to_vec(), b"csr".to_vec()));
        // The original lets in whoever sends no metadata at all.
        for wrong in [&[][..], &[""], &["bad"], &["good", "bad"], &["bad", "good"]] {
            let refused = api.certificate(request(wrong)).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn files_are_nobodys() {
        let api = SecurityApi::new(One);
        let read = api.read_file(Request::new(ReadFileRequest::default())).await.unwrap_err();
        let write = api.write_file(Request::new(WriteFileRequest::default())).await.unwrap_err();
        assert_eq!((read.code(), write.code()), (Code::Unimplemented, Code::Unimplemented));
    }
}
