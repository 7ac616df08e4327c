//! `selvage appinst history` and `selvage appinst rollback`.

use prost_reflect::DynamicMessage;

use super::{
    names,
    progress::{self, Job, ProgressPrinter},
};
use crate::{
    Error,
    client::Client,
    edge::{Draft, Kind, draft, flags::ObjectArgs, rpc},
    session::Session,
};

const LIST: &str = "/selvage.revisions.RevisionService/ListRevisions";
const ROLL_BACK: &str = "/selvage.revisions.RevisionService/RollBack";

/// A request of a method about the instance that the flags name.
async fn request(
    path: &str,
    kind: &'static Kind,
    args: &ObjectArgs,
    client: &Client,
) -> Result<(&'static selvage_api::Method, DynamicMessage), Error> {
    let method = selvage_api::method(path)
        .ok_or_else(|| Error::Unexpected(format!("{path} is no method")))?;
    if args.names_nothing() {
        return Err(Error::Invalid {
            message: format!("nothing says which {} is meant", kind.word),
            hints: vec![format!("`selvage {} show` lists those there are", kind.command())],
        });
    }
    let mut named = Draft::new(kind);
    args.fill(&mut named)?;
    if let Some(name) = &args.name {
        named.take_key(&names::resolve(kind, name, &named.message, client).await?);
    }
    let mut message = DynamicMessage::new(method.input.clone());
    if let Some(key) = draft::kept_key(&named.message).get_field_by_name("key") {
        message.set_field_by_name("key", key.into_owned());
    }
    Ok((method, message))
}

pub(crate) async fn history(
    kind: &'static Kind,
    args: &ObjectArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let client = session.client().await?;
    let (method, message) = request(LIST, kind, args, &client).await?;
    let unwrapped = |failure: rpc::Failure| failure.error;
    let mut answers = rpc::open(&client, method, message, false).await.map_err(unwrapped)?;
    match answers.next(&client).await.map_err(unwrapped)? {
        Some(answer) => session.printer().message(&answer),
        None => Ok(()),
    }
}

pub(crate) async fn rollback(
    kind: &'static Kind,
    to: u64,
    args: &ObjectArgs,
    session: &mut Session<'_>,
) -> Result<(), Error> {
    let client = session.client().await?;
    let (method, mut message) = request(ROLL_BACK, kind, args, &client).await?;
    message.set_field_by_name("revision", prost_reflect::Value::U64(to));
    let job = Job { kind, method, message, watch: false, dry_run: args.dry_run };
    let mut narrator = ProgressPrinter::lines(session);
    progress::perform(session, &client, &job, &mut narrator).await
}
