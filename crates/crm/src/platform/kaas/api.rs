//! The cluster service, asked with the rights of this cloudlet.

use std::time::Duration;

use selvage_api::{
    cnct::kaas::api::{
        CreateClusterMsg, DeleteClusterMsg, GetClusterListMsg, GetClusterMsg, ScaleNodePoolMsg,
        ScaleNodePoolSpec, cluster_client::ClusterClient,
    },
    selvage::clusters::{
        Cluster, GetClusterRequest, ListVersionsRequest, WatchClusterRequest,
        cluster_service_client::ClusterServiceClient,
    },
};
use tonic::{Code, Request, transport::Channel};
use zeroize::Zeroizing;

use super::wanted::POOL;
use crate::{Error, Result, platform::Progress};

/// Header that names the owner of what is made. A certificate says the same;
/// with `--insecure` there is none.
const ORGANISATION: &str = "x-selvage-organisation";
/// Time a reply may take.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Until a stream that broke is begun again.
const AGAIN: Duration = Duration::from_secs(1);

/// Judge of a cluster that is followed: it returns none while the outcome is
/// open. None is looked at once there is no such cluster.
pub(super) type ClusterCheck<'a> =
    &'a mut (dyn FnMut(Option<&Cluster>) -> Option<Result<()>> + Send);

/// Client of the cluster service.
pub(super) struct Api {
    pub(super) channel: Channel,
    pub(super) organisation: String,
}

/// Returns whether there is no such cluster, or none of this cloudlet.
fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Clusters(status) if status.code() == Code::NotFound)
}

