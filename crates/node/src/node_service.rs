//! `selvage.node.NodeService`: streams of changes, and the last hour.

use std::{collections::BTreeMap, hash::Hash, time::Duration};

use futures::stream::BoxStream;
use prost_types::Timestamp;
use selvage_api::{
    common::Metadata,
    os::{ProcessInfo, Stat},
    selvage::node::{
        CpuTime, Disk, Filesystem, GetHistoryRequest, GetHistoryResponse, GetHostRequest,
        GetHostResponse, History, Host, Interface, ProcessesUpdate, StatsUpdate, WatchHostRequest,
        WatchProcessesRequest, WatchStatsRequest,
        node_service_server::{NodeService, NodeServiceServer},
    },
};
use selvage_runtime::identity;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{
    history::{Point, WINDOW_MS},
    host::{CpuTicks, Filesystems, Snapshot},
    os_service::{Os, may_see_secrets, partial, status},
    rows,
    sampler::now_ms,
};

/// Minimum and default interval of updates.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum interval of updates.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// Maximum number of updates that wait for a slow client.
const QUEUE_LIMIT: usize = 4;

/// The machine over time, as the contract tells of it. Clones are the same.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) os: Os,
    pub(crate) filesystems: Filesystems,
}

type Updates<T> = BoxStream<'static, Result<T, Status>>;

impl Node {
    pub(crate) fn service(&self) -> NodeServiceServer<Self> {
        NodeServiceServer::new(self.clone())
    }

    async fn host(&self) -> Host {
        let filesystems = self.filesystems.look().await;
        let (sampled, cpu_percent) = self.os.sampler.host();
        // The last look may have been in brief.
        let fresh = self.os.sampler.with_host_reader(|reader| reader.snapshot());
        let mut host = describe(&fresh.unwrap_or(sampled));
        host.cpu_percent = cpu_percent;
        host.filesystems = filesystems
            .into_iter()
            .map(|of| Filesystem {
                device: of.mount.device,
                mounted_on: of.mount.mounted_on,
                kind: of.mount.kind,
                size_bytes: of.size,
                available_bytes: of.available,
                free_bytes: of.free,
            })
            .collect();
        host
    }

    async fn container_history(
        &self,
        request: &GetHistoryRequest,
        since: i64,
        step: i64,
    ) -> Result<Vec<Point>, Status> {
        let GetHistoryRequest { namespace, id, driver, .. } = request;
        let found = async {
            let runtime = self.os.runtimes.select(*driver, namespace)?;
            identity::find(runtime.list(namespace).await?, id)
        };
        let container = found.await.map_err(|error| status(&error))?;
        Ok(self.os.sampler.history(namespace, &container.runtime_id, since, step))
    }
}

