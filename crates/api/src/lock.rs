//! The wire in words: every number, type, streaming flag and route of the
//! contracts as one fact a line, so that a change of the wire is seen as a
//! change of a text.
//!
//! `proto/wire.lock` is what [`render`] says of the descriptors, committed.
//! `proto/published.tsv` is what the originals published; [`unpublished`]
//! holds the descriptors against it, so that the lock cannot drift either.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{
    Cardinality, DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    MethodDescriptor, ServiceDescriptor,
};

use crate::method::http_bindings;

/// First number that an extension of a published message or enum may use.
pub const FIRST_EXTENSION: i64 = 100;

/// All facts of all packages but Google's, sorted; columns divided by tabs.
pub fn render(pool: &DescriptorPool) -> String {
    let mut facts = BTreeMap::new();
    for message in pool.all_messages().filter(|m| ours(m.package_name()) && !m.is_map_entry()) {
        facts.insert((message.full_name().to_owned(), 0), message_facts(&message));
    }
    for enumeration in pool.all_enums().filter(|e| ours(e.package_name())) {
        facts.insert((enumeration.full_name().to_owned(), 1), enum_facts(&enumeration));
    }
    for service in pool.services().filter(|s| ours(s.package_name())) {
        facts.insert((service.full_name().to_owned(), 2), service_facts(&service));
    }
    let mut text = String::new();
    for fact in facts.values().flatten() {
        text.push_str(&fact.join("\t"));
        text.push('\n');
    }
    text
}

fn ours(package: &str) -> bool {
    package != "google" && !package.starts_with("google.")
}

type Fact = Vec<String>;

fn fact<const N: usize>(columns: [&str; N]) -> Fact {
    columns.into_iter().map(str::to_owned).collect()
}

fn message_facts(message: &MessageDescriptor) -> Vec<Fact> {
    let name = message.full_name();
    let mut facts = vec![fact(["message", name])];
    for field in message.fields() {
        let number = field.number().to_string();
        let mut line = fact(["field", name, &number, field.name(), &field_type(&field)]);
        if let Some(oneof) = field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) {
            line.push(format!("oneof {}", oneof.name()));
        }
        facts.push(line);
    }
    facts
}

fn field_type(field: &FieldDescriptor) -> String {
    if field.is_map()
        && let Kind::Message(entry) = field.kind()
    {
        let key = kind_name(&entry.map_entry_key_field().kind());
        let value = kind_name(&entry.map_entry_value_field().kind());
        return format!("map<{key},{value}>");
    }
    let name = kind_name(&field.kind());
    match field.cardinality() {
        Cardinality::Repeated if is_packable(&field.kind()) && !field.is_packed() => {
            format!("repeated unpacked {name}")
        }
        Cardinality::Repeated => format!("repeated {name}"),
        Cardinality::Required => format!("required {name}"),
        Cardinality::Optional if field.field_descriptor_proto().proto3_optional() => {
            format!("optional {name}")
        }
        Cardinality::Optional => name,
    }
}

fn is_packable(kind: &Kind) -> bool {
    !matches!(kind, Kind::String | Kind::Bytes | Kind::Message(_))
}

fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(enumeration) => enumeration.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

fn enum_facts(enumeration: &EnumDescriptor) -> Vec<Fact> {
    let name = enumeration.full_name();
    let mut values: Vec<_> = enumeration.values().collect();
    values.sort_by_key(|value| (value.number(), value.name().to_owned()));
    let mut facts = vec![fact(["enum", name])];
    facts.extend(
        values.iter().map(|value| fact(["value", name, &value.number().to_string(), value.name()])),
    );
    facts
}

fn service_facts(service: &ServiceDescriptor) -> Vec<Fact> {
    let name = service.full_name();
    let mut methods: Vec<MethodDescriptor> = service.methods().collect();
    methods.sort_by(|a, b| a.name().cmp(b.name()));
    let mut facts = vec![fact(["service", name])];
    for method in methods {
        let (input, output) = (method.input(), method.output());
        let streams = match (method.is_client_streaming(), method.is_server_streaming()) {
            (false, false) => "unary",
            (false, true) => "server-stream",
            (true, false) => "client-stream",
            (true, true) => "both-stream",
        };
        let types = (input.full_name(), output.full_name());
        facts.push(fact(["rpc", name, method.name(), types.0, types.1, streams]));
        for route in http_bindings(&method) {
            let body = format!("body={}", route.body);
            let mut line =
                fact(["route", name, method.name(), &route.verb, &route.path, body.as_str()]);
            if !route.response_body.is_empty() {
                line.push(format!("response_body={}", route.response_body));
            }
            facts.push(line);
        }
    }
    facts
}

