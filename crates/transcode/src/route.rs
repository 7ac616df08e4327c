//! Routes from a verb and a path to a method, from the `google.api.http`
//! options.

use std::{borrow::Cow, collections::HashMap, sync::LazyLock};

use http::Method as Verb;
use selvage_api::{HttpBinding, Method};

use crate::{Dialect, Error, query};

/// One binding of one method, with its path taken apart.
#[derive(Debug)]
pub struct Route {
    pub method: &'static Method,
    pub binding: &'static HttpBinding,
    pub dialect: Dialect,
    template: Template,
}

impl Route {
    pub(crate) fn new(method: &'static Method, binding: &'static HttpBinding) -> Self {
        let dialect = Dialect::of_package(&method.package);
        Self { method, binding, dialect, template: Template::parse(&binding.path) }
    }
}

/// A route that a request took, with what its path captured.
#[derive(Debug)]
pub(crate) struct Matched {
    pub route: &'static Route,
    /// Dotted field name and decoded text.
    pub captures: Vec<(&'static str, String)>,
}

/// Result of looking up a path without regard to the verb.
pub(crate) enum Lookup {
    Nowhere,
    /// The path is known, the verb is not offered.
    OtherVerbs(&'static Route, String),
    Found(Matched),
}

#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    One,
    /// Rest of the path, at least one segment.
    Rest,
}

#[derive(Debug, Default)]
struct Template {
    segments: Vec<Segment>,
    /// Field name, and which segments it takes.
    variables: Vec<(String, std::ops::Range<usize>)>,
}

impl Template {
    fn parse(path: &str) -> Self {
        let mut template = Self::default();
        let mut rest = path.strip_prefix('/').unwrap_or(path);
        while !rest.is_empty() {
            let end = if let Some(inside) = rest.strip_prefix('{') {
                let close = inside.find('}').unwrap_or(inside.len());
                let (name, pattern) =
                    inside[..close].split_once('=').unwrap_or((&inside[..close], "*"));
                let start = template.segments.len();
                pattern.split('/').for_each(|part| template.push(part));
                template.variables.push((name.to_owned(), start..template.segments.len()));
                (close + 2).min(rest.len())
            } else {
                let end = rest.find('/').unwrap_or(rest.len());
                template.push(&rest[..end]);
                end
            };
            rest = rest[end..].strip_prefix('/').unwrap_or(&rest[end..]);
        }
        template
    }

    fn push(&mut self, part: &str) {
        self.segments.push(match part {
            "*" => Segment::One,
            "**" => Segment::Rest,
            literal => Segment::Literal(literal.to_owned()),
        });
    }

    fn is_literal(&self) -> bool {
        self.variables.is_empty()
    }

    /// Number of leading segments that are literal: the more, the earlier a
    /// template is tried.
    fn exactness(&self) -> Vec<u8> {
        self.segments
            .iter()
            .map(|segment| match segment {
                Segment::Literal(_) => 0,
                Segment::One => 1,
                Segment::Rest => 2,
            })
            .collect()
    }

    fn matches(&self, path: &[&str]) -> bool {
        let open_ended = self.segments.last() == Some(&Segment::Rest);
        let long_enough = if open_ended {
            path.len() >= self.segments.len()
        } else {
            path.len() == self.segments.len()
        };
        long_enough
            && self.segments.iter().zip(path).all(|(segment, found)| match segment {
                Segment::Literal(wanted) => query::decode(found).is_ok_and(|text| text == *wanted),
                Segment::One => !found.is_empty(),
                Segment::Rest => true,
            })
    }

