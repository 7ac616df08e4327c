//! Tokens for programs: made, listed, ended.

use std::time::Duration;

use selvage_api::selvage::identity::{
    CreateTokenRequest, Credential, DeleteCredentialRequest, Grant, ListCredentialsRequest,
    ListCredentialsResponse, identity_service_client::IdentityServiceClient,
};

use super::user::grant;
use crate::{Error, duration, output, session::Session, suggest};

const LIST: &str = "selvage.identity.ListCredentialsResponse";

/// `selvage token`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage token create ci --role developer:acme --ttl 90d
  selvage token create roll --role developer:acme --method 'edgeproto.AppInstApi/*'
  selvage token create scrape --role viewer --method /metrics
  selvage token list
  selvage token delete ci

Programs show it as SELVAGE_TOKEN, or as `authorization: Bearer …`.")]
pub enum Token {
    /// Make a token for a program; it is shown once
    Create(Create),
    /// List tokens, with their last use
    #[command(visible_alias = "ls")]
    List(List),
    /// Revoke a token, at once and for good
    #[command(visible_alias = "rm")]
    Delete(Delete),
}

/// `selvage token create`
#[derive(clap::Args, Debug)]
pub struct Create {
    /// Name of the program or its task, such as ci
    pub name: String,
    /// Role of the token, one that its owner holds: admin, viewer, operator:ORG or developer:ORG
    #[arg(long = "role", value_name = "ROLE", value_parser = grant, required = true)]
    pub roles: Vec<Grant>,
    /// Method it is limited to: package.Service/Method, package.Service/* or /metrics; may be
    /// repeated [default: all that the role opens]
    #[arg(long = "method", value_name = "METHOD")]
    pub methods: Vec<String>,
    /// Lifetime, at most 366d
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration::parse)]
    pub ttl: Duration,
    /// Owner, in whose name it acts [default: you]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

/// `selvage token list`
#[derive(clap::Args, Debug)]
pub struct List {
    /// Owner of the tokens [default: you]
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub user: Option<String>,
    /// Those of all people
    #[arg(long)]
    pub all: bool,
}

/// `selvage token delete`
#[derive(clap::Args, Debug)]
pub struct Delete {
    /// Name or id of the token
    pub name: String,
    /// Owner of the token [default: you]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

pub(crate) async fn run(command: Token, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Token::Create(args) => create(args, session).await,
        Token::List(args) => list("token", args, session).await,
        Token::Delete(args) => {
            let ended = end("token", args, session).await?;
            session.io.say(&format!("Token {ended} is ended."))
        }
    }
}

async fn create(args: Create, session: &mut Session<'_>) -> Result<(), Error> {
    let request = CreateTokenRequest {
        name: args.name,
        username: args.user.unwrap_or_default(),
        grants: args.roles,
        methods: args.methods,
        ttl_seconds: seconds(args.ttl)?,
    };
    let answer = session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).create_token(request).await
        })
        .await?;
    let mut printer = session.printer();
    if !printer.is_table() {
        return printer.message(&output::dynamic("selvage.identity.CreateTokenResponse", &answer)?);
    }
    let made = ListCredentialsResponse { credentials: answer.credential.into_iter().collect() };
    printer.message(&output::dynamic(LIST, &made)?)?;
    printer.blank()?;
    printer.record(&serde_json::json!({ "token": answer.token }))?;
    session.io.say("This token is shown once only.")
}

pub(super) fn seconds(ttl: Duration) -> Result<u32, Error> {
    u32::try_from(ttl.as_secs()).map_err(|_| Error::invalid("--ttl: too long"))
}

/// Prints tokens, or certificates.
pub(super) async fn list(kind: &str, args: List, session: &mut Session<'_>) -> Result<(), Error> {
    let user = if args.all { Some("*".to_owned()) } else { args.user };
    let credentials = found(kind, user, session).await?;
    let message = output::dynamic(LIST, &ListCredentialsResponse { credentials })?;
    session.printer().message(&message)
}

async fn found(
    kind: &str,
    user: Option<String>,
    session: &mut Session<'_>,
) -> Result<Vec<Credential>, Error> {
    let request = ListCredentialsRequest { username: user.unwrap_or_default() };
    let answer = session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).list_credentials(request).await
        })
        .await?;
    Ok(answer.credentials.into_iter().filter(|it| it.kind == kind).collect())
}

/// Ends one by its name or id; gives its name.
pub(super) async fn end(
    kind: &'static str,
    args: Delete,
    session: &mut Session<'_>,
) -> Result<String, Error> {
    let all = found(kind, args.user, session).await?;
    let Some(one) = all.iter().find(|it| it.name == args.name || it.id == args.name) else {
        return Err(Error::Unknown {
            kind,
            suggestions: suggest::closest(&args.name, all.iter().map(|it| it.name.as_str())),
            name: args.name,
            hint: "their owner's list has them all; say whose with --user".into(),
        });
    };
    let request = DeleteCredentialRequest { id: one.id.clone() };
    session
        .client()
        .await?
        .call(request, |channel, request| async move {
            IdentityServiceClient::new(channel).delete_credential(request).await
        })
        .await?;
    Ok(one.name.clone())
}
