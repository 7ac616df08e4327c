//! M6: from nothing to the first pod that runs, on one machine of this host,
//! beside the shortest start of the same programs by hand.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use selvage_bench::report::{Report, at_most};
use selvage_runtime::ImageBuilder;

use crate::service::{Service, until};

const IMAGE: &str = "localhost/bench:1";
const PAUSE: &str = "localhost/pause:1";
/// Starts the same programs by hand.
const BY_HAND: &str = "tests/kubernetes/run";
/// Third number of the addresses that it uses.
const NUMBER: &str = "77";
const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"}, "spec": {
  "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
  "tolerations": [{"operator": "Exists"}],
  "containers": [{"name": "first", "image": "localhost/bench:1", "imagePullPolicy": "Never"}]}}"#;

pub(crate) async fn measure(
    selvage: &Path,
    programs: &Path,
    version: &str,
    report: &mut Report,
) -> Result<()> {
    ensure!(nix::unistd::Uid::effective().is_root(), "machines of this host need root");
    let programs = fs::canonicalize(programs)?;
    let kubectl = programs.join(version).join("kubectl");
    let folder = tempfile::Builder::new().prefix("sb").tempdir()?;
    let images = folder.path().join("artifacts/images");
    fs::create_dir_all(&images)?;
    for entry in fs::read_dir(&programs)? {
        let entry = entry?;
        symlink(entry.path(), folder.path().join("artifacts").join(entry.file_name()))?;
    }
    let busybox = fs::read("/bin/busybox").context("/bin/busybox")?;
    for (name, file) in [(IMAGE, "bench.tar"), (PAUSE, "pause.tar")] {
        let image = ImageBuilder::busybox(&busybox, &["sh", "sleep"])?;
        image.command(["/bin/sleep", "1000000"]).write(name, &images.join(file))?;
    }
    let hand = by_hand(&programs.join(version), &images, &kubectl).await?;
    let ours = ours(selvage, folder.path(), version, &kubectl).await?;
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let verdict = at_most(ours.as_secs_f64(), hand.as_secs_f64(), 0.6);
    let compared = format!("{} by hand", seconds(hand));
    report.row("M6 nothing to the first pod", seconds(ours), compared, verdict);
    Ok(())
}

async fn ours(selvage: &Path, folder: &Path, version: &str, kubectl: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let artifacts = format!("kaas.artifacts={}", folder.join("artifacts").display());
    let settings = ["kaas.provider=local", "kaas.local.machines=1", artifacts.as_str()];
    let service = Service::start(selvage, folder, &settings).await?;
    service.create_version("first", version).await?;
    let config =
        until("the API", async || service.kubeconfig("first").await.ok().flatten()).await?;
    let file = folder.join("kubeconfig");
    fs::write(&file, config)?;
    first_pod(kubectl, &file).await?;
    let time = begun.elapsed();
    service.delete("first").await?;
    Ok(time)
}

async fn by_hand(programs: &Path, images: &Path, kubectl: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let mut command = Command::new(BY_HAND);
    command.arg(programs).arg(NUMBER);
    command.args([images.join("bench.tar"), images.join("pause.tar")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let said = child.stdout.take().context("no output")?;
    let ready = BufReader::new(said)
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("ready ").map(PathBuf::from));
    let ready = ready.context("the start by hand failed")?;
    first_pod(kubectl, &ready.join("kubeconfig")).await?;
    let time = begun.elapsed();
    // It ends with its input, and takes everything with it.
    drop(child.stdin.take());
    child.wait()?;
    Ok(time)
}

/// Makes a pod as soon as the cluster takes it, and waits until it runs.
async fn first_pod(kubectl: &Path, config: &Path) -> Result<()> {
    let run = |arguments: &[&str], input: &str| -> Option<String> {
        let mut command = Command::new(kubectl);
        command.arg("--request-timeout=20s").arg("--kubeconfig").arg(config).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        child.stdin.take()?.write_all(input.as_bytes()).ok()?;
        let output = child.wait_with_output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    until("a pod", async || run(&["apply", "-f", "-"], POD)).await?;
    let phase = ["get", "pod", "first", "-o", "jsonpath={.status.phase}"];
    until("a pod that runs", async || run(&phase, "").filter(|phase| phase == "Running")).await?;
    Ok(())
}
