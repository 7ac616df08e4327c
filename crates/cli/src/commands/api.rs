//! The contracts: which services, methods and messages there are.

use std::fmt::Write as _;

use prost_reflect::{
    Cardinality, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor,
    ServiceDescriptor,
};
use selvage_api::{Method, methods, pool};
use serde_json::{Value, json};

use crate::{Error, lookup, output::Column, session::Session, suggest};

/// `selvage api`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage api
  selvage api list edgeproto -o wide
  selvage api describe edgeproto.AppApi/CreateApp
  selvage api describe selvage.identity.User")]
pub struct Api {
    #[command(subcommand)]
    pub command: Option<Subcommand>,
}

/// Subject of the description.
#[derive(clap::Subcommand, Debug)]
pub enum Subcommand {
    /// List methods
    List {
        /// Only those whose full name contains this
        filter: Option<String>,
    },
    /// Show a service, method, message or enum with its comments
    Describe {
        /// Its name
        name: String,
    },
}

pub(crate) fn run(args: &Api, session: &mut Session<'_>) -> Result<(), Error> {
    match &args.command {
        None => list("", session),
        Some(Subcommand::List { filter }) => list(filter.as_deref().unwrap_or_default(), session),
        Some(Subcommand::Describe { name }) => {
            let text = describe(name)?;
            session.io.out.write_all(text.as_bytes()).map_err(Error::Output)
        }
    }
}

fn list(filter: &str, session: &mut Session<'_>) -> Result<(), Error> {
    let filter = filter.to_lowercase();
    let rows: Vec<Value> = methods()
        .iter()
        .filter(|method| method.path.to_lowercase().contains(&filter))
        .map(row)
        .collect();
    if rows.is_empty() {
        return Err(Error::Unknown {
            kind: "method like",
            suggestions: suggest::closest(&filter, methods().iter().map(|m| m.service.as_str())),
            name: filter,
            hint: "`selvage api list` shows them all".into(),
        });
    }
    let columns = [
        Column::new("METHOD", "method"),
        Column::new("STREAMS", "streams"),
        Column::new("PART", "part"),
        Column::new("INPUT", "input").wide(),
        Column::new("OUTPUT", "output").wide(),
        Column::new("HTTP", "http").wide(),
    ];
    session.printer().values(&columns, &rows)
}

