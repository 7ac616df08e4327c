//! Names of containers, and which one a name means.
//!
//! A container in no pod is called by the runtime's id. A pod is called
//! `namespace/pod`, after its labels, and so is the sandbox that holds it; a
//! container in it is `namespace/pod:container`.

use std::collections::BTreeMap;

use crate::{Container, Error, Kind, Result};

pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// The three names of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub id: String,
    pub name: String,
    pub pod_id: String,
    pub kind: Kind,
}

impl Names {
    /// From the runtime's id and the labels.
    pub fn new(runtime_id: &str, labels: &BTreeMap<String, String>) -> Self {
        let label = |name| labels.get(name).map(String::as_str).filter(|value| !value.is_empty());
        let (Some(namespace), Some(pod)) = (label(POD_NAMESPACE), label(POD_NAME)) else {
            let id = runtime_id.to_owned();
            return Self { name: id.clone(), pod_id: id.clone(), id, kind: Kind::Plain };
        };
        let pod_id = format!("{namespace}/{pod}");
        match label(CONTAINER_NAME) {
            Some(name) => Self {
                id: format!("{pod_id}:{name}"),
                name: name.to_owned(),
                pod_id,
                kind: Kind::App,
            },
            None => Self {
                id: pod_id.clone(),
                name: runtime_id.to_owned(),
                pod_id,
                kind: Kind::Sandbox,
            },
        }
    }
}

/// Sorts as people read: a sandbox right before what is in it.
pub fn sort(containers: &mut [Container]) {
    containers.sort_by(|a, b| (&a.id, &a.runtime_id).cmp(&(&b.id, &b.runtime_id)));
}

/// Finds the one that is meant. Of several by the same name, one that runs is
/// meant rather than one that has ended.
pub fn find(containers: Vec<Container>, id: &str) -> Result<Container> {
    let not_found = || Error::NotFound { id: id.to_owned() };
    let by_name = |container: &&Container| container.id == id || container.runtime_id == id;
    if let Some(found) = best(containers.iter().filter(by_name)) {
        return Ok(found.clone());
    }
    if id.find('/').is_some_and(|at| at > 0) {
        let (name, part) = id.rsplit_once(':').ok_or_else(not_found)?;
        let meant = |container: &&Container| {
            !part.is_empty() && container.id == name && container.runtime_id.contains(part)
        };
        // `namespace/pod:part` would be a container's name; only a third part
        // is the start of an id.
        if !name.contains(':') {
            return Err(not_found());
        }
        return best(containers.iter().filter(meant)).cloned().ok_or_else(not_found);
    }
    by_prefix(containers, id)
}

/// A prefix shorter than this is more likely a mistake than an id.
const SHORTEST_PREFIX: usize = 4;

fn by_prefix(containers: Vec<Container>, id: &str) -> Result<Container> {
    let not_found = || Error::NotFound { id: id.to_owned() };
    if id.len() < SHORTEST_PREFIX {
        return Err(not_found());
    }
    let mut found: Vec<Container> =
        containers.into_iter().filter(|container| container.runtime_id.starts_with(id)).collect();
    if found.len() > 1 {
        let candidates = found.into_iter().map(|container| container.runtime_id).collect();
        return Err(Error::Ambiguous { id: id.to_owned(), candidates });
    }
    found.pop().ok_or_else(not_found)
}

fn best<'a>(found: impl Iterator<Item = &'a Container>) -> Option<&'a Container> {
    found.reduce(
        |best, other| {
            if !best.status.is_running() && other.status.is_running() { other } else { best }
        },
    )
}

