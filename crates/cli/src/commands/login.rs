//! Logging in and out.

use std::path::{Path, PathBuf};

use selvage_api::services::auth::{
    LoginRequest, LogoutRequest, auth_service_client::AuthServiceClient,
};
use selvage_api::{
    Code,
    selvage::identity::{WhoAmIRequest, identity_service_client::IdentityServiceClient},
};
use selvage_kit::identity::Secret;
use serde::Deserialize;

use super::{browser, trust};
use crate::{
    Error,
    client::Client,
    config::{self, Contexts, Files},
    connect::Trust,
    endpoint::Endpoint,
    session::Session,
    target::{self, Target},
};

/// `selvage login`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage login https://edge.example.org:8443
  selvage login https://10.0.0.5:8443 --username ada --ca-sha256 3f9a…
  selvage login --ready-file /run/selvage/ready.json
  pass edge | selvage login --username ada --password-file -
  selvage login https://edge.example.org:8443 --oidc

A server's CA is trusted when you name it (--ca, --ca-sha256, --ready-file),
when this system trusts it already, or when you say yes to its fingerprint.")]
pub struct Login {
    /// Server to log in to [default: that of the context]
    #[arg(value_name = "ENDPOINT")]
    pub server: Option<String>,

    /// Name to log in with
    #[arg(long, short)]
    pub username: Option<String>,

    /// File whose first line is the password, or - for stdin
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// Log in through this OIDC provider in a browser [default: the only one]
    #[arg(
        long,
        value_name = "PROVIDER",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["username", "password_file", "ready_file"]
    )]
    pub oidc: Option<String>,

    /// Trust the CA with this SHA-256 fingerprint if the server shows it
    #[arg(long, value_name = "HEX")]
    pub ca_sha256: Option<String>,

    /// Take endpoint, CA and admin's password from what `selvage up --ready-file` wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "ca_sha256"])]
    pub ready_file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Ready {
    endpoint: String,
    ca: Option<PathBuf>,
    admin: Option<Admin>,
}

#[derive(Deserialize)]
struct Admin {
    username: String,
    /// None once its owner has removed it.
    password_file: Option<PathBuf>,
}

/// Facts known before anything is asked.
struct Plan {
    endpoint: Endpoint,
    ca: Option<PathBuf>,
    username: Option<String>,
    password_file: Option<PathBuf>,
}

pub(crate) async fn login(args: &Login, session: &mut Session<'_>) -> Result<(), Error> {
    let files = Files::locate(session.io)?;
    let contexts = files.contexts()?;
    let plan = plan(args, session, &contexts)?;
    let endpoint = plan.endpoint.to_string();
    let known = contexts.leading_to(&endpoint).map(|(_, context)| context.clone());
    let name = match &session.global.context {
        Some(name) => name.clone(),
        None => contexts
            .leading_to(&endpoint)
            .map_or_else(|| plan.endpoint.nickname(), |(name, _)| name.to_owned()),
    };

    let ca = settle_trust(args, &plan, known.as_ref(), session).await?;
    let trust = match &ca {
        Some(pem) => Trust::Only(target::certificates_in(pem, "the CA")?),
        None => Trust::System,
    };
    let client = session.connect(&Target::bare(plan.endpoint.clone(), trust)).await?;

    let mut context = config::Context {
        endpoint: endpoint.clone(),
        others: known.as_ref().map(|known| known.others.clone()).unwrap_or_default(),
        user: None,
        insecure: matches!(plan.endpoint, Endpoint::Http { .. }),
        ca,
    };
    let entry = if welcome_as_we_are(&plan.endpoint, &client).await? {
        session.io.say(&format!("{endpoint} asks for no login."))?;
        None
    } else {
        let remembered = known.and_then(|context| context.user);
        let (username, entry) = match &args.oidc {
            Some(provider) => with_browser(provider, &endpoint, &client, session).await?,
            None => with_password(&plan, remembered, &client, session).await?,
        };
        session.io.say(&format!("Logged in to {endpoint} as {username}."))?;
        context.user = Some(username);
        Some(entry)
    };
    remember(&files, &name, context, entry)?;
    session.io.say(&format!("Context {name} is now the current one."))
}

