//! Lifecycle of containers: which there are, and how they start and end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Options,
    compiled::Compiled,
    disk::{self, Disks},
    driver::{Driver, OutputTail, Streams},
    entry::Entry,
    making::discard,
    process::{open_pid, send},
    record::{self, Phase, Process, Record, State},
    step::Stage,
    store::Store,
    tidy::{self, LogWatch},
    watch::keep_reaping,
};
use crate::{
    Container, Error, Event, EventKind, Exit, RestartPolicy, Restarted, Result, cgroup,
    containerd::events::Hub, error::During, identity, private_directory, seccomp,
};

/// Time a killed process may take until the kernel lets go of it.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time a restart may take beside the container's own end until whoever asked
/// hears that it takes long,
const STARTING_AGAIN: Duration = Duration::from_secs(15);
/// and what it may take in any case: clients wait 30 s.
const RESTARTING: Duration = Duration::from_secs(27);

type Key = (String, String);

pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) driver: Driver,
    pub(super) store: Store,
    pub(super) disks: Disks,
    pub(super) hub: Hub,
    pub(super) entries: Mutex<BTreeMap<Key, Arc<Entry>>>,
    /// Held for reading while an image is used and for writing to remove one.
    pub(super) images: tokio::sync::RwLock<()>,
    pub(super) unified: bool,
    /// Why containers cannot have users of their own, once that was tried.
    pub(super) no_own_users: OnceLock<Option<String>>,
    pub(super) seccomp: Option<&'static Value>,
    pub(super) compiled: Compiled,
    pub(super) log_watch: LogWatch,
    pub(super) closed: CancellationToken,
    _lock: File,
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::state(error.to_string()))?
}

