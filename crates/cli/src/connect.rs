//! One connection to one server: TCP with TLS, plain TCP, or a unix socket.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use selvage_api::Code;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use crate::{endpoint::Endpoint, target::Target};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("nobody answers at {endpoint}")]
    Refused {
        /// Address that was dialled.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// No answer in time.
    #[error("{0} did not answer in time")]
    Timeout(String),
    /// No certificate that we can trust.
    #[error("the certificate of {endpoint} is signed by a CA that is not trusted here")]
    UnknownCa {
        /// Address that was dialled.
        endpoint: String,
        /// True if a CA of the user's choice was in force.
        pinned: bool,
    },
    /// The certificate is somebody else's.
    #[error("the certificate of {0} is not made out to that name")]
    WrongName(String),
    /// The certificate's time is over, or has not come.
    #[error("the certificate of {0} is not valid at this time")]
    WrongTime(String),
    /// The certificate we show was refused, or one is demanded.
    #[error("{0} refuses our certificate, or demands one")]
    ClientCertificate(String),
    /// Whoever answers does not speak TLS.
    #[error("{0} does not speak TLS")]
    NotTls(String),
    /// TLS failed otherwise.
    #[error("the TLS handshake with {endpoint} failed")]
    Tls {
        /// Address that was dialled.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// Whoever answers is no gRPC server.
    #[error("{0} does not speak HTTP/2")]
    NotHttp2(String),
    /// The client certificate and its key cannot be used.
    #[error("the client certificate and its key cannot be used")]
    Identity(#[source] rustls::Error),
    /// The CA certificate cannot be used.
    #[error("the CA certificate cannot be used")]
    Ca(#[source] rustls::Error),
    /// No CA of the wanted fingerprint was shown.
    #[error("{endpoint} shows no CA with the fingerprint {wanted}")]
    WrongFingerprint {
        /// Address that was dialled.
        endpoint: String,
        /// Name that was asked for.
        wanted: String,
        /// Names in the certificate.
        shown: Vec<String>,
    },
}

impl Error {
    /// The code in the vocabulary all parts share.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused { .. } | Self::Timeout(_) | Self::NotTls(_) | Self::NotHttp2(_) => {
                Code::Unavailable
            }
            Self::Identity(_) | Self::Ca(_) => Code::InvalidArgument,
            Self::UnknownCa { .. }
            | Self::WrongName(_)
            | Self::WrongTime(_)
            | Self::ClientCertificate(_)
            | Self::Tls { .. }
            | Self::WrongFingerprint { .. } => Code::Unauthenticated,
        }
    }

    /// Next steps, one sentence each.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Refused { .. } | Self::Timeout(_) => {
                "check that the server runs (`selvage up`) and that the address is right (`selvage context list`)"
            }
            Self::UnknownCa { pinned: true, .. } => {
                "the server has a new CA, or somebody is in between: ask whoever runs it for the CA's fingerprint, then run `selvage login --ca-sha256 HEX`"
            }
            Self::UnknownCa { pinned: false, .. } => {
                "name its CA with --ca FILE, or run `selvage login`, which asks before it trusts"
            }
            Self::WrongName(_) => "use a name or address that the server's certificate carries",
            Self::WrongTime(_) => {
                "check this machine's clock and the server's, then renew the certificate"
            }
            Self::ClientCertificate(_) => {
                "check --cert and --key, or get a new certificate with `selvage join`"
            }
            Self::NotTls(_) => {
                "if the server runs with --insecure, its endpoint is http://, not https://"
            }
            Self::NotHttp2(_) => "is this the right port? A proxy in between must pass HTTP/2 on",
            Self::WrongFingerprint { shown, .. } => {
                return vec![
                    format!(
                        "it shows {}",
                        if shown.is_empty() { "none at all".into() } else { shown.join(", ") }
                    ),
                    "compare with what the server's operator says; do not go on if they differ"
                        .into(),
                ];
            }
            Self::Tls { .. } | Self::Identity(_) | Self::Ca(_) => return Vec::new(),
        };
        vec![hint.into()]
    }
}

/// Bytes both ways.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Certificate authorities that are trusted.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// The CAs of this system.
    System,
    /// These alone.
    Only(Vec<CertificateDer<'static>>),
}