fn row(method: &Method) -> Value {
    let streams = match (method.client_streaming, method.server_streaming) {
        (false, false) => "",
        (true, false) => "in",
        (false, true) => "out",
        (true, true) => "both",
    };
    json!({
        "method": &method.path[1..],
        "streams": streams,
        "part": method.part,
        "input": method.input.full_name(),
        "output": method.output.full_name(),
        "http": method.http.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn describe(name: &str) -> Result<String, Error> {
    let plain = name.trim_start_matches('/');
    if let Some(message) = pool().get_message_by_name(plain) {
        return Ok(message_text(&message));
    }
    if let Some(kind) = pool().get_enum_by_name(plain) {
        return Ok(enum_text(&kind));
    }
    if let Some(service) = pool().get_service_by_name(plain) {
        return Ok(service_text(&service));
    }
    let error = match lookup::method(plain) {
        Ok(method) => return Ok(method_text(method)),
        Err(error) => error,
    };
    if plain.contains('/') {
        return Err(error);
    }
    let names: Vec<String> = pool()
        .all_messages()
        .map(|message| message.full_name().to_owned())
        .chain(pool().services().map(|service| service.full_name().to_owned()))
        .chain(pool().all_enums().map(|kind| kind.full_name().to_owned()))
        .collect();
    Err(Error::Unknown {
        kind: "service, method, message or enum",
        name: name.into(),
        suggestions: suggest::closest(plain, names.iter().map(String::as_str)),
        hint: "`selvage api list` shows all methods".into(),
    })
}

fn service_text(service: &ServiceDescriptor) -> String {
    let mut text = comment(&service.parent_file(), service.path(), "");
    let _ = writeln!(text, "service {} {{", service.full_name());
    for method in service.methods() {
        text.push_str(&comment(&service.parent_file(), method.path(), "  "));
        let _ = writeln!(
            text,
            "  rpc {}({}{}) returns ({}{});",
            method.name(),
            if method.is_client_streaming() { "stream " } else { "" },
            method.input().full_name(),
            if method.is_server_streaming() { "stream " } else { "" },
            method.output().full_name()
        );
    }
    text.push_str("}\n");
    text
}

fn method_text(method: &Method) -> String {
    let file = method.descriptor.parent_service().parent_file();
    let mut text = comment(&file, method.descriptor.path(), "");
    let stream = |yes: bool| if yes { "stream " } else { "" };
    let _ = writeln!(
        text,
        "rpc {}({}{}) returns ({}{});",
        &method.path[1..],
        stream(method.client_streaming),
        method.input.full_name(),
        stream(method.server_streaming),
        method.output.full_name()
    );
    let _ = writeln!(text, "// part: {}", method.part);
    for route in &method.http {
        let _ = writeln!(text, "// http: {route}");
    }
    text.push('\n');
    text.push_str(&message_text(&method.input));
    if method.output.full_name() != method.input.full_name() {
        text.push('\n');
        text.push_str(&message_text(&method.output));
    }
    text
}

fn message_text(message: &MessageDescriptor) -> String {
    let file = message.parent_file();
    let mut text = comment(&file, message.path(), "");
    let _ = writeln!(text, "message {} {{", message.full_name());
    for field in message.fields() {
        text.push_str(&comment(&file, field.path(), "  "));
        let _ = writeln!(text, "  {} {} = {};", type_of(&field), field.name(), field.number());
    }
    text.push_str("}\n");
    text
}

fn enum_text(kind: &EnumDescriptor) -> String {
    let file = kind.parent_file();
    let mut text = comment(&file, kind.path(), "");
    let _ = writeln!(text, "enum {} {{", kind.full_name());
    for value in kind.values() {
        text.push_str(&comment(&file, value.path(), "  "));
        let _ = writeln!(text, "  {} = {};", value.name(), value.number());
    }
    text.push_str("}\n");
    text
}

fn type_of(field: &FieldDescriptor) -> String {
    let name = |kind: Kind| match kind {
        Kind::Message(inner) => inner.full_name().to_owned(),
        Kind::Enum(inner) => inner.full_name().to_owned(),
        scalar => format!("{scalar:?}"),
    };
    if let (true, Kind::Message(entry)) = (field.is_map(), field.kind()) {
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        return format!("map<{}, {}>", name(key.kind()), name(value.kind()));
    }
    let repeated = if field.cardinality() == Cardinality::Repeated { "repeated " } else { "" };
    format!("{repeated}{}", name(field.kind()))
}

/// Comment of the contract, as comment lines.
fn comment(file: &FileDescriptor, path: &[i32], indent: &str) -> String {
    comment_text(file, path).lines().fold(String::new(), |mut all, line| {
        let _ = writeln!(all, "{}", format!("{indent}// {}", line.trim()).trim_end());
        all
    })
}

/// Comment of the contract.
pub(crate) fn comment_text(file: &FileDescriptor, path: &[i32]) -> &'static str {
    selvage_api::comment(file.name(), path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn everything_in_the_contracts_can_be_described() {
        for method in methods() {
            let text = describe(&method.path).unwrap();
            assert!(text.contains(&format!("rpc {}(", &method.path[1..])), "{text}");
        }
        for message in pool().all_messages() {
            assert!(describe(message.full_name()).unwrap().contains("message "));
        }
    }

    #[test]
    fn a_description_reads_like_the_contract() {
        assert_eq!(
            describe("selvage.identity.RemoveUserRequest").unwrap(),
            "message selvage.identity.RemoveUserRequest {\n  string username = 1;\n}\n"
        );
        let text = describe("selvage.identity.IdentityService/Join").unwrap();
        assert!(text.starts_with("// Trades a join token for a certificate."), "{text}");
        assert!(text.contains("// http: POST /selvage/v1/join\n"), "{text}");
        assert!(describe("edgeproto.NoticeAction").unwrap().contains("  UPDATE = 1;\n"));
    }

    #[test]
    fn a_typo_is_answered() {
        let error = describe("selvage.identity.Usr").unwrap_err().to_string();
        assert!(error.contains("did you mean selvage.identity.User"), "{error}");
    }
}
