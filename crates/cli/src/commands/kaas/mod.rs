//! Kubernetes clusters.

mod args;
mod backup;
mod care;
mod change;
mod follow;
mod kubectl;
mod show;

use selvage_api::{
    cnct::kaas::api::{
        ClusterDetailItem, ClusterStatus, GetClusterMsg, cluster_client::ClusterClient,
    },
    selvage::clusters::{
        PauseClusterRequest, ResumeClusterRequest, cluster_service_client::ClusterServiceClient,
    },
};
use tonic::{Request, Response, Status, transport::Channel};

use args::Kubeconfig;
pub use args::{KaasCommand, Kubectl};
pub(crate) use kubectl::run as kubectl;

use crate::{Error, client::Client, session::Session};

/// Header by which a new cluster is given to one of several organisations.
const ORGANISATION: &str = "x-selvage-organisation";
/// Header of an upgrade that goes on although something is missing.
const FORCE: &str = "x-selvage-force";

pub(crate) async fn run(command: KaasCommand, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        KaasCommand::Create(args) => change::create(args, session).await,
        KaasCommand::List => show::list(session).await,
        KaasCommand::Show(args) => show::show(args, session).await,
        KaasCommand::Nodes(args) => show::nodes(args, session).await,
        KaasCommand::Events(args) => show::events(args, session).await,
        KaasCommand::Kubeconfig(args) => kubeconfig(args, session).await,
        KaasCommand::Pool(args) => change::pool(args, session).await,
        KaasCommand::Scale(args) => change::scale(args, session).await,
        KaasCommand::Upgrade(args) => change::upgrade(args, session).await,
        KaasCommand::Pause(args) => pause(args.name, session).await,
        KaasCommand::Resume(args) => resume(args.name, session).await,
        KaasCommand::Hibernate(args) => care::hibernate(args, session).await,
        KaasCommand::Wake(args) => care::wake(args, session).await,
        KaasCommand::RotateCertificates(args) => care::rotate(args, session).await,
        KaasCommand::Quarantine(args) => care::quarantine(args, session).await,
        KaasCommand::Backup(args) => backup::take(args, session).await,
        KaasCommand::Backups(args) => backup::list(args, session).await,
        KaasCommand::Restore(args) => backup::restore(args, session).await,
        KaasCommand::Delete(args) => change::delete(args, session).await,
        KaasCommand::Versions => show::versions(session).await,
    }
}

/// Asks the published service.
async fn ask<Q, R, F>(
    client: &Client,
    request: Q,
    call: impl FnOnce(ClusterClient<Channel>, Request<Q>) -> F,
) -> Result<R, Error>
where
    F: Future<Output = Result<Response<R>, Status>>,
{
    client.call(request, |channel, request| call(ClusterClient::new(channel), request)).await
}

/// Asks the service beyond it.
async fn beyond<Q, R, F>(
    client: &Client,
    request: Q,
    call: impl FnOnce(ClusterServiceClient<Channel>, Request<Q>) -> F,
) -> Result<R, Error>
where
    F: Future<Output = Result<Response<R>, Status>>,
{
    client.call(request, |channel, request| call(ClusterServiceClient::new(channel), request)).await
}

/// Returns whether the API of a cluster has answered, so that its owners get a kubeconfig.
fn answers(cluster: &ClusterDetailItem) -> bool {
    use ClusterStatus::{Degraded, Reconciling, Running};
    matches!(cluster.status(), Running | Reconciling | Degraded)
}

/// A kubeconfig of the cluster, or why there is none.
async fn kubeconfig_of(client: &Client, name: &str) -> Result<String, Error> {
    let request = GetClusterMsg { name: name.to_owned() };
    let reply = ask(client, request, async |mut client, request| client.get_cluster(request).await);
    let cluster = reply.await?.cluster.unwrap_or_default();
    if cluster.kubeconfig.is_empty() {
        let (status, message) = (cluster.status().as_str_name(), &cluster.status_message);
        if answers(&cluster) {
            return Err(Error::Status {
                code: selvage_api::Code::PermissionDenied,
                message: format!("cluster {name:?} is {status}, and you may only look at it"),
                hints: vec!["a developer of its organisation or an administrator gets one".into()],
            });
        }
        return Err(Error::Status {
            code: selvage_api::Code::FailedPrecondition,
            message: format!("cluster {name:?} is {status} and has no API yet. {message}"),
            hints: vec![format!("`selvage kaas show {name} --watch` tells when it has")],
        });
    }
    Ok(cluster.kubeconfig)
}

async fn kubeconfig(args: Kubeconfig, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let text = kubeconfig_of(&client, &args.name).await?;
    match args.file {
        None => session.io.out.write_all(text.as_bytes()).map_err(Error::Output),
        Some(path) => {
            selvage_files::replace(&path, text.as_bytes(), 0o600)
                .map_err(|source| Error::write(&path, source))?;
            session.io.say(&format!("Written to {}.", path.display()))
        }
    }
}

async fn pause(name: String, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = PauseClusterRequest { name: name.clone() };
    beyond(&client, request, async |mut client, request| client.pause_cluster(request).await)
        .await?;
    session.io.say(&format!("{name} stays as it is until `selvage kaas resume {name}`."))
}

async fn resume(name: String, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = ResumeClusterRequest { name: name.clone() };
    beyond(&client, request, async |mut client, request| client.resume_cluster(request).await)
        .await?;
    session.io.say(&format!("{name} goes on."))
}
