//! Which instance is meant.

use futures::TryStreamExt;
use selvage_api::edgeproto::{
    AppInst, AppInstKey, AppKey, CloudletKey, ClusterInstKey, ClusterKey, DeveloperKey,
    OperatorKey, app_inst_api_client::AppInstApiClient,
};

use crate::{Error, client::Client};

/// As much of an instance's key as tells it from others.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Which")]
pub(crate) struct InstanceArgs {
    /// Name of the app
    #[arg(value_name = "APP", default_value = "", hide_default_value = true)]
    app: String,
    /// The same
    #[arg(long, value_name = "TEXT", conflicts_with = "app")]
    appname: Option<String>,
    /// Version of the app
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    appvers: String,
    /// The developer who owns the app
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    developer: String,
    /// Name of the cluster
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    cluster: String,
    /// Name of the site
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    cloudlet: String,
    /// The operator who provides the site
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    operator: String,
    /// Organisation that the cluster belongs to
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    clusterdeveloper: String,
}

impl InstanceArgs {
    fn key(&self) -> AppInstKey {
        let developer_key = Some(DeveloperKey { name: self.developer.clone() });
        let operator_key = Some(OperatorKey { name: self.operator.clone() });
        AppInstKey {
            app_key: Some(AppKey {
                developer_key,
                name: self.appname.clone().unwrap_or_else(|| self.app.clone()),
                version: self.appvers.clone(),
            }),
            cluster_inst_key: Some(ClusterInstKey {
                cluster_key: Some(ClusterKey { name: self.cluster.clone() }),
                cloudlet_key: Some(CloudletKey { operator_key, name: self.cloudlet.clone() }),
                developer: self.clusterdeveloper.clone(),
            }),
        }
    }
}

async fn shown(client: &Client, filter: AppInst) -> Result<Vec<AppInst>, Error> {
    let request = client.request(filter, client.limit(false))?;
    let shown = AppInstApiClient::new(client.channel()).show_app_inst(request).await;
    let found = match shown {
        Ok(response) => response.into_inner().try_collect::<Vec<AppInst>>().await,
        Err(status) => Err(status),
    };
    found.map_err(|status| client.refused(&status))
}

/// The instance that has a container of this name.
pub(crate) async fn owner(client: &Client, container: &str) -> Result<AppInstKey, Error> {
    let all = shown(client, AppInst::default()).await?;
    owner_among(all, container)
}

fn owner_among(all: Vec<AppInst>, container: &str) -> Result<AppInstKey, Error> {
    let has_it = |inst: &AppInst| {
        let runtime = inst.runtime_info.as_ref();
        runtime.is_some_and(|runtime| runtime.container_ids.iter().any(|id| id == container))
    };
    let mut keys: Vec<AppInstKey> =
        all.into_iter().filter(has_it).filter_map(|it| it.key).collect();
    match (keys.pop(), keys.len()) {
        (Some(key), 0) => Ok(key),
        (None, _) => Err(Error::invalid(format!(
            "{container} is no container of an instance: only those have a shell here"
        ))),
        _ => Err(Error::invalid(format!(
            "several instances have a container {container}: `selvage exec` says which"
        ))),
    }
}

/// The one instance that fits.
pub(crate) async fn instance(client: &Client, which: &InstanceArgs) -> Result<AppInstKey, Error> {
    let filter = AppInst { key: Some(which.key()), ..AppInst::default() };
    let found = shown(client, filter).await?;
    let mut keys: Vec<AppInstKey> = found.into_iter().filter_map(|it| it.key).collect();
    match (keys.pop(), keys.len()) {
        (Some(key), 0) => Ok(key),
        (None, _) => Err(Error::Unknown {
            kind: "instance of the app",
            name: which.appname.clone().unwrap_or_else(|| which.app.clone()),
            suggestions: Vec::new(),
            hint: "`selvage appinst show` lists the instances there are".into(),
        }),
        (Some(key), _) => {
            keys.push(key);
            Err(Error::Invalid {
                message: format!("{} instances fit: say which one is meant", keys.len()),
                hints: keys.iter().take(10).map(flags).collect(),
            })
        }
    }
}

/// The flags that mean just this one.
fn flags(key: &AppInstKey) -> String {
    let app = key.app_key.clone().unwrap_or_default();
    let cluster = key.cluster_inst_key.clone().unwrap_or_default();
    let cloudlet = cluster.cloudlet_key.unwrap_or_default();
    let pairs = [
        ("", app.name),
        ("--appvers ", app.version),
        ("--developer ", app.developer_key.unwrap_or_default().name),
        ("--cluster ", cluster.cluster_key.unwrap_or_default().name),
        ("--cloudlet ", cloudlet.name),
        ("--operator ", cloudlet.operator_key.unwrap_or_default().name),
        ("--clusterdeveloper ", cluster.developer),
    ];
    let given = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    let words: Vec<String> = given
        .map(|(flag, value)| match value.contains(' ') {
            true => format!("{flag}'{value}'"),
            false => format!("{flag}{value}"),
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::edgeproto::AppInstRuntime;

    use super::*;

    #[test]
    fn a_container_leads_to_its_instance() {
        let instance = |name: &str, containers: &[&str]| AppInst {
            key: Some(AppInstKey {
                app_key: Some(AppKey { name: name.into(), ..AppKey::default() }),
                ..AppInstKey::default()
            }),
            runtime_info: Some(AppInstRuntime {
                container_ids: containers.iter().map(|id| (*id).to_owned()).collect(),
                ..AppInstRuntime::default()
            }),
            ..AppInst::default()
        };
        let all = || vec![instance("a", &["a1", "a2"]), instance("b", &["b1", "same"])];
        let name = |id: &str| owner_among(all(), id).map(|key| key.app_key.unwrap().name);
        assert_eq!(name("a2").unwrap(), "a");
        let stranger = name("kube-system/coredns").unwrap_err().to_string();
        assert!(stranger.starts_with("kube-system/coredns is no container of"), "{stranger}");
        let twice = [all(), vec![instance("c", &["same"])]].concat();
        assert!(owner_among(twice, "same").unwrap_err().to_string().contains("several instances"));
    }
}
