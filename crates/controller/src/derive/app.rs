//! The stored form of an App that somebody wants to create or change.
//!
//! Parts of an App may have to be fetched, which must not be done inside a
//! transaction. So there are two steps: [`needs`] checks all that can be
//! checked at once and says what to fetch, [`finish`] makes the App of it.

use prost::Message;
use selvage_api::{Code, edgeproto::App, object::Key};
use serde_json::json;

use super::{
    Error, Result, access_ports, deployment, manifest,
    manifest::KUBERNETES_BASIC,
    names, ports as public_ports, public_key,
    remote::{Failure, Fetched, Purpose, Request, is_address},
    volumes,
};
use crate::{keys::AppKeyParts, settings::Settings};

/// Largest size of an App altogether: it is kept in memory by every controller
/// and travels in one message to every agent.
const MAX_APP: usize = 1024 * 1024;
const MAX_MANIFEST: usize = 512 * 1024;
const MAX_CONFIG: usize = 256 * 1024;
const MAX_TEXT: usize = 16 * 1024;
const MAX_CONFIG_FILES: usize = 32;

/// Returns the requests that must be made before [`finish`]. For an update
/// `app` is the merged App and `before` the stored one.
pub(crate) fn needs(app: &App, before: Option<&App>, settings: &Settings) -> Result<Vec<Request>> {
    let app = check(app.clone(), before, settings)?;
    let files = app.configs.iter().map(|file| (Purpose::ConfigFile, &file.config));
    let mut requests: Vec<_> = [(Purpose::Config, &app.config)]
        .into_iter()
        .chain(files)
        .filter(|(_, text)| is_address(text))
        .map(|(purpose, text)| get(purpose, text))
        .collect();
    requests.extend(manifest_request(&app)?);
    Ok(requests)
}

/// The App as it is stored. Called inside the transaction, with the App that
/// is there now: ABORTED if that needs something else than what was fetched.
pub(crate) fn finish(
    app: App,
    before: Option<&App>,
    fetched: &[Fetched],
    settings: &Settings,
) -> Result<App> {
    let mut app = check(app, before, settings)?;
    if is_address(&app.config) {
        app.config = outcome(fetched, &get(Purpose::Config, &app.config))?;
    }
    manifest::parse_config(&app.config)?;
    settle_manifest(&mut app, fetched)?;
    for file in &mut app.configs {
        if is_address(&file.config) {
            file.config = outcome(fetched, &get(Purpose::ConfigFile, &file.config))?;
        }
    }
    manifest::check_config_files(&app.deployment, &app.configs)?;
    check_sizes(&app)?;
    Ok(app)
}

/// All that needs nothing from elsewhere, in the order of the original.
fn check(mut app: App, before: Option<&App>, settings: &Settings) -> Result<App> {
    app.fields.clear();
    Key::of(&app)?.check()?;
    if before.is_none() {
        names::check_app(&app.key.clone().unwrap_or_default())?;
    }
    selvage_api::object::check_enums(&app)?;
    check_sizes(&app)?;
    check_printable(&app)?;
    let ports = access_ports::parse(&app.access_ports)?;
    public_key::check(&app.auth_public_key)?;
    deployment::settle(&mut app)?;
    volumes::total_gb(&app)?;
    public_ports::check_reserved(&ports, &app.deployment)?;
    app.access_ports = access_ports::render(&ports);
    if app.image_path.is_empty() {
        app.image_path = deployment::default_image_path(&app, &settings.registry)?;
    }
    deployment::check_image_path(&app)?;
    if let Some(before) = before {
        drop_stale_generator(&mut app, before);
    }
    Ok(app)
}

/// The generator that was chosen for want of a manifest is stored with the
/// App. It gives way when the developer supplies a manifest, and goes when
/// the deployment is no longer one that it knows.
fn drop_stale_generator(app: &mut App, before: &App) {
    if app.deployment_generator != KUBERNETES_BASIC
        || before.deployment_generator != KUBERNETES_BASIC
    {
        return;
    }
    let supplied = app.deployment_manifest != before.deployment_manifest
        && !app.deployment_manifest.is_empty();
    if supplied {
        app.deployment_generator.clear();
    } else if app.deployment != deployment::KUBERNETES {
        app.deployment_generator.clear();
        app.deployment_manifest.clear();
    }
}

