//! kubectl with a fresh kubeconfig.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal};
use selvage_api::cnct::kaas::api::GetClusterListMsg;
use tokio::{
    process::Child,
    signal::unix::{SignalKind, signal},
};

use super::{args::Kubectl, ask, kubeconfig_of};
use crate::{Error, client::Client, session::Session};

pub(crate) async fn run(args: Kubectl, session: &mut Session<'_>) -> Result<(), Error> {
    let client = session.client().await?;
    let cluster = match args.cluster {
        Some(cluster) => cluster,
        None => only_cluster(&client).await?,
    };
    let config = Config::write(&kubeconfig_of(&client, &cluster).await?)?;
    let program = session.io.var("SELVAGE_KUBECTL").unwrap_or("kubectl").to_owned();
    let status = ended(&program, &args.arguments, &config.path).await?;
    drop(config);
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Error::Exited(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
    }
}

/// Runs kubectl to its end. Signals do not end this process before it: the file with
/// the kubeconfig would stay.
async fn ended(program: &str, arguments: &[OsString], config: &Path) -> Result<ExitStatus, Error> {
    // A terminal sends this one to kubectl too.
    let _interrupts = signal(SignalKind::interrupt()).map_err(Error::Output)?;
    let mut terminations = signal(SignalKind::terminate()).map_err(Error::Output)?;
    let mut hangups = signal(SignalKind::hangup()).map_err(Error::Output)?;
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .env("KUBECONFIG", config)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|source| not_run(program, &source))?;
    loop {
        tokio::select! {
            status = child.wait() => return status.map_err(|source| not_run(program, &source)),
            Some(()) = terminations.recv() => end(&child),
            Some(()) = hangups.recv() => end(&child),
        }
    }
}

fn end(child: &Child) {
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, Signal::TERM);
    }
}

fn not_run(program: &str, source: &std::io::Error) -> Error {
    Error::Invalid {
        message: format!("{program} cannot be run: {source}"),
        hints: vec!["install kubectl, or name it in SELVAGE_KUBECTL".into()],
    }
}

async fn only_cluster(client: &Client) -> Result<String, Error> {
    let reply = ask(client, GetClusterListMsg {}, async |mut client, request| {
        client.get_cluster_list(request).await
    });
    let mut names: Vec<String> = reply.await?.clusters.into_iter().map(|c| c.name).collect();
    match names.len() {
        1 => Ok(names.remove(0)),
        0 => Err(Error::invalid("there is no cluster: make one with `selvage kaas create`")),
        _ => {
            let names = names.join(", ");
            Err(Error::invalid(format!("name one of several clusters with --cluster: {names}")))
        }
    }
}

/// A kubeconfig in a file of its own, for the time of a run.
struct Config {
    path: PathBuf,
}

impl Config {
    fn write(text: &str) -> Result<Self, Error> {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let unique = format!(
            "selvage-kubeconfig-{}-{}",
            std::process::id(),
            jiff::Timestamp::now().as_nanosecond()
        );
        let path = folder.join(unique);
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
        let config = Self { path: path.clone() };
        written.map_err(|source| Error::write(path, source))?;
        Ok(config)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // The certificate in it ends by itself.
        let _ = fs::remove_file(&self.path);
    }
}
