//! M9: three control planes and three workers go one minor forward while somebody
//! asks a service of two pods all the time.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use selvage_bench::report::{Report, of_goal};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    real::{Host, IMAGE, Programs},
    service::until,
};

const PORT: u16 = 30081;
/// Longest that an answer may take.
const LIMIT: Duration = Duration::from_secs(10);

fn workload() -> String {
    let probe = serde_json::json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1});
    let container = serde_json::json!({
        "name": "web", "image": IMAGE, "imagePullPolicy": "Never", "readinessProbe": probe,
        "command": ["/bin/httpd", "-f", "-p", "8080", "-h", "/www"],
        // Until no proxy leads here any more.
        "lifecycle": {"preStop": {"sleep": {"seconds": 4}}},
    });
    let labels = serde_json::json!({"app": "web"});
    let items = serde_json::json!([
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
         "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
         "spec": {"type": "NodePort", "selector": labels,
                  "ports": [{"port": 80, "targetPort": 8080, "nodePort": PORT}]}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
         "spec": {"replicas": 2, "selector": {"matchLabels": labels},
                  "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}},
    ]);
    serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

async fn ask(address: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.ends_with("hello\n"))
}

/// Requests that were answered, and that were not.
async fn load(address: SocketAddr, stop: CancellationToken) -> (usize, usize) {
    let (mut good, mut bad) = (0, 0);
    while !stop.is_cancelled() {
        match timeout(LIMIT, ask(address)).await {
            Ok(Ok(true)) => good += 1,
            _ => bad += 1,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (good, bad)
}

pub(crate) async fn measure(
    selvage: &Path,
    programs: &Programs,
    next: &str,
    report: &mut Report,
) -> Result<()> {
    let host = Host::start(selvage, programs, 6, &["kaas.health_period=1s"]).await?;
    let service = host.service()?;
    service.create_version("up", &programs.version, 3, 3).await?;
    host.until("up", &["apply", "-f", "-"], &workload()).await?;
    let cluster = host.until_running("up").await?;
    let ready = ["get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"];
    until("two pods", async || host.kubectl("up", &ready).await.ok().filter(|two| two == "2"))
        .await?;
    let plane = cluster.machines.iter().find(|machine| machine.pool.is_empty());
    let address = plane.context("no control plane")?.address.parse()?;
    let address = SocketAddr::new(address, PORT);
    until("the service", async || ask(address).await.ok().filter(|good| *good)).await?;

    let stop = CancellationToken::new();
    let asking = tokio::spawn(load(address, stop.clone()));
    let begun = Instant::now();
    until("an upgrade that may begin", async || service.upgrade("up", next).await.ok()).await?;
    until("the new version", async || {
        let cluster = service.show("up").await.ok()?;
        let all = cluster.machines.iter().all(|machine| machine.version == next);
        (all && cluster.status == "RUNNING").then_some(())
    })
    .await?;
    let seconds = begun.elapsed().as_secs_f64();
    stop.cancel();
    let (good, bad) = asking.await?;
    let what = format!("M9 3+3 machines from {} to {next}", programs.version);
    report.row(what, format!("{seconds:.0} s"), "90 s", of_goal(seconds, 90.0));
    let failed = of_goal(bad as f64, 0.0);
    report.row("M9   requests that failed", bad.to_string(), format!("of {}", good + bad), failed);
    service.delete("up").await
}
