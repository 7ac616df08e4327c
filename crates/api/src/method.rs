//! Every method of every contract, found by its gRPC path, with its routes.
//!
//! Whatever treats methods alike (listener, transcoder, access table, command
//! line) asks here, so that a method added to `proto/` is known everywhere.

use std::{collections::HashMap, fmt, sync::LazyLock};

use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, ReflectMessage,
    ServiceDescriptor, Value,
};

/// One way to reach a method over plain HTTP, from its `google.api.http`
/// option.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HttpBinding {
    /// Upper-case verb: `GET`, `POST`, or what a custom pattern says.
    pub verb: String,
    /// Path template, such as `/selvage/v1/users/{username}`.
    pub path: String,
    /// Request field that the body fills: `*` for the whole message, empty
    /// when there is no body.
    pub body: String,
    /// Reply field that becomes the body; empty for the whole reply.
    pub response_body: String,
}

impl HttpBinding {
    /// The request fields that the path fills, as dotted names in the order
    /// of the template.
    pub fn path_fields(&self) -> impl Iterator<Item = &str> {
        self.path.split('{').skip(1).filter_map(|rest| {
            let inside = rest.split('}').next()?;
            inside.split('=').next()
        })
    }
}

impl fmt::Display for HttpBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.path)
    }
}

/// One method of one service.
#[derive(Debug, Clone)]
pub struct Method {
    /// gRPC path: `/package.Service/Method`.
    pub path: String,
    /// Package of the service, such as `edgeproto`.
    pub package: String,
    /// Full name of the service, such as `edgeproto.AppApi`.
    pub service: String,
    /// Name of the method alone, such as `CreateApp`.
    pub name: String,
    /// The part of Selvage that serves it, such as `controller`.
    pub part: &'static str,
    pub input: MessageDescriptor,
    pub output: MessageDescriptor,
    /// The client sends a stream.
    pub client_streaming: bool,
    /// The server answers with a stream.
    pub server_streaming: bool,
    /// HTTP routes, the primary one first; empty for methods without.
    pub http: Vec<HttpBinding>,
    /// Descriptor, for everything else: comments, options.
    pub descriptor: MethodDescriptor,
}

static METHODS: LazyLock<Vec<Method>> = LazyLock::new(|| collect(crate::pool()));
static BY_PATH: LazyLock<HashMap<&'static str, &'static Method>> =
    LazyLock::new(|| methods().iter().map(|method| (method.path.as_str(), method)).collect());

/// All methods, sorted by path.
pub fn methods() -> &'static [Method] {
    &METHODS
}

/// The method of a gRPC path (`/package.Service/Method`).
pub fn method(path: &str) -> Option<&'static Method> {
    BY_PATH.get(path).copied()
}

/// The part that serves the services of a package; `None` for packages that
/// are not contracts of ours.
pub fn part_of(package: &str) -> Option<&'static str> {
    Some(match package {
        "edgeproto" | "selvage.flavors" | "selvage.metrics" | "selvage.matching"
        | "selvage.revisions" | "selvage.shell" => "controller",
        "distributed_match_engine" => "dme",
        "cnct.kaas.api" | "selvage.clusters" => "kaas",
        "proto" | "selvage.volumes" => "lvmd",
        "os" | "machine" | "network" | "time" | "securityapi" | "selvage.node"
        | "selvage.kubernetes" => "node",
        "services.auth" | "selvage.identity" | "selvage.pki" => "auth",
        "stats" | "selvage.dashboard" => "dashboard",
        "selvage.operations" | "selvage.system" => "system",
        _ => return None,
    })
}

fn collect(pool: &DescriptorPool) -> Vec<Method> {
    let mut methods: Vec<Method> = pool
        .services()
        .filter_map(|service| Some((part_of(service.package_name())?, service)))
        .flat_map(|(part, service)| {
            service.methods().map(|method| describe(part, &service, method)).collect::<Vec<_>>()
        })
        .collect();
    methods.sort_by(|a, b| a.path.cmp(&b.path));
    methods
}

fn describe(part: &'static str, service: &ServiceDescriptor, method: MethodDescriptor) -> Method {
    Method {
        path: format!("/{}/{}", service.full_name(), method.name()),
        package: service.package_name().to_owned(),
        service: service.full_name().to_owned(),
        name: method.name().to_owned(),
        part,
        input: method.input(),
        output: method.output(),
        client_streaming: method.is_client_streaming(),
        server_streaming: method.is_server_streaming(),
        http: http_bindings(&method),
        descriptor: method,
    }
}

