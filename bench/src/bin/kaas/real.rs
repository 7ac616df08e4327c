//! Clusters on machines of this host, asked by kubectl.

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use selvage_api::selvage::clusters::Cluster;
use selvage_runtime::ImageBuilder;

use crate::service::{Service, until};

/// Image of pods that do nothing, or serve a page at port 8080.
pub(crate) const IMAGE: &str = "localhost/bench:1";
const PAUSE: &str = "localhost/pause:1";

/// Folder with Kubernetes' programs and images for pods.
pub(crate) struct Programs {
    folder: tempfile::TempDir,
    original: PathBuf,
    pub(crate) version: String,
}

impl Programs {
    pub(crate) fn new(original: &Path, version: &str) -> Result<Self> {
        ensure!(nix::unistd::Uid::effective().is_root(), "machines of this host need root");
        let original = fs::canonicalize(original)?;
        let folder = tempfile::Builder::new().prefix("sb").tempdir()?;
        let programs = Self { folder, original, version: version.to_owned() };
        fs::create_dir_all(programs.images())?;
        for entry in fs::read_dir(&programs.original)? {
            let entry = entry?;
            symlink(entry.path(), programs.path().join(entry.file_name()))?;
        }
        let busybox = fs::read("/bin/busybox").context("/bin/busybox")?;
        for (name, file) in [(IMAGE, "bench.tar"), (PAUSE, "pause.tar")] {
            let image = ImageBuilder::busybox(&busybox, &["sh", "sleep", "httpd"])?;
            let image = image.file("www/index.html", 0o644, b"hello\n")?;
            image.command(["/bin/sleep", "1000000"]).write(name, &programs.images().join(file))?;
        }
        Ok(programs)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("artifacts")
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.path().join("images")
    }

    /// Programs of the version, by their original path.
    pub(crate) fn of_version(&self) -> PathBuf {
        self.original.join(&self.version)
    }

    pub(crate) fn has(&self, version: &str) -> bool {
        self.original.join(version).join("kubelet").is_file()
    }

    pub(crate) fn kubectl(&self) -> PathBuf {
        self.of_version().join("kubectl")
    }
}

/// Runs kubectl with a kubeconfig in a file; what it prints, or what went wrong.
pub(crate) fn kubectl(
    program: &Path,
    config: &Path,
    arguments: &[&str],
    input: &str,
) -> Result<String> {
    let mut command = Command::new(program);
    command.arg("--request-timeout=20s").arg("--kubeconfig").arg(config).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("no input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "kubectl {arguments:?}: {error}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `selvage up` with machines of this host. All of them are gone when this is dropped.
pub(crate) struct Host {
    pub(crate) service: Option<Service>,
    folder: tempfile::TempDir,
    kubectl: PathBuf,
}

impl Host {
    pub(crate) async fn start(
        selvage: &Path,
        programs: &Programs,
        machines: u32,
        settings: &[&str],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("sb").tempdir()?;
        let artifacts = format!("kaas.artifacts={}", programs.path().display());
        let machines = format!("kaas.local.machines={machines}");
        let own = ["kaas.provider=local", machines.as_str(), artifacts.as_str()];
        let settings = [&own[..], settings].concat();
        let service = Service::start(selvage, folder.path(), &settings).await?;
        Ok(Self { service: Some(service), folder, kubectl: programs.kubectl() })
    }

    pub(crate) fn service(&self) -> Result<&Service> {
        self.service.as_ref().context("the service has ended")
    }

    /// Runs kubectl with a kubeconfig that is fetched for it.
    pub(crate) async fn kubectl(&self, name: &str, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(name, arguments, "").await
    }

    pub(crate) async fn kubectl_with(
        &self,
        name: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        let config = self.service()?.kubeconfig(name).await?.context("no kubeconfig yet")?;
        let file = self.folder.path().join("kubeconfig");
        fs::write(&file, config)?;
        kubectl(&self.kubectl, &file, arguments, input)
    }

    /// Waits until kubectl does it.
    pub(crate) async fn until(
        &self,
        name: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        let what = arguments.join(" ");
        until(&what, async || self.kubectl_with(name, arguments, input).await.ok()).await
    }

    /// Waits until all is as asked for.
    pub(crate) async fn until_running(&self, name: &str) -> Result<Cluster> {
        let service = self.service()?;
        until("RUNNING", async || {
            service.show(name).await.ok().filter(|cluster| cluster.status == "RUNNING")
        })
        .await
    }

    /// First process of a machine.
    pub(crate) fn process(&self, machine: &str) -> Result<i32> {
        let path = self.machines().join(machine).join("process.json");
        let process: serde_json::Value = serde_json::from_slice(&fs::read(path)?)?;
        let pid = process["pid"].as_i64().context("no process")?;
        Ok(i32::try_from(pid)?)
    }

    fn machines(&self) -> PathBuf {
        self.folder.path().join("data/machines")
    }

    /// Pulls the plug of a machine.
    pub(crate) fn cut_power(&self, machine: &str) -> Result<()> {
        Ok(kill(Pid::from_raw(self.process(machine)?), Signal::SIGKILL)?)
    }

    /// Output of a program that runs in the network of a machine; nothing if it fails.
    pub(crate) fn inside(&self, machine: &str, command: &[&str]) -> Option<String> {
        let first = self.process(machine).ok()?.to_string();
        let output = Command::new("nsenter").args(["-t", &first, "-n"]).args(command).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Machines outlive the service; after a failure nobody else would end them.
        self.service.take();
        for entry in fs::read_dir(self.machines()).into_iter().flatten().flatten() {
            let _ = self.cut_power(&entry.file_name().to_string_lossy());
        }
    }
}
