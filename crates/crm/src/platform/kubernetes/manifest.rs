//! Manifests: read, and completed with what an instance has beside them.

use selvage_api::edgeproto::App;
use serde_json::{Map, Value, json};

use super::{
    names::{self, REVISION},
    policy,
};
use crate::{Error, Result};

/// Larger texts are not even looked at.
pub(super) const MAX_BYTES: usize = 1 << 20;
const MAX_OBJECTS: usize = 256;
/// Deep enough for what people nest, and for no more.
const MAX_DEPTH: usize = 64;
/// Variables of containers, in the contract's word for it.
const VARIABLES: &str = "envVarsYaml";
/// Paths of the pod inside of each kind that makes pods.
const TEMPLATES: [(&str, &str); 8] = [
    ("Pod", ""),
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];
/// Beginning of the names of images that are in no registry.
const LOCAL_IMAGES: &str = "localhost/";
/// Those whose containers get the variables.
const WITH_VARIABLES: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

/// One object of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) value: Value,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
}

impl Object {
    fn of(value: Value) -> Result<Self> {
        let field = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (field("/apiVersion").to_owned(), field("/kind").to_owned());
        let name = field("/metadata/name").to_owned();
        let wrong = |field: &str| {
            let what = if kind.is_empty() { "an object" } else { &kind };
            Error::invalid("deployment_manifest", format!("{what} has no {field}"))
        };
        for (field, given) in
            [("kind", &kind), ("apiVersion", &api_version), ("metadata.name", &name)]
        {
            if given.is_empty() {
                return Err(wrong(field));
            }
        }
        Ok(Self { value, api_version, kind, name })
    }

    /// For messages.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }

    fn template(&mut self) -> Option<&mut Value> {
        let found = TEMPLATES.iter().find(|(kind, _)| *kind == self.kind)?;
        self.value.pointer_mut(found.1)
    }

    pub(super) fn refused(&self, reason: &str) -> Error {
        Error::invalid("deployment_manifest", format!("{}: {reason}", self.title()))
    }
}

/// All objects of a manifest; lists are taken apart.
pub(super) fn read(text: &str) -> Result<Vec<Object>> {
    let wrong = |reason: String| Error::invalid("deployment_manifest", reason);
    if text.len() > MAX_BYTES {
        return Err(wrong(format!("{} bytes, at most {MAX_BYTES} are possible", text.len())));
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, bounds())
        .map_err(|error| wrong(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
    let mut objects = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(fields) if is_list(&fields) => {
                let items = fields.get("items").and_then(Value::as_array).cloned();
                objects.extend(items.unwrap_or_default());
            }
            Value::Object(fields) => objects.push(Value::Object(fields)),
            _ => return Err(wrong("a document is not an object".into())),
        }
    }
    if objects.is_empty() {
        return Err(wrong("there is nothing in it".into()));
    }
    if objects.len() > MAX_OBJECTS {
        return Err(wrong(format!(
            "{} objects, at most {MAX_OBJECTS} are possible",
            objects.len()
        )));
    }
    objects.into_iter().map(Object::of).collect()
}

fn is_list(fields: &Map<String, Value>) -> bool {
    fields
        .get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| kind.ends_with("List") || kind == "List")
        && fields.get("items").is_some_and(Value::is_array)
}

fn bounds() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(MAX_BYTES),
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: MAX_OBJECTS,
            max_aliases: 100,
            max_anchors: 100,
        },
        with_snippet: false,
    }
}

/// The variables of an app; those of later files win.
pub(super) fn variables(app: &App) -> Result<Vec<Value>> {
    let mut all: Vec<Value> = Vec::new();
    for config in app.configs.iter().filter(|config| config.kind == VARIABLES) {
        let wrong = |reason: String| Error::invalid(format!("configs ({VARIABLES})"), reason);
        let read: Value =
            serde_saphyr::from_str_with_options(&config.config, bounds()).map_err(|error| {
                wrong(error.to_string().lines().next().unwrap_or_default().to_owned())
            })?;
        let Value::Array(read) = read else {
            return Err(wrong("it is not a list of variables".into()));
        };
        for variable in read {
            if variable["name"].as_str().is_none_or(str::is_empty) {
                return Err(wrong("every variable needs a name".into()));
            }
            policy::check_variable(&variable).map_err(wrong)?;
            put_variable(&mut all, &variable);
        }
    }
    Ok(all)
}

/// A number is as good as its text where Kubernetes wants a text.
fn put_variable(all: &mut Vec<Value>, variable: &Value) {
    let mut variable = variable.clone();
    if let Some(value) = variable.get_mut("value") {
        match value {
            Value::Number(number) => *value = Value::String(number.to_string()),
            Value::Bool(flag) => *value = Value::String(flag.to_string()),
            Value::Null => *value = Value::String(String::new()),
            _ => {}
        }
    }
    match all.iter_mut().find(|known| known["name"] == variable["name"]) {
        Some(known) => *known = variable,
        None => all.push(variable),
    }
}