/// A namespace that a runtime could have.
pub(crate) fn check_namespace(namespace: &str) -> Result<()> {
    if namespace.is_empty() {
        return Err(Error::NamespaceEmpty);
    }
    let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric());
    if namespace.len() > 76 || !namespace.split(['.', '_', '-']).all(word) {
        return Err(Error::invalid(
            "namespace",
            format!(
                "{namespace:?} must be letters and digits, with single '.', '_' or '-' between"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::Code;

    use super::*;
    use crate::Status;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn container(runtime_id: &str, pairs: &[(&str, &str)], status: Status) -> Container {
        let labels = labels(pairs);
        let Names { id, name, pod_id, kind } = Names::new(runtime_id, &labels);
        Container {
            namespace: "k8s.io".into(),
            id,
            name,
            pod_id,
            runtime_id: runtime_id.into(),
            kind,
            image: String::new(),
            pid: None,
            status,
            exit: None,
            last_exit: None,
            created: None,
            restarts: 0,
            supervised: false,
            uid: String::new(),
            network_namespace: None,
            labels,
            problem: None,
        }
    }

    const POD: [(&str, &str); 2] = [(POD_NAMESPACE, "kube-system"), (POD_NAME, "dns")];

    fn app(runtime_id: &str, status: Status) -> Container {
        container(runtime_id, &[POD[0], POD[1], (CONTAINER_NAME, "coredns")], status)
    }

    #[test]
    fn plain_sandbox_and_app() {
        let plain = Names::new("c1", &labels(&[]));
        assert_eq!(
            (plain.id.as_str(), plain.name.as_str(), plain.pod_id.as_str()),
            ("c1", "c1", "c1")
        );
        let half = Names::new("c1", &labels(&[(POD_NAME, "dns")]));
        assert_eq!(half.kind, Kind::Plain);
        let sandbox = Names::new("abc", &labels(&POD));
        assert_eq!(sandbox.id, "kube-system/dns");
        assert_eq!(sandbox.pod_id, sandbox.id);
        assert_eq!(sandbox.name, "abc");
        let app = app("def", Status::Running);
        assert_eq!(app.id, "kube-system/dns:coredns");
        assert_eq!((app.name.as_str(), app.pod_id.as_str()), ("coredns", "kube-system/dns"));
    }

    #[test]
    fn every_spelling_finds_the_right_one() {
        let all = || {
            vec![
                container("0123456789abcdef", &POD, Status::Running),
                app("aaaa11112222", Status::Stopped),
                app("bbbb33334444", Status::Running),
                container("bbbb99", &[], Status::Running),
            ]
        };
        for (id, expected) in [
            ("kube-system/dns", "0123456789abcdef"),
            ("kube-system/dns:coredns", "bbbb33334444"),
            ("kube-system/dns:coredns:aaaa1111", "aaaa11112222"),
            ("bbbb99", "bbbb99"),
            ("0123", "0123456789abcdef"),
            ("aaaa11112222", "aaaa11112222"),
        ] {
            assert_eq!(find(all(), id).unwrap().runtime_id, expected, "{id}");
        }
        assert_eq!(find(all(), "bbbb").unwrap_err().code(), Code::InvalidArgument);
    }

    #[test]
    fn bad_names_are_not_found_and_quoted() {
        let all = || vec![container("c1", &POD, Status::Running), app("d1", Status::Running)];
        for id in [
            "",
            "/",
            "/x",
            "a/",
            "a/b:",
            ":",
            "kube-system/dns:",
            "kube-system/dns:coredns:",
            "kube-system/dns:d1",
            "kube-system/dns/coredns",
            "c1\n",
            "c",
            "../etc/passwd",
            "\0",
        ] {
            let error = find(all(), id).unwrap_err();
            assert_eq!(error.code(), Code::NotFound, "{id:?}");
        }
        let error = find(all(), "a\nb").unwrap_err();
        assert_eq!(error.to_string(), "container \"a\\nb\" not found");
    }

    #[test]
    fn namespaces() {
        for fine in ["system", "k8s.io", "a-b_c", "moby"] {
            check_namespace(fine).unwrap();
        }
        assert_eq!(check_namespace("").unwrap_err().to_string(), "namespace can't be empty");
        for bad in ["a/b", "a:b", "a\n", " ", "..", "-a", "a-", &"x".repeat(77)] {
            assert_eq!(check_namespace(bad).unwrap_err().code(), Code::InvalidArgument, "{bad:?}");
        }
    }
}