/// The texts of an App by the names of their fields, and how long they may be.
fn texts(app: &App) -> [(&'static str, &String, usize); 11] {
    [
        ("image_path", &app.image_path, MAX_TEXT),
        ("access_ports", &app.access_ports, MAX_TEXT),
        ("config", &app.config, MAX_CONFIG),
        ("app_template", &app.app_template, MAX_TEXT),
        ("auth_public_key", &app.auth_public_key, MAX_TEXT),
        ("command", &app.command, MAX_TEXT),
        ("annotations", &app.annotations, MAX_TEXT),
        ("deployment", &app.deployment, MAX_TEXT),
        ("deployment_manifest", &app.deployment_manifest, MAX_MANIFEST),
        ("deployment_generator", &app.deployment_generator, MAX_TEXT),
        ("android_package_name", &app.android_package_name, MAX_TEXT),
    ]
}

/// Texts become parts of manifests, of commands and of what generators are
/// told, where nobody expects what cannot be printed.
fn check_printable(app: &App) -> Result<()> {
    let control = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t');
    match texts(app).into_iter().find(|(_, text, _)| text.contains(control)) {
        None => Ok(()),
        Some((field, ..)) => Err(Error::invalid(format!("{field} has a control character in it"))),
    }
}

fn check_sizes(app: &App) -> Result<()> {
    let fields = texts(app);
    let files = app.configs.iter().map(|file| ("configs.config", &file.config, MAX_CONFIG));
    for (field, text, limit) in fields.into_iter().chain(files) {
        if text.len() > limit {
            return Err(too_large(field, text.len(), limit, "bytes"));
        }
    }
    if app.configs.len() > MAX_CONFIG_FILES {
        return Err(too_large("configs", app.configs.len(), MAX_CONFIG_FILES, "files"));
    }
    match app.encoded_len() {
        length if length > MAX_APP => Err(too_large("App", length, MAX_APP, "bytes")),
        _ => Ok(()),
    }
}

fn too_large(field: &str, is: usize, limit: usize, unit: &str) -> Error {
    Error::invalid(format!("{field} is too large: {is} {unit}, at most {limit} are possible"))
}

fn get(purpose: Purpose, url: &str) -> Request {
    Request { purpose, url: url.to_owned(), body: None }
}

/// Returns the request for the manifest, if anything is to be fetched. A
/// generator comes before a manifest.
fn manifest_request(app: &App) -> Result<Option<Request>> {
    match app.deployment_generator.as_str() {
        "" if is_address(&app.deployment_manifest) => {
            Ok(Some(get(Purpose::Manifest, &app.deployment_manifest)))
        }
        "" | KUBERNETES_BASIC => Ok(None),
        url if is_address(url) => Ok(Some(Request {
            purpose: Purpose::Generator,
            url: url.to_owned(),
            body: Some(generator_input(app)?),
        })),
        other => Err(Error::invalid(format!("invalid deployment generator {other}"))),
    }
}

/// Returns the description of the App that a remote generator gets.
fn generator_input(app: &App) -> Result<String> {
    let key = app.key.clone().unwrap_or_default();
    let mut ports = Vec::new();
    for spec in access_ports::parse(&app.access_ports)? {
        let proto = access_ports::proto_name(spec.proto);
        ports.extend(spec.ports().map(|port| json!({"Proto": proto, "Port": port.to_string()})));
    }
    let input = json!({
        "name": key.name,
        "devname": key.developer_or_empty().name,
        "version": key.version,
        "imagepath": app.image_path,
        "imagetype": app.image_type().as_str_name(),
        "command": app.command,
        "config": "",
        "annotations": app.annotations,
        "ports": ports,
    });
    Ok(input.to_string())
}

fn settle_manifest(app: &mut App, fetched: &[Fetched]) -> Result<()> {
    let ports = access_ports::parse(&app.access_ports)?;
    let request = manifest_request(app)?;
    let generate = |app: &App| manifest::kubernetes_basic(app, &ports);
    let mut foreign = true;
    if let Some(request) = request {
        app.deployment_manifest = outcome(fetched, &request)?;
    } else if app.deployment_generator == KUBERNETES_BASIC {
        app.deployment_manifest = generate(app).map_err(Error::invalid)?;
        foreign = false;
    } else if app.deployment == deployment::KUBERNETES && app.deployment_manifest.is_empty() {
        app.deployment_manifest = generate(app).map_err(|reason| {
            Error::invalid(format!(
                "failed to use default deployment generator {}, {reason}",
                app.deployment
            ))
        })?;
        app.deployment_generator = KUBERNETES_BASIC.to_owned();
        foreign = false;
    }
    match app.deployment.as_str() {
        deployment::VM => manifest::check_cloud_config(app),
        deployment::KUBERNETES if foreign => {
            manifest::check_ports_served(&app.deployment_manifest, &ports)
        }
        _ => Ok(()),
    }
}

fn outcome(fetched: &[Fetched], request: &Request) -> Result<String> {
    let found = fetched.iter().find(|fetched| fetched.request == *request).ok_or_else(|| {
        Error::new(Code::Aborted, "the App changed while its parts were fetched, try again")
    })?;
    found.outcome.clone().map_err(|failure| {
        let code = match failure {
            Failure::Unreachable(_) => Code::Unavailable,
            Failure::Denied(_) | Failure::Status(_) | Failure::Unusable(_) => Code::InvalidArgument,
        };
        let url = &request.url;
        let text = match (request.purpose, &failure) {
            (Purpose::Manifest | Purpose::Generator, Failure::Status(status)) => {
                format!("bad response from remote manifest {status}")
            }
            (Purpose::Manifest | Purpose::Generator, failure) => {
                format!("cannot get manifest from {url}, {failure}")
            }
            (Purpose::Config | Purpose::ConfigFile, failure) => {
                format!("cannot get config from {url}, {failure}")
            }
        };
        Error::new(code, text)
    })
}

/// When another App has the package name of this one. Versions of one App may
/// share it.
pub(crate) fn android_in_use(app: &App) -> Error {
    Error::invalid(format!(
        "AndroidPackageName: {} in use by another app",
        app.android_package_name
    ))
}

/// Names of the changed fields that running instances depend on.
pub(crate) fn changes_of_instances(before: &App, after: &App) -> Vec<&'static str> {
    let mut changed = Vec::new();
    let same_ports = before.access_ports == after.access_ports
        || matches!(
            (access_ports::parse(&before.access_ports), access_ports::parse(&after.access_ports)),
            (Ok(before), Ok(after)) if before == after
        );
    if !same_ports {
        changed.push("access_ports");
    }
    if before.deployment != after.deployment {
        changed.push("deployment");
    }
    changed
}

#[cfg(test)]
mod tests;
