//! The built-in generator: a Deployment for the App, and a Service each for
//! its tcp and its udp ports.

use std::fmt::Write;

use selvage_api::{distributed_match_engine::LProto, edgeproto::App};

use super::super::{
    access_ports::{PortSpec, proto_name},
    names,
};

/// Name of the generator.
pub(crate) const KUBERNETES_BASIC: &str = "kubernetes-basic";

/// Name of the secret in which clusters keep the password of the registry.
const PULL_SECRET: &str = "mexgitlabsecret";

/// The manifest of an App whose image path is settled. The reason why there
/// can be none otherwise.
pub(crate) fn kubernetes_basic(app: &App, ports: &[PortSpec]) -> Result<String, String> {
    let name = app.key.as_ref().map_or("", |key| key.name.as_str());
    let run = names::kubernetes(name);
    if run.len() > names::MAX_LABEL || !run.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(format!(
            "\"{run}\", made from the name of the app, cannot be a label in kubernetes"
        ));
    }
    let documents = [
        service(name, &run, "tcp", ports, |proto| proto != LProto::Udp),
        service(name, &run, "udp", ports, |proto| proto == LProto::Udp),
        Some(deployment(app, name, &run, ports)),
    ];
    Ok(documents.into_iter().flatten().collect::<Vec<_>>().join("---\n"))
}

fn transport(proto: LProto) -> &'static str {
    if proto == LProto::Udp { "UDP" } else { "TCP" }
}

fn each_port(ports: &[PortSpec]) -> impl Iterator<Item = (LProto, u16)> {
    ports.iter().flat_map(|spec| spec.ports().map(|port| (spec.proto, port)))
}

fn service(
    app: &str,
    run: &str,
    suffix: &str,
    ports: &[PortSpec],
    wanted: impl Fn(LProto) -> bool,
) -> Option<String> {
    let mut lines = String::new();
    for (proto, port) in each_port(ports).filter(|(proto, _)| wanted(*proto)) {
        // Writing to a string cannot fail.
        let _ = write!(
            lines,
            "  - name: {name}{port}\n    protocol: {transport}\n    port: {port}\n    targetPort: {port}\n",
            name = proto_name(proto),
            transport = transport(proto),
        );
    }
    if lines.is_empty() {
        return None;
    }
    let name = scalar(&names::dns(&format!("{app}-{suffix}")));
    let run = scalar(run);
    Some(format!(
        "\
apiVersion: v1
kind: Service
metadata:
  name: {name}
  labels:
    run: {run}
spec:
  type: LoadBalancer
  ports:
{lines}  selector:
    run: {run}
"
    ))
}

fn deployment(app: &App, name: &str, run: &str, ports: &[PortSpec]) -> String {
    let mut text = format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {deployment}
spec:
  replicas: 1
  selector:
    matchLabels:
      run: {run}
  template:
    metadata:
      labels:
        run: {run}
    spec:
      imagePullSecrets:
      - name: {PULL_SECRET}
      containers:
      - name: {container}
        image: {image}
        imagePullPolicy: Always
",
        deployment = scalar(&names::dns(&format!("{name}-deployment"))),
        run = scalar(run),
        container = scalar(&names::dns(name)),
        image = scalar(&app.image_path),
    );
    let mut head = "        ports:\n";
    for (proto, port) in each_port(ports) {
        let transport = transport(proto);
        let _ = write!(
            text,
            "{head}        - containerPort: {port}\n          protocol: {transport}\n"
        );
        head = "";
    }
    let mut head = "        command:\n";
    for word in app.command.split_whitespace() {
        let _ = writeln!(text, "{head}        - {}", quoted(word));
        head = "";
    }
    text
}

/// The text bare if YAML cannot take it for anything but a string, else in
/// quotes.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:@".contains(c))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if plain { text.to_owned() } else { quoted(text) }
}

/// In double quotes. Only letters and what ASCII can print stand for
/// themselves, since readers of YAML differ in what they take for a line.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        let _ = match letter {
            '"' | '\\' => write!(out, "\\{letter}"),
            ' '..='~' => write!(out, "{letter}"),
            letter if letter.is_alphanumeric() => write!(out, "{letter}"),
            letter if letter <= '\u{ffff}' => write!(out, "\\u{:04x}", u32::from(letter)),
            letter => write!(out, "\\U{:08x}", u32::from(letter)),
        };
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use selvage_api::edgeproto::AppKey;

    use super::{
        super::yaml::{read_all, split},
        *,
    };
    use crate::derive::{access_ports, manifest};

    fn app(name: &str, command: &str) -> App {
        App {
            key: Some(AppKey { name: name.into(), ..AppKey::default() }),
            image_path: "docker.mobiledgex.net/AcmeAppCo/images/someapplication1:1.0".into(),
            command: command.into(),
            ..App::default()
        }
    }

    fn generate(app: &App, ports: &str) -> String {
        kubernetes_basic(app, &access_ports::parse(ports).unwrap()).unwrap()
    }

    const GOLDEN: &str = r#"apiVersion: v1
