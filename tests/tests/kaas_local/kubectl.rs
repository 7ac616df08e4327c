//! A cluster as people use it: by kubectl, and by pods that ask each other by name.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::{
    load::ask,
    site::{IMAGE, Site, WEB},
};

/// A server on one node, somebody who asks on another, and a deployment to scale.
fn objects(server: &str, client: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{ name: server, labels: {{ app: server }} }}
spec:
  nodeName: {server}
  terminationGracePeriodSeconds: 1
  containers: [{{ name: server, image: "{WEB}" }}]
---
apiVersion: v1
kind: Service
metadata: {{ name: server }}
spec:
  selector: {{ app: server }}
  ports: [{{ port: 80, targetPort: 8080 }}]
---
apiVersion: v1
kind: Pod
metadata: {{ name: asks, labels: {{ app: asks }} }}
spec:
  nodeName: {client}
  terminationGracePeriodSeconds: 1
  containers: [{{ name: asks, image: "{IMAGE}", command: [sleep, "100000"] }}]
"#
    )
}

/// Kills kubectl when it is no longer needed. It tells of each connection, and ends when
/// nobody reads that.
struct Forward(
    Child,
    SocketAddr,
    #[expect(dead_code, reason = "kept open")] BufReader<ChildStdout>,
);

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port of this host that leads to the service.
fn forward(site: &Site) -> Forward {
    let config = site.cli.home().join("forward");
    site.cli.ok(&["kaas", "kubeconfig", "demo", "--file", config.to_str().unwrap()]);
    let mut child = Command::new(site.kubectl_program())
        .env("HOME", site.cli.home())
        .arg("--kubeconfig")
        .arg(&config)
        .args(["port-forward", "service/server", ":80"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    let address = said.split_whitespace().nth(2).and_then(|address| address.parse().ok());
    let Some(address) = address else {
        let _ = child.kill();
        panic!("kubectl port-forward says {said:?}");
    };
    Forward(child, address, output)
}

/// Uses the cluster `demo`, which has two workers in pool `web`.
pub(crate) fn serves_people_and_pods(site: &Site) {
    let members = site.members("demo");
    let workers: Vec<&str> =
        members.iter().filter(|[_, pool, ..]| pool == "web").map(|[name, ..]| &**name).collect();
    site.apply(&objects(workers[0], workers[1]));
    let ask_by_name = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc server 80";
    site.until("an answer from another node, by name", || {
        match site.kubectl(&["exec", "asks", "--", "sh", "-c", ask_by_name])? {
            said if said.ends_with("hello") => Ok(()),
            said => Err(said),
        }
    });
    let said = site.kubectl_with(&["exec", "-i", "asks", "--", "cat"], Some("typed")).unwrap();
    assert_eq!(said, "typed");
    let forward = forward(site);
    site.until("an answer through kubectl", || match ask(forward.1) {
        Ok(said) if said.ends_with("hello") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    drop(forward);

    let image = format!("--image={WEB}");
    site.kubectl(&["create", "deployment", "shop", &image]).unwrap();
    for replicas in ["3", "1"] {
        let wanted = format!("--replicas={replicas}");
        site.kubectl(&["scale", "deployment", "shop", &wanted]).unwrap();
        let ready = "jsonpath={.status.readyReplicas}/{.status.replicas}";
        let expected = format!("{replicas}/{replicas}");
        site.shows(&["get", "deployment", "shop", "-o", ready], &expected);
    }
    site.kubectl(&["delete", "deployment/shop", "service/server", "pod/server", "pod/asks"])
        .unwrap();
}
