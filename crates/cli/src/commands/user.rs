//! People: who they are and what they may do.

use std::path::PathBuf;

use selvage_api::selvage::identity::{
    AddUserRequest, Grant, ListUsersRequest, ListUsersResponse, RemoveUserRequest,
    SetPasswordRequest, UpdateUserRequest, User as Person, WhoAmIRequest,
    identity_service_client::IdentityServiceClient,
};
use selvage_kit::identity::Role;

use super::certificate::{self, Certificate};
use crate::{Error, client::Client, output, session::Session, suggest};

const PASSWORD_HINT: &str = "give the password with --password-file FILE, or - for stdin";

/// `selvage user`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage user add ada --role operator:tmus --role viewer
  selvage user add ci --role developer:acme --generate
  selvage user update ada --disable
  selvage user passwd

Roles: admin, viewer, operator:ORGANISATION, developer:ORGANISATION.")]
pub enum User {
    /// Add a person
    Add(Add),
    /// List all people
    List,
    /// Change what a person may do
    Update(Update),
    /// Set your own password, or another person's
    Passwd(Passwd),
    /// Remove a person and end their sessions
    Remove(Remove),
    /// Get, list and block certificates of people
    #[command(subcommand)]
    Cert(Certificate),
}

/// `selvage user add`
#[derive(clap::Args, Debug)]
pub struct Add {
    /// Login name
    pub name: String,
    /// Role of the person: admin, viewer, operator:ORG or developer:ORG
    #[arg(long = "role", value_name = "ROLE", value_parser = grant)]
    pub roles: Vec<Grant>,
    /// File whose first line is the password, or - for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "generate")]
    pub password_file: Option<PathBuf>,
    /// Let the server make a password and print it once
    #[arg(long)]
    pub generate: bool,
}

/// `selvage user update`
#[derive(clap::Args, Debug)]
pub struct Update {
    /// Login name
    pub name: String,
    /// Role of the person from now on, in place of today's
    #[arg(long = "role", value_name = "ROLE", value_parser = grant)]
    pub roles: Vec<Grant>,
    /// Lock the person out and end their sessions
    #[arg(long, conflicts_with = "enable")]
    pub disable: bool,
    /// Let the person in again
    #[arg(long)]
    pub enable: bool,
}

/// `selvage user passwd`
#[derive(clap::Args, Debug)]
pub struct Passwd {
    /// Name of the user [default: your own]
    pub name: Option<String>,
    /// File whose first line is the new password, or - for stdin
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// File whose first line is your password of today
    #[arg(long, value_name = "FILE")]
    pub current_password_file: Option<PathBuf>,
}

/// `selvage user remove`
#[derive(clap::Args, Debug)]
pub struct Remove {
    /// Login name
    pub name: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

pub(crate) async fn run(command: User, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        User::Add(args) => add(args, session).await,
        User::List => list(session).await,
        User::Update(args) => update(args, session).await,
        User::Passwd(args) => passwd(args, session).await,
        User::Remove(args) => remove(args, session).await,
        User::Cert(args) => certificate::run(args, session).await,
    }
}

/// Reads `admin`, `viewer`, `operator:ORG`, `developer:ORG`.
pub(super) fn grant(text: &str) -> Result<Grant, String> {
    let (name, organisation) = text.split_once(':').unwrap_or((text, ""));
    let Some(role) = Role::parse(name) else {
        let close = suggest::closest(name, Role::ALL.map(Role::name));
        return Err(match close.first() {
            Some(close) => format!("there is no role {name:?}; did you mean {close}?"),
            None => format!(
                "there is no role {name:?}; there are {}",
                Role::ALL.map(Role::name).join(", ")
            ),
        });
    };
    match (role.of_organisation(), organisation.is_empty()) {
        (true, true) => {
            Err(format!("{role} is held in an organisation: write {role}:ORGANISATION"))
        }
        (false, false) => Err(format!("{role} holds everywhere: write {role} alone")),
        _ => Ok(Grant { role: role.name().into(), organisation: organisation.into() }),
    }
}