    fn captures(&self, path: &[&str]) -> Result<Vec<(&str, String)>, Error> {
        self.variables
            .iter()
            .map(|(name, range)| {
                let open_ended = self.segments.get(range.end - 1) == Some(&Segment::Rest);
                let end = if open_ended { path.len() } else { range.end };
                let parts: Vec<Cow<'_, str>> = path[range.start..end]
                    .iter()
                    .map(|part| query::decode(part))
                    .collect::<Result<_, _>>()
                    .map_err(|reason| Error::PathParameter {
                        name: name.clone(),
                        reason: reason.to_owned(),
                    })?;
                Ok((name.as_str(), parts.join("/")))
            })
            .collect()
    }
}

struct Router {
    literal: HashMap<String, Vec<Route>>,
    patterns: Vec<Route>,
}

static ROUTER: LazyLock<Router> = LazyLock::new(|| {
    let mut router = Router { literal: HashMap::new(), patterns: Vec::new() };
    for method in selvage_api::methods() {
        for binding in &method.http {
            let route = Route::new(method, binding);
            if route.template.is_literal() {
                router.literal.entry(binding.path.clone()).or_default().push(route);
            } else {
                router.patterns.push(route);
            }
        }
    }
    router.patterns.sort_by_key(|route| route.template.exactness());
    router
});

/// The route of a verb and a path.
pub(crate) fn lookup(verb: &Verb, path: &str) -> Result<Lookup, Error> {
    let segments: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let mut candidates: Vec<&'static Route> =
        ROUTER.literal.get(path).into_iter().flatten().collect();
    candidates.extend(ROUTER.patterns.iter().filter(|route| route.template.matches(&segments)));
    let Some(first) = candidates.first() else {
        return query::decode(path)
            .map(|_| Lookup::Nowhere)
            .map_err(|reason| Error::Path { reason });
    };
    match candidates.iter().find(|route| serves(route, verb)) {
        Some(route) => {
            let captures = route.template.captures(&segments)?;
            Ok(Lookup::Found(Matched { route, captures }))
        }
        None => Ok(Lookup::OtherVerbs(first, allowed(&candidates))),
    }
}

/// HEAD is GET whose body nobody wants.
fn serves(route: &Route, verb: &Verb) -> bool {
    route.binding.verb == verb.as_str() || (*verb == Verb::HEAD && route.binding.verb == "GET")
}

fn allowed(routes: &[&Route]) -> String {
    let mut verbs: Vec<&str> = routes.iter().map(|route| route.binding.verb.as_str()).collect();
    if verbs.contains(&"GET") {
        verbs.push("HEAD");
    }
    verbs.push("OPTIONS");
    verbs.sort_unstable();
    verbs.dedup();
    verbs.join(", ")
}

/// Result of looking up a path of the form `/package.Service/Method`, bare or
/// under `/api`.
pub(crate) enum Rpc {
    Known(&'static Method),
    /// The service is ours, the method is not in its contract.
    NoSuchMethod {
        service: String,
        method: String,
    },
}

/// The methods of gRPC reflection, which are in none of the contracts.
const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The method of reflection at a path, bare or under `/api`.
pub(crate) fn reflection(path: &str) -> Option<&'static str> {
    let bare = bare(path);
    REFLECTION.into_iter().find(|known| *known == bare)
}

fn bare(path: &str) -> &str {
    path.strip_prefix("/api").filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

pub(crate) fn rpc(path: &str) -> Option<Rpc> {
    let bare = bare(path);
    if let Some(method) = selvage_api::method(bare) {
        return Some(Rpc::Known(method));
    }
    let (service, method) = bare.strip_prefix('/')?.split_once('/')?;
    selvage_api::pool().get_service_by_name(service)?;
    Some(Rpc::NoSuchMethod { service: service.to_owned(), method: method.to_owned() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn captures(template: &str, path: &str) -> Option<Vec<(String, String)>> {
        let template = Template::parse(template);
        let segments: Vec<&str> = path[1..].split('/').collect();
        template.matches(&segments).then(|| {
            let found = template.captures(&segments).unwrap();
            found.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
        })
    }

    fn pairs(pairs: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn templates_capture_what_they_name() {
        assert_eq!(
            captures("/v1/users/{name}", "/v1/users/a%2Fb%20c"),
            pairs(&[("name", "a/b c")])
        );
        assert_eq!(captures("/v1/{key.name}/x", "/v1/me/x"), pairs(&[("key.name", "me")]));
        assert_eq!(captures("/v1/{path=**}", "/v1/a/b/c"), pairs(&[("path", "a/b/c")]));
        assert_eq!(
            captures("/v1/{name=disks/*}/{x}", "/v1/disks/7/y"),
            pairs(&[("name", "disks/7"), ("x", "y")])
        );
        assert_eq!(captures("/v1/users/{name}", "/v1/users/"), None);
        assert_eq!(captures("/v1/users/{name}", "/v1/users/a/b"), None);
        assert_eq!(captures("/v1/{name=disks/*}", "/v1/volumes/7"), None);
    }

    #[test]
    fn verbs_choose_among_routes_of_one_path() {
        let found = |verb: &Verb, path: &str| match lookup(verb, path).unwrap() {
            Lookup::Found(matched) => matched.route.method.name.clone(),
            Lookup::OtherVerbs(_, allow) => allow,
            Lookup::Nowhere => "nowhere".to_owned(),
        };
        assert_eq!(found(&Verb::GET, "/api/v1/cluster"), "GetCluster");
        assert_eq!(found(&Verb::HEAD, "/api/v1/cluster"), "GetCluster");
        assert_eq!(found(&Verb::DELETE, "/api/v1/cluster"), "DeleteCluster");
        assert_eq!(found(&Verb::PATCH, "/api/v1/cluster"), "DELETE, GET, HEAD, OPTIONS, POST");
        assert_eq!(found(&Verb::GET, "/show/flavor"), "OPTIONS, POST");
        assert_eq!(found(&Verb::POST, "/show/flavor/"), "nowhere");
        assert_eq!(found(&Verb::PUT, "/selvage/v1/users/ann"), "UpdateUser");
    }

    #[test]
    fn rpc_paths_are_known_with_and_without_api() {
        for path in ["/services.auth.AuthService/Login", "/api/services.auth.AuthService/Login"] {
            assert!(matches!(rpc(path), Some(Rpc::Known(method)) if method.name == "Login"));
        }
        assert!(matches!(rpc("/services.auth.AuthService/Logon"), Some(Rpc::NoSuchMethod { .. })));
        assert!(rpc("/services.auth.Nothing/Login").is_none());
        assert!(rpc("/apiservices.auth.AuthService/Login").is_none());
        assert!(rpc("/").is_none());
    }
}
