//! M6: from nothing to the first pod that runs, on one machine of this host,
//! beside the shortest start of the same programs by hand.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use selvage_bench::{
    cost::median,
    report::{Report, at_most},
};

use crate::{
    real::{Host, Programs, kubectl},
    service::until,
};

/// Starts the same programs by hand.
const BY_HAND: &str = "tests/kubernetes/run";
/// Third number of the addresses that it uses.
const NUMBER: &str = "77";
const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"}, "spec": {
  "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
  "tolerations": [{"operator": "Exists"}],
  "containers": [{"name": "first", "image": "localhost/bench:1", "imagePullPolicy": "Never"}]}}"#;
const PHASE: [&str; 5] = ["get", "pod", "first", "-o", "jsonpath={.status.phase}"];

/// Takes turns, so that a busy moment of the host meets both.
pub(crate) async fn measure(
    selvage: &Path,
    programs: &Programs,
    rounds: usize,
    report: &mut Report,
) -> Result<()> {
    let (mut by_hands, mut all_ours) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        by_hands.push(by_hand(programs).await?);
        all_ours.push(ours(selvage, programs).await?);
    }
    let (hand, ours) = (median(by_hands)?, median(all_ours)?);
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let verdict = at_most(ours.as_secs_f64(), hand.as_secs_f64(), 0.6);
    let compared = format!("{} by hand", seconds(hand));
    report.row("M6 nothing to the first pod", seconds(ours), compared, verdict);
    Ok(())
}

async fn ours(selvage: &Path, programs: &Programs) -> Result<Duration> {
    let begun = Instant::now();
    let host = Host::start(selvage, programs, 1, &[]).await?;
    host.service()?.create_version("first", &programs.version, 1, 0).await?;
    host.until("first", &["apply", "-f", "-"], POD).await?;
    until("a pod that runs", async || {
        host.kubectl("first", &PHASE).await.ok().filter(|phase| phase == "Running")
    })
    .await?;
    let time = begun.elapsed();
    host.service()?.delete("first").await?;
    Ok(time)
}

async fn by_hand(programs: &Programs) -> Result<Duration> {
    let begun = Instant::now();
    let mut command = Command::new(BY_HAND);
    command.arg(programs.of_version()).arg(NUMBER);
    command.args([programs.images().join("bench.tar"), programs.images().join("pause.tar")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let said = child.stdout.take().context("no output")?;
    let ready = BufReader::new(said)
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("ready ").map(PathBuf::from));
    let config = ready.context("the start by hand failed")?.join("kubeconfig");
    let run = |arguments: &[&str], input: &str| {
        kubectl(&programs.kubectl(), &config, arguments, input).ok()
    };
    until("a pod", async || run(&["apply", "-f", "-"], POD)).await?;
    until("a pod that runs", async || run(&PHASE, "").filter(|phase| phase == "Running")).await?;
    let time = begun.elapsed();
    // It ends with its input, and takes everything with it.
    drop(child.stdin.take());
    child.wait()?;
    Ok(time)
}