/// Additions of an instance to its manifest.
pub(super) struct Additions<'a> {
    pub(super) namespace: &'a str,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) variables: Vec<Value>,
    /// Secret with the password of the registry.
    pub(super) secret: Option<&'a str>,
}

/// Completes all objects. Pods bear what everything together was, so that
/// those of an update can be told from those before it.
pub(super) fn complete(objects: &mut [Object], additions: &Additions<'_>) {
    for object in objects.iter_mut() {
        set_metadata(&mut object.value, "namespace", &Value::from(additions.namespace));
        set_labels(&mut object.value, &additions.labels);
        let with_variables = WITH_VARIABLES.contains(&object.kind.as_str());
        let app = (names::APP, names::label_value(&object.name));
        for claim in claims(&mut object.value) {
            set_labels(claim, &additions.labels);
        }
        let Some(pod) = object.template() else { continue };
        set_labels(pod, &additions.labels);
        set_labels(pod, &[app]);
        if with_variables {
            set_variables(pod, &additions.variables);
        }
        if let Some(secret) = additions.secret {
            set_secret(pod, secret);
        }
        set_pull_policy(pod);
    }
    let whole: Vec<&Value> = objects.iter().map(|object| &object.value).collect();
    let revision = names::label_of(&json!(whole).to_string());
    for object in objects.iter_mut() {
        if let Some(pod) = object.template() {
            set_labels(pod, &[(REVISION, revision.clone())]);
        }
    }
}

/// Storage that a stateful set asks for.
fn claims(object: &mut Value) -> &mut [Value] {
    match object.pointer_mut("/spec/volumeClaimTemplates") {
        Some(Value::Array(claims)) => claims,
        _ => &mut [],
    }
}

fn member<'a>(of: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    let inside = of.as_object_mut()?.entry(name).or_insert_with(|| json!({}));
    if inside.is_null() {
        *inside = json!({});
    }
    inside.as_object_mut()
}

fn set_metadata(object: &mut Value, name: &str, value: &Value) {
    if let Some(metadata) = member(object, "metadata") {
        metadata.insert(name.to_owned(), value.clone());
    }
}

fn set_labels(object: &mut Value, labels: &[(&'static str, String)]) {
    let Some(metadata) =
        object.as_object_mut().map(|fields| fields.entry("metadata").or_insert_with(|| json!({})))
    else {
        return;
    };
    if let Some(all) = member(metadata, "labels") {
        all.extend(
            labels.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str()))),
        );
    }
}

fn set_variables(pod: &mut Value, variables: &[Value]) {
    if variables.is_empty() {
        return;
    }
    let Some(Value::Array(containers)) = pod.pointer_mut("/spec/containers") else { return };
    for container in containers.iter_mut().filter_map(Value::as_object_mut) {
        let environment = container.entry("env").or_insert_with(|| json!([]));
        if !environment.is_array() {
            *environment = json!([]);
        }
        if let Value::Array(all) = environment {
            variables.iter().for_each(|variable| put_variable(all, variable));
        }
    }
}

fn set_secret(pod: &mut Value, secret: &str) {
    let Some(spec) = member(pod, "spec") else { return };
    let secrets = spec.entry("imagePullSecrets").or_insert_with(|| json!([]));
    if let Value::Array(all) = secrets
        && all.iter().all(|known| known["name"] != secret)
    {
        all.push(json!({ "name": secret }));
    }
}

