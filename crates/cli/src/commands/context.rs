//! The servers a person knows.

use serde::Serialize;
use serde_json::Value;

use crate::{
    Error,
    config::{self, Contexts, Files},
    connect,
    endpoint::Endpoint,
    output::{self, Column},
    session::Session,
    target,
};

/// `selvage context`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage context list
  selvage context use production
  selvage context endpoints production https://a.example:8443 https://b.example:8443
  selvage --context staging whoami")]
pub enum Context {
    /// List the contexts; * marks the current one
    List,
    /// Make a context the current one
    Use {
        /// Its name
        name: String,
    },
    /// Show one context in full
    Show {
        /// Its name [default: the current one]
        name: Option<String>,
    },
    /// Set the servers of a context; the first that answers is used
    Endpoints {
        /// Its name
        name: String,
        /// Controllers of one region, in the order in which to try them
        #[arg(required = true, value_name = "ENDPOINT")]
        endpoints: Vec<String>,
    },
    /// Forget a context and its token
    Remove {
        /// Its name
        name: String,
    },
    /// Give a context another name
    Rename {
        /// Its name now
        from: String,
        /// The new name
        to: String,
    },
}

#[derive(Serialize)]
struct ContextRow {
    current: bool,
    name: String,
    endpoint: String,
    others: Vec<String>,
    user: Option<String>,
    insecure: bool,
    session_expires: Option<String>,
    ca_sha256: Option<String>,
}

pub(crate) fn run(command: Context, session: &mut Session<'_>) -> Result<(), Error> {
    let files = Files::locate(session.io)?;
    match command {
        Context::List => list(&files, session),
        Context::Show { name } => show(&files, name, session),
        Context::Use { name } => {
            files.update(|contexts, _| {
                target::named(contexts, &name)?;
                contexts.current = Some(name.clone());
                Ok::<_, Error>(())
            })?;
            session.io.say(&format!("Context {name} is now the current one."))
        }
        Context::Endpoints { name, endpoints } => {
            files.update(|contexts, credentials| {
                set_endpoints(contexts, credentials, &name, &endpoints)
            })?;
            session.io.say(&format!("Context {name} leads to {}.", endpoints.join(", ")))
        }
        Context::Remove { name } => {
            files.update(|contexts, credentials| {
                target::named(contexts, &name)?;
                contexts.contexts.remove(&name);
                credentials.logins.remove(&name);
                contexts.current.take_if(|current| *current == name);
                Ok::<_, Error>(())
            })?;
            session.io.say(&format!("Context {name} is forgotten."))
        }
        Context::Rename { from, to } => {
            files.update(|contexts, credentials| rename(contexts, credentials, &from, &to))?;
            session.io.say(&format!("Context {from} is now called {to}."))
        }
    }
}

/// The login of a context holds for its whole region.
fn set_endpoints(
    contexts: &mut Contexts,
    credentials: &mut config::Credentials,
    name: &str,
    endpoints: &[String],
) -> Result<(), Error> {
    target::named(contexts, name)?;
    let parsed: Vec<String> = endpoints
        .iter()
        .map(|one| Endpoint::parse(one).map(|endpoint| endpoint.to_string()))
        .collect::<Result<_, _>>()?;
    let (Some((first, others)), Some(context)) =
        (parsed.split_first(), contexts.contexts.get_mut(name))
    else {
        return Ok(());
    };
    if let Some(login) = credentials.logins.get_mut(name) {
        login.move_to(&context.endpoint, first);
    }
    context.endpoint.clone_from(first);
    context.others = others.to_vec();
    Ok(())
}

fn rename(
    contexts: &mut Contexts,
    credentials: &mut config::Credentials,
    from: &str,
    to: &str,
) -> Result<(), Error> {
    target::named(contexts, from)?;
    if to.is_empty() || contexts.contexts.contains_key(to) {
        return Err(Error::invalid(format!("{to:?} cannot be the new name: it is taken or empty")));
    }
    if let Some(context) = contexts.contexts.remove(from) {
        contexts.contexts.insert(to.to_owned(), context);
    }
    if let Some(login) = credentials.logins.remove(from) {
        credentials.logins.insert(to.to_owned(), login);
    }
    if contexts.current.as_deref() == Some(from) {
        contexts.current = Some(to.to_owned());
    }
    Ok(())
}

fn shown(
    contexts: &Contexts,
    credentials: &config::Credentials,
    name: &str,
    context: &config::Context,
) -> ContextRow {
    let authorities = context.ca.as_deref().and_then(|pem| target::certificates_in(pem, "ca").ok());
    ContextRow {
        current: contexts.current.as_deref() == Some(name),
        name: name.to_owned(),
        endpoint: context.endpoint.clone(),
        others: context.others.clone(),
        user: context.user.clone(),
        insecure: context.insecure,
        session_expires: credentials.logins.get(name).and_then(|login| login.expires.clone()),
        ca_sha256: authorities.and_then(|found| found.first().map(connect::fingerprint)),
    }
}

fn list(files: &Files, session: &mut Session<'_>) -> Result<(), Error> {
    let (contexts, credentials) = (files.contexts()?, files.credentials()?);
    let mut printer = session.printer();
    let mut rows = Vec::new();
    for (name, context) in &contexts.contexts {
        let mut row = output::value_of(&shown(&contexts, &credentials, name, context))?;
        if printer.is_table() {
            let mark = if row["current"] == Value::Bool(true) { "*" } else { " " };
            row["current"] = mark.into();
        }
        rows.push(row);
    }
    let columns = [
        Column::new(" ", "current"),
        Column::new("NAME", "name"),
        Column::new("ENDPOINT", "endpoint"),
        Column::new("USER", "user"),
        Column::new("INSECURE", "insecure").wide(),
        Column::new("SESSION-EXPIRES", "session_expires").wide(),
        Column::new("CA-SHA256", "ca_sha256").wide(),
    ];
    printer.values(&columns, &rows)
}

fn show(files: &Files, name: Option<String>, session: &mut Session<'_>) -> Result<(), Error> {
    let (contexts, credentials) = (files.contexts()?, files.credentials()?);
    let name = name
        .or_else(|| session.global.context.clone())
        .or_else(|| contexts.current.clone())
        .ok_or(Error::NoServer)?;
    let context = target::named(&contexts, &name)?;
    let value = output::value_of(&shown(&contexts, &credentials, &name, context))?;
    session.printer().record(&value)
}
