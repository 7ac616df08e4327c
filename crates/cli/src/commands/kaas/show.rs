//! Looking at clusters.

use prost_types::Timestamp;
use selvage_api::{
    cnct::kaas::api::GetClusterListMsg,
    selvage::clusters::{
        Cluster, GetClusterRequest, GetClusterResponse, ListEventsRequest, ListVersionsRequest,
    },
};

use super::{
    args::{Named, Show},
    ask, beyond, follow,
};
use crate::{Error, commands::node::sheet::Sheet, output, session::Session};

const CLUSTERS: &str = "cnct.kaas.api.GetClusterListReply";
const CLUSTER: &str = "selvage.clusters.Cluster";
const EVENTS: &str = "selvage.clusters.ListEventsResponse";
const VERSIONS: &str = "selvage.clusters.ListVersionsResponse";

pub(super) async fn list(session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let reply = ask(&client, GetClusterListMsg {}, async |mut client, request| {
        client.get_cluster_list(request).await
    });
    let reply = reply.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(CLUSTERS, &reply)?);
    }
    let mut sheet = Sheet::new(&["NAME", "STATUS", "MESSAGE"]);
    for cluster in &reply.clusters {
        let status = cluster.status().as_str_name().to_owned();
        sheet.push([cluster.name.clone(), status, or_none(&cluster.status_message)]);
    }
    sheet.print(session)
}

async fn get(name: &str, session: &mut Session<'_>) -> Result<Cluster, Error> {
    let client = session.client().await?;
    let request = GetClusterRequest { name: name.to_owned() };
    let reply: GetClusterResponse =
        beyond(&client, request, async |mut client, request| client.get_cluster(request).await)
            .await?;
    Ok(reply.cluster.unwrap_or_default())
}

pub(super) async fn show(args: Show, session: &mut Session<'_>) -> Result<(), Error> {
    if args.watch {
        let client = session.client().await?;
        return follow::until_settled(&client, &args.name, session).await;
    }
    let cluster = get(&args.name, session).await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(CLUSTER, &cluster)?);
    }
    let mut facts = Sheet::new(&["NAME", "STATUS", "VERSION", "API", "PROVIDER", "ORGANISATION"]);
    facts.push([
        cluster.name.clone(),
        cluster.status.clone(),
        cluster.version.clone(),
        or_none(&cluster.endpoint),
        cluster.provider.clone(),
        or_none(&cluster.organisation),
    ]);
    facts.print(session)?;
    if !cluster.status_message.is_empty() {
        session.io.say(&format!("\n{}", cluster.status_message))?;
    }
    session.printer().blank()?;
    let mut pools = Sheet::new(&["POOL", "READY", "WANTED", "TYPE"]);
    for pool in &cluster.pools {
        let name = if pool.name.is_empty() { "control-plane" } else { &pool.name };
        pools.push([
            name.to_owned(),
            pool.ready.to_string(),
            pool.count.to_string(),
            or_none(&pool.instance_type),
        ]);
    }
    pools.print(session)
}

pub(super) async fn nodes(args: Named, session: &mut Session<'_>) -> Result<(), Error> {
    let cluster = get(&args.name, session).await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(CLUSTER, &cluster)?);
    }
    nodes_sheet(&cluster, jiff::Timestamp::now().as_second()).print(session)
}

fn nodes_sheet(cluster: &Cluster, now: i64) -> Sheet {
    let mut sheet = Sheet::new(&[
        "NAME",
        "POOL",
        "PHASE",
        "SINCE",
        "VERSION",
        "ADDRESS",
        "+MACHINE",
        "+PROVIDER STATE",
        "MESSAGE",
    ]);
    for machine in &cluster.machines {
        let pool = if machine.pool.is_empty() { "control-plane" } else { &machine.pool };
        let since = machine.since.as_ref().map_or("-".to_owned(), |at| ago(now - at.seconds));
        sheet.push([
            machine.name.clone(),
            pool.to_owned(),
            machine.phase.clone(),
            since,
            or_none(&machine.version),
            or_none(&machine.address),
            or_none(&machine.provider_id),
            or_none(&machine.provider_state),
            or_none(&machine.message),
        ]);
    }
    sheet
}

pub(super) async fn events(args: Named, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let request = ListEventsRequest { name: args.name };
    let reply =
        beyond(&client, request, async |mut client, request| client.list_events(request).await)
            .await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(EVENTS, &reply)?);
    }
    let mut sheet = Sheet::new(&["TIME", "MACHINE", "EVENT"]);
    for event in &reply.events {
        sheet.push([time(event.at.as_ref()), or_none(&event.machine), event.message.clone()]);
    }
    sheet.print(session)
}

pub(super) async fn versions(session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let reply = beyond(&client, ListVersionsRequest {}, async |mut client, request| {
        client.list_versions(request).await
    });
    let reply = reply.await?;
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(VERSIONS, &reply)?);
    }
    let mut sheet = Sheet::new(&["KUBERNETES", "ETCD", "CONTAINERD", "CNI", "COREDNS"]);
    for version in &reply.versions {
        sheet.push([
            version.kubernetes.clone(),
            version.etcd.clone(),
            version.containerd.clone(),
            version.cni.clone(),
            version.coredns.clone(),
        ]);
    }
    sheet.print(session)?;
    if !reply.problem.is_empty() {
        session.io.say(&format!("\nNo machines can be had: {}", reply.problem))?;
    }
    Ok(())
}

pub(super) fn time(at: Option<&Timestamp>) -> String {
    let at = at.and_then(|at| jiff::Timestamp::from_second(at.seconds).ok());
    at.map_or("-".to_owned(), |at| at.to_string())
}

fn ago(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{}s", seconds.max(0)),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use selvage_api::selvage::clusters::Machine;

    use super::*;

    #[test]
    fn nodes_are_a_table() {
        let machine = Machine {
            name: "web-x7k2p".into(),
            pool: "web".into(),
            phase: "Draining".into(),
            since: Some(Timestamp { seconds: 40, nanos: 0 }),
            message: "1 pod may not be disrupted now".into(),
            version: "1.36.4".into(),
            provider_id: "abc123".into(),
            provider_state: "Deployed".into(),
            ..Machine::default()
        };
        let cluster = Cluster { machines: vec![machine], ..Cluster::default() };
        assert_eq!(
            nodes_sheet(&cluster, 100).text(crate::Format::Table),
            "NAME        POOL   PHASE      SINCE   VERSION   ADDRESS   MESSAGE\n\
             web-x7k2p   web    Draining   1m      1.36.4    -         1 pod may not be disrupted \
             now\n"
        );
        assert_eq!(
            nodes_sheet(&cluster, 100).text(crate::Format::Wide),
            "NAME        POOL   PHASE      SINCE   VERSION   ADDRESS   MACHINE   PROVIDER STATE   \
             MESSAGE\n\
             web-x7k2p   web    Draining   1m      1.36.4    -         abc123    Deployed         \
             1 pod may not be disrupted now\n"
        );
    }
}
