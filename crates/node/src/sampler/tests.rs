#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use selvage_runtime::{Container, Kind, Status};

use super::*;

/// A container whose first process is this one.
pub(crate) fn ourselves(id: &str) -> Container {
    Container {
        namespace: "system".into(),
        id: id.into(),
        name: id.into(),
        pod_id: id.into(),
        runtime_id: id.into(),
        kind: Kind::Plain,
        image: "localhost/test:1".into(),
        pid: Some(std::process::id()),
        status: Status::Running,
        exit: None,
        last_exit: None,
        created: None,
        restarts: 0,
        supervised: false,
        uid: String::new(),
        network_namespace: None,
        labels: Default::default(),
        problem: None,
    }
}

fn sampler() -> Sampler {
    Sampler::open(Path::new("/proc")).unwrap()
}

#[tokio::test]
async fn what_runs_is_measured_and_what_is_gone_is_not() {
    let sampler = sampler();
    sampler.reconcile("system", vec![ourselves("a"), ourselves("b")]).await;
    sampler.look();
    let measured = sampler.measured("system");
    assert_eq!(measured.keys().collect::<Vec<_>>(), ["a", "b"]);
    let core = measured["a"].sample.core;
    assert!(core.cpu_ns > 0 && core.memory_bytes >= core.working_set_bytes, "{core:?}");
    assert_eq!(measured["a"].pid, std::process::id());
    sampler.reconcile("system", vec![ourselves("b")]).await;
    assert_eq!(sampler.measured("system").into_keys().collect::<Vec<_>>(), ["b"]);
    sampler.reconcile("system", Vec::new()).await;
    assert!(sampler.measured("system").is_empty());
}

#[tokio::test]
async fn one_that_ended_keeps_its_history_and_is_not_measured() {
    let sampler = sampler();
    sampler.reconcile("system", vec![ourselves("a")]).await;
    sampler.look();
    assert_eq!(sampler.history("system", "a", 0, 1).len(), 1);
    let ended = Container { pid: None, status: Status::Stopped, ..ourselves("a") };
    sampler.reconcile("system", vec![ended]).await;
    sampler.look();
    assert!(sampler.measured("system").is_empty());
    assert_eq!(sampler.history("system", "a", 0, 1).len(), 1);
    assert!(sampler.history("system", "nobody", 0, 1).is_empty());
}

#[tokio::test]
async fn a_process_that_vanishes_fails_no_look() {
    let sampler = sampler();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let vanishing = Container { pid: Some(child.id()), ..ourselves("v") };
    child.kill().unwrap();
    child.wait().unwrap();
    sampler.reconcile("system", vec![vanishing, ourselves("a")]).await;
    sampler.look();
    assert_eq!(sampler.measured("system").into_keys().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn those_who_watch_are_woken_by_every_look() {
    let sampler = sampler();
    let mut watching = sampler.watch();
    sampler.look();
    assert!(watching.next().await);
    let (host, percent) = sampler.host();
    assert!(host.memory.memtotal > 0 && (0.0..=100.0).contains(&percent));
    assert_eq!(sampler.host_history(0, 1).len(), 1);
    assert!(sampler.history_size() > 0);
}

/// A process with a network of its own, ended when the test ends. None where
/// there can be none.
struct Apart(std::process::Child);

impl Apart {
    fn start() -> Option<Self> {
        use std::process::{Command, Stdio};
        let mut started =
            Self(Command::new("unshare").args(["-n", "cat"]).stdin(Stdio::piped()).spawn().ok()?);
        let network = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
        let pid = started.0.id().to_string();
        while network(&pid).is_none_or(|theirs| Some(theirs) == network("self")) {
            if started.0.try_wait().ok()?.is_some() {
                return None;
            }
            std::thread::yield_now();
        }
        Some(started)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn traffic_is_reported_for_containers_with_their_own_network() {
    let Some(apart) = Apart::start() else {
        return selvage_testkit::skip("a network", "unshare -n does not work here");
    };
    let sampler = sampler();
    let other = Container { pid: Some(apart.0.id()), ..ourselves("apart") };
    sampler.reconcile("system", vec![ourselves("shared"), other]).await;
    sampler.look();
    let page = crate::prometheus::page(&sampler, &[], None);
    let page = std::str::from_utf8(&page).unwrap();
    for direction in ["receive", "transmit"] {
        let name = format!("\ncontainer_network_{direction}_bytes_total{{container=");
        assert!(page.contains(&format!("{name}\"apart\"")), "{page}");
        assert!(!page.contains(&format!("{name}\"shared\"")), "the machine's traffic is not its");
    }
}

#[tokio::test]
async fn the_page_has_the_names_that_dashboards_ask_for() {
    let sampler = sampler();
    sampler.reconcile("system", vec![ourselves("a\"b")]).await;
    sampler.look();
    let filesystems = crate::host::Filesystems::new("/proc/self/mounts").look().await;
    let page = crate::prometheus::page(&sampler, &filesystems, None);
    let page = std::str::from_utf8(&page).unwrap();
    for name in [
        "node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} ",
        "node_memory_MemAvailable_bytes ",
        "node_load1 ",
        "node_filesystem_avail_bytes{",
        "node_network_receive_bytes_total{device=\"lo\"} ",
        "node_boot_time_seconds ",
        "node_uname_info{",
        "machine_memory_bytes ",
        "container_cpu_usage_seconds_total{container=\"a\\\"b\",id=\"/system/a\\\"b\",",
        "container_memory_working_set_bytes{",
        "container_fs_writes_bytes_total{",
    ] {
        assert!(page.contains(&format!("\n{name}")), "{name} in {page}");
    }
    let mut named = std::collections::HashSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(named.insert(rest.split(' ').next().unwrap()), "twice: {line}");
        } else if !line.starts_with('#') {
            let (name, number) = line.rsplit_once(' ').unwrap();
            assert!(number.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            assert!(named.contains(name.split('{').next().unwrap()), "no type: {line}");
        }
    }
}