kind: Service
metadata:
  name: someapplication1-tcp
  labels:
    run: someapplication1
spec:
  type: LoadBalancer
  ports:
  - name: tcp80
    protocol: TCP
    port: 80
    targetPort: 80
  - name: http443
    protocol: TCP
    port: 443
    targetPort: 443
  selector:
    run: someapplication1
---
apiVersion: v1
kind: Service
metadata:
  name: someapplication1-udp
  labels:
    run: someapplication1
spec:
  type: LoadBalancer
  ports:
  - name: udp10002
    protocol: UDP
    port: 10002
    targetPort: 10002
  selector:
    run: someapplication1
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: someapplication1-deployment
spec:
  replicas: 1
  selector:
    matchLabels:
      run: someapplication1
  template:
    metadata:
      labels:
        run: someapplication1
    spec:
      imagePullSecrets:
      - name: mexgitlabsecret
      containers:
      - name: someapplication1
        image: docker.mobiledgex.net/AcmeAppCo/images/someapplication1:1.0
        imagePullPolicy: Always
        ports:
        - containerPort: 80
          protocol: TCP
        - containerPort: 443
          protocol: TCP
        - containerPort: 10002
          protocol: UDP
        command:
        - "run"
        - "--fast=\"yes\""
"#;

    /// Stored manifests must not change when the program does.
    #[test]
    fn the_golden_manifest_comes_out() {
        let made =
            generate(&app("someapplication1", "run --fast=\"yes\""), "tcp:80,http:443,udp:10002");
        assert_eq!(made, GOLDEN);
        assert_eq!(split(&made).len(), 3);
    }

    #[test]
    fn without_ports_there_is_only_a_deployment() {
        let made = generate(&app("My App!", ""), "");
        let documents = read_all(&made).unwrap();
        assert_eq!(documents.len(), 1);
        assert_eq!(documents[0]["metadata"]["name"], "myapp-deployment");
        let container = &documents[0]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["name"], "myapp");
        assert!(container.get("ports").is_none() && container.get("command").is_none());
        assert_eq!(read_all(&generate(&app("a", ""), "udp:1")).unwrap().len(), 2);
    }

    #[test]
    fn text_of_users_stays_text() {
        let mut app = app("1.0", "a\nb: c \"d\" 'e'");
        app.image_path = "x\nprivileged: true # y\u{7f}\u{85}\u{2028}\u{1f600}é".into();
        let documents = read_all(&generate(&app, "tcp:80")).unwrap();
        assert_eq!(documents[0]["spec"]["selector"]["run"], "1.0");
        let container = &documents[1]["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], app.image_path);
        assert_eq!(container["name"], "10");
        assert_eq!(container["command"], serde_json::json!(["a", "b:", "c", "\"d\"", "'e'"]));
        assert!(kubernetes_basic(&self::app("AT&T Inc.", ""), &[]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_made_serves_every_port(
            name in "[0-9a-zA-Z][-_0-9a-zA-Z .&,!]{0,20}[0-9a-zA-Z]",
            command in ".{0,30}",
            image in ".{0,30}",
            ports in prop::collection::btree_set((0u8..3, 1u16..1000), 0..8),
        ) {
            let mut seen = std::collections::BTreeSet::new();
            let text: Vec<_> = ports
                .iter()
                .filter(|(proto, port)| seen.insert((*proto == 1, *port)))
                .map(|(proto, port)| format!("{}:{port}", ["tcp", "udp", "http"][usize::from(*proto)]))
                .collect();
            let ports = access_ports::parse(&text.join(",")).unwrap();
            let mut app = app(&name, &command);
            app.image_path = image.clone();
            let made = kubernetes_basic(&app, &ports).unwrap();
            manifest::check_ports_served(&made, &ports).unwrap();
            let documents = read_all(&made).unwrap();
            let container = &documents[documents.len() - 1]["spec"]["template"]["spec"]["containers"][0];
            prop_assert_eq!(container["image"].as_str().unwrap(), image);
        }
    }
}