impl Api {
    fn published(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone())
    }

    fn beyond(&self) -> ClusterServiceClient<Channel> {
        ClusterServiceClient::new(self.channel.clone())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(REPLY_TIMEOUT);
        // A name that no header can carry is in the certificate.
        if let Ok(value) = self.organisation.parse() {
            request.metadata_mut().insert(ORGANISATION, value);
        }
        request
    }

    /// The cluster of that name, if this cloudlet has one.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Cluster>> {
        let request = self.request(GetClusterRequest { name: name.to_owned() });
        match self.beyond().get_cluster(request).await.map_err(Error::from) {
            Ok(reply) => Ok(reply.into_inner().cluster),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names of all clusters that are shown to this cloudlet.
    pub(super) async fn list(&self) -> Result<Vec<String>> {
        let listed = self.published().get_cluster_list(self.request(GetClusterListMsg {})).await?;
        Ok(listed.into_inner().clusters.into_iter().map(|cluster| cluster.name).collect())
    }

    pub(super) async fn create(&self, message: CreateClusterMsg) -> Result<()> {
        self.published().create_cluster(self.request(message)).await?;
        Ok(())
    }

    pub(super) async fn scale(&self, name: &str, count: i32) -> Result<()> {
        let node_pools = vec![ScaleNodePoolSpec { name: POOL.into(), count }];
        let message = ScaleNodePoolMsg { cluster_name: name.to_owned(), node_pools };
        self.published().scale_node_pool(self.request(message)).await?;
        Ok(())
    }

    /// Asks for the end of a cluster; one that is gone is not missed.
    pub(super) async fn delete(&self, name: &str) -> Result<()> {
        let request = self.request(DeleteClusterMsg { name: name.to_owned() });
        match self.published().delete_cluster(request).await {
            Ok(_) => Ok(()),
            // Codes of the published contract may be those of the original,
            // which say little.
            Err(_) if self.find(name).await?.is_none() => Ok(()),
            Err(status) => Err(status.into()),
        }
    }

    /// A kubeconfig for this cloudlet.
    pub(super) async fn kubeconfig(&self, name: &str) -> Result<Zeroizing<String>> {
        let request = self.request(GetClusterMsg { name: name.to_owned() });
        let reply = match self.published().get_cluster(request).await {
            Ok(reply) => reply,
            Err(_) if self.find(name).await?.is_none() => {
                return Err(Error::missing(format!("Kubernetes cluster {name}")));
            }
            Err(status) => return Err(status.into()),
        };
        let cluster = reply.into_inner().cluster.unwrap_or_default();
        if cluster.kubeconfig.is_empty() {
            let why = cluster.status_message;
            return Err(Error::state(format!("Kubernetes cluster {name} has no API yet: {why}")));
        }
        Ok(Zeroizing::new(cluster.kubeconfig))
    }

    /// Why no cluster can be made at present; empty if one can.
    pub(super) async fn problem(&self) -> Result<String> {
        let versions = self.beyond().list_versions(self.request(ListVersionsRequest {})).await?;
        Ok(versions.into_inner().problem)
    }

    /// Follows a cluster until a look at it says how it ended, for so long at
    /// most. What it waits for goes to the log, to whoever listens, and into the
    /// error.
    pub(super) async fn follow(
        &self,
        name: &str,
        limit: Duration,
        progress: &Progress,
        look: ClusterCheck<'_>,
    ) -> Result<()> {
        let mut narrator = Narrator::new(progress);
        let followed = async {
            loop {
                match self.follow_stream(name, &mut narrator, look).await {
                    Ok(Some(outcome)) => return outcome,
                    Ok(None) => {}
                    Err(error) if is_missing(&error) => {
                        if let Some(outcome) = look(None) {
                            return outcome;
                        }
                    }
                    Err(Error::ClustersAway(status)) => {
                        tracing::debug!(name, %status, "the cluster service is away");
                    }
                    Err(error) => return Err(error),
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        let outcome = tokio::time::timeout(limit, followed).await;
        outcome.unwrap_or_else(|_| {
            let minutes = limit.as_secs() / 60;
            let waited_for = narrator.sentence;
            Err(Error::state(format!(
                "Kubernetes cluster {name} is not there after {minutes} minutes: {waited_for}"
            )))
        })
    }

    async fn follow_stream(
        &self,
        name: &str,
        narrator: &mut Narrator<'_>,
        look: ClusterCheck<'_>,
    ) -> Result<Option<Result<()>>> {
        let mut request = self.request(WatchClusterRequest { name: name.to_owned() });
        // The stream lasts as long as the cluster takes.
        request.metadata_mut().remove("grpc-timeout");
        let mut changes = self.beyond().watch_cluster(request).await?.into_inner();
        while let Some(change) = changes.message().await? {
            if let Some(cluster) = &change.cluster {
                narrator.see(cluster);
            }
            if let Some(outcome) = look(change.cluster.as_ref()) {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }
}

/// Tells of a cluster's way whenever a step of it changes. The sentence alone is
/// another one every second: it says since when a machine is waited for.
struct Narrator<'a> {
    progress: &'a Progress,
    /// Status, then phase and reason of each machine.
    steps: Vec<[String; 3]>,
    /// Sentence as it was last.
    sentence: String,
}

impl<'a> Narrator<'a> {
    fn new(progress: &'a Progress) -> Self {
        Self { progress, steps: Vec::new(), sentence: String::new() }
    }

    fn see(&mut self, cluster: &Cluster) {
        self.sentence.clone_from(&cluster.status_message);
        let machines = cluster.machines.iter();
        let machines = machines.map(|m| [m.name.clone(), m.phase.clone(), m.message.clone()]);
        let whole = [cluster.status.clone(), String::new(), String::new()];
        let steps: Vec<[String; 3]> = std::iter::once(whole).chain(machines).collect();
        if steps == self.steps || self.sentence.is_empty() {
            return;
        }
        self.steps = steps;
        let (name, status) = (&cluster.name, &cluster.status);
        tracing::info!(name, status, waits_for = self.sentence, "cluster");
        self.progress.tell(&self.sentence);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::Arc;

    use parking_lot::Mutex;
    use selvage_api::selvage::clusters::Machine;

    use super::*;

    #[test]
    fn a_step_is_reported_once_however_long_it_takes() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&heard);
        let progress = Progress::new(move |text| listener.lock().push(text.to_owned()));
        let mut narrator = Narrator::new(&progress);
        for (phase, sentence) in [
            ("Booting", "waiting for a (Booting 1s)"),
            ("Booting", "waiting for a (Booting 2s)"),
            ("Joining", "waiting for a (Joining 0s)"),
            ("Ready", ""),
        ] {
            let machine = Machine { name: "a".into(), phase: phase.into(), ..Machine::default() };
            narrator.see(&Cluster {
                status: "PROVISIONING".into(),
                status_message: sentence.into(),
                machines: vec![machine],
                ..Cluster::default()
            });
        }
        assert_eq!(*heard.lock(), ["waiting for a (Booting 1s)", "waiting for a (Joining 0s)"]);
    }
}
