//! `time.TimeService`: this machine's clock beside that of a time server.

mod sntp;

use std::{sync::Arc, time::Duration};

use selvage_api::{
    Code,
    time::{
        Time, TimeRequest, TimeResponse,
        time_service_server::{TimeService, TimeServiceServer},
    },
};
use selvage_kit::identity::{Identity, Kind, Machine, Role};
use tonic::{Request, Response, Status};

/// Tells the time.
pub type Clock = Arc<dyn Fn() -> std::time::SystemTime + Send + Sync>;

/// Timeout of a time server, its name's resolution included.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Port of SNTP.
const PORT: u16 = 123;

/// The server that is asked where none is configured.
pub const DEFAULT_SERVER: &str = "pool.ntp.org";

/// Errors of asking a time server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid name of a server.
    #[error("server: {0:?} is not a host or an address, with or without a port")]
    Server(String),
    /// A server that the machine's owner did not choose.
    #[error(
        "server: this machine compares its time with {configured:?} only; admins may name others"
    )]
    NotChosen {
        /// The server of the configuration.
        configured: String,
    },
    /// The server does not answer.
    #[error("error querying NTP server {server:?}: {reason}")]
    Silent {
        /// The server.
        server: String,
        /// Reason, as far as it is known.
        reason: String,
    },
    /// The server answers, but does not tell the time.
    #[error("error querying NTP server {server:?}: {reason}")]
    Answer {
        /// The server.
        server: String,
        /// Fault in its answer.
        reason: String,
    },
}

impl Error {
    /// Code that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            Self::Server(_) => Code::InvalidArgument,
            Self::NotChosen { .. } => Code::PermissionDenied,
            Self::Silent { .. } => Code::Unavailable,
            Self::Answer { .. } => Code::FailedPrecondition,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code().grpc(), error.to_string())
    }
}

/// Serves the contract.
#[derive(Clone)]
pub struct TimeApi {
    server: String,
    clock: Clock,
    timeout: Duration,
}

impl TimeApi {
    /// Asks this server unless another is named.
    pub fn new(server: impl Into<String>) -> Self {
        let clock: Clock = Arc::new(std::time::SystemTime::now);
        Self { server: server.into(), clock, timeout: SERVER_TIMEOUT }
    }

    /// The server to mount.
    pub fn service(self) -> TimeServiceServer<Self> {
        TimeServiceServer::new(self)
    }

    async fn compare(&self, server: String) -> Result<Response<TimeResponse>, Status> {
        let place = selvage_kit::dial::Endpoint::parse(&server, PORT)
            .ok_or_else(|| Error::Server(server.clone()))?;
        let asked = sntp::ask((place.host.as_str(), place.port), &self.clock);
        let reading = match tokio::time::timeout(self.timeout, asked).await {
            Ok(reading) => reading,
            Err(_) => Err(sntp::Failure::Silent("no answer in time".into())),
        };
        let reading = reading.map_err(|failure| match failure {
            sntp::Failure::Silent(reason) => Error::Silent { server: server.clone(), reason },
            sntp::Failure::Answer(reason) => Error::Answer { server: server.clone(), reason },
        })?;
        let message = Time {
            metadata: None,
            server,
            localtime: Some(reading.local.into()),
            remotetime: Some(reading.remote.into()),
        };
        Ok(Response::new(TimeResponse { messages: vec![message] }))
    }
}

#[tonic::async_trait]
impl TimeService for TimeApi {
    async fn time(&self, _: Request<()>) -> Result<Response<TimeResponse>, Status> {
        self.compare(self.server.clone()).await
    }

    async fn time_check(
        &self,
        request: Request<TimeRequest>,
    ) -> Result<Response<TimeResponse>, Status> {
        // A machine is not for others to find out what answers where.
        let admin = request.extensions().get::<Identity>().is_some_and(|caller| {
            caller.has_role(Role::Admin)
                || matches!(caller.kind, Kind::Machine(Machine::Controller))
        });
        let server = request.into_inner().server;
        if !admin && server != self.server {
            return Err(Error::NotChosen { configured: self.server.clone() }.into());
        }
        self.compare(server).await
    }
}

#[cfg(test)]
mod tests;