impl Inner {
    pub(super) async fn open(options: Options) -> Result<Arc<Self>> {
        // What our helpers leave behind becomes our child, and tells us how
        // it ended.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .during("becoming the reaper of containers")?;
        private_directory(&options.root).during("making the directory of containers")?;
        let root = options.root.clone();
        let lock = blocking(move || lock(&root)).await?;
        private_directory(&options.state).during("making the directory of the runtime")?;
        let unified = cgroup::Mounts::read().during("reading the mounts")?.is_unified();
        let driver = Driver::find(options.program.clone(), options.state.clone())?;
        let seccomp = seccomp::profile_of(Some(driver.program())).await;
        let (store, disks) =
            (Store::open(&options.root, options.image_limit)?, Disks::open(&options.root)?);
        let inner = Arc::new(Self {
            driver,
            store,
            disks,
            hub: Hub::new(),
            entries: Mutex::default(),
            images: tokio::sync::RwLock::default(),
            unified,
            no_own_users: OnceLock::new(),
            seccomp,
            compiled: Compiled::default(),
            log_watch: LogWatch::open(),
            closed: CancellationToken::new(),
            _lock: lock,
            options,
        });
        inner.find_again().await?;
        tokio::spawn(tidy::tidy_up(Arc::downgrade(&inner), inner.closed.clone()));
        tokio::spawn(tidy::bound_logs(Arc::downgrade(&inner), inner.closed.clone()));
        Ok(inner)
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    pub(super) fn home(&self) -> PathBuf {
        self.options.root.join("containers")
    }

    pub(super) fn directory(&self, namespace: &str, id: &str) -> PathBuf {
        self.home().join(namespace).join(id)
    }

    pub(super) fn log_path(&self, namespace: &str, id: &str) -> PathBuf {
        self.directory(namespace, id).join("log")
    }

    pub(super) fn entry(&self, namespace: &str, id: &str) -> Result<Arc<Entry>> {
        let key = (namespace.to_owned(), id.to_owned());
        let entries = self.entries.lock();
        entries.get(&key).cloned().ok_or_else(|| Error::NotFound { id: id.to_owned() })
    }

    pub(super) fn list(&self, namespace: &str) -> Vec<Container> {
        let entries = self.entries.lock();
        let ours = entries.values().filter(|entry| entry.namespace == namespace);
        let mut containers: Vec<Container> = ours.map(|entry| entry.describe()).collect();
        identity::sort(&mut containers);
        containers
    }

    /// Bytes that are taken on the disk of a container; none if it has none.
    pub(super) fn disk(&self, namespace: &str, id: &str) -> Result<Option<u64>> {
        let entry = self.entry(namespace, id)?;
        if entry.record.limited { disk::used(&entry.directory) } else { Ok(None) }
    }

    /// Paths of all logs.
    pub(super) fn logs(&self) -> Vec<PathBuf> {
        self.entries.lock().values().map(|entry| entry.directory.join("log")).collect()
    }

    pub(super) fn namespaces(&self) -> Vec<String> {
        let entries = self.entries.lock();
        let names: BTreeSet<&String> = entries.keys().map(|(namespace, _)| namespace).collect();
        names.into_iter().cloned().collect()
    }

    pub(super) fn tell(&self, entry: &Entry, kind: EventKind) {
        let (namespace, runtime_id) = (entry.namespace.clone(), entry.id().to_owned());
        self.hub.send(Event { namespace, runtime_id, kind });
    }

    /// Reads all records, and takes care again of what still runs.
    async fn find_again(self: &Arc<Self>) -> Result<()> {
        for directory in self.containers()? {
            if let Err(error) = self.find_one(&directory).await {
                let directory = directory.display();
                warn!(%directory, %error, "a container cannot be taken up again");
            }
        }
        let (inner, in_use) = (Arc::clone(self), self.layers_in_use());
        blocking(move || inner.store.discard_unsettled(&in_use)).await?;
        self.remove_orphans().await
    }

    /// Layers of all containers that are known.
    fn layers_in_use(&self) -> BTreeSet<PathBuf> {
        let entries = self.entries.lock();
        entries.values().flat_map(|entry| self.store.layers_of(&entry.record.diff_ids)).collect()
    }

    /// Ends containers that the program knows and we have no directory of any
    /// more: somebody removed it while they ran.
    async fn remove_orphans(&self) -> Result<()> {
        for state in directories(&self.options.state)? {
            let name = state.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some((namespace, id)) = name.split_once('+') else { continue };
            if self.directory(namespace, id).exists() {
                continue;
            }
            let log = self.options.state.join("orphan.log");
            match self.driver.delete(&name, &log).await {
                Ok(()) => info!(namespace, id, "ended a container whose record is gone"),
                Err(error) => warn!(namespace, id, %error, "a container without record is left"),
            }
            let _ = fs::remove_file(log);
        }
        Ok(())
    }

    /// The directories of all containers.
    pub(super) fn containers(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for namespace in directories(&self.home())? {
            found.extend(directories(&namespace)?);
        }
        Ok(found)
    }

    async fn find_one(self: &Arc<Self>, directory: &Path) -> Result<()> {
        let record_file = directory.join("record.json");
        if !record_file.exists() {
            // We died while it was made.
            return discard(directory);
        }
        let namespace = directory.parent().and_then(Path::file_name).unwrap_or_default();
        let namespace = namespace.to_string_lossy().into_owned();
        let record: Record = match record::read(&record_file) {
            Err(error @ Error::Damaged { .. }) => {
                warn!(%error, "a container whose record is damaged is removed");
                self.end_unknown(directory, &namespace).await;
                return discard(directory);
            }
            read => read?,
        };
        let state: State = match record::read(&directory.join("state.json")) {
            Err(error @ Error::Damaged { .. }) => {
                warn!(%error, "the state of a container is damaged: it is started anew");
                self.end_unknown(directory, &namespace).await;
                let wanted = record.spec.restart != RestartPolicy::Never;
                State { phase: Phase::Stopped, wanted, ..State::default() }
            }
            read => read?,
        };
        let entry = Entry::new(namespace, directory.to_owned(), record, state.clone());
        let key = (entry.namespace.clone(), entry.id().to_owned());
        self.entries.lock().insert(key, entry.clone());
        let running = state.process.filter(|_| state.phase == Phase::Running);
        let found = running.as_ref().filter(|process| process.is_there());
        if let Some(pidfd) = found.and_then(|process| open_pid(process.pid).ok()) {
            info!(namespace = entry.namespace, id = entry.id(), "a container still runs");
            self.log_watch.add(&entry.directory.join("log"));
            self.watch_over(entry, Some(pidfd));
        } else if state.phase == Phase::Running || state.wanted {
            if state.phase == Phase::Running {
                self.has_ended(&entry, None).await;
            }
            if self.options.supervise {
                self.watch_over(entry, None);
            }
        }
        Ok(())
    }

    /// Ends what may run of a container of which nothing is known but its name.
    async fn end_unknown(&self, directory: &Path, namespace: &str) {
        let id = directory.file_name().unwrap_or_default().to_string_lossy();
        let log = directory.join("runtime.log");
        if let Err(error) = self.driver.delete(&format!("{namespace}+{id}"), &log).await {
            warn!(namespace, %id, %error, "a container may be left");
        }
    }

    pub(super) async fn start(self: &Arc<Self>, namespace: &str, id: &str) -> Result<u32> {
        let entry = self.entry(namespace, id)?;
        let step = entry.step.lock().await;
        if entry.phase() == Phase::Running {
            return Err(Error::state(format!("container {id:?} runs already")));
        }
        let run = self.run(&entry, false).await;
        entry.has_problem(run.as_ref().err());
        let (pid, pidfd) = run?;
        drop(step);
        self.watch_over(entry, Some(pidfd));
        Ok(pid)
    }

    /// Starts the process; the step is the caller's.
    pub(super) async fn run(&self, entry: &Arc<Entry>, again: bool) -> Result<(u32, OwnedFd)> {
        if !entry.directory.join("record.json").exists() {
            return Err(Error::NotFound { id: entry.id().to_owned() });
        }
        let stack = self.stack(&entry.directory, &entry.record);
        if !stack.is_mounted() {
            blocking(move || stack.mount()).await?;
        }
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .open(entry.directory.join("log"))
            .during("opening the log")?;
        if let Some(first) = entry.record.users {
            // Programs open what they write to by its name in /proc, too.
            std::os::unix::fs::fchown(&log, Some(first), Some(first)).during("opening the log")?;
        }
        self.log_watch.add(&entry.directory.join("log"));
        let words = OutputTail::from_now(&entry.directory.join("log"));
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: log.try_clone().during("opening the log")?.into(),
            stderr: log.into(),
        };
        let name = entry.runtime_name();
        if self.options.state.join(&name).exists() {
            let log = entry.directory.join("runtime.log");
            entry.driver(&self.driver).delete(&name, &log).await?;
        }
        let record = &entry.record;
        let stage = record.users.map(|first| Stage::of(&record.spec, first, &entry.directory));
        let pid = self.driver.run(&name, &entry.directory, streams, &words, stage).await?;
        if self.seccomp.is_some() {
            self.compiled.learn(&self.options.state.join(&name));
        }
        let (process, pidfd) = (Process::of_pid(pid)?, open_pid(pid)?);
        entry.update(|state| {
            state.phase = Phase::Running;
            state.process = Some(process);
            state.program = Some(self.driver.program().to_owned());
            (state.wanted, state.restarting) = (true, false);
            state.restarts += u32::from(again);
        })?;
        self.tell(entry, EventKind::Started { pid });
        Ok((pid, pidfd))
    }