fn plan(args: &Login, session: &mut Session<'_>, contexts: &Contexts) -> Result<Plan, Error> {
    let global = session.global;
    let mut plan = Plan {
        endpoint: Endpoint::Unix(PathBuf::new()),
        ca: global.ca.clone(),
        username: args.username.clone(),
        password_file: args.password_file.clone(),
    };
    let endpoint = if let Some(path) = &args.ready_file {
        let ready = ready(path)?;
        plan.ca = plan.ca.or(ready.ca);
        if let Some(admin) = ready.admin {
            // Anyone but admin brings their own password.
            let own = plan.username.as_ref().is_some_and(|name| *name != admin.username);
            plan.username.get_or_insert(admin.username);
            if !own && plan.password_file.is_none() {
                plan.password_file = first_password(args, path, admin.password_file)?;
            }
        }
        ready.endpoint
    } else if let Some(endpoint) = args.server.as_ref().or(global.endpoint.as_ref()) {
        endpoint.clone()
    } else {
        let name = global.context.as_ref().or(contexts.current.as_ref()).ok_or(Error::NoServer)?;
        target::named(contexts, name)?.endpoint.clone()
    };
    plan.endpoint = Endpoint::parse(&endpoint)?;
    Ok(plan)
}

/// File that holds the first password, as the ready file says, if it is still there.
/// Whoever names a user is asked for the password instead.
fn first_password(
    args: &Login,
    ready: &Path,
    named: Option<PathBuf>,
) -> Result<Option<PathBuf>, Error> {
    let Some(file) = named else { return Ok(None) };
    if file.exists() {
        return Ok(Some(file));
    }
    match args.username {
        Some(_) => Ok(None),
        None => Err(Error::Invalid {
            message: format!(
                "{} names the password file {}, which is gone",
                ready.display(),
                file.display()
            ),
            hints: vec!["--username NAME logs in with a password that you type".into()],
        }),
    }
}

fn ready(path: &Path) -> Result<Ready, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::read(path, source))?;
    serde_json::from_str(&text).map_err(|error| {
        Error::invalid(format!("{} is not what `selvage up` writes: {error}", path.display()))
    })
}

/// PEM of the CA to trust; `None` for those of the system.
async fn settle_trust(
    args: &Login,
    plan: &Plan,
    known: Option<&config::Context>,
    session: &mut Session<'_>,
) -> Result<Option<String>, Error> {
    if !matches!(plan.endpoint, Endpoint::Https { .. }) {
        return Ok(None);
    }
    if let Some(sha256) = &args.ca_sha256 {
        return Ok(Some(trust::pem(&trust::pinned(&plan.endpoint, sha256).await?)));
    }
    if let Some(path) = &plan.ca {
        let certificates = target::certificates(path)?;
        return Ok(Some(certificates.iter().map(|ca| trust::pem(ca)).collect()));
    }
    if let Some(ca) = known.and_then(|context| context.ca.clone()) {
        return Ok(Some(ca));
    }
    Ok(trust::asked(&plan.endpoint, session).await?.map(|ca| trust::pem(&ca)))
}

/// Returns whether the server lets us in without a login, as unix sockets and
/// `--insecure` do.
async fn welcome_as_we_are(endpoint: &Endpoint, client: &Client) -> Result<bool, Error> {
    if matches!(endpoint, Endpoint::Https { .. }) {
        return Ok(false);
    }
    let answer = client
        .call(WhoAmIRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).who_am_i(request).await
        })
        .await;
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Code::Unauthenticated => {
            if endpoint.is_private() {
                return Ok(false);
            }
            Err(Error::Invalid {
                message: format!("a password would go to {endpoint} in clear text"),
                hints: vec!["use https://, or log in from the server itself".into()],
            })
        }
        Err(error) => Err(error),
    }
}