/// A certificate to show, with its key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Opens the connection to the first of the target's endpoints that answers.
pub(crate) async fn open_first(target: &Target) -> Result<(Endpoint, Box<dyn Stream>), Error> {
    let mut failed = None;
    for endpoint in std::iter::once(&target.endpoint).chain(&target.others) {
        match open(target, endpoint).await {
            Ok(stream) => return Ok((endpoint.clone(), stream)),
            // Whoever answers and is not believed is no reason to go on.
            Err(error) if error.code() != Code::Unavailable => return Err(error),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or_else(|| Error::Timeout(target.endpoint.to_string())))
}

/// Opens the connection and makes sure of the other end.
pub(crate) async fn open(target: &Target, endpoint: &Endpoint) -> Result<Box<dyn Stream>, Error> {
    match endpoint {
        Endpoint::Unix(path) => {
            let stream = in_time(endpoint, UnixStream::connect(path)).await?;
            Ok(Box::new(stream))
        }
        Endpoint::Http { host, port } => Ok(Box::new(tcp(endpoint, host, *port).await?)),
        Endpoint::Https { host, port } => {
            let config = config(&target.trust, target.identity.as_ref())?;
            let tcp = tcp(endpoint, host, *port).await?;
            let pinned = matches!(target.trust, Trust::Only(_));
            let stream =
                TlsConnector::from(Arc::new(config)).connect(server_name(endpoint, host)?, tcp);
            let stream = match tokio::time::timeout(CONNECT_TIMEOUT, stream).await {
                Err(_) => return Err(Error::Timeout(endpoint.to_string())),
                Ok(result) => result.map_err(|error| sort(endpoint, pinned, error))?,
            };
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                return Err(Error::NotHttp2(endpoint.to_string()));
            }
            Ok(Box::new(stream))
        }
    }
}

/// The certificates the server shows, unverified: to be compared, never to be
/// trusted. Nothing can be sent over the connection they come from.
pub(crate) async fn chain(endpoint: &Endpoint) -> Result<Vec<CertificateDer<'static>>, Error> {
    let Endpoint::Https { host, port } = endpoint else { return Ok(Vec::new()) };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let recorder = Arc::new(Recorder { provider: provider.clone(), chain: Mutex::default() });
    let mut config = builder(provider)?
        .dangerous()
        .with_custom_certificate_verifier(recorder.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = tcp(endpoint, host, *port).await?;
    let attempt = TlsConnector::from(Arc::new(config)).connect(server_name(endpoint, host)?, tcp);
    let result = tokio::time::timeout(CONNECT_TIMEOUT, attempt)
        .await
        .map_err(|_| Error::Timeout(endpoint.to_string()))?;
    let chain = std::mem::take(&mut *recorder.chain.lock().unwrap_or_else(PoisonError::into_inner));
    match result {
        Err(error) if chain.is_empty() => Err(sort(endpoint, false, error)),
        _ => Ok(chain),
    }
}

/// SHA-256 of a certificate, lower-case hex.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    hex::encode(Sha256::digest(certificate))
}

async fn in_time<T>(
    endpoint: &Endpoint,
    attempt: impl Future<Output = io::Result<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(CONNECT_TIMEOUT, attempt).await {
        Err(_) => Err(Error::Timeout(endpoint.to_string())),
        Ok(result) => {
            result.map_err(|source| Error::Refused { endpoint: endpoint.to_string(), source })
        }
    }
}

async fn tcp(endpoint: &Endpoint, host: &str, port: u16) -> Result<TcpStream, Error> {
    let stream =
        in_time(endpoint, TcpStream::connect((host.trim_matches(['[', ']']), port))).await?;
    // Small messages to and fro; a kernel that cannot do it is merely slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

fn server_name(endpoint: &Endpoint, host: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
        .map_err(|_| Error::WrongName(endpoint.to_string()))
}

fn builder(
    provider: Arc<CryptoProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Error::Identity)
}

fn config(trust: &Trust, identity: Option<&Identity>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::System => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Trust::Only(certificates) => {
            for certificate in certificates {
                roots.add(certificate.clone()).map_err(Error::Ca)?;
            }
        }
    }
    let builder = builder(Arc::new(aws_lc_rs::default_provider()))?.with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(Error::Identity)?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn sort(endpoint: &Endpoint, pinned: bool, error: io::Error) -> Error {
    let endpoint = endpoint.to_string();
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(reason)) => match reason {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Error::UnknownCa { endpoint, pinned }
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Error::WrongName(endpoint)
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Error::WrongTime(endpoint),
            _ => Error::Tls { endpoint, source: error },
        },
        Some(rustls::Error::InvalidMessage(_)) => Error::NotTls(endpoint),
        Some(rustls::Error::NoApplicationProtocol) => Error::NotHttp2(endpoint),
        Some(rustls::Error::AlertReceived(alert)) => match alert {
            rustls::AlertDescription::NoApplicationProtocol => Error::NotHttp2(endpoint),
            rustls::AlertDescription::CertificateRequired
            | rustls::AlertDescription::BadCertificate
            | rustls::AlertDescription::CertificateUnknown
            | rustls::AlertDescription::UnknownCA => Error::ClientCertificate(endpoint),
            _ => Error::Tls { endpoint, source: error },
        },
        _ => Error::Tls { endpoint, source: error },
    }
}

/// Looks at the chain and refuses it, whatever it is.
#[derive(Debug)]
struct Recorder {
    provider: Arc<CryptoProvider>,
    chain: Mutex<Vec<CertificateDer<'static>>>,
}

impl ServerCertVerifier for Recorder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut chain = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        chain.push(end_entity.clone().into_owned());
        chain.extend(intermediates.iter().map(|certificate| certificate.clone().into_owned()));
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