    pub(super) fn signal(&self, namespace: &str, id: &str, signal: i32) -> Result<()> {
        let signal = Signal::from_named_raw(signal)
            .ok_or_else(|| Error::invalid("signal", "must be from 1 to 31"))?;
        let entry = self.entry(namespace, id)?;
        let state = entry.state.lock();
        let process = state.process.as_ref().filter(|_| state.phase == Phase::Running);
        send(process.ok_or(Error::ProcessFinished)?, signal)
    }

    pub(super) async fn stop(&self, namespace: &str, id: &str, grace: Duration) -> Result<Exit> {
        let entry = self.entry(namespace, id)?;
        let _step = entry.step.lock().await;
        self.end(&entry, grace).await
    }

    /// Ends one that nobody wants to run; the step is the caller's.
    pub(super) async fn end(&self, entry: &Arc<Entry>, grace: Duration) -> Result<Exit> {
        if entry.state.lock().wanted {
            entry.update(|state| (state.wanted, state.restarting) = (false, false))?;
        }
        self.interrupt(entry, grace).await
    }

    /// TERM, then KILL; the step is the caller's.
    async fn interrupt(&self, entry: &Arc<Entry>, grace: Duration) -> Result<Exit> {
        for (signal, timeout) in [(Signal::TERM, grace), (Signal::KILL, KILL_TIMEOUT)] {
            let process = entry.state.lock().process.clone();
            if entry.phase() == Phase::Running
                && let Some(process) = process
            {
                match send(&process, signal) {
                    Ok(()) | Err(Error::ProcessFinished) => {}
                    Err(error) => return Err(error),
                }
            }
            let ended = async {
                tokio::select! {
                    exit = entry.ended() => exit,
                    never = keep_reaping() => match never {},
                }
            };
            if let Ok(exit) = tokio::time::timeout(timeout, ended).await {
                return Ok(exit.unwrap_or_default());
            }
        }
        Err(Error::Timeout { what: "killing the container", after: KILL_TIMEOUT })
    }

    pub(super) async fn restart(
        self: &Arc<Self>,
        namespace: &str,
        id: &str,
        grace: Duration,
    ) -> Result<Restarted> {
        let entry = self.entry(namespace, id)?;
        let inner = self.clone();
        // It goes on when whoever asked has gone, or has heard enough.
        let restarting = tokio::spawn(async move { inner.restart_entry(entry, grace).await });
        let after = grace.saturating_add(STARTING_AGAIN).max(RESTARTING);
        match timeout(after, restarting).await {
            Ok(ended) => ended.map_err(|error| Error::state(error.to_string()))?,
            Err(_) => Err(Error::Timeout { what: "the runtime", after }),
        }
    }

    /// One that runs is wanted all the while: whatever fails here, whoever
    /// watches over it starts it, and so does the next of us.
    async fn restart_entry(
        self: Arc<Self>,
        entry: Arc<Entry>,
        grace: Duration,
    ) -> Result<Restarted> {
        let step = entry.step.lock().await;
        let old_pid = entry.pid();
        if old_pid.is_some() {
            entry.update(|state| (state.wanted, state.restarting) = (true, true))?;
        }
        self.interrupt(&entry, grace).await?;
        let run = self.run(&entry, true).await;
        entry.has_problem(run.as_ref().err());
        let (pid, pidfd) = run?;
        drop(step);
        self.watch_over(entry, Some(pidfd));
        Ok(Restarted { old_pid, new_pid: Some(pid) })
    }
}

/// Only one of us may look after a directory of containers.
fn lock(root: &Path) -> Result<File> {
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(root.join("lock"))
        .during("opening the lock")?;
    match selvage_lock::take(&file) {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::state(format!("{} is in use by another process", root.display())))
        }
        Err(TryLockError::Error(error)) => Err(error).during("taking the lock"),
    }
}

fn directories(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.during("listing containers")?,
    };
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect())
}
