//! The connection to a cluster, made when it is needed and again when its file
//! has changed.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use kube::{
    Client, Config,
    api::{Api, ApiResource, DynamicObject, GroupVersionKind},
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use selvage_api::Code;

use crate::{Error, Result};

/// How long a connection may take,
const CONNECT: Duration = Duration::from_secs(5);
/// and an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Two clients: one for questions, one for what goes on as long as somebody
/// listens.
#[derive(Clone)]
struct Clients {
    questions: Client,
    streams: Client,
    file: Option<SystemTime>,
}

pub(super) struct Connection {
    kubeconfig: Option<PathBuf>,
    clients: Mutex<Option<Clients>>,
}

impl Connection {
    pub(super) fn new(kubeconfig: Option<PathBuf>) -> Self {
        Self { kubeconfig, clients: Mutex::new(None) }
    }

    /// The file that was named, for other programs.
    pub(super) fn kubeconfig(&self) -> Option<&std::path::Path> {
        self.kubeconfig.as_deref()
    }

    pub(super) async fn client(&self) -> Result<Client> {
        Ok(self.clients().await?.questions)
    }

    /// For what has no end of its own.
    pub(super) async fn streams(&self) -> Result<Client> {
        Ok(self.clients().await?.streams)
    }

    async fn clients(&self) -> Result<Clients> {
        let file = self.kubeconfig.as_ref();
        let file = file.and_then(|path| std::fs::metadata(path).ok()?.modified().ok());
        if let Some(known) = self.clients.lock().clone()
            && known.file == file
        {
            return Ok(known);
        }
        let config = self.config().await?;
        let mut questions = config.clone();
        questions.read_timeout = Some(ANSWER);
        let made = Clients { questions: client(questions)?, streams: client(config)?, file };
        *self.clients.lock() = Some(made.clone());
        Ok(made)
    }

    async fn config(&self) -> Result<Config> {
        let wrong = |reason: String| Error::Kubernetes { code: Code::FailedPrecondition, reason };
        let mut config = match &self.kubeconfig {
            Some(path) => {
                let place = |error: &dyn std::error::Error| {
                    wrong(format!("crm.kubeconfig ({}): {}", path.display(), in_full(error)))
                };
                let file = Kubeconfig::read_from(path).map_err(|error| place(&error))?;
                let options = KubeConfigOptions::default();
                let read = Config::from_custom_kubeconfig(file, &options).await;
                read.map_err(|error| place(&error))?
            }
            None => Config::infer().await.map_err(|error| {
                let told = in_full(&error);
                wrong(format!("no crm.kubeconfig is given and none is found: {told}"))
            })?,
        };
        config.connect_timeout = Some(CONNECT);
        config.reset_reader_on_write = true;
        Ok(config)
    }
}

fn client(config: Config) -> Result<Client> {
    // Whoever comes first decides; all parts of this program take the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Client::try_from(config).map_err(|error| told("connecting to the cluster", &error))
}

/// What a failure says, with everything below it.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let words = inner.to_string();
        if !text.contains(&words) {
            text += &format!(": {words}");
        }
        source = inner.source();
    }
    text
}

/// What the cluster answered, as an error of ours.
pub(super) fn told(doing: &str, error: &kube::Error) -> Error {
    match error {
        kube::Error::Api(status) => {
            let code = match status.code {
                400 | 422 => Code::InvalidArgument,
                401 => Code::Unauthenticated,
                403 => Code::PermissionDenied,
                404 => Code::NotFound,
                409 => Code::Aborted,
                429 | 503 | 504 => Code::Unavailable,
                _ => Code::Internal,
            };
            let words = if status.message.is_empty() { &status.reason } else { &status.message };
            Error::Kubernetes { code, reason: format!("{doing}: {words}") }
        }
        other => {
            let reason = format!("{doing}: the cluster does not answer: {}", in_full(other));
            Error::Kubernetes { code: Code::Unavailable, reason }
        }
    }
}

/// `.told("making the namespace")` on what the cluster answers.
pub(super) trait Told<T> {
    fn told(self, doing: &str) -> Result<T>;
}

impl<T> Told<T> for Result<T, kube::Error> {
    fn told(self, doing: &str) -> Result<T> {
        self.map_err(|error| told(doing, &error))
    }
}

/// What is gone already is not missed.
pub(super) fn unless_gone<T>(answer: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// A kind that every cluster knows; core kinds have no group.
pub(super) fn kind(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// The objects of a kind in a namespace.
pub(super) fn objects(client: &Client, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, kind)
}