/// One line in which the lock and the descriptors differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Locked and no longer so: clients that rely on it break.
    Broken(String),
    /// New: right, as soon as the lock is made again.
    Added(String),
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken(line) => write!(f, "removed or changed, breaks the wire: {line}"),
            Self::Added(line) => write!(f, "added, make the lock again: {line}"),
        }
    }
}

/// Returns the lines in which a lock and a rendering differ; breaking changes
/// first.
pub fn compare(locked: &str, rendered: &str) -> Vec<Difference> {
    let locked: BTreeSet<&str> = locked.lines().collect();
    let rendered: BTreeSet<&str> = rendered.lines().collect();
    let broken = locked.difference(&rendered).map(|line| Difference::Broken((*line).to_owned()));
    let added = rendered.difference(&locked).map(|line| Difference::Added((*line).to_owned()));
    broken.chain(added).collect()
}

/// Contradictions between the descriptors and the published facts: a fact that
/// is missing or different, a published number used for something else, an
/// extension below [`FIRST_EXTENSION`], anything else new in a published
/// package that the table does not name after the word `allow`.
pub fn unpublished(table: &str, pool: &DescriptorPool) -> Vec<String> {
    let rendered = render(pool);
    let facts: Vec<Vec<&str>> = rendered.lines().map(|line| line.split('\t').collect()).collect();
    let published = Published::read(table);
    let mut complaints = published.missing(&facts);
    complaints.extend(facts.iter().filter_map(|fact| published.objection(fact)));
    complaints
}

/// The published table: facts as in the lock, but routes without their body;
/// lines with `allow` in front name what of ours stands beside them.
struct Published<'a> {
    facts: BTreeSet<Vec<&'a str>>,
    allowed: BTreeSet<Vec<&'a str>>,
    names: BTreeSet<(&'a str, &'a str)>,
    packages: BTreeSet<&'a str>,
}

impl<'a> Published<'a> {
    fn read(table: &'a str) -> Self {
        let mut read = Self {
            facts: BTreeSet::new(),
            allowed: BTreeSet::new(),
            names: BTreeSet::new(),
            packages: BTreeSet::new(),
        };
        for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            match columns.as_slice() {
                ["allow", rest @ ..] => {
                    read.allowed.insert(rest.to_vec());
                }
                ["package", name] => {
                    read.packages.insert(name);
                }
                [kind, name, ..] => {
                    read.names.insert((kind, name));
                    read.facts.insert(columns);
                }
                _ => {}
            }
        }
        read
    }

    fn missing(&self, facts: &[Vec<&str>]) -> Vec<String> {
        let present: BTreeSet<&[&str]> = facts.iter().map(|fact| comparable(fact)).collect();
        let all = self.facts.iter();
        all.filter(|fact| !present.contains(fact.as_slice()))
            .map(|fact| format!("published fact is missing or changed: {}", fact.join(" ")))
            .collect()
    }

    /// Objection to a fact of ours, given the published ones.
    fn objection(&self, fact: &[&str]) -> Option<String> {
        let fact = comparable(fact);
        if self.facts.contains(fact) || self.allowed.contains(fact) {
            return None;
        }
        let (kind, name) = (*fact.first()?, *fact.get(1)?);
        let text = fact.join(" ");
        let owner_is_published = match kind {
            "field" => self.names.contains(&("message", name)),
            "value" => self.names.contains(&("enum", name)),
            "rpc" | "route" => self.names.contains(&("service", name)),
            _ => return self.in_published_package(name).then(|| format!("not published: {text}")),
        };
        if !owner_is_published {
            return None;
        }
        if matches!(kind, "rpc" | "route") {
            return Some(format!("not published: {text}"));
        }
        let number: i64 = fact.get(2)?.parse().ok()?;
        if self.facts.iter().any(|f| f[0] == kind && f[1] == name && f[2] == fact[2]) {
            return Some(format!("a published number means something else here: {text}"));
        }
        (number < FIRST_EXTENSION).then(|| format!("extensions start at {FIRST_EXTENSION}: {text}"))
    }

    fn in_published_package(&self, name: &str) -> bool {
        self.packages.iter().any(|package| {
            name.strip_prefix(package)
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|rest| rest.starts_with(char::is_uppercase))
        })
    }
}

/// A fact without what was never published of it: how a route takes its body.
fn comparable<'f, 'a>(fact: &'f [&'a str]) -> &'f [&'a str] {
    if fact.first() == Some(&"route") { fact.get(..5).unwrap_or(fact) } else { fact }
}
