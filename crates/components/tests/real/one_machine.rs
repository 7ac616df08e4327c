//! One machine: from nothing to a pod, through the death of everything, and
//! back to nothing.

use std::fs;

use selvage_api::selvage::kubernetes::ResetRequest;
use selvage_components::machine;

use crate::{
    cluster::{Cluster, NAME, is_so},
    lab::{Lab, kill, until},
};

const COMPONENTS: [&str; 8] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
    "coredns",
];

#[tokio::test]
async fn a_machine_becomes_a_cluster_survives_and_leaves_nothing() {
    let Some(lab) = Lab::open(1) else { return };
    let agent = lab.start("m1", 2).await;
    let cluster = Cluster::new(&lab, &format!("{}:6443", agent.address));
    cluster.apply(&agent, cluster.spec(&agent, &[&agent], &[&agent])).await;
    cluster.let_dns_read().await;
    is_so(&lab, &agent, 1).await;
    cluster.node_is_ready(&agent.name).await;

    // A pod, and a service by its name.
    let image = "--image=localhost/busybox:1";
    let serve = "echo hello > /www/index.html; exec httpd -f -p 80 -h /www";
    let web = ["run", "web", image, "--port=80", "--expose", "--", "sh", "-c", serve];
    cluster.make(&web).await;
    let id = cluster.pod_runs("web").await;
    let group = agent.group_of(id.trim_start_matches("containerd://")).unwrap();
    assert!(group.starts_with(&machine::cgroup(&agent.name)), "{group}");
    cluster.make(&["run", "asks", image, "--", "sleep", "100000"]).await;
    cluster.pod_runs("asks").await;
    let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc web.default.svc.cluster.local 80";
    until("an answer by the service's name", async || {
        let said = cluster.kubectl(&["exec", "asks", "--", "sh", "-c", ask])?;
        if said.ends_with("hello\n") { Ok(()) } else { Err(said) }
    })
    .await;

    // What the kubelet mounts for a pod is in the pod.
    let namespace = "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let said = cluster.kubectl(&["exec", "asks", "--", "sh", "-c", namespace]).unwrap();
    assert_eq!(said, "default");

    // Whatever dies comes back. containerd has its turn last: pods may be made
    // anew with it.
    let (last, others): (Vec<&str>, Vec<&str>) =
        COMPONENTS.iter().copied().partition(|name| *name == "containerd");
    for component in others.into_iter().chain(last) {
        if component == "containerd" {
            assert_eq!(cluster.pod_runs("web").await, id, "pods noticed something");
        }
        let before = agent.process(component).expect(component);
        kill(before);
        until(component, async || match agent.process(component) {
            Some(now) if now != before => Ok(()),
            now => Err(format!("{now:?} after {before}")),
        })
        .await;
        is_so(&lab, &agent, 1).await;
    }
    until("an answer after all that", async || {
        let said = cluster.kubectl(&["exec", "asks", "--", "sh", "-c", ask])?;
        if said.ends_with("hello\n") { Ok(()) } else { Err(said) }
    })
    .await;

    // Components outlive the agent.
    let before = COMPONENTS.map(|component| agent.process(component));
    let path = lab.launcher.inside(&agent.name, "").unwrap();
    let first: i32 = path.iter().nth(2).unwrap().to_str().unwrap().parse().unwrap();
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    let is_agent = |pid: &&str| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.contains("agent"))
    };
    let own: i32 = children.split_whitespace().find(is_agent).unwrap().parse().unwrap();
    kill(own);
    until("another agent", async || match fs::metadata(format!("/proc/{own}")) {
        Ok(_) => Err("the old one is there".into()),
        Err(_) => Ok(()),
    })
    .await;
    is_so(&lab, &agent, 1).await;
    assert_eq!(COMPONENTS.map(|component| agent.process(component)), before);
    cluster.pod_runs("web").await;

    // Back to nothing.
    let request = ResetRequest { cluster: NAME.into() };
    let answer = agent.connect().await.reset(request).await.unwrap().into_inner();
    assert!(answer.left.is_empty(), "{:#?}", answer.left);
    let enter = |arguments: &[&str]| lab.enter(&agent, arguments);
    let rules = enter(&["nft", "list", "ruleset"]);
    assert!(rules.trim().is_empty(), "{rules}");
    let links = enter(&["ip", "-o", "link"]);
    assert_eq!(links.lines().count(), 2, "{links}");
    let mounts = enter(&["cat", "/proc/self/mountinfo"]);
    for place in ["kubelet", "containerd", "netns", "kubernetes"] {
        let left = mounts
            .lines()
            .filter(|line| line.split(' ').nth(4).is_some_and(|path| path.contains(place)));
        let left: Vec<&str> = left.filter(|line| !line.contains(" /etc/kubernetes ")).collect();
        assert!(left.is_empty(), "{left:#?}");
    }
    let files =
        enter(&["sh", "-c", "ls -d /var/lib/kubelet /var/lib/selvage/kubernetes /var/log/pods"]);
    assert_eq!(files.matches("No such file").count(), 3, "{files}");
    for component in COMPONENTS {
        assert_eq!(agent.process(component), None, "{component} lives");
    }
    lab.close().await;
}
