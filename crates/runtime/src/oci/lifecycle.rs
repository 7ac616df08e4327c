//! The life of a container from its making to its removal.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustix::{fs::FlockOperation, process::Signal};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Options,
    driver::{Driver, Streams},
    entry::Entry,
    overlay::{self, Stack},
    process::{exit_code, open_pid, send},
    record::{self, Phase, Process, Record, State},
    store::Store,
    strays, tidy, unpack,
};
use crate::{
    Container, ContainerSpec, Error, Event, EventKind, Exit, Image, Restarted, Result, cgroup,
    containerd::events::Hub, error::During, identity, image::Named, spec,
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// One that ran so long before it ended is started again without a pause.
const HEALTHY: Duration = Duration::from_secs(10);
/// What a killed process may take until the kernel lets go of it.
const DYING: Duration = Duration::from_secs(10);

type Key = (String, String);

pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) driver: Driver,
    pub(super) store: Store,
    pub(super) hub: Hub,
    entries: Mutex<BTreeMap<Key, Arc<Entry>>>,
    /// Held for reading while an image is used and for writing to remove one.
    images: tokio::sync::RwLock<()>,
    unified: bool,
    closed: CancellationToken,
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
        fs::create_dir_all(&options.root).during("making the directory of containers")?;
        let lock = lock(&options.root)?;
        fs::create_dir_all(&options.state).during("making the directory of the runtime")?;
        let unified = cgroup::Mounts::read().during("reading the mounts")?.is_unified();
        let driver = Driver::find(options.program.clone(), options.state.clone())?;
        let store = Store::open(&options.root)?;
        let inner = Arc::new(Self {
            driver,
            store,
            hub: Hub::new(),
            entries: Mutex::default(),
            images: tokio::sync::RwLock::default(),
            unified,
            closed: CancellationToken::new(),
            _lock: lock,
            options,
        });
        inner.find_again().await?;
        tokio::spawn(tidy::tidy_up(Arc::downgrade(&inner), inner.closed.clone()));
        Ok(inner)
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    fn home(&self) -> PathBuf {
        self.options.root.join("containers")
    }

    fn directory(&self, namespace: &str, id: &str) -> PathBuf {
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

    /// Where all logs are.
    pub(super) fn logs(&self) -> Vec<PathBuf> {
        self.entries.lock().values().map(|entry| entry.directory.join("log")).collect()
    }

    pub(super) fn namespaces(&self) -> Vec<String> {
        let entries = self.entries.lock();
        let names: BTreeSet<&String> = entries.keys().map(|(namespace, _)| namespace).collect();
        names.into_iter().cloned().collect()
    }

    fn tell(&self, entry: &Entry, kind: EventKind) {
        let (namespace, runtime_id) = (entry.namespace.clone(), entry.id().to_owned());
        self.hub.send(Event { namespace, runtime_id, kind });
    }

    /// Reads all records, and takes care again of what still runs.
    async fn find_again(self: &Arc<Self>) -> Result<()> {
        for directory in directories(&self.home())?.iter().map(|d| directories(d)) {
            for directory in directory? {
                if let Err(error) = self.find_one(&directory).await {
                    let directory = directory.display();
                    warn!(%directory, %error, "a container cannot be taken up again");
                }
            }
        }
        Ok(())
    }

    async fn find_one(self: &Arc<Self>, directory: &Path) -> Result<()> {
        let record_file = directory.join("record.json");
        if !record_file.exists() {
            // We died while it was made.
            overlay::unmount(directory);
            return unpack::remove_all(directory).during("removing half a container");
        }
        let namespace = directory.parent().and_then(Path::file_name).unwrap_or_default();
        let record: Record = record::read(&record_file)?;
        let state: State = record::read(&directory.join("state.json"))?;
        let entry = Entry::new(
            namespace.to_string_lossy().into_owned(),
            directory.to_owned(),
            record,
            state.clone(),
        );
        let key = (entry.namespace.clone(), entry.id().to_owned());
        self.entries.lock().insert(key, entry.clone());
        let running = state.process.filter(|_| state.phase == Phase::Running);
        let found = running.as_ref().filter(|process| process.is_there());
        if let Some(pidfd) = found.and_then(|process| open_pid(process.pid).ok()) {
            info!(namespace = entry.namespace, id = entry.id(), "a container still runs");
            self.watch_over(entry, Some(pidfd));
        } else if state.phase == Phase::Running || state.wanted {
            if state.phase == Phase::Running {
                self.has_ended(&entry, None).await;
            }
            self.watch_over(entry, None);
        }
        Ok(())
    }

    /// Unpacks an image and gives it its name.
    pub(super) async fn take(self: &Arc<Self>, namespace: &str, named: Named) -> Result<Image> {
        let _using = self.images.read().await;
        let (inner, namespace) = (self.clone(), namespace.to_owned());
        let name = named.name.clone();
        let told =
            Event { namespace: namespace.clone(), runtime_id: name, kind: EventKind::ImageChanged };
        let image = blocking(move || inner.store.take(&namespace, named)).await?;
        self.hub.send(told);
        Ok(image)
    }

    pub(super) async fn remove_image(self: &Arc<Self>, namespace: &str, name: &str) -> Result<()> {
        let _alone = self.images.write().await;
        let in_use: BTreeSet<String> = self
            .entries
            .lock()
            .values()
            .flat_map(|entry| entry.record.diff_ids.iter().cloned())
            .collect();
        let (inner, owned) = (self.clone(), (namespace.to_owned(), name.to_owned()));
        blocking(move || inner.store.remove(&owned.0, &owned.1, &in_use)).await?;
        self.hub.send(Event {
            namespace: namespace.to_owned(),
            runtime_id: name.to_owned(),
            kind: EventKind::ImageRemoved,
        });
        Ok(())
    }

    pub(super) async fn create(
        self: &Arc<Self>,
        namespace: &str,
        spec: ContainerSpec,
    ) -> Result<()> {
        let _using = self.images.read().await;
        let (inner, owned) = (self.clone(), namespace.to_owned());
        let entry = blocking(move || inner.make(&owned, spec)).await?;
        let key = (entry.namespace.clone(), entry.id().to_owned());
        self.entries.lock().insert(key, entry.clone());
        self.tell(&entry, EventKind::Created);
        Ok(())
    }

    fn make(&self, namespace: &str, spec: ContainerSpec) -> Result<Arc<Entry>> {
        let directory = self.directory(namespace, &spec.id);
        fs::create_dir_all(self.home().join(namespace)).during("making a container's directory")?;
        match fs::create_dir(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { id: spec.id });
            }
            made => made.during("making a container's directory")?,
        }
        let made = self.fill(namespace, &directory, spec);
        if made.is_err() {
            overlay::unmount(&directory);
            let _ = unpack::remove_all(&directory);
        }
        made
    }

    /// The record is written last: what has none is not a container.
    fn fill(&self, namespace: &str, directory: &Path, spec: ContainerSpec) -> Result<Arc<Entry>> {
        let image = self.store.resolve(namespace, &spec.image)?;
        let record = Record {
            diff_ids: image.document.rootfs.diff_ids.clone(),
            created: Timestamp::now().as_millisecond(),
            spec,
        };
        self.mount(directory, &record)?;
        let rootfs = directory.join("rootfs");
        let (passwd, group) = (
            overlay::read_inside(&rootfs, "etc/passwd"),
            overlay::read_inside(&rootfs, "etc/group"),
        );
        let config = &image.document.config;
        let place = spec::Place {
            rootfs: &rootfs,
            cgroup: &match &record.spec.group {
                Some(group) => format!("{group}/{}", record.spec.id),
                None => format!("{}/{namespace}/{}", self.options.cgroup, record.spec.id),
            },
            user: spec::user(&config.user, &passwd, &group)?,
            unified: self.unified,
        };
        let document = spec::document(&record.spec, config, &place)?;
        record::write(&directory.join("config.json"), &document)?;
        let state = State::default();
        record::write(&directory.join("state.json"), &state)?;
        record::write(&directory.join("record.json"), &record)?;
        Ok(Entry::new(namespace.to_owned(), directory.to_owned(), record, state))
    }

    fn mount(&self, directory: &Path, record: &Record) -> Result<()> {
        let layers = record.diff_ids.iter().rev().map(|id| self.store.layer(id)).collect();
        Stack { layers, directory }.mount()
    }

    pub(super) async fn start(self: &Arc<Self>, namespace: &str, id: &str) -> Result<u32> {
        let entry = self.entry(namespace, id)?;
        let step = entry.step.lock().await;
        if entry.phase() == Phase::Running {
            return Err(Error::state(format!("container {id:?} runs already")));
        }
        let (pid, pidfd) = self.run(&entry, false).await?;
        drop(step);
        self.watch_over(entry, Some(pidfd));
        Ok(pid)
    }

    /// Starts the process; the step is the caller's.
    async fn run(&self, entry: &Arc<Entry>, again: bool) -> Result<(u32, OwnedFd)> {
        if !entry.directory.join("record.json").exists() {
            return Err(Error::NotFound { id: entry.id().to_owned() });
        }
        self.mount(&entry.directory, &entry.record)?;
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .open(entry.directory.join("log"))
            .during("opening the log")?;
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
        let pid = self.driver.run(&name, &entry.directory, streams).await?;
        let (process, pidfd) = (Process::of_pid(pid)?, open_pid(pid)?);
        entry.update(|state| {
            state.phase = Phase::Running;
            state.process = Some(process);
            state.program = Some(self.driver.program().to_owned());
            state.wanted = true;
            state.restarts += u32::from(again);
            (state.exit_code, state.exited) = (None, None);
        })?;
        self.tell(entry, EventKind::Started { pid });
        Ok((pid, pidfd))
    }

    /// Follows a container to its end, and starts it again if that is wanted.
    fn watch_over(self: &Arc<Self>, entry: Arc<Entry>, pidfd: Option<OwnedFd>) {
        let (inner, closed) = (Arc::downgrade(self), self.closed.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = watch_over(inner, entry, pidfd) => {}
            }
        });
    }

    async fn has_ended(&self, entry: &Arc<Entry>, code: Option<i32>) {
        let (name, log) = (entry.runtime_name(), entry.directory.join("runtime.log"));
        if let Err(error) = entry.driver(&self.driver).delete(&name, &log).await {
            warn!(namespace = entry.namespace, id = entry.id(), %error, "cannot tidy up");
        }
        let written = entry.update(|state| {
            state.phase = Phase::Stopped;
            state.exit_code = code;
            state.exited = Some(Timestamp::now().as_millisecond());
        });
        if let Err(error) = written {
            warn!(namespace = entry.namespace, id = entry.id(), %error, "cannot note an end");
        }
        self.tell(entry, EventKind::Exited { code });
    }

    /// Starts one again that should run; none when somebody else has.
    async fn start_again(&self, entry: &Arc<Entry>) -> Result<Option<OwnedFd>> {
        let _step = entry.step.lock().await;
        if entry.phase() == Phase::Running || !entry.should_restart() {
            return Ok(None);
        }
        Ok(Some(self.run(entry, true).await?.1))
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

    /// TERM, then KILL; the step is the caller's.
    async fn end(&self, entry: &Arc<Entry>, grace: Duration) -> Result<Exit> {
        if entry.state.lock().wanted {
            entry.update(|state| state.wanted = false)?;
        }
        for (signal, patience) in [(Signal::TERM, grace), (Signal::KILL, DYING)] {
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
            if let Ok(exit) = timeout(patience, ended).await {
                return Ok(exit.unwrap_or(Exit { code: None, at: None }));
            }
        }
        Err(Error::Timeout { what: "killing the container", after: DYING })
    }

    pub(super) async fn restart(
        self: &Arc<Self>,
        namespace: &str,
        id: &str,
        grace: Duration,
    ) -> Result<Restarted> {
        let entry = self.entry(namespace, id)?;
        let step = entry.step.lock().await;
        let old_pid = entry.pid();
        self.end(&entry, grace).await?;
        let (pid, pidfd) = self.run(&entry, true).await?;
        drop(step);
        self.watch_over(entry, Some(pidfd));
        Ok(Restarted { old_pid, new_pid: Some(pid) })
    }

    pub(super) async fn delete(
        self: &Arc<Self>,
        namespace: &str,
        id: &str,
        force: bool,
    ) -> Result<()> {
        let entry = self.entry(namespace, id)?;
        let _step = entry.step.lock().await;
        if entry.phase() == Phase::Running && !force {
            return Err(Error::state(format!("container {id:?} runs: stop it first")));
        }
        self.end(&entry, Duration::ZERO).await?;
        let (name, log) = (entry.runtime_name(), entry.directory.join("runtime.log"));
        entry.driver(&self.driver).delete(&name, &log).await?;
        let directory = entry.directory.clone();
        blocking(move || {
            // Without its record it is not a container, however far we get.
            fs::remove_file(directory.join("record.json")).during("removing a record")?;
            overlay::unmount(&directory);
            unpack::remove_all(&directory).during("removing a container")
        })
        .await?;
        self.entries.lock().remove(&(namespace.to_owned(), id.to_owned()));
        self.tell(&entry, EventKind::Deleted);
        self.remove_empty_groups(namespace);
        Ok(())
    }

    /// A control group is only removed when nothing is in it.
    fn remove_empty_groups(&self, namespace: &str) {
        let Ok(mounts) = cgroup::Mounts::read() else { return };
        for path in [format!("{}/{namespace}", self.options.cgroup), self.options.cgroup.clone()] {
            for group in mounts.groups(&path) {
                let _ = fs::remove_dir(group);
            }
        }
    }
}

async fn watch_over(inner: Weak<Inner>, entry: Arc<Entry>, mut pidfd: Option<OwnedFd>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(pidfd) = pidfd.take() {
            let since = Instant::now();
            let code = exit_code(pidfd).await;
            let Some(inner) = inner.upgrade() else { return };
            inner.has_ended(&entry, code).await;
            if since.elapsed() >= HEALTHY {
                pause = FIRST_PAUSE;
            }
        }
        if !entry.should_restart() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let Some(inner) = inner.upgrade() else { return };
        match inner.start_again(&entry).await {
            Ok(Some(new)) => pidfd = Some(new),
            Ok(None) => return,
            Err(error) => {
                warn!(namespace = entry.namespace, id = entry.id(), %error, "cannot start it again");
            }
        }
    }
}

/// Takes away, again and again, what keeps a first process from ending.
async fn keep_reaping() -> std::convert::Infallible {
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        strays::reap_unborn();
        tokio::time::sleep(PAUSE).await;
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
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(Error::state(format!("{} is in use by another process", root.display())))
        }
        locked => locked.during("taking the lock").map(|()| file),
    }
}

fn directories(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.during("listing containers")?,
    };
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect())
}
