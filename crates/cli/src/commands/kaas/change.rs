//! Changing clusters.

use std::path::Path;

use prost::Message;
use selvage_api::{
    cnct::kaas::api::{
        AddNodePoolMsg, ControlPlaneMachineSpec, CreateClusterMsg, DeleteClusterMsg,
        DeleteNodePoolMsg, GetUpgradeClusterInformationMsg, KubernetesLabel, MachineSpec,
        ScaleNodePoolMsg, ScaleNodePoolSpec, UpgradeClusterMsg,
    },
    selvage::clusters::{AbortUpgradeRequest, PlanClusterRequest, PlannedPool},
};
use tonic::metadata::{Ascii, MetadataValue};

use super::{
    FORCE, ORGANISATION,
    args::{ChangeArgs, Create, Delete, Pool, PoolSize, Scale, Upgrade},
    ask, beyond, follow,
};
use crate::{Error, body, client::Client, edge::file, session::Session};

pub(super) async fn create(args: Create, session: &mut Session<'_>) -> Result<(), Error> {
    let how = args.how;
    let organisation = MetadataValue::try_from(&args.organisation)
        .map_err(|_| Error::invalid("--organisation holds characters no name has"))?;
    let request = match &args.file {
        Some(path) => from_file(path, args.name.as_deref(), session)?,
        None => from_flags(args),
    };
    let name = request.name.clone();
    let client = session.client().await?;
    if how.dry_run {
        let plan = plan_of_new(&request);
        return print_plan(&client, plan, (ORGANISATION, organisation), session).await;
    }
    ask(&client, request, async |mut client, mut request| {
        if !organisation.is_empty() {
            request.metadata_mut().insert(ORGANISATION, organisation);
        }
        client.create_cluster(request).await
    })
    .await?;
    finish(&client, &name, how, "is being made", session).await
}

fn from_flags(args: Create) -> CreateClusterMsg {
    CreateClusterMsg {
        name: args.name.unwrap_or_default(),
        k8s_version: args.version.unwrap_or_default(),
        control_plane_nodes: Some(ControlPlaneMachineSpec {
            instance_type: args.instance_type,
            count: args.control_plane,
            ..ControlPlaneMachineSpec::default()
        }),
        worker_node_pools: args.pools.into_iter().map(|pool| spec(pool, Vec::new())).collect(),
    }
}

fn from_file(
    path: &Path,
    name: Option<&str>,
    session: &mut Session<'_>,
) -> Result<CreateClusterMsg, Error> {
    let (text, origin) = file::text(path, session.io)?;
    let value: serde_json::Value = serde_saphyr::from_str(&text)
        .map_err(|error| Error::invalid(format!("{origin}: {error}")))?;
    let descriptor = selvage_api::pool().get_message_by_name("cnct.kaas.api.CreateClusterMsg");
    let descriptor = descriptor.ok_or_else(|| Error::Unexpected("no such message".into()))?;
    let read = body::message(&value, &descriptor)?;
    let mut request = CreateClusterMsg::decode(read.encode_to_vec().as_slice())
        .map_err(|error| Error::invalid(format!("{origin}: {error}")))?;
    if let Some(name) = name {
        request.name = name.to_owned();
    }
    Ok(request)
}

fn spec(pool: PoolSize, labels: Vec<(String, String)>) -> MachineSpec {
    let labels = labels.into_iter().map(|(name, value)| KubernetesLabel { name, value });
    MachineSpec {
        name: pool.name,
        labels: labels.collect(),
        instance_type: pool.instance_type,
        count: pool.count,
    }
}

pub(super) async fn pool(command: Pool, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let (cluster, how) = match command {
        Pool::Add(args) => {
            let labels = args.labels.iter().cloned().collect();
            let pools = vec![PlannedPool { labels, ..planned(&args.pool) }];
            if args.how.dry_run {
                let plan = PlanClusterRequest { pools, ..plan_of(&args.cluster) };
                return print_plan(&client, plan, no_header(), session).await;
            }
            let request = AddNodePoolMsg {
                cluster_name: args.cluster.clone(),
                worker_node_pools: vec![spec(args.pool, args.labels)],
            };
            ask(&client, request, async |mut client, request| client.add_node_pool(request).await)
                .await?;
            (args.cluster, args.how)
        }
        Pool::Delete(args) => {
            if args.how.dry_run {
                let plan =
                    PlanClusterRequest { delete_pools: args.pools, ..plan_of(&args.cluster) };
                return print_plan(&client, plan, no_header(), session).await;
            }
            let request = DeleteNodePoolMsg {
                cluster_name: args.cluster.clone(),
                node_pool_names: args.pools,
            };
            ask(&client, request, async |mut client, request| {
                client.delete_node_pool(request).await
            })
            .await?;
            (args.cluster, args.how)
        }
    };
    finish(&client, &cluster, how, "is being changed", session).await
}

pub(super) async fn scale(args: Scale, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    if args.how.dry_run {
        let pools = args.pools.iter().map(planned).collect();
        let plan = PlanClusterRequest { pools, ..plan_of(&args.cluster) };
        return print_plan(&client, plan, no_header(), session).await;
    }
    let sizes = args.pools.into_iter();
    let sizes = sizes.map(|pool| ScaleNodePoolSpec { name: pool.name, count: pool.count });
    let request =
        ScaleNodePoolMsg { cluster_name: args.cluster.clone(), node_pools: sizes.collect() };
    ask(&client, request, async |mut client, request| client.scale_node_pool(request).await)
        .await?;
    finish(&client, &args.cluster, args.how, "is being changed", session).await
}

