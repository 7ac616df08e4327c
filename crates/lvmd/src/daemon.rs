//! The volume service as a part of a daemon: on loop files in the data
//! directory, or with the configuration file of the original; in a process
//! without a port, in the original's place.

use std::{fs, path::Path, sync::Arc};

use anyhow::Context as _;
use async_trait::async_trait;
use selvage_kit::tasks::Tasks;
use selvage_part::{Context, Mount, OpenPart, Part, Result};

use crate::{
    Lvmd, Options, Settings,
    config::{BackendKind, Backup, Config, DeviceClass, LoopFiles, LoopGroup, LoopPool, ThinPool},
};

/// The volume group of those who configure nothing.
const GROUP: &str = "selvage";
/// Its thin pool, and the class of its volumes.
const THIN: &str = "thin";
/// Thin volumes may hold together so many times what their pool holds.
const OVERPROVISION: f64 = 4.0;

/// The part `lvmd`.
pub struct LvmdPart;

#[async_trait]
impl Part for LvmdPart {
    const NAME: &'static str = "lvmd";
    type Options = Options;

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        let settings = match &options.config {
            Some(path) => from_file(path)?,
            None => Settings { config: embedded(&context.data, options.size_gb), path: None },
        };
        if context.address.is_some() {
            context.bind(Self::NAME).await?;
        } else {
            bind_configured(context, &settings.config).await?;
        }
        let lvmd = Lvmd::open(settings).await.context("volumes")?;
        let decides_readiness = context.process.runs_only(Self::NAME);
        Ok(Some(Box::new(Opened { lvmd, decides_readiness })))
    }
}

struct Opened {
    lvmd: Lvmd,
    /// Without volumes a process that has nothing else is of no use.
    decides_readiness: bool,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, mount: &mut Mount) {
        self.lvmd.add_to(mount.services());
        self.lvmd.register(mount.metrics());
        if let Some(engine) = self.lvmd.engine() {
            mount.operations(engine);
        }
        if self.decides_readiness {
            mount.ready(self.lvmd.readiness());
        }
    }

    async fn spawn(self: Box<Self>, tasks: &Tasks) -> Result<()> {
        self.lvmd.spawn(tasks);
        Ok(())
    }
}

/// Binds the socket that the original's clients know.
async fn bind_configured(context: &Context, config: &Config) -> Result<()> {
    let path = &config.socket_name;
    let mode = config.mode().map_err(anyhow::Error::msg)?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    context.bind_at(LvmdPart::NAME, path, mode).await
}

fn from_file(path: &Path) -> Result<Settings> {
    let config = Config::load(path).context("configuration of volumes")?;
    Ok(Settings { config, path: Some(path.to_owned()) })
}

/// Loop files in the data directory: a class of thick volumes and one of thin
/// ones.
fn embedded(data: &Path, size_gb: u64) -> Config {
    let class = |name: &str| DeviceClass {
        name: name.into(),
        volume_group: GROUP.into(),
        spare_gb: Some(0),
        ..DeviceClass::default()
    };
    let thin = ThinPool { name: THIN.into(), overprovision_ratio: OVERPROVISION };
    let group = LoopGroup {
        name: GROUP.into(),
        size_gb,
        thin_pools: vec![LoopPool { name: THIN.into(), size_gb: 0 }],
        preallocate: None,
    };
    Config {
        backend: Some(BackendKind::Loop),
        loop_files: LoopFiles {
            directory: data.join("volumes"),
            groups: vec![group],
            ..LoopFiles::default()
        },
        device_classes: vec![
            DeviceClass { default: true, ..class("thick") },
            DeviceClass { r#type: THIN.into(), thin_pool: Some(thin), ..class(THIN) },
        ],
        backup: Some(Backup {
            workdir: data.join("lvmd"),
            directory: Some(data.join("backups")),
            ..Backup::default()
        }),
        ..Config::default()
    }
}
