//! Everything there is, in the form that apply reads.

use prost_reflect::{DynamicMessage, ReflectMessage};
use serde_json::{Map, Value};

use crate::{
    Error,
    edge::{
        Kind, Verb,
        catalog::{kind, kinds},
        plain::{self, Spelling},
        rpc,
    },
    output::{Format, Printer},
    session::Session,
    suggest,
};

/// `selvage export`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage export > edge.yaml
  selvage export apps appinsts -o json

What the server fills by itself is left out, and so are clusters that instances
brought with them. What crms report (cloudletinfos) is written only when named.")]
pub struct Export {
    /// Kinds to write [default: all that can be applied]
    #[arg(value_name = "KIND")]
    pub kinds: Vec<String>,
}

pub(crate) async fn run(args: &Export, session: &mut Session<'_>) -> Result<(), Error> {
    let wanted = wanted(&args.kinds)?;
    let client = session.client().await?;
    let mut all = Map::new();
    for kind in wanted {
        let Some(method) = kind.method(Verb::Show) else { continue };
        let filter = DynamicMessage::new(kind.message.clone());
        let objects = rpc::show(&client, method, filter).await?;
        let objects: Vec<Value> = objects
            .into_iter()
            .filter_map(|object| kept(kind, object))
            .map(|object| plain::value(&object, Spelling::Contract))
            .collect();
        if !objects.is_empty() {
            all.insert(kind.plural.clone(), Value::Array(objects));
        }
    }
    let format = match session.global.output {
        Some(Format::Json) => Format::Json,
        _ => Format::Yaml,
    };
    let colour = session.io.colour_on_out(session.global.color);
    Printer::new(&mut session.io.out, format, colour).record(&Value::Object(all))
}

fn wanted(words: &[String]) -> Result<Vec<&'static Kind>, Error> {
    let makeable = || kinds().iter().filter(|kind| kind.order().is_some());
    if words.is_empty() {
        return Ok(makeable().filter(|kind| kind.name != "CloudletInfo").collect());
    }
    let mut found = Vec::new();
    for word in words {
        let known = kind(word).filter(|kind| kind.order().is_some());
        found.push(known.ok_or_else(|| Error::Unknown {
            kind: "kind of object to export",
            name: word.clone(),
            suggestions: suggest::closest(word, makeable().map(|kind| kind.plural.as_str())),
            hint: format!(
                "there are {}",
                makeable().map(|kind| kind.plural.as_str()).collect::<Vec<_>>().join(", ")
            ),
        })?);
    }
    found.sort_by_key(|kind| kind.order());
    found.dedup_by_key(|kind| kind.order());
    Ok(found)
}

/// The object as somebody would have written it; none for those nobody did.
fn kept(kind: &Kind, mut object: DynamicMessage) -> Option<DynamicMessage> {
    let says = |object: &DynamicMessage, name: &str| {
        object.get_field_by_name(name).is_some_and(|value| value.as_bool() == Some(true))
    };
    if kind.name == "ClusterInst" && says(&object, "auto") {
        return None;
    }
    let fields: Vec<_> = object.descriptor().fields().collect();
    for field in fields {
        let made_by_server = kind.is_server_set(field.name())
            || field.name() == "fields"
            || (field.name() == "deployment_manifest" && has_text(&object, "deployment_generator"))
            || (field.name() == "uri" && kind.name == "AppInst" && !is_self_run(&object));
        if made_by_server {
            object.clear_field(&field);
        }
    }
    Some(object)
}

fn has_text(object: &DynamicMessage, name: &str) -> bool {
    let value = object.get_field_by_name(name);
    value.is_some_and(|value| value.as_str().is_some_and(|text| !text.is_empty()))
}

/// Returns whether the instance is one that its developer runs, which has the
/// address that they gave it.
fn is_self_run(object: &DynamicMessage) -> bool {
    let value = plain::value(object, Spelling::Contract);
    let cloudlet = &value["key"]["cluster_inst_key"]["cloudlet_key"];
    cloudlet["operator_key"]["name"] == "developer" && cloudlet["name"] == "default"
}