pub(super) async fn upgrade(args: Upgrade, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    if args.abort {
        let request = AbortUpgradeRequest { name: args.name.clone() };
        beyond(&client, request, async |mut client, request| client.abort_upgrade(request).await)
            .await?;
        return finish(&client, &args.name, args.how, "keeps its version", session).await;
    }
    let Some(version) = args.version else {
        let request = GetUpgradeClusterInformationMsg { name: args.name.clone() };
        let reply = ask(&client, request, async |mut client, request| {
            client.get_upgrade_cluster_information(request).await
        });
        let versions = reply.await?.versions;
        if versions.is_empty() {
            return session.io.say(&format!(
                "There is no version that {} can go to. `selvage kaas versions` lists those on \
                 offer; name one to be told what it lacks.",
                args.name
            ));
        }
        for version in versions {
            writeln!(session.io.out, "{version}").map_err(Error::Output)?;
        }
        return Ok(());
    };
    if args.how.dry_run {
        let plan = PlanClusterRequest { version, ..plan_of(&args.name) };
        let force = MetadataValue::from_static(if args.force { "true" } else { "" });
        return print_plan(&client, plan, (FORCE, force), session).await;
    }
    let request = UpgradeClusterMsg { name: args.name.clone(), version };
    let force = args.force;
    ask(&client, request, async |mut client, mut request| {
        if force {
            request.metadata_mut().insert(FORCE, MetadataValue::from_static("true"));
        }
        client.upgrade_cluster(request).await
    })
    .await?;
    finish(&client, &args.name, args.how, "is being upgraded", session).await
}

pub(super) async fn delete(args: Delete, session: &mut Session<'_>) -> Result<(), Error> {
    let name = &args.name;
    let client = session.client().await?;
    if args.how.dry_run {
        let plan = PlanClusterRequest { delete: true, ..plan_of(name) };
        return print_plan(&client, plan, no_header(), session).await;
    }
    let question = format!("Delete cluster {name} with everything in it?");
    if !args.yes && !session.confirm(&question, "say --yes to mean it")? {
        return Err(Error::Declined(format!("{name} stays")));
    }
    let request = DeleteClusterMsg { name: name.clone() };
    ask(&client, request, async |mut client, request| client.delete_cluster(request).await).await?;
    if args.how.wait {
        return match follow::until_settled(&client, name, session).await {
            // It was gone before anybody could look.
            Err(error) if error.code() == selvage_api::Code::NotFound => Ok(()),
            other => other,
        };
    }
    session.io.say(&format!("{name} is being deleted."))
}

fn plan_of(name: &str) -> PlanClusterRequest {
    PlanClusterRequest { name: name.to_owned(), ..PlanClusterRequest::default() }
}

fn planned(pool: &PoolSize) -> PlannedPool {
    PlannedPool {
        name: pool.name.clone(),
        instance_type: pool.instance_type.clone(),
        count: pool.count,
        ..PlannedPool::default()
    }
}

fn plan_of_new(request: &CreateClusterMsg) -> PlanClusterRequest {
    // What a request gets that says nothing about it.
    let standard =
        || ControlPlaneMachineSpec { instance_type: "standard".into(), ..Default::default() };
    let control_plane = request.control_plane_nodes.clone().unwrap_or_else(standard);
    let labels = |labels: &[KubernetesLabel]| {
        labels.iter().map(|label| (label.name.clone(), label.value.clone())).collect()
    };
    let pools = request.worker_node_pools.iter().map(|pool| PlannedPool {
        name: pool.name.clone(),
        instance_type: pool.instance_type.clone(),
        count: pool.count,
        labels: labels(&pool.labels),
    });
    PlanClusterRequest {
        version: request.k8s_version.clone(),
        control_plane_count: control_plane.count,
        control_plane_instance_type: control_plane.instance_type,
        control_plane_labels: labels(&control_plane.labels),
        pools: pools.collect(),
        ..plan_of(&request.name)
    }
}

/// Header of a call with nothing in it, which is not sent.
fn no_header() -> (&'static str, MetadataValue<Ascii>) {
    (FORCE, MetadataValue::from_static(""))
}

async fn print_plan(
    client: &Client,
    request: PlanClusterRequest,
    (header, value): (&'static str, MetadataValue<Ascii>),
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let reply = beyond(client, request, async |mut client, mut request| {
        if !value.is_empty() {
            request.metadata_mut().insert(header, value);
        }
        client.plan_cluster(request).await
    });
    let steps = reply.await?.steps;
    if steps.is_empty() {
        return session.io.say("Nothing would be done.");
    }
    for (at, step) in steps.iter().enumerate() {
        writeln!(session.io.out, "{:>3}. {step}", at + 1).map_err(Error::Output)?;
    }
    Ok(())
}

async fn finish(
    client: &Client,
    name: &str,
    how: ChangeArgs,
    doing: &str,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    if how.wait {
        return follow::until_settled(client, name, session).await;
    }
    session.io.say(&format!("{name} {doing}; `selvage kaas show {name} --watch` tells of it."))
}