async fn add(args: Add, session: &mut Session<'_>) -> Result<(), Error> {
    let password = if args.generate {
        String::new()
    } else {
        let hint = "give the password with --password-file FILE, or let the server make one with --generate";
        session.new_password(args.password_file.as_deref(), hint)?.expose().to_owned()
    };
    let user = Person { username: args.name, grants: args.roles, ..Person::default() };
    let request = AddUserRequest { user: Some(user), password };
    let answer = session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).add_user(request).await
        })
        .await?;
    let message = output::dynamic("selvage.identity.AddUserResponse", &answer)?;
    let mut printer = session.printer();
    if !printer.is_table() {
        return printer.message(&message);
    }
    let users = ListUsersResponse { users: answer.user.into_iter().collect() };
    printer.message(&output::dynamic("selvage.identity.ListUsersResponse", &users)?)?;
    if !answer.generated_password.is_empty() {
        printer.blank()?;
        printer.record(&serde_json::json!({ "password": answer.generated_password }))?;
        session.io.say("This password is shown once only.")?;
    }
    Ok(())
}

async fn all(client: &Client) -> Result<ListUsersResponse, Error> {
    client
        .call(ListUsersRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).list_users(request).await
        })
        .await
}

async fn list(session: &mut Session<'_>) -> Result<(), Error> {
    let users = all(&session.client().await?).await?;
    let message = output::dynamic("selvage.identity.ListUsersResponse", &users)?;
    session.printer().message(&message)
}

async fn update(args: Update, session: &mut Session<'_>) -> Result<(), Error> {
    if args.roles.is_empty() && !(args.disable || args.enable) {
        return Err(Error::invalid("nothing to change: give --role, --disable or --enable"));
    }
    let client = session.client().await?;
    // The request replaces both roles and lock; what was not mentioned stays.
    let users = all(&client).await?.users;
    let Some(now) = users.iter().find(|user| user.username == args.name) else {
        return Err(Error::Unknown {
            kind: "user",
            suggestions: suggest::closest(&args.name, users.iter().map(|u| u.username.as_str())),
            name: args.name,
            hint: "`selvage user list` shows them all".into(),
        });
    };
    let request = UpdateUserRequest {
        username: args.name,
        grants: if args.roles.is_empty() { now.grants.clone() } else { args.roles },
        disabled: args.disable || (now.disabled && !args.enable),
    };
    let answer = client
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).update_user(request).await
        })
        .await?;
    let mut printer = session.printer();
    if !printer.is_table() {
        return printer.message(&output::dynamic("selvage.identity.UpdateUserResponse", &answer)?);
    }
    let users = ListUsersResponse { users: answer.user.into_iter().collect() };
    printer.message(&output::dynamic("selvage.identity.ListUsersResponse", &users)?)
}

async fn passwd(args: Passwd, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let me = client
        .call(WhoAmIRequest {}, |channel, request| async move {
            IdentityServiceClient::new(channel).who_am_i(request).await
        })
        .await?;
    let own = args.name.as_ref().is_none_or(|name| me.kind == "user" && *name == me.name);
    if own && me.kind != "user" {
        return Err(Error::invalid(format!("{} has no password; say whose to set", me.name)));
    }
    let current_password = if own {
        let hint = "give it with --current-password-file FILE";
        let file = args.current_password_file.as_deref();
        session.password(file, "Your password of today: ", hint)?.expose().to_owned()
    } else {
        String::new()
    };
    let new = session.new_password(args.password_file.as_deref(), PASSWORD_HINT)?;
    let request = SetPasswordRequest {
        username: if own { String::new() } else { args.name.clone().unwrap_or_default() },
        current_password,
        new_password: new.expose().to_owned(),
    };
    let answer = client
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).set_password(request).await
        })
        .await?;
    let whose = args.name.filter(|_| !own).unwrap_or(me.name);
    session.io.say(&format!(
        "The password of {whose} is set; {} other sessions ended.",
        answer.sessions_ended
    ))
}

async fn remove(args: Remove, session: &mut Session<'_>) -> Result<(), Error> {
    let name = args.name;
    if !args.yes
        && !session
            .confirm(&format!("Remove {name} and end their sessions?"), "say --yes to mean it")?
    {
        return Err(Error::Declined(format!("{name} stays")));
    }
    let request = RemoveUserRequest { username: name.clone() };
    session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).remove_user(request).await
        })
        .await?;
    session.io.say(&format!("{name} is removed."))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn roles_are_read_and_mistakes_named() {
        let read = grant("operator:tmus").unwrap();
        assert_eq!((read.role.as_str(), read.organisation.as_str()), ("operator", "tmus"));
        assert_eq!(grant("admin").unwrap().organisation, "");
        assert_eq!(
            grant("operater:tmus").unwrap_err(),
            r#"there is no role "operater"; did you mean operator?"#
        );
        assert!(grant("operator").unwrap_err().contains("operator:ORGANISATION"));
        assert!(grant("admin:x").unwrap_err().contains("holds everywhere"));
    }
}
