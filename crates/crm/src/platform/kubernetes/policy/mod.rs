//! Objects that an app may make: an allow-list of kinds and of their fields.
//!
//! A namespace shares nodes, addresses and controllers with those of other
//! tenants and of the operator. Every field that is listed was looked at for
//! what it reaches beyond its namespace; one that is not listed is refused,
//! also one that a later version of Kubernetes brings. What slips through is
//! up against the rights of the account that objects are applied with
//! (`super::tenant`) and against Pod Security.

mod kinds;
mod pod;

use selvage_kube::kube::api::ApiResource;
use serde_json::Value;

use super::{
    manifest::Object,
    names::{RESERVED_LABELS, RESERVED_NAMES},
};
use crate::Result;

pub(super) use self::kinds::{KINDS, Kind};

/// Rule for a value.
pub(super) enum Rule {
    Any,
    /// Only what it is when nobody says anything: false, 0, "" or nothing.
    Unset,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// An object with these fields and no others.
    Fields(&'static [(&'static str, Rule)]),
    /// A list of such.
    Each(&'static Rule),
    /// An object with any names and such values.
    Values(&'static Rule),
    /// Whatever this finds nothing wrong with.
    Check(fn(&Value) -> Result<(), String>),
}

/// Something that is refused, and where it is.
struct Refusal {
    path: String,
    reason: String,
}

impl Rule {
    fn check(&self, value: &Value, path: &str) -> Result<(), Refusal> {
        let refuse = |reason: String| Err(Refusal { path: path.to_owned(), reason });
        if value.is_null() {
            return Ok(());
        }
        match (self, value) {
            (Self::Any, _) => Ok(()),
            (Self::Unset, _) if is_unset(value) => Ok(()),
            (Self::Unset, _) => refuse("an app may not set this".into()),
            (Self::OneOf(allowed), _) => match value.as_str() {
                Some(text) if allowed.contains(&text) => Ok(()),
                _ => refuse(format!("{value} is not one of {}", allowed.join(", "))),
            },
            (Self::Fields(fields), Value::Object(found)) => {
                for (name, inner) in found {
                    let at = join(path, name);
                    match fields.iter().find(|(known, _)| known == name) {
                        Some((_, rule)) => rule.check(inner, &at)?,
                        None if is_unset(inner) => {}
                        None => {
                            let reason = "an app may not set this".into();
                            return Err(Refusal { path: at, reason });
                        }
                    }
                }
                Ok(())
            }
            (Self::Values(rule), Value::Object(found)) => {
                found.iter().try_for_each(|(name, inner)| rule.check(inner, &join(path, name)))
            }
            (Self::Each(rule), Value::Array(found)) => {
                let mut places = found.iter().enumerate();
                places.try_for_each(|(at, inner)| rule.check(inner, &format!("{path}[{at}]")))
            }
            (Self::Check(check), _) => check(value).or_else(refuse),
            (Self::Fields(_) | Self::Values(_), _) => refuse("it is not an object".into()),
            (Self::Each(_), _) => refuse("it is not a list".into()),
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns whether this says no more than nothing does: charts spell out
/// defaults.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
    }
}

/// Returns the kind of an object if an app may make it.
pub(super) fn kind_of(object: &Object) -> Result<&'static Kind> {
    let refuse = |reason: String| Err(object.refused(&reason));
    let named: Vec<&Kind> = KINDS.iter().filter(|kind| kind.kind == object.kind).collect();
    if let Some(kind) = named.iter().find(|kind| kind.api_version() == object.api_version) {
        return Ok(kind);
    }
    match named.first() {
        Some(kind) => refuse(format!(
            "apiVersion {:?} is not possible: use {}",
            object.api_version,
            kind.api_version()
        )),
        None => {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.kind).collect();
            refuse(format!("an app may not make this kind, only {}", known.join(", ")))
        }
    }
}

/// Refuses an object that an app may not make, by the field that is wrong.
/// Names and labels are those of the app; nothing of ours is in it yet.
pub(super) fn check(object: &Object, namespace: &str) -> Result<ApiResource> {
    let kind = kind_of(object)?;
    let wrong = |refusal: Refusal| {
        let Refusal { path, reason } = refusal;
        object.refused(&format!("{path}: {reason}"))
    };
    let given = object.value.pointer("/metadata/namespace").and_then(Value::as_str);
    if let Some(given) = given.filter(|given| !given.is_empty() && *given != namespace) {
        let reason = format!("namespace {given:?} is not that of the cluster ({namespace})");
        return Err(object.refused(&reason));
    }
    if object.name.starts_with(RESERVED_NAMES) {
        return Err(object.refused(&format!("names with {RESERVED_NAMES} are reserved")));
    }
    kind.rule.check(&object.value, "").map_err(wrong)?;
    Ok(kind.resource())
}

/// Refuses a variable of containers that is none.
pub(super) fn check_variable(variable: &Value) -> Result<(), String> {
    let refused = |Refusal { path, reason }| format!("{path}: {reason}");
    pod::VARIABLE.check(variable, "").map_err(refused)
}

/// Labels are free but for those by which we find what is ours.
fn labels(value: &Value) -> Result<(), String> {
    let Value::Object(labels) = value else { return Err("it is not an object".into()) };
    match labels.keys().find(|name| name.starts_with(RESERVED_LABELS)) {
        Some(name) => Err(format!("{name:?}: labels with {RESERVED_LABELS} are reserved")),
        None => Ok(()),
    }
}

/// Annotations speak to whatever controllers a cluster has: to DNS, to
/// balancers, to network plugins. Those that only describe are possible.
fn annotations(value: &Value) -> Result<(), String> {
    const DOMAINS: [&str; 9] = [
        "app.kubernetes.io",
        "checksum",
        "deployment.kubernetes.io",
        "helm.sh",
        "kubectl.kubernetes.io",
        "kubernetes.io",
        "meta.helm.sh",
        "prometheus.io",
        "rbac.authorization.kubernetes.io",
    ];
    const OF_KUBERNETES: [&str; 2] = ["kubernetes.io/description", "kubernetes.io/change-cause"];
    let Value::Object(all) = value else { return Err("it is not an object".into()) };
    let allowed = |name: &str| match name.split_once('/') {
        Some(("kubernetes.io", _)) => OF_KUBERNETES.contains(&name),
        Some((domain, _)) => DOMAINS.contains(&domain),
        None => !name.starts_with(RESERVED_LABELS),
    };
    match all.keys().find(|name| !allowed(name)) {
        Some(name) => Err(format!("{name:?}: an app may not set this annotation")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
