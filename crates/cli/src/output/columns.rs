//! Which columns a message has in a table.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::body::is_json_shaped;

/// More than this many columns only in `wide`.
const NARROW: usize = 8;
/// Messages within messages are looked into this far.
const DEPTH: usize = 3;

/// One column: where its value is, and what stands above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: String,
    /// Names from the outside in.
    pub(crate) path: Vec<String>,
    /// Full name of the message the value is, if it is one.
    pub(crate) message: Option<String>,
    /// Only shown in `wide`.
    pub(crate) wide: bool,
}

impl Column {
    pub(crate) fn new(title: &str, path: &str) -> Self {
        Self {
            title: title.to_owned(),
            path: path.split('.').map(str::to_owned).collect(),
            message: None,
            wide: false,
        }
    }

    /// Only shown in `wide`.
    pub(crate) fn wide(self) -> Self {
        Self { wide: true, ..self }
    }
}

/// Messages whose columns were chosen by hand: names from the outside in, with
/// a title before `=` where the last name does not tell enough; a `+` at the
/// front leaves a column to `wide`. A name with `@` is no field of the message
/// but found out otherwise.
const CHOSEN: &[(&str, &[&str])] = &[
    (
        "selvage.identity.User",
        &["username", "grants", "disabled", "source", "+created_at", "+password_changed_at"],
    ),
    (
        "selvage.identity.Session",
        &["id", "username", "kind", "peer", "last_used_at", "expires", "current", "+created_at"],
    ),
    (
        "selvage.identity.Credential",
        &[
            "name",
            "username",
            "grants",
            "methods",
            "expires",
            "last_used_at",
            "+id",
            "+created_at",
            "+created_by",
        ],
    ),
    ("selvage.identity.BlockedMachine", &["machine", "blocked_at", "blocked_by"]),
    ("selvage.system.Part", &["name", "state", "address", "+services"]),
    (
        "selvage.operations.Operation",
        &[
            "id",
            "kind",
            "object=key",
            "state",
            "step",
            "started_by",
            "started_at",
            "+steps_done",
            "+steps_total",
            "+updated_at",
            "+driver",
            "+error",
        ],
    ),
    (
        "selvage.revisions.Revision",
        &[
            "revision=number",
            "state",
            "current",
            "started_at",
            "by=started_by",
            "image_path",
            "changed",
            "+rollback_of",
            "+error",
        ],
    ),
    (
        "selvage.dashboard.Event",
        &["time", "kind=object.kind", "object=object.name", "event=what", "text", "+severity"],
    ),
    (
        "edgeproto.App",
        &[
            "developer=key.developer_key.name",
            "name=key.name",
            "version=key.version",
            "deployment",
            "flavor=default_flavor.name",
            "access_ports",
            "image_path",
            "+image_type",
            "+deployment_generator",
            "+del_opt",
            "+command",
            "+permits_platform_apps",
            "+android_package_name",
        ],
    ),
    (
        "edgeproto.AppInst",
        &[
            "developer=key.app_key.developer_key.name",
            "app=key.app_key.name",
            "version=key.app_key.version",
            "operator=key.cluster_inst_key.cloudlet_key.operator_key.name",
            "cloudlet=key.cluster_inst_key.cloudlet_key.name",
            "cluster=key.cluster_inst_key.cluster_key.name",
            "state",
            "health=@health",
            "restarts=runtime_info.restarts",
            "address=runtime_info.addresses",
            "uri",
            "+last_reason=runtime_info.last_reason",
            "+cluster_developer=key.cluster_inst_key.developer",
            "+flavor=flavor.name",
            "+liveness",
            "+ports=mapped_ports",
            "+errors",
            "+containers=runtime_info.container_ids",
        ],
    ),
    (
        "edgeproto.Cloudlet",
        &[
            "operator=key.operator_key.name",
            "name=key.name",
            "state=@state",
            "latitude=location.latitude",
            "longitude=location.longitude",
            "ip_support",
            "num_dynamic_ips",
            "+static_ips",
            "+access_uri",
        ],
    ),
    (
        "edgeproto.CloudletInfo",
        &[
            "operator=key.operator_key.name",
            "name=key.name",
            "state",
            "os_max_ram",
            "os_max_vcores",
            "os_max_vol_gb",
            "errors",
            "+controller",
            "+notify_id",
            "+flavors",
        ],
    ),
    (
        "edgeproto.CloudletRefs",
        &[
            "operator=key.operator_key.name",
            "name=key.name",
            "used_ram",
            "used_vcores",
            "used_disk",
            "used_dynamic_ips",
            "ports=root_lb_ports",
            "clusters",
            "+used_static_ips",
        ],
    ),
    ("edgeproto.Cluster", &["name=key.name", "flavor=default_flavor.name", "auto"]),
    (
        "edgeproto.ClusterInst",
        &[
            "developer=key.developer",
            "cluster=key.cluster_key.name",
            "operator=key.cloudlet_key.operator_key.name",
            "cloudlet=key.cloudlet_key.name",
            "flavor=flavor.name",
            "masters=num_masters",
            "nodes=num_nodes",
            "state",
            "+ip_access",
            "+deployment",
            "+liveness",
            "+auto",
            "+node_flavor",
            "+allocated_ip",
            "+errors",
        ],
    ),
    ("edgeproto.Developer", &["name=key.name", "username", "email", "address"]),
    (
        "edgeproto.Node",
        &[
            "name=key.name",
            "type=key.node_type",
            "operator=key.cloudlet_key.operator_key.name",
            "cloudlet=key.cloudlet_key.name",
            "+notify_id",
        ],
    ),
];

