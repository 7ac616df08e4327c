//! Connections to clusters, made when needed and again when the kubeconfig
//! file has changed.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::{Context, Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Client certificate and address of an API server.
#[derive(Clone)]
pub struct Credentials {
    /// `https://host:port`.
    pub server: String,
    /// CA of the API server, PEM.
    pub ca: String,
    /// Client certificate, PEM.
    pub certificate: String,
    /// Its key, PEM.
    pub key: Zeroizing<String>,
}

enum Source {
    /// A file, and the setting that names it; without a path as `kubectl`
    /// finds it.
    File {
        setting: &'static str,
        path: Option<PathBuf>,
    },
    Fixed(Mutex<Box<Config>>),
}

/// Two clients: one for calls that end, one for streams.
#[derive(Clone)]
struct Clients {
    calls: Client,
    streams: Client,
    modified: Option<SystemTime>,
}

/// Connection to one cluster.
pub struct Connection {
    source: Source,
    clients: Mutex<Option<Clients>>,
}

impl Connection {
    /// Connects by a kubeconfig file, which is read when a client is needed
    /// and again when it has changed. Without a path the file is found as
    /// `kubectl` finds it. Errors name the setting that the path is from.
    pub fn from_file(setting: &'static str, path: Option<PathBuf>) -> Self {
        Self::new(Source::File { setting, path })
    }

    /// Connects by the text of a kubeconfig.
    ///
    /// The text may come from somebody else: it may not name files of this
    /// machine, nor programs to run.
    pub async fn from_kubeconfig(text: &str) -> Result<Self> {
        let config = read_kubeconfig(text).await?;
        Ok(Self::new(Source::Fixed(Mutex::new(Box::new(config)))))
    }

    /// Goes on with another kubeconfig, where the connection was made from a
    /// text. Calls that are under way end by the old one.
    pub async fn replace_kubeconfig(&self, text: &str) -> Result<()> {
        let config = read_kubeconfig(text).await?;
        if let Source::Fixed(fixed) = &self.source {
            **fixed.lock() = config;
            *self.clients.lock() = None;
        }
        Ok(())
    }

    /// Connects with a client certificate.
    pub fn from_credentials(credentials: &Credentials) -> Result<Self> {
        let Credentials { server, ca, certificate, key } = credentials;
        let url = server.parse().map_err(|error| Error::config("server", &error))?;
        let mut config = Config::new(url);
        config.root_cert = Some(certificates(ca)?);
        // Callers try again themselves: "not now" of a disruption budget would
        // otherwise hold them for minutes.
        config.default_retry = false;
        config.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
        config.auth_info.client_key_data = Some(STANDARD.encode(key.as_str()).into());
        Ok(Self::new(Source::Fixed(Mutex::new(Box::new(config)))))
    }

    fn new(source: Source) -> Self {
        Self { source, clients: Mutex::new(None) }
    }

    /// The kubeconfig file, for other programs.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::File { path, .. } => path.as_deref(),
            Source::Fixed(_) => None,
        }
    }

    /// Client for calls that end: replies have a timeout.
    pub async fn client(&self) -> Result<Client> {
        Ok(self.clients().await?.calls)
    }

    /// Client for watches, logs that are followed, and commands.
    pub async fn streams(&self) -> Result<Client> {
        Ok(self.clients().await?.streams)
    }

    /// Client that acts as a ServiceAccount and has its rights only.
    pub async fn impersonate(&self, namespace: &str, account: &str) -> Result<Client> {
        let mut config = self.config().await?;
        config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:{account}"));
        config.read_timeout = Some(REPLY_TIMEOUT);
        client(config)
    }

    async fn clients(&self) -> Result<Clients> {
        let modified = self.path().and_then(|path| std::fs::metadata(path).ok()?.modified().ok());
        if let Some(known) = self.clients.lock().clone()
            && known.modified == modified
        {
            return Ok(known);
        }
        let config = self.config().await?;
        let mut calls = config.clone();
        calls.read_timeout = Some(REPLY_TIMEOUT);
        let made = Clients { calls: client(calls)?, streams: client(config)?, modified };
        *self.clients.lock() = Some(made.clone());
        Ok(made)
    }

    async fn config(&self) -> Result<Config> {
        let mut config = match &self.source {
            Source::Fixed(config) => config.lock().as_ref().clone(),
            Source::File { setting, path: Some(path) } => {
                let what = format!("{setting} ({})", path.display());
                let file =
                    Kubeconfig::read_from(path).map_err(|error| Error::config(&what, &error))?;
                let read =
                    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
                read.map_err(|error| Error::config(&what, &error))?
            }
            Source::File { setting, path: None } => Config::infer().await.map_err(|error| {
                Error::config(&format!("no {setting} is given and none is found"), &error)
            })?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.reset_reader_on_write = true;
        Ok(config)
    }
}

/// Returns when the API server says that it is ready.
pub async fn ready(client: &Client) -> Result<()> {
    get(client, "/readyz", "asking whether the cluster is ready").await.map(drop)
}

