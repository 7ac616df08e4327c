//! Two machines with a router between them, which knows nothing of pods.

use std::process::{Child, Command, Stdio};

use selvage_api::selvage::kubernetes::ResetRequest;

use crate::{
    cluster::{Cluster, NAME, pods_of},
    lab::{Agent, Lab, until},
};

/// Serves a page at an address of a pod of the machine; ended when dropped.
struct Page(Child);

impl Page {
    fn serve(lab: &Lab, agent: &Agent) -> Self {
        let own = format!("{}.5", pods_of(agent));
        let added = lab.enter(agent, &["ip", "address", "add", &format!("{own}/32"), "dev", "lo"]);
        assert_eq!(added, "");
        let folder = lab.folder.path().join("www");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("index.html"), "x".repeat(100_000)).unwrap();
        let path = lab.launcher.inside(&agent.name, "").unwrap();
        let pid = path.iter().nth(2).unwrap().to_str().unwrap().to_owned();
        let server = ["busybox", "httpd", "-f", "-p", "80", "-h"];
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-n", "--"]).args(server).arg(&folder);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the machine has fetched a page that needs many packets.
async fn fetches(lab: &Lab, agent: &Agent, from: &Agent) {
    let url = format!("http://{}.5/", pods_of(from));
    until("a page from the other network", async || {
        let page = lab.enter(agent, &["curl", "-s", "-m", "5", &url]);
        if page.len() == 100_000 { Ok(()) } else { Err(page.chars().take(200).collect()) }
    })
    .await;
}

#[tokio::test]
async fn pods_behind_a_router_are_reached_and_nothing_of_the_overlay_is_left() {
    let (Some(here), Some(there)) = (Lab::without_programs(8), Lab::without_programs(9)) else {
        return;
    };
    let (one, other) = (here.start("one", 2).await, there.start("other", 3).await);
    let near = here.start("near", 4).await;
    here.route();
    there.route();
    let all = [&one, &other, &near];
    let cluster = Cluster::new(&here, &format!("{}:6443", one.address));
    for (lab, agent) in [(&here, &one), (&there, &other), (&here, &near)] {
        cluster.apply(agent, cluster.spec(agent, &[&one], &all)).await;
        until("routes", async || match lab.enter(agent, &["ip", "route", "show", "proto", "85"]) {
            routes if routes.lines().count() == 2 => Ok(()),
            routes => Err(format!("{routes} {:?}", agent.status().await.obstacles)),
        })
        .await;
    }
    let (page, second) = (Page::serve(&there, &other), Page::serve(&here, &one));
    fetches(&here, &one, &other).await;
    fetches(&there, &other, &one).await;
    fetches(&here, &near, &one).await;
    let routes = here.enter(&one, &["ip", "route", "show", "proto", "85"]);
    let via = |route: &str| routes.lines().any(|line| line.starts_with(route));
    assert!(via(&format!("{}.0/24 via {} dev eth0", pods_of(&near), near.address)), "{routes}");
    assert!(via(&format!("{0}.0/24 via {0}.0 dev slv-vxlan", pods_of(&other))), "{routes}");

    // The machine on the other network goes: nothing leads there any more.
    let mut spec = cluster.spec(&one, &[&one], &[&one, &near]);
    spec.generation = 2;
    cluster.apply(&one, spec).await;
    until("no overlay", async || match here.enter(&one, &["ip", "-o", "link"]) {
        links if !links.contains("slv-vxlan") => Ok(()),
        links => Err(links),
    })
    .await;
    fetches(&here, &near, &one).await;

    drop((page, second));
    let request = ResetRequest { cluster: NAME.into() };
    let answer = other.connect().await.reset(request).await.unwrap().into_inner();
    assert!(answer.left.is_empty(), "{:#?}", answer.left);
    let links = there.enter(&other, &["ip", "-o", "link"]);
    assert_eq!(links.lines().count(), 2, "{links}");
    here.close().await;
    there.close().await;
}
