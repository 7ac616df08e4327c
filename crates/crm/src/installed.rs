//! Clusters and instances that the crm has made, or was making when it died: on
//! disk, one row for each cluster and instance.

use std::{path::Path, sync::Arc};

use base64::prelude::{BASE64_STANDARD as BASE64, Engine};
use parking_lot::Mutex;
use prost::Message;
use selvage_api::edgeproto::App;
use selvage_edge::ObjectKind;
use selvage_notify::ObjectKey;
use selvage_store::{
    KeyRange, SharedStore, StoreExt,
    embedded::{Embedded, Options},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{
    Error, Result,
    platform::{ClusterFacts, InstanceFacts},
};

const ROOT: &str = "/made/";
/// A crm has little to remember; its memory is for others.
const CACHE: usize = 1 << 20;

/// Progress of something that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Some of it may be there.
    Making,
    /// All of it is.
    Made,
    /// All of it is, as it was or as it is to be.
    Updating,
    /// Some of it may be gone.
    Removing,
}

impl Phase {
    /// Returns whether all of it is there.
    pub(crate) fn is_whole(self) -> bool {
        matches!(self, Self::Made | Self::Updating)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Facts {
    Cluster(ClusterFacts),
    Instance(InstanceFacts),
}

impl Facts {
    pub(crate) fn cluster(self) -> Option<ClusterFacts> {
        match self {
            Self::Cluster(facts) => Some(facts),
            Self::Instance(_) => None,
        }
    }

    pub(crate) fn instance(self) -> Option<InstanceFacts> {
        match self {
            Self::Instance(facts) => Some(facts),
            Self::Cluster(_) => None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The key on the wire.
    pub(crate) key: Vec<u8>,
    pub(crate) phase: Phase,
    pub(crate) facts: Facts,
    /// App that an instance was made of, on the wire, in base64. Empty for
    /// clusters, and for instances that an earlier version made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) app: String,
}

impl Row {
    pub(crate) fn new(key: &ObjectKey, phase: Phase, facts: Facts) -> Self {
        Self { key: key.wire().to_vec(), phase, facts, app: String::new() }
    }

    /// The same for an instance that is made of an App.
    pub(crate) fn made_of(self, app: &App) -> Self {
        Self { app: BASE64.encode(app.encode_to_vec()), ..self }
    }

    /// App that the instance was made of.
    pub(crate) fn app(&self) -> Option<App> {
        let bytes = BASE64.decode(&self.app).ok().filter(|bytes| !bytes.is_empty())?;
        App::decode(bytes.as_slice()).ok()
    }
}

/// All rows, in memory as on disk.
pub(crate) struct Installed {
    store: SharedStore,
    rows: Mutex<BTreeMap<(ObjectKind, String), Row>>,
    /// Held from looking what is taken to having written down what is.
    planning: tokio::sync::Mutex<()>,
}

/// Opens the crm's file.
pub(crate) async fn open_store(path: &Path) -> Result<SharedStore> {
    let options = Options { cache_bytes: CACHE, ..Options::default() };
    Ok(Embedded::open(path, options).await?)
}

impl Installed {
    pub(crate) async fn open(store: SharedStore) -> Result<Arc<Self>> {
        let mut rows = BTreeMap::new();
        for item in store.list(ROOT).await?.items {
            let row: Row = serde_json::from_slice(&item.value).map_err(|error| {
                Error::state(format!("records of what this crm has made are damaged: {error}"))
            })?;
            let name = String::from_utf8_lossy(&item.key).into_owned();
            rows.insert(parse(&name)?, row);
        }
        Ok(Arc::new(Self {
            store,
            rows: Mutex::new(rows),
            planning: tokio::sync::Mutex::default(),
        }))
    }

    pub(crate) fn get(&self, kind: ObjectKind, key: &str) -> Option<Row> {
        self.rows.lock().get(&(kind, key.to_owned())).cloned()
    }

    /// Facts of a cluster that is made.
    pub(crate) fn cluster(&self, key: &str) -> Option<ClusterFacts> {
        let row = self.get(ObjectKind::Cluster, key)?;
        if row.phase.is_whole() { row.facts.cluster() } else { None }
    }

    /// Facts of an instance that is made.
    pub(crate) fn instance(&self, key: &str) -> Option<InstanceFacts> {
        let row = self.get(ObjectKind::Instance, key)?;
        if row.phase.is_whole() { row.facts.instance() } else { None }
    }

    /// All rows of a kind.
    pub(crate) fn all(&self, kind: ObjectKind) -> Vec<(String, Row)> {
        let rows = self.rows.lock();
        let ours = rows.iter().filter(|((of, _), _)| *of == kind);
        ours.map(|((_, key), row)| (key.clone(), row.clone())).collect()
    }

    /// Plans something new beside what there is, and writes it down before
    /// anything is made of it. One that was begun keeps its plan.
    pub(crate) async fn begin(
        &self,
        kind: ObjectKind,
        key: &ObjectKey,
        plan: impl FnOnce(Vec<(String, Facts)>) -> Result<Facts>,
    ) -> Result<Facts> {
        let _alone = self.planning.lock().await;
        if let Some(row) = self.get(kind, key.text()) {
            return Ok(row.facts);
        }
        let others = self.all(kind).into_iter().map(|(key, row)| (key, row.facts)).collect();
        let facts = plan(others)?;
        let row = Row::new(key, Phase::Making, facts.clone());
        self.put(kind, key.text(), row).await?;
        Ok(facts)
    }

    /// Notes how far something is that was begun.
    pub(crate) async fn note(&self, kind: ObjectKind, key: &str, phase: Phase) -> Result<()> {
        match self.get(kind, key) {
            Some(row) if row.phase != phase => self.put(kind, key, Row { phase, ..row }).await,
            _ => Ok(()),
        }
    }

    pub(crate) async fn put(&self, kind: ObjectKind, key: &str, row: Row) -> Result<()> {
        let value = serde_json::to_vec(&row)
            .map_err(|error| Error::state(format!("cannot be written down: {error}")))?;
        self.store.put(name(kind, key), value).await?;
        self.rows.lock().insert((kind, key.to_owned()), row);
        Ok(())
    }

    pub(crate) async fn remove(&self, kind: ObjectKind, key: &str) -> Result<()> {
        self.store.delete(KeyRange::key(name(kind, key))).await?;
        self.rows.lock().remove(&(kind, key.to_owned()));
        Ok(())
    }
}

fn name(kind: ObjectKind, key: &str) -> String {
    let kind = match kind {
        ObjectKind::Cluster => "cluster",
        ObjectKind::Instance => "instance",
    };
    format!("{ROOT}{kind}/{key}")
}

fn parse(name: &str) -> Result<(ObjectKind, String)> {
    let rest = name.strip_prefix(ROOT).unwrap_or_default();
    match rest.split_once('/') {
        Some(("cluster", key)) => Ok((ObjectKind::Cluster, key.to_owned())),
        Some(("instance", key)) => Ok((ObjectKind::Instance, key.to_owned())),
        _ => Err(Error::state(format!(
            "records of what this crm has made are damaged: row {name:?}"
        ))),
    }
}
