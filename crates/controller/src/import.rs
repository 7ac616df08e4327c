//! Objects of an installation of edge-cloud, out of what `etcdctl get --prefix`
//! prints of its etcd: a line with a key, a line with a value.
//!
//! All three models that such a store can be of are read. What agents report, and
//! what controllers write about themselves, is not taken: it comes anew.

use std::collections::BTreeMap;

use prost_reflect::{Kind, MessageDescriptor};
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_api::json;
use selvage_api::object::{camel_name, descriptor_of, from_dynamic};
use selvage_store::SharedStore;
use serde_json::{Map, Value, json};

use crate::derive::deployment::KUBERNETES;
use crate::error::{Error, Result};
use crate::row::Row;
use crate::tables::{HasTable, Tables};

/// Types that are made anew by those whom they are about.
const REPORTED: [&str; 5] =
    ["CloudletInfo", "AppInstInfo", "ClusterInstInfo", "Controller", "Node"];

/// All that a dump has, ready to be written.
#[derive(Debug, Default)]
pub struct Dump {
    operators: Vec<wire::Operator>,
    developers: Vec<wire::Developer>,
    flavors: Vec<wire::Flavor>,
    clusters: Vec<wire::Cluster>,
    cloudlets: Vec<wire::Cloudlet>,
    apps: Vec<wire::App>,
    cluster_insts: Vec<wire::ClusterInst>,
    app_insts: Vec<wire::AppInst>,
    cloudlet_refs: Vec<wire::CloudletRefs>,
    /// Number of records that were left out.
    pub left_out: usize,
}

/// An entry of the dump.
struct Entry {
    line: usize,
    kind: String,
    value: Value,
}

impl Entry {
    fn wrong(&self, reason: impl std::fmt::Display) -> Error {
        refused(self.line, format!("{}: {reason}", self.kind))
    }
}

fn refused(line: usize, reason: impl std::fmt::Display) -> Error {
    Error::refused(Code::InvalidArgument, format!("line {line}: {reason}"))
}

impl Dump {
    /// Reads a dump as a whole; one that cannot be understood is refused by line
    /// and field.
    pub fn read(text: &str) -> Result<Self> {
        let entries = entries(text)?;
        let owners = owners(&entries);
        let mut dump = Self::default();
        for mut entry in entries {
            without_nulls(&mut entry.value);
            match entry.kind.as_str() {
                "Operator" => dump.operators.push(object(entry)?),
                "Developer" => dump.developers.push(object(entry)?),
                "Flavor" => dump.flavors.push(object(entry)?),
                "Cluster" => dump.clusters.push(object(entry)?),
                "Cloudlet" => dump.cloudlets.push(object(entry)?),
                "App" => dump.apps.push(object(entry)?),
                "ClusterInst" => dump.cluster_insts.push(cluster_inst(entry)?),
                "AppInst" => {
                    renew_app_inst(&mut entry.value, &owners);
                    dump.app_insts.push(object(entry)?);
                }
                "CloudletRefs" => dump.cloudlet_refs.push(object(entry)?),
                kind if REPORTED.contains(&kind) => dump.left_out += 1,
                _ => return Err(entry.wrong("there are no objects of this type")),
            }
        }
        Ok(dump)
    }

    /// Writes all objects; those that others refer to come first. Returns their
    /// number.
    pub async fn write(self, store: &SharedStore, merge: bool) -> Result<usize> {
        let tables = Tables::open(store).await?;
        if !merge && !tables.is_empty() {
            let text = "the store holds objects already: say --merge to write over those that \
                        the dump has, and keep the rest";
            return Err(Error::refused(Code::FailedPrecondition, text));
        }
        let mut written = put_all(&tables, self.operators).await?;
        written += put_all(&tables, self.developers).await?;
        written += put_all(&tables, self.flavors).await?;
        written += put_all(&tables, self.clusters).await?;
        written += put_all(&tables, self.cloudlets).await?;
        written += put_all(&tables, self.apps).await?;
        written += put_all(&tables, self.cluster_insts).await?;
        written += put_all(&tables, self.app_insts).await?;
        written += put_all(&tables, self.cloudlet_refs).await?;
        Ok(written)
    }
}

async fn put_all<M: HasTable>(tables: &Tables, objects: Vec<M>) -> Result<usize> {
    let number = objects.len();
    for object in objects {
        tables.of::<M>().put(Row(object)).await?;
    }
    Ok(number)
}