async fn with_password(
    plan: &Plan,
    remembered: Option<String>,
    client: &Client,
    session: &mut Session<'_>,
) -> Result<(String, config::Login), Error> {
    let username = match &plan.username {
        Some(name) => name.clone(),
        None => ask_username(remembered, session)?,
    };
    let password = session.password(
        plan.password_file.as_deref(),
        &format!("Password of {username}: "),
        "give the password with --password-file FILE, or - for stdin",
    )?;
    let request =
        LoginRequest { username: username.clone(), password: password.expose().to_owned() };
    let answer = client
        .call(request, |channel, request| async move {
            AuthServiceClient::new(channel).login(request).await
        })
        .await
        .map_err(|error| refused(error, &username))?;
    if answer.token.is_empty() {
        return Err(Error::Unexpected("the server accepted the login and gave no token".into()));
    }
    let expires = answer
        .expires
        .and_then(|expires| expires.timestamp)
        .and_then(|t| jiff::Timestamp::new(t.seconds, t.nanos).ok())
        .map(|time| time.to_string());
    let endpoint = plan.endpoint.to_string();
    Ok((username, config::Login::new(&endpoint, &Secret::new(answer.token), expires)))
}

async fn with_browser(
    provider: &str,
    endpoint: &str,
    client: &Client,
    session: &mut Session<'_>,
) -> Result<(String, config::Login), Error> {
    let answer = browser::login(provider, client, session).await?;
    let expires = answer.expires.and_then(|t| jiff::Timestamp::new(t.seconds, t.nanos).ok());
    let token = Secret::new(answer.token);
    let login = config::Login::new(endpoint, &token, expires.map(|time| time.to_string()));
    Ok((answer.username, login))
}

fn ask_username(remembered: Option<String>, session: &mut Session<'_>) -> Result<String, Error> {
    let question = match &remembered {
        Some(name) => format!("Username [{name}]: "),
        None => "Username: ".into(),
    };
    let answer = session.ask(&question, "give the name with --username NAME")?;
    match (answer.is_empty(), remembered) {
        (false, _) => Ok(answer),
        (true, Some(name)) => Ok(name),
        (true, None) => Err(Error::invalid("a username is needed")),
    }
}

/// "Run `selvage login`" is no help to somebody who just did.
fn refused(error: Error, username: &str) -> Error {
    match error {
        Error::Status { code: Code::Unauthenticated, message, .. } => Error::Status {
            code: Code::Unauthenticated,
            message,
            hints: vec![format!("check the name ({username}) and the password")],
        },
        other => other,
    }
}

fn remember(
    files: &Files,
    name: &str,
    context: config::Context,
    entry: Option<config::Login>,
) -> Result<(), Error> {
    files.update(|contexts, credentials| {
        match entry {
            Some(entry) => credentials.logins.insert(name.to_owned(), entry),
            None => credentials.logins.remove(name),
        };
        contexts.contexts.insert(name.to_owned(), context);
        contexts.current = Some(name.to_owned());
        Ok(())
    })
}

pub(crate) async fn logout(session: &mut Session<'_>) -> Result<(), Error> {
    let target = session.target()?;
    if target.token.is_none() {
        return session.io.say(&format!("You are not logged in to {}.", target.endpoint));
    }
    let ended = match session.connect(&target).await {
        Ok(client) => client
            .call(LogoutRequest {}, |channel, request| async move {
                AuthServiceClient::new(channel).logout(request).await
            })
            .await
            .map(drop),
        Err(error) => Err(error),
    };
    // The token goes whatever the server says: that is what was asked for.
    if let (Some(name), true) = (&target.context, target.token_is_kept) {
        Files::locate(session.io)?.update(|_, credentials| {
            credentials.logins.remove(name);
            Ok::<_, Error>(())
        })?;
    }
    match ended {
        Ok(()) => session.io.say(&format!("Logged out of {}.", target.endpoint)),
        Err(error) if error.code() == Code::Unauthenticated => {
            session.io.say(&format!("The session at {} had ended already.", target.endpoint))
        }
        Err(error) => {
            session.io.say(
                "The token is forgotten here, but the server could not be told: the session ends there by itself.",
            )?;
            Err(error)
        }
    }
}
