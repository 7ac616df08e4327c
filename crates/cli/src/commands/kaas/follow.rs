//! A cluster as it changes, told by the steps of its machines.

use std::collections::BTreeMap;

use selvage_api::{
    Code,
    selvage::clusters::{
        Cluster, WatchClusterRequest, cluster_service_client::ClusterServiceClient,
    },
};

use crate::{
    Error,
    client::Client,
    commands::{
        node::interrupt::or_interrupted,
        progress::{ProgressPrinter, clear_line},
    },
    session::Session,
};

/// Tells of each step until nothing is left to be done; an error if the
/// cluster comes to rest in a state that is not good.
pub(super) async fn until_settled(
    client: &Client,
    name: &str,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    match or_interrupted(follow(client, name, session)).await {
        Err(Error::Interrupted) => {
            clear_line(session.io)?;
            session.io.say(&format!(
                "The work goes on at the server; `selvage kaas show {name} --watch` tells of it."
            ))?;
            Err(Error::Interrupted)
        }
        ended => ended,
    }
}

async fn follow(client: &Client, name: &str, session: &mut Session<'_>) -> Result<(), Error> {
    let request = WatchClusterRequest { name: name.to_owned() };
    let request = client.request(request, client.limit(true))?;
    let begun = ClusterServiceClient::new(client.channel()).watch_cluster(request).await;
    let mut changes = begun.map_err(|status| client.refused(&status))?.into_inner();
    let mut narrator = ProgressPrinter::lines(session);
    let mut known = Printed::default();
    loop {
        let next = narrator.waiting(session.io, changes.message()).await?;
        let next = next.map_err(|status| client.refused(&status))?;
        let Some(change) = next else {
            narrator.clear(session.io)?;
            return Err(Error::Unexpected(format!("the server no longer tells of {name}")));
        };
        let Some(cluster) = change.cluster else {
            return narrator.line(session.io, &format!("{name} is gone"));
        };
        for line in known.lines(&cluster) {
            narrator.line(session.io, &line)?;
        }
        match cluster.status.as_str() {
            "RUNNING" => return narrator.clear(session.io),
            "DEGRADED" if cluster.hibernated => return narrator.clear(session.io),
            "RECONCILING" if cluster.paused => {
                narrator.clear(session.io)?;
                return Err(Error::Status {
                    code: Code::FailedPrecondition,
                    message: format!("{name} waits. {}", cluster.status_message),
                    hints: vec![format!("`selvage kaas resume {name}` lets it go on")],
                });
            }
            "ERROR" | "DEGRADED" => {
                narrator.clear(session.io)?;
                let (status, message) = (cluster.status, cluster.status_message);
                return Err(Error::Status {
                    code: Code::FailedPrecondition,
                    message: format!("{name} is {status}. {message}"),
                    hints: vec![format!("`selvage kaas events {name}` shows what happened")],
                });
            }
            _ => {}
        }
    }
}

/// State that was printed already.
#[derive(Default)]
struct Printed {
    status: String,
    phases: BTreeMap<String, (String, String)>,
}

impl Printed {
    /// Returns the news about the cluster.
    fn lines(&mut self, cluster: &Cluster) -> Vec<String> {
        let mut lines = Vec::new();
        for machine in &cluster.machines {
            let now = (machine.phase.clone(), machine.message.clone());
            if self.phases.get(&machine.name) == Some(&now) {
                continue;
            }
            lines.push(match machine.message.as_str() {
                "" => format!("{}: {}", machine.name, machine.phase),
                message => format!("{}: {}: {message}", machine.name, machine.phase),
            });
            self.phases.insert(machine.name.clone(), now);
        }
        let here = |name: &String| cluster.machines.iter().any(|machine| machine.name == *name);
        let gone: Vec<String> = self.phases.keys().filter(|name| !here(name)).cloned().collect();
        for name in gone {
            self.phases.remove(&name);
            lines.push(format!("{name}: gone"));
        }
        if self.status != cluster.status {
            self.status.clone_from(&cluster.status);
            lines.push(format!("{} is {}", cluster.name, cluster.status));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use selvage_api::selvage::clusters::Machine;

    use super::*;

    fn cluster(status: &str, machines: &[(&str, &str, &str)]) -> Cluster {
        let machines = machines.iter().map(|(name, phase, message)| Machine {
            name: (*name).into(),
            phase: (*phase).into(),
            message: (*message).into(),
            ..Machine::default()
        });
        Cluster {
            name: "demo".into(),
            status: status.into(),
            machines: machines.collect(),
            ..Cluster::default()
        }
    }

    #[test]
    fn only_new_steps_are_shown() {
        let mut known = Printed::default();
        let first = cluster("PROVISIONING", &[("cp-1", "Requested", ""), ("a-1", "Requested", "")]);
        assert_eq!(
            known.lines(&first),
            ["cp-1: Requested", "a-1: Requested", "demo is PROVISIONING"]
        );
        assert_eq!(known.lines(&first), Vec::<String>::new());
        let next = cluster("PROVISIONING", &[("cp-1", "Deploying", "installing")]);
        assert_eq!(known.lines(&next), ["cp-1: Deploying: installing", "a-1: gone"]);
    }
}
