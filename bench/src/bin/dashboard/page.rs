//! The page in a real browser, and a thousand that watch over TLS. The browser is led by
//! `bench/browser/dashboard.mjs`, which tells figures in lines of JSON and asks for what
//! it cannot do itself.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use reqwest::Client;
use selvage_bench::report::{Report, Verdict, of_goal};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, Command},
};

use crate::{
    Args,
    ceph::{Cluster, PASSWORD, USER},
};

const VERSION: &str = "application/vnd.ceph.api.v1.0+json";

/// Returns the address of the dashboard of the manager that is active.
pub(crate) async fn active_dashboard(cluster: &Cluster) -> Result<String> {
    for _ in 0..300 {
        for port in cluster.ports {
            let url = format!("http://127.0.0.1:{port}");
            if ceph_token(&url).await.is_ok() {
                return Ok(url);
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bail!("no manager answers")
}

pub(crate) async fn ceph_token(url: &str) -> Result<String> {
    let client = Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    let login = json!({"username": USER, "password": PASSWORD});
    let request = client.post(format!("{url}/api/auth")).header("accept", VERSION).json(&login);
    let reply: Value = request.send().await?.error_for_status()?.json().await?;
    Ok(reply["token"].as_str().context("no token")?.to_owned())
}

/// A figure of the browser, taken several times on both sides.
struct Figure<'a> {
    unit: &'a str,
    values: Vec<f64>,
}

impl<'a> Figure<'a> {
    fn new(unit: &'a str, values: &Value) -> Self {
        let mut values: Vec<f64> =
            values.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        values.sort_by(f64::total_cmp);
        Self { unit, values }
    }

    fn median(&self) -> Option<f64> {
        self.values.get(self.values.len() / 2).copied()
    }

    /// Median, and the worst where it was taken more than once.
    fn shown(&self) -> String {
        let show = |value: &f64| format!("{value:.0} {}", self.unit).trim_end().to_owned();
        let median = self.median().as_ref().map(show).unwrap_or_default();
        match self.values.last().filter(|worst| Some(**worst) != self.median()) {
            Some(worst) => format!("{median}, worst {}", show(worst)),
            None => median,
        }
    }
}

fn add(report: &mut Report, row: &Value) -> Result<()> {
    let unit = row["unit"].as_str().unwrap_or_default();
    let (own, theirs) = (Figure::new(unit, &row["values"]), Figure::new(unit, &row["theirs"]));
    let (what, goal) = (row["what"].as_str().unwrap_or_default(), row["goal"].as_f64());
    let median = own.median().with_context(|| format!("{what}: no figure"))?;
    let verdict = goal.map_or_else(Verdict::default, |goal| of_goal(median, goal));
    report.row(what, own.shown(), format!("goal {:.0} {unit}", goal.unwrap_or_default()), verdict);
    if let Some(other) = theirs.median() {
        let ratio = format!("{:.1}x less", other / median);
        report.row(what, own.shown(), format!("Ceph's {}", theirs.shown()), ratio);
    }
    Ok(())
}

/// Does what the browser's script asks for.
async fn act(
    asked: &Value,
    args: &Args,
    cluster: Option<&mut Cluster>,
    report: &mut Report,
) -> Result<()> {
    if let Some(watch) = asked.get("watch") {
        return watchers(watch, args, report).await;
    }
    let cluster = cluster.context("there is no Ceph cluster")?;
    if let Some(name) = asked["kill"].as_str() {
        cluster.kill(name);
    } else if let Some(name) = asked["start"].as_str() {
        let number = name.trim_start_matches("osd.").parse().context("the name of an OSD")?;
        cluster.osd(number);
    } else {
        bail!("{asked} is no question");
    }
    Ok(())
}

fn program(args: &Args) -> Result<PathBuf> {
    let found = match &args.selvage {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("selvage"),
    };
    ensure!(found.exists(), "{} is missing: build selvage first", found.display());
    Ok(found)
}

pub(crate) async fn measure(
    args: &Args,
    mut cluster: Option<&mut Cluster>,
    report: &mut Report,
) -> Result<()> {
    let Ok(modules) = std::env::var("SELVAGE_TEST_NODE_MODULES") else {
        report.row("the page in a browser", "left out", "playwright-core is not installed", "");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("browser/dashboard.mjs");
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules).arg(script).arg(program(args)?).arg(folder.path());
    command.arg(args.trials.to_string());
    if let Some(cluster) = &cluster {
        command.arg(active_dashboard(cluster).await?).arg(cluster.path("ceph.conf"));
        command.args([USER, PASSWORD]);
    }
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut input = child.stdin.take().context("stdin")?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    while let Some(line) = lines.next_line().await? {
        let message: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        if let Some(row) = message.get("row") {
            add(report, row)?;
        } else if let Some(asked) = message.get("ask") {
            act(asked, args, cluster.as_deref_mut(), report).await?;
            done(&mut input).await?;
        }
    }
    ensure!(child.wait().await?.success(), "the browser's part failed");
    Ok(())
}

async fn done(input: &mut ChildStdin) -> Result<()> {
    input.write_all(b"{}\n").await?;
    Ok(input.flush().await?)
}

/// Memory of a process that the kernel counts, in MiB.
fn resident(pid: u64) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kib / 1024.0)
}

/// Pages that watch, each over a TLS connection of its own as a browser's, at a real
/// server.
async fn watchers(watch: &Value, args: &Args, report: &mut Report) -> Result<()> {
    let text = |name: &str| watch[name].as_str().with_context(|| format!("{name} is missing"));
    let (endpoint, token) = (text("endpoint")?, text("token")?);
    let ca = reqwest::Certificate::from_pem(text("ca")?.as_bytes())?;
    let pid = watch["pid"].as_u64().context("pid is missing")?;
    let before = resident(pid)?;
    let one = async |_: usize| -> Result<_> {
        let client = Client::builder().tls_certs_only([ca.clone()]).build()?;
        let method = "selvage.dashboard.DashboardService/WatchOverview";
        let request = client.post(format!("{endpoint}/{method}")).bearer_auth(token);
        let request = request.header("content-type", "application/connect+json");
        // An empty message, with its length in front.
        let request = request.body(&b"\0\0\0\0\x02{}"[..]);
        let mut reply = request.send().await?.error_for_status()?;
        reply.chunk().await?.context("nothing is told")?;
        // The connection ends with its client.
        Ok((client, reply))
    };
    let open: Vec<_> =
        stream::iter(0..args.watchers).map(one).buffer_unordered(50).try_collect().await?;
    let time = Duration::from_secs(args.seconds.max(20));
    let listen = async |(_client, mut reply): (Client, reqwest::Response)| -> Result<()> {
        let listen = async {
            while reply.chunk().await?.is_some() {}
            bail!("a page was cut off")
        };
        tokio::time::timeout(time, listen).await.unwrap_or(Ok(()))
    };
    let count = open.len();
    let mut most = before;
    let sample = async {
        for _ in 0..time.as_secs() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            most = most.max(resident(pid)?);
        }
        Ok::<_, anyhow::Error>(())
    };
    let listening = try_join_all(open.into_iter().map(listen));
    futures::try_join!(async { listening.await.map(drop) }, sample)?;
    let grown = most - before;
    let what = format!("{count} pages over TLS: the server grows");
    report.row(
        what,
        format!("{grown:.1} MiB"),
        format!("goal 40 MiB; {before:.0} MiB before"),
        of_goal(grown.max(0.0), 40.0),
    );
    Ok(())
}
