//! Three control planes and a worker: one by one, and one less.

use selvage_api::selvage::kubernetes::{
    AddEtcdMemberRequest, EtcdPeer, ListEtcdMembersRequest, PromoteEtcdMemberRequest,
};

use crate::{
    cluster::{Cluster, is_so},
    lab::{Agent, Lab, until},
};

/// Makes a machine one more member of the control plane.
async fn join(lab: &Lab, cluster: &Cluster, first: &Agent, new: &Agent, all: &[&Agent]) {
    let peer = EtcdPeer { name: new.name.clone(), address: new.address.to_string() };
    let request = AddEtcdMemberRequest { peer: Some(peer) };
    let mut client = first.connect().await;
    // etcd takes nobody while it does not know yet how those are that it has.
    let added = until("an etcd that takes one more", async || {
        let answer = first.connect().await.add_etcd_member(request.clone()).await;
        answer.map_err(|status| status.message().to_owned())
    });
    let added = added.await.into_inner();
    // Asking again adds nobody.
    let again = client.add_etcd_member(request).await.unwrap().into_inner();
    assert_eq!(again.member.unwrap().id, added.member.unwrap().id);
    let mut spec = cluster.spec(new, &[new], all);
    let plane = spec.control_plane.as_mut().unwrap();
    plane.etcd = added.peers;
    plane.join_etcd = true;
    spec.api_servers.push(format!("{}:6443", first.address));
    cluster.apply(new, spec).await;
    until("a member that caught up", async || {
        let request = PromoteEtcdMemberRequest { name: new.name.clone() };
        let answer = first.connect().await.promote_etcd_member(request).await;
        answer.map(drop).map_err(|status| status.message().to_owned())
    })
    .await;
    is_so(lab, new, 1).await;
}

#[tokio::test]
async fn three_control_planes_go_on_without_one() {
    let Some(lab) = Lab::open(2) else { return };
    let first = lab.start("a", 2).await;
    let (second, third) = (lab.start("b", 3).await, lab.start("c", 4).await);
    let worker = lab.start("w", 5).await;
    let all = [&first, &second, &third, &worker];
    let cluster = Cluster::new(&lab, &format!("{}:6443", first.address));
    cluster.apply(&first, cluster.spec(&first, &[&first], &all)).await;
    cluster.let_dns_read().await;
    is_so(&lab, &first, 1).await;
    join(&lab, &cluster, &first, &second, &all).await;
    join(&lab, &cluster, &first, &third, &all).await;
    let mut spec = cluster.spec(&worker, &[&first, &second, &third], &all);
    spec.control_plane = None;
    cluster.apply(&worker, spec).await;
    is_so(&lab, &worker, 1).await;
    for agent in all {
        cluster.node_is_ready(&agent.name).await;
    }

    // Pods of different machines, by the name of a service.
    let serve = "echo hello > /www/index.html; exec httpd -f -p 80 -h /www";
    let image = "--image=localhost/busybox:1";
    let on =
        |agent: &Agent| format!("--overrides={{\"spec\":{{\"nodeName\":\"{}\"}}}}", agent.name);
    let web = ["run", "web", image, &on(&worker), "--port=80", "--expose", "--", "sh", "-c", serve];
    cluster.make(&web).await;
    cluster.make(&["run", "asks", image, &on(&second), "--", "sleep", "100000"]).await;
    cluster.pod_runs("web").await;
    cluster.pod_runs("asks").await;
    let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc web.default.svc.cluster.local 80";
    let answers = async || {
        let said = cluster.kubectl(&["exec", "asks", "--", "sh", "-c", ask])?;
        if said.ends_with("hello\n") { Ok(()) } else { Err(said) }
    };
    until("an answer from another machine", answers).await;

    // The plug of the first one is pulled.
    lab.launcher.stop(&first.name).await.unwrap();
    cluster.point_at(&format!("{}:6443", second.address));
    cluster.make(&["create", "configmap", "after"]).await;
    until("an answer from another machine", answers).await;
    cluster.make(&["run", "later", image, &on(&worker), "--", "sleep", "100000"]).await;
    cluster.pod_runs("later").await;

    // And comes back as it was.
    let first = lab.start("a", 2).await;
    is_so(&lab, &first, 1).await;
    let members = first.connect().await.list_etcd_members(ListEtcdMembersRequest {}).await;
    let members = members.unwrap().into_inner().members;
    assert_eq!(members.len(), 3, "{members:?}");
    assert!(members.iter().all(|one| !one.learner), "{members:?}");
    lab.close().await;
}