/// Whoever may not pull an image may not have it because it is on a node
/// already: each start asks the registry. Images of `localhost` are in none;
/// the operator put them onto nodes.
fn set_pull_policy(pod: &mut Value) {
    for containers in ["containers", "initContainers"] {
        let all = pod.pointer_mut(&format!("/spec/{containers}")).and_then(Value::as_array_mut);
        for container in all.into_iter().flatten().filter_map(Value::as_object_mut) {
            let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
            if !image.starts_with(LOCAL_IMAGES) {
                container.insert("imagePullPolicy".into(), "Always".into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::ConfigFile;

    use super::*;

    const DEPLOYMENT: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: hello-tcp
spec:
  ports:
  - port: 80
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: hello-deployment
spec:
  template:
    metadata:
      labels:
        run: hello
    spec:
      containers:
      - name: one
        image: a
        imagePullPolicy: Never
        env:
        - name: A
          value: old
        - name: KEPT
          value: kept
      - name: two
        image: localhost/b
---
# nothing
";

    fn app(configs: &[&str]) -> App {
        let configs = configs
            .iter()
            .map(|text| ConfigFile { kind: VARIABLES.into(), config: (*text).into() });
        App { configs: configs.collect(), ..App::default() }
    }

    fn completed(configs: &[&str]) -> Vec<Object> {
        let mut objects = read(DEPLOYMENT).unwrap();
        let additions = Additions {
            namespace: "ns",
            labels: vec![(names::INSTANCE, "id".into())],
            variables: variables(&app(configs)).unwrap(),
            secret: Some("reg"),
        };
        complete(&mut objects, &additions);
        objects
    }

    #[test]
    fn variables_reach_every_container_and_later_ones_win() {
        let objects = completed(&[
            "- name: A\n  value: 1\n- name: B\n  valueFrom: {fieldRef: {fieldPath: z}}\n",
            "- {name: A, value: two}",
        ]);
        let containers = &objects[1].value["spec"]["template"]["spec"]["containers"];
        let wanted = json!([
            { "name": "A", "value": "two" },
            { "name": "KEPT", "value": "kept" },
            { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "z" } } },
        ]);
        assert_eq!(containers[0]["env"], wanted);
        assert_eq!(containers[1]["env"], json!([wanted[0], wanted[2]]));
    }

    #[test]
    fn pods_bear_their_labels_and_everything_is_in_the_namespace() {
        let objects = completed(&[]);
        assert_eq!(objects.len(), 2);
        for object in &objects {
            assert_eq!(object.value["metadata"]["namespace"], "ns");
            assert_eq!(object.value["metadata"]["labels"][names::INSTANCE], "id");
        }
        let pod = &objects[1].value["spec"]["template"];
        let labels = &pod["metadata"]["labels"];
        assert_eq!(labels["run"], "hello");
        assert_eq!(labels["mex-app"], "hello-deployment");
        assert_eq!(labels[names::INSTANCE], "id");
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{ "name": "reg" }]));
        for container in pod["spec"]["containers"].as_array().unwrap() {
            let local = container["image"] == "localhost/b";
            assert_eq!(container["imagePullPolicy"] == "Always", !local, "{container}");
        }
        // Whatever changes, the pods are told from those before.
        let before = labels[REVISION].as_str().unwrap();
        assert_eq!(
            completed(&[])[1].value["spec"]["template"]["metadata"]["labels"][REVISION],
            before
        );
        let other = completed(&["- {name: X}"]);
        assert_ne!(other[1].value["spec"]["template"]["metadata"]["labels"][REVISION], before);
    }

    #[test]
    fn what_is_no_manifest_is_named() {
        for (text, says) in [
            ("{apiVersion: v1, kind: Pod}", "deployment_manifest: Pod has no metadata.name"),
            ("{kind: Pod, metadata: {name: p}}", "deployment_manifest: Pod has no apiVersion"),
            ("{a: b}", "deployment_manifest: an object has no kind"),
            ("text", "deployment_manifest: a document is not an object"),
            ("---\n# nothing\n", "deployment_manifest: there is nothing in it"),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), says);
        }
        assert!(read("a: [").is_err());
    }

    #[test]
    fn lists_are_taken_apart() {
        let list = "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: a}}, \
                    {apiVersion: apps/v1, kind: Deployment, metadata: {name: b}}]}";
        let titles: Vec<String> = read(list).unwrap().iter().map(Object::title).collect();
        assert_eq!(titles, ["Pod a", "Deployment b"]);
        // A list in a list stays what it is, and nobody may make one.
        let hidden = "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, metadata: {name: a}, items: []}]}";
        assert_eq!(read(hidden).unwrap()[0].kind, "List");
    }

    #[test]
    fn bad_variables_are_named() {
        for (text, says) in [
            ("a: b", "configs (envVarsYaml): it is not a list of variables"),
            ("- value: b", "configs (envVarsYaml): every variable needs a name"),
            (
                "- {name: a, valueFrom: {fileKeyRef: {path: b}}}",
                "configs (envVarsYaml): valueFrom.fileKeyRef: an app may not set this",
            ),
        ] {
            assert_eq!(variables(&app(&[text])).unwrap_err().to_string(), says);
        }
        assert!(
            variables(&app(&["a: ["]))
                .unwrap_err()
                .to_string()
                .starts_with("configs (envVarsYaml): ")
        );
    }

    #[test]
    fn a_text_that_is_too_large_is_not_read() {
        let large = "#".repeat(MAX_BYTES + 1);
        assert!(read(&large).unwrap_err().to_string().contains("at most 1048576"));
        // Few letters that stand for many.
        let names = vec!["*a"; 101].join(",");
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, a: &a x";
        assert!(read(&format!("{pod}}}")).is_ok());
        assert!(read(&format!("{pod}, b: [{names}]}}")).is_err());
    }
}