#[tonic::async_trait]
impl NodeService for Node {
    type WatchStatsStream = Updates<StatsUpdate>;

    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let WatchStatsRequest { namespace, driver, period } = request.into_inner();
        let period = period_of(period)?;
        let os = self.os.clone();
        // Whoever asks for the wrong thing is told at once.
        rows::stats(&os.runtimes, &os.sampler, driver, &namespace)
            .await
            .map_err(|error| status(&error))?;
        let (updates, stream) = mpsc::channel(QUEUE_LIMIT);
        tokio::spawn(async move {
            let mut watching = os.sampler.watch();
            let mut feed = StatsFeed::new(os, driver, namespace);
            let mut pace = Pace::new(period);
            loop {
                let news = feed.next().await;
                let failed = news.is_err();
                let news = match news {
                    Ok(news) => news.into_iter().map(Ok).collect(),
                    Err(status) => vec![Err(status)],
                };
                for update in news {
                    if updates.send(update).await.is_err() {
                        return;
                    }
                }
                if failed || !pace.next(&mut watching, &updates).await {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    type WatchProcessesStream = Updates<ProcessesUpdate>;

    async fn watch_processes(
        &self,
        request: Request<WatchProcessesRequest>,
    ) -> Result<Response<Self::WatchProcessesStream>, Status> {
        let secrets = may_see_secrets(&request);
        let period = period_of(request.into_inner().period)?;
        let os = self.os.clone();
        let (updates, stream) = mpsc::channel(QUEUE_LIMIT);
        tokio::spawn(async move {
            let mut known = SentValues::default();
            let mut clock = tokio::time::interval(period);
            clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = clock.tick() => {}
                    () = updates.closed() => return,
                }
                let update = os.scan(secrets).await.map(|processes| {
                    let (changed, gone) = known.update(processes, |of: &ProcessInfo| of.pid);
                    ProcessesUpdate { metadata: None, time: Some(now()), changed, gone }
                });
                let failed = update.is_err();
                if updates.send(update).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    type WatchHostStream = Updates<Host>;

    async fn watch_host(
        &self,
        request: Request<WatchHostRequest>,
    ) -> Result<Response<Self::WatchHostStream>, Status> {
        let period = period_of(request.into_inner().period)?;
        let node = self.clone();
        let (updates, stream) = mpsc::channel(QUEUE_LIMIT);
        tokio::spawn(async move {
            let mut watching = node.os.sampler.watch();
            let mut pace = Pace::new(period);
            loop {
                let host = node.host().await;
                if updates.send(Ok(host)).await.is_err() {
                    return;
                }
                if !pace.next(&mut watching, &updates).await {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn get_host(
        &self,
        _: Request<GetHostRequest>,
    ) -> Result<Response<GetHostResponse>, Status> {
        Ok(Response::new(GetHostResponse { messages: vec![self.host().await] }))
    }

    async fn get_history(
        &self,
        request: Request<GetHistoryRequest>,
    ) -> Result<Response<GetHistoryResponse>, Status> {
        let request = request.into_inner();
        let window = duration("window", request.window)?.map_or(WINDOW_MS, millis);
        let step = duration("step", request.step)?.map_or(1000, millis);
        if step % 1000 != 0 {
            return Err(Status::invalid_argument("step: must be whole seconds"));
        }
        let since = now_ms().saturating_sub(window.min(WINDOW_MS));
        let points = match request.id.as_str() {
            "" => self.os.sampler.host_history(since, step),
            _ => self.container_history(&request, since, step).await?,
        };
        Ok(Response::new(GetHistoryResponse { messages: vec![series(&points)] }))
    }
}

/// Values that a client has seen, so that it is sent only what is new.
struct SentValues<K, V>(BTreeMap<K, V>);

impl<K, V> Default for SentValues<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone + Hash, V: PartialEq + Clone> SentValues<K, V> {
    /// Returns what is different from the last time, and the keys that are gone.
    fn update(&mut self, values: Vec<V>, key: impl Fn(&V) -> K) -> (Vec<V>, Vec<K>) {
        let mut before = std::mem::take(&mut self.0);
        let mut changed = Vec::new();
        for value in values {
            let key = key(&value);
            if before.remove(&key).as_ref() != Some(&value) {
                changed.push(value.clone());
            }
            self.0.insert(key, value);
        }
        (changed, before.into_keys().collect())
    }
}

/// Usage of containers, for one client.
struct StatsFeed {
    os: Os,
    driver: i32,
    namespace: String,
    known: SentValues<String, Stat>,
    failures: Vec<Metadata>,
}

impl StatsFeed {
    fn new(os: Os, driver: i32, namespace: String) -> Self {
        Self { os, driver, namespace, known: SentValues::default(), failures: Vec::new() }
    }

    /// An update, and a message of its own for each runtime that no longer
    /// tells of its containers.
    async fn next(&mut self) -> Result<Vec<StatsUpdate>, Status> {
        let Os { runtimes, sampler, .. } = &self.os;
        let found = rows::stats(runtimes, sampler, self.driver, &self.namespace)
            .await
            .map_err(|error| status(&error))?;
        let time = Some(now());
        let (changed, gone) = self.known.update(found.rows, |stat: &Stat| stat.id.clone());
        let mut news = vec![StatsUpdate { metadata: None, time, changed, gone }];
        let failures: Vec<Metadata> = found.failed.iter().filter_map(partial).collect();
        let new = failures.iter().filter(|failure| !self.failures.contains(failure));
        news.extend(new.map(|failure| {
            let metadata = Some(failure.clone());
            StatsUpdate { metadata, time, ..StatsUpdate::default() }
        }));
        self.failures = failures;
        Ok(news)
    }
}

/// Waits for looks of the sampler, as many as make up a period.
struct Pace {
    period: Duration,
    due: Instant,
}

impl Pace {
    fn new(period: Duration) -> Self {
        Self { period, due: Instant::now() + period }
    }

    /// False when the client is gone, or there will be no more looks.
    async fn next<T>(
        &mut self,
        watching: &mut crate::sampler::Watching,
        updates: &mpsc::Sender<T>,
    ) -> bool {
        loop {
            tokio::select! {
                looked = watching.next() => if !looked { return false },
                () = updates.closed() => return false,
            }
            // Looks are never exactly a second apart.
            let now = Instant::now();
            if now + DEFAULT_INTERVAL / 2 >= self.due {
                self.due = (self.due + self.period).max(now);
                return true;
            }
        }
    }
}

fn now() -> Timestamp {
    timestamp(now_ms())
}

fn timestamp(millis: i64) -> Timestamp {
    let nanos = millis.rem_euclid(1000) * 1_000_000;
    Timestamp { seconds: millis.div_euclid(1000), nanos: nanos as i32 }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn duration(field: &str, given: Option<prost_types::Duration>) -> Result<Option<Duration>, Status> {
    let wrong = || Status::invalid_argument(format!("{field}: must be at least one second"));
    match given {
        None => Ok(None),
        Some(given) => {
            let given = Duration::try_from(given).map_err(|_| wrong())?;
            if given < DEFAULT_INTERVAL { Err(wrong()) } else { Ok(Some(given)) }
        }
    }
}

fn period_of(given: Option<prost_types::Duration>) -> Result<Duration, Status> {
    let period = duration("period", given)?.unwrap_or(DEFAULT_INTERVAL);
    if period > MAX_INTERVAL {
        return Err(Status::invalid_argument("period: must be at most an hour"));
    }
    Ok(period)
}

fn series(points: &[Point]) -> History {
    let of = |value: fn(&Point) -> u64| points.iter().map(value).collect();
    History {
        metadata: None,
        times: points.iter().map(|point| point.time).collect(),
        cpu: of(|point| point.cpu_ns),
        memory: of(|point| point.memory),
        read_bytes: of(|point| point.read_bytes),
        written_bytes: of(|point| point.written_bytes),
        received_bytes: of(|point| point.received_bytes),
        sent_bytes: of(|point| point.sent_bytes),
    }
}

fn describe(snapshot: &Snapshot) -> Host {
    let Snapshot { stat, load, memory, disks, interfaces } = snapshot;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Host {
        metadata: None,
        time: Some(now()),
        name,
        started: Some(timestamp(i64::try_from(stat.started).unwrap_or(0) * 1000)),
        cpu: Some(cpu_time(&stat.total)),
        cpus: stat.cpus.iter().map(|(_, ticks)| cpu_time(ticks)).collect(),
        cpu_percent: 0.0,
        load1: load.one,
        load5: load.five,
        load15: load.fifteen,
        memory: Some(memory.clone()),
        disks: disks
            .iter()
            .map(|of| Disk {
                name: of.name.clone(),
                reads: of.reads,
                read_bytes: of.sectors_read * 512,
                writes: of.writes,
                written_bytes: of.sectors_written * 512,
                busy_seconds: of.busy_ms as f64 / 1000.0,
            })
            .collect(),
        interfaces: interfaces
            .iter()
            .map(|of| Interface {
                name: of.name.clone(),
                received_bytes: of.received.bytes,
                received_packets: of.received.packets,
                receive_errors: of.received.errors,
                receive_drops: of.received.drops,
                sent_bytes: of.sent.bytes,
                sent_packets: of.sent.packets,
                send_errors: of.sent.errors,
                send_drops: of.sent.drops,
            })
            .collect(),
        filesystems: Vec::new(),
        forks: stat.forks,
        running_processes: stat.running,
        blocked_processes: stat.blocked,
    }
}

fn cpu_time(ticks: &CpuTicks) -> CpuTime {
    let seconds = |ticks: u64| ticks as f64 / 100.0;
    CpuTime {
        user: seconds(ticks.user),
        nice: seconds(ticks.nice),
        system: seconds(ticks.system),
        idle: seconds(ticks.idle),
        iowait: seconds(ticks.iowait),
        irq: seconds(ticks.irq),
        softirq: seconds(ticks.softirq),
        steal: seconds(ticks.steal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_sent() {
        let mut known = SentValues::default();
        let key = |value: &(u32, &str)| value.0;
        assert_eq!(known.update(vec![(1, "a"), (2, "b")], key), (vec![(1, "a"), (2, "b")], vec![]));
        assert_eq!(known.update(vec![(1, "a"), (2, "c")], key), (vec![(2, "c")], vec![]));
        assert_eq!(known.update(vec![(2, "c")], key), (vec![], vec![1]));
        assert_eq!(known.update(vec![(1, "a"), (2, "c")], key), (vec![(1, "a")], vec![]));
    }

    #[test]
    fn periods_have_bounds() {
        let given = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
        assert_eq!(period_of(None).ok(), Some(DEFAULT_INTERVAL));
        assert_eq!(period_of(given(5, 0)).ok(), Some(Duration::from_secs(5)));
        for wrong in [given(0, 1), given(-1, 0), given(3601, 0), given(i64::MAX, 0)] {
            assert!(period_of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times_before_1970_are_times_too() {
        assert_eq!(timestamp(-1), Timestamp { seconds: -1, nanos: 999_000_000 });
    }
}
