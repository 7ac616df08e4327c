//! Clients of a [`Selvage`] process: gRPC by generated code and by raw
//! bytes, and plain HTTP.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use selvage_api::{
    selvage::identity::{
        CreateJoinTokenRequest, JoinRequest, identity_service_client::IdentityServiceClient,
    },
    services::auth::{LoginRequest, auth_service_client::AuthServiceClient},
};
use selvage_kit::pki::{self, KeyRequest, RotatingIdentity};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataValue,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use crate::Selvage;

/// A gRPC client with or without credentials.
#[derive(Clone)]
pub struct Client {
    pub channel: Channel,
    pub token: Option<String>,
}

impl Client {
    /// Without credentials.
    pub async fn anonymous(selvage: &Selvage) -> Self {
        Self { channel: connect(selvage, None).await, token: None }
    }

    /// With a machine's certificate and key, PEM.
    pub async fn machine(selvage: &Selvage, certificate: &str, key: &str) -> Self {
        let identity = Identity::from_pem(certificate, key);
        Self { channel: connect(selvage, Some(identity)).await, token: None }
    }

    /// Logged in as the first administrator.
    pub async fn admin(selvage: &Selvage) -> Self {
        Self::login(selvage, "admin", &selvage.password()).await.unwrap()
    }

    /// Logged in with name and password.
    pub async fn login(selvage: &Selvage, username: &str, password: &str) -> Result<Self, Status> {
        let channel = connect(selvage, None).await;
        let request = LoginRequest { username: username.into(), password: password.into() };
        let reply = AuthServiceClient::new(channel.clone()).login(request).await?;
        Ok(Self { channel, token: Some(reply.into_inner().token) })
    }

    /// Trades a join token, which this client may make, for what it takes to
    /// speak as that machine. `ca` is the server's, PEM.
    pub async fn join(&self, ca: &str, machine: &str) -> Arc<rustls::ClientConfig> {
        let mut identity = IdentityServiceClient::new(self.channel.clone());
        let machine = machine.to_owned();
        let request = CreateJoinTokenRequest { machine, ttl_seconds: 60, names: Vec::new() };
        let made = identity.create_join_token(self.request(request)).await.unwrap().into_inner();
        let key = KeyRequest::new().unwrap();
        let request = JoinRequest { token: made.token, csr: key.csr_pem().into() };
        let signed = identity.join(request).await.unwrap().into_inner();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.pem");
        let machine = RotatingIdentity::create(&path, &key, &signed.certificate).unwrap();
        Arc::new(pki::client_config(ca, Some(&machine)).unwrap())
    }

    /// A client with the key of a machine, as whoever stole it would be. Made
    /// with a join token, which this client may make.
    pub async fn stolen(&self, selvage: &Selvage, machine: &str) -> Self {
        let mut identity = IdentityServiceClient::new(self.channel.clone());
        let machine = machine.to_owned();
        let request = CreateJoinTokenRequest { machine, ttl_seconds: 60, names: Vec::new() };
        let made = identity.create_join_token(self.request(request)).await.unwrap().into_inner();
        let key = KeyRequest::new().unwrap();
        let request = JoinRequest { token: made.token, csr: key.csr_pem().into() };
        let signed = identity.join(request).await.unwrap().into_inner();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.pem");
        RotatingIdentity::create(&path, &key, &signed.certificate).unwrap();
        let kept = std::fs::read_to_string(&path).unwrap();
        Self::machine(selvage, &signed.certificate, &kept).await
    }

    /// The same connection, with the token of another client.
    pub fn with_token_of(&self, other: &Self) -> Self {
        Self { channel: self.channel.clone(), token: other.token.clone() }
    }

    /// A request with this client's credentials.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            let value: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    /// Calls `/package.Service/Method` with an encoded message; gives the
    /// encoded replies, however many there are, and the status.
    pub async fn raw(&self, path: &str, message: &[u8]) -> (Vec<Bytes>, Code, String) {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let request = self.request(Bytes::copy_from_slice(message));
        let reply = grpc.server_streaming(request, path.parse().unwrap(), RawCodec).await;
        let mut messages = Vec::new();
        let mut stream = match reply {
            Ok(reply) => reply.into_inner(),
            Err(status) => return (messages, status.code(), status.message().to_owned()),
        };
        loop {
            match stream.message().await {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return (messages, Code::Ok, String::new()),
                Err(status) => return (messages, status.code(), status.message().to_owned()),
            }
        }
    }

    /// The status with which a call ends, or OK as soon as it replies: some
    /// streams never end.
    pub async fn begins(&self, path: &str, message: &[u8]) -> Code {
        self.begins_with(path, message, &[]).await
    }

    /// The same with metadata, encoded where its name ends with `-bin`.
    pub async fn begins_with(
        &self,
        path: &str,
        message: &[u8],
        metadata: &[(&'static str, &str)],
    ) -> Code {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let mut request = self.request(Bytes::copy_from_slice(message));
        for (name, value) in metadata {
            if name.ends_with("-bin") {
                let value = MetadataValue::from_bytes(value.as_bytes());
                request.metadata_mut().append_bin(*name, value);
            } else {
                request.metadata_mut().append(*name, value.parse().unwrap());
            }
        }
        let reply = grpc.server_streaming(request, path.parse().unwrap(), RawCodec).await;
        let first = match reply {
            Ok(reply) => reply.into_inner().message().await,
            Err(status) => Err(status),
        };
        first.map_or_else(|status| status.code(), |_| Code::Ok)
    }

    /// The status with which a call ends.
    pub async fn code(&self, path: &str, message: &[u8]) -> Code {
        self.raw(path, message).await.1
    }
}

async fn connect(selvage: &Selvage, identity: Option<Identity>) -> Channel {
    let endpoint = Endpoint::from_shared(selvage.endpoint().to_owned()).unwrap();
    let endpoint = match selvage.ca() {
        None => endpoint,
        Some(ca) => {
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
            if let Some(identity) = identity {
                tls = tls.identity(identity);
            }
            endpoint.tls_config(tls).unwrap()
        }
    };
    endpoint.connect().await.unwrap()
}

/// Plain HTTP that trusts this process's CA and follows no redirects.
pub fn http(selvage: &Selvage) -> reqwest::Client {
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(crate::process::TIMEOUT);
    if let Some(ca) = selvage.ca() {
        let root = reqwest::Certificate::from_pem(ca.as_bytes()).unwrap();
        builder = builder.tls_certs_only([root]);
    }
    builder.build().unwrap()
}

/// Messages as bytes.
#[derive(Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
