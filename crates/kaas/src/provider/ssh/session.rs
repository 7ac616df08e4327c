//! A connection to a machine whose host key is pinned.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use russh::{
    ChannelMsg, Disconnect, client,
    keys::{
        Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate,
        decode_secret_key,
    },
};
use tokio::io::{AsyncRead, AsyncWriteExt};
use zeroize::Zeroizing;

use super::options::{HostKey, Target};

/// Interval of keep-alive messages. After [`KEEPALIVES`] of them without an
/// answer the connection is given up.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVES: usize = 4;
/// Bytes of output that are read of a command.
const MAX_OUTPUT: usize = 64 << 10;
/// Larger files are no keys.
const MAX_KEY: u64 = 64 << 10;

/// Failure of a conversation with a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// Nothing was run.
    #[error("{0}")]
    NotConnected(String),
    /// The command may have been run.
    #[error("{0}")]
    Interrupted(String),
    /// The command failed.
    #[error("{text}")]
    Exit { code: u32, text: String },
}

/// Accepts the pinned keys and no other, and remembers one that it refused.
struct PinnedKeys {
    accepted: Vec<HostKey>,
    refused: Arc<Mutex<Option<String>>>,
}

impl client::Handler for PinnedKeys {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, russh::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = shown else { return Ok(false) };
        let fingerprint = key.fingerprint(HashAlg::Sha256);
        let known = self.accepted.iter().any(|accepted| accepted.fingerprint == fingerprint);
        if !known {
            *self.refused.lock() = Some(fingerprint.to_string());
        }
        Ok(known)
    }
}

/// A connection that somebody is logged in on. Closed when it is dropped.
pub(super) struct Session {
    handle: client::Handle<PinnedKeys>,
    name: String,
    timeout: Duration,
}

impl Session {
    pub(super) async fn connect(target: &Target) -> Result<Self, Failure> {
        let failed =
            |text: String| Failure::NotConnected(format!("machine {:?}: {text}", target.name));
        let key = private_key(&target.key_file).map_err(failed)?;
        let opened = tokio::time::timeout(target.timeout, open(target, key)).await;
        let late = || failed(format!("{} does not answer", target.endpoint));
        let handle = opened.map_err(|_| late())?.map_err(failed)?;
        Ok(Self { handle, name: target.name.clone(), timeout: target.timeout })
    }

    /// Runs a command, and returns what it prints.
    pub(super) async fn run(&self, command: &str) -> Result<String, Failure> {
        self.run_with(command, tokio::io::empty(), self.timeout).await
    }

    /// Runs a command with input, and returns what it prints.
    pub(super) async fn run_with(
        &self,
        command: &str,
        input: impl AsyncRead + Unpin + Send,
        timeout: Duration,
    ) -> Result<String, Failure> {
        let failed =
            |text: String| Failure::Interrupted(format!("machine {:?}: {text}", self.name));
        let ran = tokio::time::timeout(timeout, self.exchange(command, input)).await;
        let ended = ran.map_err(|_| failed("the command takes too long".into()))?;
        let (code, printed, complaint) = ended.map_err(|error| failed(error.to_string()))?;
        match code {
            Some(0) => Ok(printed),
            Some(code) => {
                let text = format!("machine {:?}: {}", self.name, complaint.trim());
                Err(Failure::Exit { code, text })
            }
            None => Err(failed("the connection broke off".into())),
        }
    }

    async fn exchange(
        &self,
        command: &str,
        mut input: impl AsyncRead + Unpin + Send,
    ) -> Result<(Option<u32>, String, String), russh::Error> {
        let channel = self.handle.channel_open_session().await?;
        let (mut reader, writer) = channel.split();
        writer.exec(true, command).await?;
        let sending = async {
            let mut stdin = Box::pin(writer.make_writer());
            // A command that ends early takes no more; its exit code says why.
            if tokio::io::copy(&mut input, &mut stdin).await.is_ok() {
                let _ = stdin.shutdown().await;
            }
            std::future::pending::<()>().await;
        };
        let receiving = async {
            let (mut code, mut printed, mut complaint) = (None, Vec::new(), Vec::new());
            while let Some(message) = reader.wait().await {
                match message {
                    ChannelMsg::Data { data } => keep(&mut printed, &data),
                    ChannelMsg::ExtendedData { data, .. } => keep(&mut complaint, &data),
                    ChannelMsg::ExitStatus { exit_status } => code = Some(exit_status),
                    ChannelMsg::Close => break,
                    _ => {}
                }
            }
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            (code, text(printed), text(complaint))
        };
        tokio::select! {
            () = sending => Ok((None, String::new(), String::new())),
            ended = receiving => Ok(ended),
        }
    }

    pub(super) async fn close(self) {
        // The machine notices it anyway.
        let _ = self.handle.disconnect(Disconnect::ByApplication, "", "").await;
    }
}

fn keep(output: &mut Vec<u8>, data: &[u8]) {
    let room = MAX_OUTPUT.saturating_sub(output.len()).min(data.len());
    output.extend_from_slice(&data[..room]);
}

/// Connects and logs in.
async fn open(target: &Target, key: PrivateKey) -> Result<client::Handle<PinnedKeys>, String> {
    let refused = Arc::new(Mutex::new(None));
    let keys = PinnedKeys { accepted: target.host_keys.clone(), refused: Arc::clone(&refused) };
    let endpoint = &target.endpoint;
    let config = Arc::new(config(&target.host_keys));
    let connected = client::connect(config, (endpoint.host.as_str(), endpoint.port), keys).await;
    let mut handle = connected.map_err(|error| match refused.lock().take() {
        Some(shown) => format!(
            "{endpoint} shows host key {shown}, which kaas.ssh.machines.{}.host_keys does not name",
            target.name
        ),
        None => format!("{endpoint}: {error}"),
    })?;
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
    let result = handle.authenticate_publickey(&target.user, key).await;
    match result.map_err(|error| format!("{endpoint}: {error}"))?.success() {
        true => Ok(handle),
        false => Err(format!(
            "{endpoint} does not let {} in by the key of {}",
            target.user,
            target.key_file.display()
        )),
    }
}

fn config(host_keys: &[HostKey]) -> client::Config {
    let mut config = client::Config {
        keepalive_interval: Some(KEEPALIVE_INTERVAL),
        keepalive_max: KEEPALIVES,
        nodelay: true,
        ..client::Config::default()
    };
    // A machine with several keys shows the one that is pinned.
    let pinned: Option<Vec<Algorithm>> =
        host_keys.iter().map(|key| key.algorithm.clone()).collect();
    if let Some(pinned) = pinned {
        config.preferred.key = pinned.into();
    }
    config
}

/// Reads a private key that nobody else can read.
fn private_key(path: &Path) -> Result<PrivateKey, String> {
    let failed = |error: io::Error| format!("kaas.ssh.key_file {}: {error}", path.display());
    let file = fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "kaas.ssh.key_file {}: others may read it (mode {mode:04o}); run: chmod 600 {}",
            path.display(),
            path.display()
        ));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_KEY).read_to_string(&mut text).map_err(failed)?;
    decode_secret_key(&text, None).map_err(|_| {
        format!(
            "kaas.ssh.key_file {}: is no key of Ed25519 or ECDSA without a passphrase in OpenSSH's \
             format",
            path.display()
        )
    })
}
