//! `selvage run`: from an image to an instance that answers, in one command.

use std::{collections::BTreeMap, path::PathBuf};

use prost_reflect::DynamicMessage;
use selvage_api::{
    edgeproto::{
        App, AppInst, AppInstKey, AppKey, CloudletKey, ClusterInstKey, ClusterKey, ConfigFile,
        Developer, DeveloperKey, Flavor, FlavorKey, ImageType,
    },
    object::to_dynamic,
    selvage::identity::{WhoAmIRequest, identity_service_client::IdentityServiceClient},
};
use selvage_edge::{auto_cluster, deployment};

use super::{
    batch::{Batch, Outcome},
    names, show,
};
use crate::{
    Error,
    client::Client,
    edge::{Draft, Kind, Verb, catalog, draft, file::Entry, flags::ObjectArgs, rpc},
    session::Session,
};

/// Kind of a configuration that holds environment variables.
const ENVIRONMENT: &str = "envVarsYaml";
/// Version of an app whose image names none.
const FIRST_VERSION: &str = "1.0";

/// `selvage run`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage run nginx --on here -p tcp:80
  selvage run registry.example/shop:2.1 --on telco/berlin -p http:8080 --env MODE=demo
  selvage run shop.tar --on here --env-file shop.env      an image in a file

The developer, the app and its instance are made where they are missing and
updated where they differ, so that the command can be run again.")]
pub struct Run {
    /// Image of a registry, or the archive of one in a file of the cloudlet
    pub image: String,
    /// Cloudlet to run it on: NAME or OPERATOR/NAME [default: the only one]
    #[arg(long, value_name = "CLOUDLET")]
    pub on: Option<String>,
    /// Port to publish, such as tcp:80, udp:53 or http:8080; may be repeated
    #[arg(short, long = "port", value_name = "PORT")]
    pub ports: Vec<String>,
    /// Variable of its environment, NAME=VALUE, or NAME for the one of here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub environment: Vec<String>,
    /// File of such lines
    #[arg(long, value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// Command instead of the image's own
    #[arg(long, value_name = "TEXT")]
    pub command: Option<String>,
    /// Name of the app [default: the image's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Version of the app [default: the image's tag, or 1.0]
    #[arg(long, value_name = "TEXT")]
    pub appvers: Option<String>,
    /// Developer of the app [default: your organisation, or your name]
    #[arg(long, value_name = "NAME")]
    pub developer: Option<String>,
    /// Size of the instance [default: the smallest flavor there is]
    #[arg(long, value_name = "NAME")]
    pub flavor: Option<String>,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
}

pub(crate) async fn run(args: &Run, session: &mut Session<'_>) -> Result<(), Error> {
    let (name, version) = args.app_name()?;
    let environment = args.variables(session)?;
    let client = session.client().await?;
    let developer = match &args.developer {
        Some(developer) => developer.clone(),
        None => own_organisation(&client).await?,
    };
    let cloudlet = cloudlet(args.on.as_deref(), &client).await?;
    let flavor = match &args.flavor {
        Some(flavor) => flavor.clone(),
        None => smallest_flavor(&client).await?,
    };
    let key = AppKey {
        developer_key: Some(DeveloperKey { name: developer.clone() }),
        name: name.clone(),
        version,
    };
    let app = App {
        key: Some(key.clone()),
        image_path: args.image_path(),
        image_type: ImageType::Docker.into(),
        deployment: deployment::DOCKER.into(),
        access_ports: args.ports.join(","),
        command: args.command.clone().unwrap_or_default(),
        default_flavor: Some(FlavorKey { name: flavor }),
        configs: environment_config(&environment),
        ..App::default()
    };
    let instance = instance(key, cloudlet);
    let mut batch = Batch::new(session, args.dry_run).await?;
    let owner = Developer { key: Some(DeveloperKey { name: developer }), ..Developer::default() };
    let changed = put_all(&mut batch, &owner, &app, &instance).await?;
    batch.finish()?;
    if args.dry_run || !changed {
        return Ok(());
    }
    show_instance(&instance, session).await
}

