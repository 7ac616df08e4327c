//! Long work: what is under way, how it goes, and how to stop it.

use prost_reflect::DynamicMessage;
use selvage_api::{
    Code,
    selvage::operations::{
        CancelOperationRequest, CancelOperationResponse, FollowOperationRequest,
        ListOperationsRequest, ListOperationsResponse, Operation as Work,
        operation_service_client::OperationServiceClient,
    },
};

use super::progress::ProgressPrinter;
use crate::{
    Error, body,
    client::Client,
    edge::{Kind, draft, rpc::Failure},
    io::Io,
    output::{self, Format},
    session::Session,
};

/// `selvage operation`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage operation list --active
  selvage operation follow 0197c2f0-8a51
  selvage operation cancel 0197c2f0-8a51")]
pub enum Operation {
    /// List operations, newest first
    List {
        /// Only those that have not ended
        #[arg(long)]
        active: bool,
        /// Only those that do this, such as CreateAppInst
        #[arg(long, value_name = "METHOD")]
        kind: Option<String>,
    },
    /// Print the messages of an operation until it ends
    Follow {
        /// Its id
        id: String,
    },
    /// Ask for an operation to be undone
    Cancel {
        /// Its id
        id: String,
    },
}

pub(crate) async fn run(command: Operation, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Operation::List { active, kind } => {
            let request = ListOperationsRequest {
                active,
                kind: kind.unwrap_or_default(),
                key: String::new(),
            };
            let found = list(&session.client().await?, request).await?;
            print(found, session)
        }
        Operation::Follow { id } => {
            let client = session.client().await?;
            let mut narrator = ProgressPrinter::lines(session);
            let follow = follow(&client, &id, 0, &mut narrator, session.io);
            let result = tokio::select! {
                result = follow => result.map_err(|failure| failure.error),
                Ok(()) = tokio::signal::ctrl_c() => Err(Error::Interrupted),
            };
            narrator.clear(session.io)?;
            result
        }
        Operation::Cancel { id } => {
            let answer = cancel(&session.client().await?, id).await?;
            if answer.operation.as_ref().is_some_and(|work| work.cancelling) {
                session.io.say("It is being undone; its state says when that is over.")?;
            }
            let all = ListOperationsResponse { operations: answer.operation.into_iter().collect() };
            print(all, session)
        }
    }
}

fn print(mut all: ListOperationsResponse, session: &mut Session<'_>) -> Result<(), Error> {
    if matches!(session.global.output, None | Some(Format::Table | Format::Wide)) {
        for work in &mut all.operations {
            work.key = plain_key(&work.key);
        }
    }
    let message = output::dynamic("selvage.operations.ListOperationsResponse", &all)?;
    session.printer().message(&message)
}

/// The names in a key, as other commands print it: from the outside in, with
/// slashes between them.
fn plain_key(key: &str) -> String {
    fn names(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(members) => {
                members.values().for_each(|member| names(member, found));
            }
            serde_json::Value::String(name) => found.push(name.clone()),
            other => found.push(other.to_string()),
        }
    }
    let mut found = Vec::new();
    match serde_json::from_str(key) {
        Ok(value) => names(&value, &mut found),
        Err(_) => return key.to_owned(),
    }
    found.join("/")
}

async fn list(
    client: &Client,
    request: ListOperationsRequest,
) -> Result<ListOperationsResponse, Error> {
    client
        .call(request, |channel, request| async move {
            OperationServiceClient::new(channel).list_operations(request).await
        })
        .await
}

async fn cancel(client: &Client, id: String) -> Result<CancelOperationResponse, Error> {
    client
        .call(CancelOperationRequest { id }, |channel, request| async move {
            OperationServiceClient::new(channel).cancel_operation(request).await
        })
        .await
}

/// The newest operation that a method began on an object, ended or not. The
/// server may have filled parts of the key that were left out.
pub(crate) async fn find(
    client: &Client,
    method: &str,
    kind: &Kind,
    object: &DynamicMessage,
) -> Result<Option<Work>, Error> {
    let request = ListOperationsRequest { kind: method.to_owned(), ..Default::default() };
    let kept = draft::kept_key(object);
    let found = list(client, request).await?.operations.into_iter().find(|work| {
        let named = serde_json::from_str::<serde_json::Value>(&work.key)
            .ok()
            .and_then(|key| body::message(&serde_json::json!({ "key": key }), &kind.message).ok());
        named.is_some_and(|named| draft::same_key(&kept, &named))
    });
    Ok(found)
}

/// Tells what an operation says, without the first lines, until it ends.
pub(crate) async fn follow(
    client: &Client,
    id: &str,
    skip: usize,
    narrator: &mut ProgressPrinter,
    io: &mut Io,
) -> Result<(), Failure> {
    let sound = |error| Failure { error, broke: false };
    let request = FollowOperationRequest { id: id.to_owned() };
    let request = client.request(request, client.limit(true)).map_err(sound)?;
    let mut kind = String::new();
    let mut said = 0;
    let begun = OperationServiceClient::new(client.channel()).follow_operation(request).await;
    let mut events = begun.map_err(|status| failed(client, &status, ""))?.into_inner();
    loop {
        let next = narrator.waiting(io, events.message()).await.map_err(sound)?;
        let Some(event) = next.map_err(|status| failed(client, &status, &kind))? else {
            return Ok(());
        };
        if let Some(work) = event.operation {
            kind = work.kind;
        }
        if !event.message.is_empty() {
            said += 1;
            if said > skip {
                narrator.line(io, &event.message).map_err(sound)?;
            }
        }
    }
}

fn failed(client: &Client, status: &tonic::Status, kind: &str) -> Failure {
    use std::error::Error as _;
    let broke = status.source().is_some();
    let error = match client.refused(status) {
        Error::Status { code, message, hints } if !kind.is_empty() => {
            Error::Status { code, message: format!("{kind} failed: {message}"), hints }
        }
        Error::Status { code: Code::NotFound, message, .. } => Error::Status {
            code: Code::NotFound,
            message,
            hints: vec!["`selvage operation list` shows those there are".into()],
        },
        other => other,
    };
    Failure { error, broke }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_by_its_names() {
        let key = r#"{"developer_key":{"name":"Acme"},"name":"app","version":"1.0"}"#;
        assert_eq!(plain_key(key), "Acme/app/1.0");
        assert_eq!(plain_key("not json"), "not json");
    }
}
