//! The volume service: on loop files in the data directory, or with the
//! configuration file of the original, in whose place it then stands.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use selvage_kit::{
    serve::{Server, Services, Socket, Trust},
    tasks::{Signals, Tasks},
    telemetry::{self, Metrics},
};
use selvage_lvmd::{
    Lvmd, Settings,
    config::{
        BackendKind, Backup, Config as Volumes, DeviceClass, LoopFiles, LoopGroup, LoopPool,
        ThinPool,
    },
};
use tokio_util::sync::CancellationToken;

use crate::{
    args::Serve,
    assemble,
    config::{self, Config},
    process, ready, up,
};

/// The volume group of those who configure nothing.
const GROUP: &str = "selvage";
/// Its thin pool, and the class of its volumes.
const THIN: &str = "thin";
/// Thin volumes may hold together so many times what their pool holds.
const OVERPROVISION: f64 = 4.0;

/// Opens the volume service as one part of a process.
pub(crate) async fn open(config: &Config) -> anyhow::Result<Lvmd> {
    let settings = match &config.lvmd.config {
        Some(path) => from_file(path)?,
        None => Settings { config: embedded(config), path: None },
    };
    Lvmd::open(settings).await.context("volumes")
}

fn from_file(path: &Path) -> anyhow::Result<Settings> {
    let config = Volumes::load(path).with_context(|| "configuration of volumes".to_owned())?;
    Ok(Settings { config, path: Some(path.to_owned()) })
}

/// Loop files in the data directory: a class of thick volumes and one of thin
/// ones.
fn embedded(config: &Config) -> Volumes {
    let class = |name: &str| DeviceClass {
        name: name.into(),
        volume_group: GROUP.into(),
        spare_gb: Some(0),
        ..DeviceClass::default()
    };
    let thin = ThinPool { name: THIN.into(), overprovision_ratio: OVERPROVISION };
    let group = LoopGroup {
        name: GROUP.into(),
        size_gb: config.lvmd.size_gb,
        thin_pools: vec![LoopPool { name: THIN.into(), size_gb: 0 }],
        preallocate: None,
    };
    Volumes {
        backend: Some(BackendKind::Loop),
        loop_files: LoopFiles { directory: config.data.join("volumes"), groups: vec![group] },
        device_classes: vec![
            DeviceClass { default: true, ..class("thick") },
            DeviceClass { r#type: THIN.into(), thin_pool: Some(thin), ..class(THIN) },
        ],
        backup: Some(Backup {
            workdir: config.data.join("lvmd"),
            directory: Some(config.data.join("backups")),
            ..Backup::default()
        }),
        ..Volumes::default()
    }
}

/// Whether a command line means the original's configuration file.
pub(crate) fn is_stock(serve: &Serve) -> bool {
    let end = serve.config.as_deref().and_then(Path::extension);
    end.is_some_and(|end| end == "yaml" || end == "yml")
}

/// Runs in the place of the original: its file, its socket, nothing else.
pub(crate) async fn run_stock(serve: &Serve) -> ExitCode {
    let path = serve.config.clone().unwrap_or_default();
    let ours = Serve { config: None, ..serve.clone() };
    let config = match up::begin(&ours, config::load(&ours)) {
        Ok(config) => config,
        Err(code) => return code,
    };
    match Box::pin(stock(&config, serve, &path)).await {
        Ok(code) => code,
        Err(error) => up::fail(&error),
    }
}

async fn stock(config: &Config, serve: &Serve, path: &Path) -> anyhow::Result<ExitCode> {
    let settings = from_file(path)?;
    let socket_path = settings.config.socket_name.clone();
    let mode = settings.config.mode().map_err(anyhow::Error::msg)?;
    let mut signals = Signals::install().context("signals")?;
    let tasks = Tasks::new(CancellationToken::new());
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    telemetry::install_panic_hook(&metrics);
    metrics.watch_tasks(&tasks);
    let lvmd = Lvmd::open(settings).await.context("volumes")?;
    let mut services = Services::default();
    lvmd.add_to(&mut services);
    let server =
        Server::new(services, metrics, assemble::limits(config)).await.context("server")?;
    let server = server.ready(lvmd.readiness());
    let socket = bind(&socket_path, mode).await?;
    process::serve_on(&tasks, "lvmd socket", &server, socket, Trust::Socket);
    lvmd.spawn(&tasks);
    ready::socket_answers(&socket_path).await?;
    tracing::info!(socket = %socket_path.display(), "volumes are served");
    if let Some(file) = &serve.ready_file {
        let told = serde_json::json!({ "sockets": { "lvmd": socket_path } });
        ready::replace(file, format!("{told}\n").as_bytes(), 0o644).context("ready file")?;
    }
    process::until_told(&mut signals, &tasks, None).await;
    if let Some(file) = &serve.ready_file {
        let _ = fs::remove_file(file);
    }
    process::wind_down(&mut signals, &tasks, config.listen.drain.0).await
}

/// Binds the socket, with permissions that do not depend on who starts us.
async fn bind(path: &PathBuf, mode: u32) -> anyhow::Result<Socket> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let failed = || format!("cannot listen on {}", path.display());
    let socket = Socket::unix(path).await.with_context(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(failed)?;
    Ok(socket)
}