/// Puts the objects one after the other, up to the first that fails. Returns
/// whether all of them are there.
async fn put_all(
    batch: &mut Batch<'_, '_>,
    owner: &Developer,
    app: &App,
    instance: &AppInst,
) -> Result<bool, Error> {
    let mut app_changed = false;
    for (word, message) in
        [("developer", dynamic(owner)?), ("app", dynamic(app)?), ("appinst", dynamic(instance)?)]
    {
        let entry = entry(word, &message)?;
        let mut outcome = batch.put(&entry).await;
        app_changed |= word == "app" && matches!(outcome, Outcome::Updated);
        if word == "appinst" && app_changed && matches!(outcome, Outcome::Unchanged) {
            outcome = batch.refresh(&entry).await;
        }
        let failed = matches!(outcome, Outcome::Failed(_));
        batch.report(&entry, &outcome)?;
        if failed {
            return Ok(false);
        }
    }
    Ok(true)
}

fn dynamic<M: prost::Message + prost::Name>(message: &M) -> Result<DynamicMessage, Error> {
    to_dynamic(message).map_err(|error| Error::Unexpected(error.to_string()))
}

fn kind_of(word: &str) -> Result<&'static Kind, Error> {
    catalog::kind(word).ok_or_else(|| Error::Unexpected(format!("{word} is no kind of object")))
}

/// A draft that names every field of a message that is set.
fn entry(word: &str, message: &DynamicMessage) -> Result<Entry, Error> {
    let kind = kind_of(word)?;
    Ok(Entry { kind, draft: Draft::naming(message) })
}

fn instance(app: AppKey, cloudlet: CloudletKey) -> AppInst {
    let cluster = ClusterInstKey {
        cluster_key: Some(ClusterKey { name: auto_cluster(&app.name) }),
        cloudlet_key: Some(cloudlet),
        developer: String::new(),
    };
    let key = AppInstKey { app_key: Some(app), cluster_inst_key: Some(cluster) };
    AppInst { key: Some(key), ..AppInst::default() }
}

/// Prints the instance as `appinst show` does, with its health and address.
async fn show_instance(instance: &AppInst, session: &mut Session<'_>) -> Result<(), Error> {
    let kind = kind_of("appinst")?;
    let key = draft::key_text(&dynamic(instance)?);
    show::run(kind, &ObjectArgs::named(key), session).await
}

/// Organisation for which the caller develops; their name where there is none.
async fn own_organisation(client: &Client) -> Result<String, Error> {
    let me = client
        .call(WhoAmIRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).who_am_i(request).await
        })
        .await?;
    let mut developers = me.grants.into_iter().filter(|grant| grant.role == "developer");
    match (developers.next(), developers.next()) {
        (Some(only), None) => Ok(only.organisation),
        (Some(first), Some(second)) => Err(Error::Invalid {
            message: format!(
                "you develop for {}, {} and maybe more: say for which",
                first.organisation, second.organisation
            ),
            hints: vec!["give --developer NAME".into()],
        }),
        (None, _) => Ok(me.name),
    }
}

async fn cloudlet(on: Option<&str>, client: &Client) -> Result<CloudletKey, Error> {
    let kind = kind_of("cloudlet")?;
    let none = DynamicMessage::new(kind.message.clone());
    let found = match on {
        Some(name) => names::resolve(kind, name, &none, client).await?,
        None => match listed(kind, client).await?.as_slice() {
            [only] => only.clone(),
            [] => {
                return Err(Error::Invalid {
                    message: "there is no cloudlet to run it on".into(),
                    hints: vec!["`selvage up --demo` makes one of this machine".into()],
                });
            }
            several => {
                return Err(Error::Invalid {
                    message: format!("there are {} cloudlets: say which", several.len()),
                    hints: vec!["give --on NAME; `selvage cloudlet list` shows them".into()],
                });
            }
        },
    };
    let found: selvage_api::edgeproto::Cloudlet =
        found.transcode_to().map_err(|error| Error::Unexpected(error.to_string()))?;
    Ok(found.key.unwrap_or_default())
}

async fn listed(kind: &Kind, client: &Client) -> Result<Vec<DynamicMessage>, Error> {
    match kind.method(Verb::Show) {
        Some(method) => rpc::show(client, method, DynamicMessage::new(kind.message.clone())).await,
        None => Ok(Vec::new()),
    }
}

