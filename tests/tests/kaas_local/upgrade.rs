//! One minor forward, while somebody uses the cluster.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::Duration,
};

use selvage_tests::real;

use crate::site::{IMAGE, Site};

const PORT: u16 = 30080;

/// A service with two replicas of which a budget keeps as many as it says.
fn workload(keeps: u32) -> String {
    format!(
        r#"apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{ name: web }}
spec:
  minAvailable: {keeps}
  selector: {{ matchLabels: {{ app: web }} }}
---
apiVersion: v1
kind: Service
metadata: {{ name: web }}
spec:
  type: NodePort
  selector: {{ app: web }}
  ports: [{{ port: 80, targetPort: 8080, nodePort: {PORT} }}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: web }}
spec:
  replicas: 2
  selector: {{ matchLabels: {{ app: web }} }}
  template:
    metadata: {{ labels: {{ app: web }} }}
    spec:
      terminationGracePeriodSeconds: 40
      containers:
      - name: web
        image: "{IMAGE}"
        command: [sh, -c, "echo hello > /www/index.html; exec httpd -f -p 8080 -h /www"]
        readinessProbe: {{ httpGet: {{ path: /, port: 8080 }}, periodSeconds: 1 }}
        # Until no proxy leads here any more.
        lifecycle: {{ preStop: {{ sleep: {{ seconds: 15 }} }} }}
"#
    )
}

/// Somebody who asks the service all the time.
struct Load {
    stop: Arc<AtomicBool>,
    asks: JoinHandle<(usize, Vec<String>)>,
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let limit = Duration::from_secs(10);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

impl Load {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let asks = spawn(move || {
            let (mut good, mut bad) = (0, Vec::new());
            while !ended.load(Ordering::Relaxed) {
                match ask(address) {
                    Ok(answer) if answer.ends_with("hello\n") => good += 1,
                    other => bad.push(format!("after {good} good ones: {other:?}")),
                }
                sleep(Duration::from_millis(50));
            }
            (good, bad)
        });
        Self { stop, asks }
    }

    fn end(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.asks.join().unwrap()
    }
}

/// Refused while no pod may go, and taken back before it began.
fn is_safe_to_begin(site: &Site) {
    let next = real::KUBERNETES_NEXT;
    let refused = site.cli.run(&["kaas", "upgrade", "demo", next]);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("default/web lets no pod go"), "{}", refused.stderr);
    site.apply(&workload(1));
    site.cli.ok(&["kaas", "pause", "demo"]);
    site.until("an upgrade that may begin", || {
        let asked = site.cli.run(&["kaas", "upgrade", "demo", next]);
        if asked.code == 0 { Ok(()) } else { Err(asked.stderr) }
    });
    site.cli.ok(&["kaas", "upgrade", "demo", "--abort"]);
    let shown = site.cli.json(&["kaas", "show", "demo", "-o", "json"]);
    assert_eq!(shown["version"], real::KUBERNETES);
}

#[test]
fn an_upgrade_goes_one_minor_forward_under_load() {
    if real::kubernetes_upgrade().is_none() {
        return;
    }
    let Some(site) = Site::open(3) else { return };
    let (old, next) = (real::KUBERNETES, real::KUBERNETES_NEXT);
    site.cli.ok(&["kaas", "create", "demo", "--kubernetes", old, "--pool", "web=2", "--wait"]);
    site.apply(&workload(2));
    let ready = ["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"];
    site.shows(&ready, "2");
    is_safe_to_begin(&site);

    let members = site.members("demo");
    let plane = members.iter().find(|[_, pool, ..]| pool.is_empty()).unwrap();
    let address = SocketAddr::new(plane[2].parse().unwrap(), PORT);
    site.until("the service", || ask(address).map_err(|error| error.to_string()));
    let load = Load::start(address);
    site.cli.ok(&["kaas", "upgrade", "demo", next]);
    site.cli.ok(&["kaas", "resume", "demo"]);
    site.until("the new version", || {
        let shown = site.cli.ok(&["kaas", "nodes", "demo"]);
        if shown.contains(old) { Err(shown) } else { Ok(()) }
    });
    site.is_running("demo");
    let (good, bad) = load.end();
    assert!(bad.is_empty() && good > 100, "{good} were answered, and not: {bad:#?}");

    let version = "jsonpath={.items[*].status.nodeInfo.kubeletVersion}";
    site.shows(&["get", "nodes", "-o", version], &vec![format!("v{next}"); 3].join(" "));
    let backups = site.cli.ok(&["kaas", "backups", "demo"]);
    assert!(backups.contains(&format!("before the upgrade to {next}")), "{backups}");
    let etcd = site.process(&plane[3], "etcd").unwrap();
    let files = std::fs::read_to_string(format!("/proc/{etcd}/mountinfo")).unwrap();
    assert!(files.contains("/etcd/3.7.0/etcd"), "{files}");
    site.shows(&ready, "2");
    site.cli.ok(&["kaas", "delete", "demo", "--yes", "--wait"]);
    site.close();
}