/// Metrics of the API server, in the text format of Prometheus.
pub async fn metrics(client: &Client) -> Result<String> {
    get(client, "/metrics", "asking for the metrics of the API server").await
}

async fn get(client: &Client, path: &str, doing: &'static str) -> Result<String> {
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|error| Error::config(doing, &error))?;
    client.request_text(request).await.context(doing)
}

fn client(config: Config) -> Result<Client> {
    // The first to come decides; all parts of this program take the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Client::try_from(config).context("connecting to the cluster")
}

/// Reads a kubeconfig that names neither files nor programs.
async fn read_kubeconfig(text: &str) -> Result<Config> {
    let what = "kubeconfig";
    let read = Kubeconfig::from_yaml(text).map_err(|error| Error::config(what, &error))?;
    for (user, auth) in
        read.auth_infos.iter().filter_map(|user| Some((user, user.auth_info.as_ref()?)))
    {
        check_self_contained(&user.name, auth)?;
    }
    let mut clusters = read.clusters.iter().filter_map(|named| named.cluster.as_ref());
    if clusters.any(|cluster| cluster.certificate_authority.is_some()) {
        return Err(refused("certificate-authority", "a file; use certificate-authority-data"));
    }
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    config.map_err(|error| Error::config(what, &error))
}

fn refused(field: &str, reason: &str) -> Error {
    Error::Config { what: "kubeconfig".into(), reason: format!("{field} may not be {reason}") }
}

fn check_self_contained(user: &str, auth: &AuthInfo) -> Result<()> {
    let file = "a file; use its -data form";
    for (given, field, reason) in [
        (auth.exec.is_some(), "exec", "a program"),
        (auth.auth_provider.is_some(), "auth-provider", "used"),
        (auth.token_file.is_some(), "tokenFile", "a file; use token"),
        (auth.client_certificate.is_some(), "client-certificate", file),
        (auth.client_key.is_some(), "client-key", file),
    ] {
        if given {
            return Err(refused(&format!("{field} of user {user:?}"), reason));
        }
    }
    Ok(())
}

/// Certificates of a PEM text, as DER.
fn certificates(pem: &str) -> Result<Vec<Vec<u8>>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let wrong = |reason: String| Error::Config { what: "ca".into(), reason };
    let read = CertificateDer::pem_slice_iter(pem.as_bytes());
    let read: Result<Vec<_>, _> = read.map(|der| der.map(|der| der.to_vec())).collect();
    let read = read.map_err(|error| wrong(error.to_string()))?;
    if read.is_empty() {
        return Err(wrong("there is no certificate in it".into()));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://192.0.2.1:6443'{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[tokio::test]
    async fn a_text_that_names_files_or_programs_is_refused() {
        let good = Connection::from_kubeconfig(&kubeconfig("", "token: t")).await.unwrap();
        good.client().await.unwrap();
        for (cluster, user, says) in [
            (
                "",
                "exec: {command: /bin/true, apiVersion: client.authentication.k8s.io/v1}",
                "exec of user \"u\"",
            ),
            ("", "auth-provider: {name: gcp, config: {}}", "auth-provider of user \"u\""),
            ("", "tokenFile: /etc/shadow", "tokenFile of user \"u\""),
            ("", "client-certificate: /etc/shadow", "client-certificate of user \"u\""),
            ("", "client-key: /etc/shadow", "client-key of user \"u\""),
            (", certificate-authority: /etc/shadow", "token: t", "certificate-authority"),
        ] {
            let error = Connection::from_kubeconfig(&kubeconfig(cluster, user)).await.err();
            let error = error.unwrap_or_else(|| panic!("{user} was taken")).to_string();
            assert!(error.starts_with(&format!("kubeconfig: {says} may not be ")), "{error}");
        }
        assert!(Connection::from_kubeconfig("a: [").await.is_err());
        assert!(Connection::from_kubeconfig("").await.is_err());
    }

    #[tokio::test]
    async fn credentials_are_checked_before_they_are_used() {
        let issued = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let mut credentials = Credentials {
            server: "https://192.0.2.1:6443".into(),
            ca: issued.cert.pem(),
            certificate: issued.cert.pem(),
            key: Zeroizing::new(issued.signing_key.serialize_pem()),
        };
        Connection::from_credentials(&credentials).unwrap().client().await.unwrap();
        credentials.ca = "nothing".into();
        let error = Connection::from_credentials(&credentials).err().unwrap().to_string();
        assert_eq!(error, "ca: there is no certificate in it");
    }

    #[tokio::test]
    async fn a_file_that_is_missing_is_named_with_its_setting() {
        let missing = Connection::from_file("crm.kubeconfig", Some("/nowhere/kubeconfig".into()));
        let error = missing.client().await.err().unwrap();
        assert!(error.to_string().starts_with("crm.kubeconfig (/nowhere/kubeconfig): "), "{error}");
        assert_eq!(error.code(), selvage_api::Code::FailedPrecondition);
    }
}