fn chosen(name: &str) -> Option<&'static [&'static str]> {
    CHOSEN.iter().find(|(message, _)| *message == name).map(|(_, columns)| *columns)
}

/// The columns of a table of such messages.
pub(crate) fn of(descriptor: &MessageDescriptor, wide: bool) -> Vec<Column> {
    let mut columns = match chosen(descriptor.full_name()) {
        Some(names) => names.iter().filter_map(|name| pick(descriptor, name)).collect(),
        None => generic(descriptor),
    };
    columns.retain(|column| wide || !column.wide);
    titles(&mut columns);
    columns
}

/// All leaves of a message, for printing it on its own.
pub(crate) fn leaves(descriptor: &MessageDescriptor) -> Vec<Column> {
    let mut columns = Vec::new();
    walk(descriptor, &mut Vec::new(), &mut columns);
    for column in &mut columns {
        column.title = column.path.join(".");
    }
    columns
}

/// Messages whose lists are shown only where everything is.
const DETAILS: [&str; 1] = ["selvage.system.Reconciler"];

/// Fields of a message that are lists of messages.
fn lists(
    descriptor: &MessageDescriptor,
) -> impl Iterator<Item = (FieldDescriptor, MessageDescriptor)> + '_ {
    descriptor.fields().filter_map(|field| match field.kind() {
        Kind::Message(element) if field.is_list() && !fits_a_cell(&element) => {
            Some((field, element))
        }
        _ => None,
    })
}

/// Lists that are shown only where everything is.
pub(crate) fn details(descriptor: &MessageDescriptor) -> Vec<(FieldDescriptor, MessageDescriptor)> {
    lists(descriptor).filter(|(_, element)| DETAILS.contains(&element.full_name())).collect()
}

/// The one field of a message that is a list of messages, details apart.
pub(crate) fn list_field(
    descriptor: &MessageDescriptor,
) -> Option<(FieldDescriptor, MessageDescriptor)> {
    let mut lists =
        lists(descriptor).filter(|(_, element)| !DETAILS.contains(&element.full_name()));
    let only = lists.next()?;
    if lists.next().is_some() { None } else { Some(only) }
}

/// Messages that are a few words.
fn fits_a_cell(element: &MessageDescriptor) -> bool {
    is_json_shaped(element) || element.full_name() == "selvage.identity.Grant"
}

fn pick(descriptor: &MessageDescriptor, name: &str) -> Option<Column> {
    let (wide, name) = match name.strip_prefix('+') {
        Some(name) => (true, name),
        None => (false, name),
    };
    let (title, path) = name.split_once('=').unwrap_or(("", name));
    if path.starts_with('@') {
        return Some(Column { wide, ..Column::new(title, path) });
    }
    let mut outside: Vec<&str> = path.split('.').collect();
    let last = outside.pop()?;
    let mut inside = descriptor.clone();
    for name in &outside {
        let Kind::Message(inner) = inside.get_field_by_name(name)?.kind() else { return None };
        inside = inner;
    }
    let outside: Vec<String> = outside.into_iter().map(str::to_owned).collect();
    let leaf = leaf(&inside.get_field_by_name(last)?, &outside);
    Some(Column { wide, title: title.to_owned(), ..leaf })
}

fn leaf(field: &FieldDescriptor, outside: &[String]) -> Column {
    let mut path = outside.to_vec();
    path.push(field.name().to_owned());
    let message = match field.kind() {
        Kind::Message(inner) => Some(inner.full_name().to_owned()),
        _ => None,
    };
    // Lists of messages and maps fill a cell with more than a glance takes in;
    // the mask of an Update is always empty in what is shown.
    let mask = outside.is_empty() && field.is_list() && field.name() == "fields";
    let wide = field.is_map() || (field.is_list() && message.is_some()) || mask;
    Column { title: String::new(), path, message, wide }
}

fn generic(descriptor: &MessageDescriptor) -> Vec<Column> {
    let mut columns = Vec::new();
    walk(descriptor, &mut Vec::new(), &mut columns);
    let mut shown = 0;
    for column in &mut columns {
        column.wide |= shown >= NARROW;
        shown += usize::from(!column.wide);
    }
    columns
}

fn walk(descriptor: &MessageDescriptor, outside: &mut Vec<String>, columns: &mut Vec<Column>) {
    for field in descriptor.fields() {
        match field.kind() {
            Kind::Message(inner)
                if !field.is_list()
                    && !field.is_map()
                    && !is_json_shaped(&inner)
                    && inner.full_name() != "google.protobuf.Any"
                    && outside.len() + 1 < DEPTH =>
            {
                outside.push(field.name().to_owned());
                walk(&inner, outside, columns);
                outside.pop();
            }
            _ => columns.push(leaf(&field, outside)),
        }
    }
}

/// The last name alone where that is enough to tell columns apart.
fn titles(columns: &mut [Column]) {
    let all: Vec<Vec<String>> = columns.iter().map(|column| column.path.clone()).collect();
    for column in columns {
        if !column.title.is_empty() {
            column.title = column.title.replace('_', "-").to_uppercase();
            continue;
        }
        let alike = all.iter().filter(|path| path.last() == column.path.last()).count();
        let name = match column.path.last() {
            Some(last) if alike == 1 => last.clone(),
            _ => column.path.join("-"),
        };
        column.title = name.replace('_', "-").to_uppercase();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_chosen_by_hand_is_there() {
        for (name, columns) in CHOSEN {
            let message = selvage_api::pool().get_message_by_name(name).unwrap();
            for column in *columns {
                assert!(pick(&message, column).is_some(), "{name} {column}");
            }
        }
    }
}