/// The routes of a method, the primary one first.
pub fn http_bindings(method: &MethodDescriptor) -> Vec<HttpBinding> {
    let mut bindings = Vec::new();
    let Some(option) = method.parent_pool().get_extension_by_name("google.api.http") else {
        return bindings;
    };
    let options = method.options();
    if !options.has_extension(&option) {
        return bindings;
    }
    if let Value::Message(rule) = options.get_extension(&option).as_ref() {
        bindings.extend(binding(rule));
        if let Some(Value::List(more)) = rule.get_field_by_name("additional_bindings").as_deref() {
            bindings.extend(more.iter().filter_map(Value::as_message).filter_map(binding));
        }
    }
    bindings
}

fn binding(rule: &DynamicMessage) -> Option<HttpBinding> {
    let text = |message: &DynamicMessage, name: &str| {
        message.get_field_by_name(name).and_then(|v| v.as_str().map(str::to_owned))
    };
    let pattern =
        rule.descriptor().oneofs().next()?.fields().find(|field| rule.has_field(field))?;
    let (verb, path) = match rule.get_field(&pattern).as_ref() {
        Value::String(path) => (pattern.name().to_ascii_uppercase(), path.clone()),
        Value::Message(custom) => (text(custom, "kind")?, text(custom, "path")?),
        _ => return None,
    };
    Some(HttpBinding {
        verb,
        path,
        body: text(rule, "body").unwrap_or_default(),
        response_body: text(rule, "response_body").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_service_outside_google_belongs_to_a_part() {
        let mut count = 0;
        for service in crate::pool().services() {
            assert!(part_of(service.package_name()).is_some(), "{}", service.full_name());
            count += service.methods().count();
        }
        assert_eq!(methods().len(), count);
        assert!(count > 100, "{count}");
    }

    #[test]
    fn a_method_is_found_with_its_streams_and_routes() {
        let show = method("/edgeproto.AppApi/ShowApp").unwrap();
        assert_eq!((show.part, show.package.as_str()), ("controller", "edgeproto"));
        assert_eq!(show.input.full_name(), "edgeproto.App");
        assert!(show.server_streaming && !show.client_streaming);
        assert_eq!(show.http.len(), 1);
        assert_eq!(show.http[0].to_string(), "POST /show/app");
        assert_eq!(show.http[0].body, "*");

        let notify = method("/edgeproto.NotifyApi/StreamNotice").unwrap();
        assert!(notify.server_streaming && notify.client_streaming && notify.http.is_empty());
        assert!(method("/edgeproto.AppApi/Nothing").is_none());
    }

    #[test]
    fn both_spellings_of_the_cloudlet_route_are_served() {
        let delete = method("/edgeproto.CloudletApi/DeleteCloudlet").unwrap();
        let routes: Vec<_> = delete.http.iter().map(ToString::to_string).collect();
        assert_eq!(routes, ["POST /delete/cloudet", "POST /delete/cloudlet"]);
    }

    #[test]
    fn every_service_belongs_to_a_part() {
        for service in crate::pool().services() {
            let package = service.package_name();
            assert!(part_of(package).is_some(), "give {package} a part in part_of");
        }
    }

    #[test]
    fn routes_do_not_collide_and_name_real_fields() {
        let mut seen = HashMap::new();
        for method in methods() {
            for route in &method.http {
                let shape = (route.verb.clone(), without_names(&route.path));
                if let Some(other) = seen.insert(shape, &method.path) {
                    panic!("{route} leads to {other} and to {}", method.path);
                }
                for name in route.path_fields() {
                    let first = name.split('.').next().unwrap();
                    assert!(method.input.get_field_by_name(first).is_some(), "{route}: {name}");
                }
                if !route.body.is_empty() && route.body != "*" {
                    assert!(method.input.get_field_by_name(&route.body).is_some(), "{route}");
                }
            }
        }
    }

    fn without_names(path: &str) -> String {
        path.split('/')
            .map(|part| if part.starts_with('{') { "{}" } else { part })
            .collect::<Vec<_>>()
            .join("/")
    }
}