/// Takes a dump apart. The version of its model is not needed: each record shows
/// of which it is.
fn entries(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    while let Some((line, key)) = lines.next() {
        let (_, value) = lines.next().ok_or_else(|| refused(line, "a key without a value"))?;
        let mut parts = key.splitn(3, '/').skip(1);
        let kind = parts.next().unwrap_or_default().to_owned();
        if kind == "Version" {
            continue;
        }
        if kind.is_empty() || parts.next().is_none() {
            return Err(refused(line, "expected a key such as 1/Flavor/{\"name\":\"x\"}"));
        }
        let value = serde_json::from_str(value);
        let value = value.map_err(|error| refused(line + 1, format!("{kind}: {error}")))?;
        entries.push(Entry { line: line + 1, kind, value });
    }
    Ok(entries)
}

/// Go writes lists without elements as null.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn object<M: HasTable>(mut entry: Entry) -> Result<M> {
    let descriptor = descriptor_of::<M>().map_err(|error| entry.wrong(error))?;
    name_enums(&descriptor, &mut entry.value);
    let text = entry.value.to_string();
    let read = json::from_json(&descriptor, text.as_bytes(), json::Options::edge().strict());
    let read = read.map_err(|error| entry.wrong(error))?;
    from_dynamic(&read).map_err(|error| entry.wrong(error))
}

/// Enums stand as one word in camel case, or as numbers in a string.
fn name_enums(descriptor: &MessageDescriptor, value: &mut Value) {
    let Value::Object(fields) = value else { return };
    for (name, value) in fields {
        let Some(field) = descriptor.get_field_by_name(name) else { continue };
        let each = |value: &mut Value| match field.kind() {
            Kind::Message(inner) if !field.is_map() => name_enums(&inner, value),
            Kind::Enum(kind) => {
                let Value::String(text) = &*value else { return };
                let number = text.parse::<i32>().ok();
                let known = kind.values().find(|known| camel_name(known.name()) == *text);
                if let Some(number) = number.or(known.map(|known| known.number())) {
                    *value = json!(number);
                }
            }
            _ => {}
        };
        match value {
            Value::Array(values) => values.iter_mut().for_each(each),
            value => Some(value).into_iter().for_each(each),
        }
    }
}

/// Clusters did not always say how apps are deployed on them: it was kubernetes.
fn cluster_inst(entry: Entry) -> Result<wire::ClusterInst> {
    let mut inst: wire::ClusterInst = object(entry)?;
    if inst.deployment.is_empty() {
        inst.deployment = KUBERNETES.into();
    }
    Ok(inst)
}

/// Developers of clusters, by cloudlet and name.
fn owners(entries: &[Entry]) -> BTreeMap<String, String> {
    let clusters = entries.iter().filter(|entry| entry.kind == "ClusterInst");
    let owner = |entry: &Entry| {
        let key = &entry.value["key"];
        Some((place(key), key["developer"].as_str()?.to_owned()))
    };
    clusters.filter_map(owner).collect()
}

/// Text of a cluster's name and cloudlet.
fn place(key: &Value) -> String {
    let (cloudlet, cluster) = (&key["cloudlet_key"], &key["cluster_key"]["name"]);
    format!("{}/{}/{cluster}", cloudlet["operator_key"]["name"], cloudlet["name"])
}

/// An instance was found by its cloudlet and a number before, and said beside its
/// key in which cluster it is.
fn renew_app_inst(value: &mut Value, owners: &BTreeMap<String, String>) {
    let Value::Object(fields) = value else { return };
    if let Some(Value::Array(ports)) = fields.get_mut("mapped_ports") {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            if let Some(prefix) = port.remove("FQDN_prefix") {
                port.insert("fqdn_prefix".into(), prefix);
            }
        }
    }
    let cluster = fields.remove("cluster_inst_key").unwrap_or_else(|| json!({}));
    let Some(Value::Object(key)) = fields.get_mut("key") else { return };
    key.remove("id");
    let Some(cloudlet) = key.remove("cloudlet_key") else { return };
    let developer = key.get("app_key").map(|app| app["developer_key"]["name"].clone());
    let mut cluster = cluster.as_object().cloned().unwrap_or_else(Map::new);
    cluster.insert("cloudlet_key".into(), cloudlet);
    let is_named = cluster.get("cluster_key").is_some_and(|key| key["name"].is_string());
    if is_named && !cluster.contains_key("developer") {
        let owner = owners.get(&place(&Value::Object(cluster.clone())));
        let owner = owner.map(|owner| json!(owner)).or(developer);
        cluster.insert("developer".into(), owner.unwrap_or_default());
    }
    key.insert("cluster_inst_key".into(), Value::Object(cluster));
}

#[cfg(test)]
mod tests;
