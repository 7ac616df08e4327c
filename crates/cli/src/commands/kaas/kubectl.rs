//! kubectl with a fresh kubeconfig.

use std::{fs, os::unix::fs::OpenOptionsExt, path::PathBuf, process::Stdio};

use selvage_api::cnct::kaas::api::GetClusterListMsg;

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
    let status = tokio::process::Command::new(&program)
        .args(&args.arguments)
        .env("KUBECONFIG", &config.path)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .status()
        .await
        .map_err(|source| Error::File { action: "run", path: PathBuf::from(&program), source })?;
    drop(config);
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Error::Exited(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
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