async fn smallest_flavor(client: &Client) -> Result<String, Error> {
    let all = listed(kind_of("flavor")?, client).await?;
    let mut flavors = Vec::new();
    for flavor in all {
        let flavor: Flavor =
            flavor.transcode_to().map_err(|error| Error::Unexpected(error.to_string()))?;
        flavors.push(flavor);
    }
    flavors.sort_by_key(|flavor| (flavor.ram, flavor.vcpus, flavor.disk));
    let first = flavors.into_iter().find_map(|flavor| flavor.key);
    first.map(|key| key.name).ok_or_else(|| Error::Invalid {
        message: "there is no flavor, so nothing says how large the instance is".into(),
        hints: vec!["`selvage flavor create small --ram 256 --vcpus 1 --disk 1` makes one".into()],
    })
}

fn environment_config(variables: &BTreeMap<String, String>) -> Vec<ConfigFile> {
    if variables.is_empty() {
        return Vec::new();
    }
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let lines = variables
        .iter()
        .map(|(name, value)| format!("- name: {}\n  value: {}\n", quoted(name), quoted(value)));
    vec![ConfigFile { kind: ENVIRONMENT.into(), config: lines.collect() }]
}

impl Run {
    /// Name and version of the app.
    fn app_name(&self) -> Result<(String, String), Error> {
        let (path, tag) = split_image(&self.image);
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let from_image = last.strip_suffix(".tar").unwrap_or(last);
        let name = self.name.clone().unwrap_or_else(|| from_image.to_owned());
        if name.is_empty() {
            return Err(Error::invalid(format!("{:?} names no image", self.image)));
        }
        let tag = tag.filter(|tag| *tag != "latest").unwrap_or(FIRST_VERSION);
        Ok((name, self.appvers.clone().unwrap_or_else(|| tag.to_owned())))
    }

    /// Location of the image, as the cloudlet finds it.
    fn image_path(&self) -> String {
        let is_file = self.image.starts_with('/') && self.image.ends_with(".tar");
        if is_file { format!("file://{}", self.image) } else { self.image.clone() }
    }

    fn variables(&self, session: &Session<'_>) -> Result<BTreeMap<String, String>, Error> {
        let mut lines = Vec::new();
        if let Some(path) = &self.env_file {
            let text = std::fs::read_to_string(path).map_err(|source| Error::read(path, source))?;
            let used = text.lines().map(str::trim);
            lines.extend(
                used.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned),
            );
        }
        lines.extend(self.environment.iter().cloned());
        let mut variables = BTreeMap::new();
        for line in lines {
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => match session.io.var(&line) {
                    Some(value) => (line.clone(), value.to_owned()),
                    None => {
                        let text = format!("--env {line}: there is no such variable here");
                        return Err(Error::invalid(text));
                    }
                },
            };
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Err(Error::invalid(format!("--env: {name:?} is no name of a variable")));
            }
            variables.insert(name, value);
        }
        Ok(variables)
    }
}

/// An image without its tag and digest, and the tag.
fn split_image(image: &str) -> (&str, Option<&str>) {
    let named = image.split('@').next().unwrap_or(image);
    match named.rsplit_once(':') {
        // A colon before a slash is that of a port.
        Some((path, tag)) if !tag.contains('/') && !tag.is_empty() => (path, Some(tag)),
        _ => (named, None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_image_names_its_app() {
        let named = |image: &str| {
            let run = Run {
                image: image.into(),
                on: None,
                ports: Vec::new(),
                environment: Vec::new(),
                env_file: None,
                command: None,
                name: None,
                appvers: None,
                developer: None,
                flavor: None,
                dry_run: false,
            };
            run.app_name().unwrap()
        };
        let is = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(named("nginx"), is("nginx", "1.0"));
        assert_eq!(named("nginx:latest"), is("nginx", "1.0"));
        assert_eq!(named("host.example:5000/a/shop:2.1"), is("shop", "2.1"));
        assert_eq!(named("host.example:5000/shop"), is("shop", "1.0"));
        assert_eq!(named("a/shop@sha256:00"), is("shop", "1.0"));
        assert_eq!(named("/srv/shop.tar"), is("shop", "1.0"));
    }

    #[test]
    fn variables_are_one_config_whatever_they_hold() {
        let variables = [("A", "x: \"y\"\n"), ("B", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let configs = environment_config(&variables);
        assert_eq!(configs[0].kind, "envVarsYaml");
        let text = "- name: \"A\"\n  value: \"x: \\\"y\\\"\\n\"\n- name: \"B\"\n  value: \"\"\n";
        assert_eq!(configs[0].config, text);
        assert!(environment_config(&BTreeMap::new()).is_empty());
    }
}
