//! M8: one of three control planes is lost, the one whose etcd leads.

use std::{path::Path, time::Instant};

use anyhow::{Context, Result};
use selvage_bench::report::{Report, of_goal};

use crate::{
    real::{Host, Programs},
    service::until,
};

const METRICS: &str = "http://127.0.0.1:2381/metrics";
const HEALTH: &str = "http://127.0.0.1:2381/health";

pub(crate) async fn measure(
    selvage: &Path,
    programs: &Programs,
    report: &mut Report,
) -> Result<()> {
    let host = Host::start(selvage, programs, 3, &["kaas.health_period=1s"]).await?;
    host.service()?.create_version("ha", &programs.version, 3, 0).await?;
    let cluster = host.until_running("ha").await?;
    let machines: Vec<String> = cluster.machines.into_iter().map(|one| one.provider_id).collect();
    let leads = |machine: &String| {
        let text = host.inside(machine, &["curl", "-s", "-m", "5", METRICS]).unwrap_or_default();
        text.lines().any(|line| line == "etcd_server_is_leader 1")
    };
    let leader = machines.iter().find(|machine| leads(machine)).context("no leader")?;
    host.kubectl("ha", &["create", "configmap", "before"]).await?;

    host.cut_power(leader)?;
    let begun = Instant::now();
    let write = ["create", "configmap", "after", "--request-timeout=1s"];
    until("a write", async || host.kubectl("ha", &write).await.ok()).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let what = "M8 power of the leader cut: the API takes a write";
    report.row(what, format!("{seconds:.1} s"), "3 s", of_goal(seconds, 3.0));

    let healthy = |machine: &String| {
        let text = host.inside(machine, &["curl", "-s", "-m", "1", HEALTH]).unwrap_or_default();
        text.contains("\"health\":\"true\"")
    };
    until("three members", async || machines.iter().all(healthy).then_some(())).await?;
    let seconds = begun.elapsed().as_secs_f64();
    report.row(
        "M8   etcd is three again",
        format!("{seconds:.1} s"),
        "30 s",
        of_goal(seconds, 30.0),
    );
    host.until_running("ha").await?;
    let seconds = begun.elapsed().as_secs_f64();
    report.row("M8   the cluster is RUNNING", format!("{seconds:.1} s"), "", "");
    host.service()?.delete("ha").await
}
