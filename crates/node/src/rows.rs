//! Containers and what they use, as the contract tells of them.

use std::io;

use selvage_api::os::{ContainerInfo, Stat};
use selvage_runtime::{
    Container, Error, Kind, Result,
    select::{CONTAINERD, CRI, Runtimes},
};

use crate::sampler::{Measured, Sampler, measure_once};

/// Stands for every namespace that has containers.
const EVERY: &str = "*";

/// Rows that were found, and errors that kept the rest from being found.
#[derive(Debug)]
pub(crate) struct RowsAndErrors<T> {
    pub(crate) rows: Vec<T>,
    /// Errors. In a request for one namespace, only those of measuring: a
    /// caller who asks for one namespace gets its containers or an error.
    pub(crate) failed: Vec<Error>,
}

impl<T> RowsAndErrors<T> {
    fn of(failed: Vec<Error>) -> Self {
        Self { rows: Vec::new(), failed }
    }

    /// Adds the rows of one namespace among all.
    fn add(&mut self, found: Result<Self>) {
        match found {
            Ok(found) => {
                self.rows.extend(found.rows);
                found.failed.into_iter().for_each(|error| keep(&mut self.failed, error));
            }
            Err(error) => keep(&mut self.failed, error),
        }
    }
}

/// Keeps a failure, once however often it shows.
fn keep(failed: &mut Vec<Error>, error: Error) {
    if !failed.iter().any(|known| known.to_string() == error.to_string()) {
        failed.push(error);
    }
}

fn is_every(driver: i32, namespace: &str) -> bool {
    driver == CONTAINERD && namespace == EVERY
}

/// Every namespace that has containers, and why some runtimes did not tell.
async fn namespaces(runtimes: &Runtimes) -> Result<(Vec<String>, Vec<Error>)> {
    let (mut names, mut failed) = (Vec::new(), Vec::new());
    let (mut answered, mut absent) = (false, None);
    // Containers of CRI are listed by its containerd.
    for runtime in runtimes.all().into_iter().filter(|one| one.name() != "cri") {
        match runtime.namespaces().await {
            Ok(found) => {
                answered = true;
                names.extend(found);
            }
            Err(error) if runtime.is_installed() => keep(&mut failed, error),
            Err(error) => absent = Some(error),
        }
    }
    names.sort();
    names.dedup();
    if answered {
        return Ok((names, failed));
    }
    failed.into_iter().next().or(absent).map_or(Ok((names, Vec::new())), Err)
}

/// The containers of a namespace, or of every one.
pub(crate) async fn containers(
    runtimes: &Runtimes,
    driver: i32,
    namespace: &str,
) -> Result<RowsAndErrors<ContainerInfo>> {
    if !is_every(driver, namespace) {
        return containers_of(runtimes, driver, namespace).await;
    }
    let (names, failed) = namespaces(runtimes).await?;
    let mut found = RowsAndErrors::of(failed);
    for name in names {
        found.add(containers_of(runtimes, driver, &name).await);
    }
    Ok(found)
}

async fn containers_of(
    runtimes: &Runtimes,
    driver: i32,
    namespace: &str,
) -> Result<RowsAndErrors<ContainerInfo>> {
    let listed = runtimes.select(driver, namespace)?.list(namespace).await?;
    Ok(RowsAndErrors { rows: listed.into_iter().map(info).collect(), failed: Vec::new() })
}

fn info(container: Container) -> ContainerInfo {
    ContainerInfo {
        namespace: container.namespace,
        id: container.id,
        image: container.image,
        pid: container.pid.unwrap_or(0),
        status: container.status.as_str().into(),
        pod_id: container.pod_id,
        name: container.name,
        problem: container.problem.unwrap_or_default(),
        internal_id: container.runtime_id,
        pod_uid: container.uid,
    }
}

/// Returns the usage of the containers of a namespace. Those that the loop has not seen
/// yet are measured here and now.
pub(crate) async fn stats(
    runtimes: &Runtimes,
    sampler: &Sampler,
    driver: i32,
    namespace: &str,
) -> Result<RowsAndErrors<Stat>> {
    if !is_every(driver, namespace) {
        return stats_of(runtimes, sampler, driver, namespace).await;
    }
    let (names, failed) = namespaces(runtimes).await?;
    let mut found = RowsAndErrors::of(failed);
    for name in names {
        found.add(stats_of(runtimes, sampler, driver, &name).await);
    }
    Ok(found)
}

async fn stats_of(
    runtimes: &Runtimes,
    sampler: &Sampler,
    driver: i32,
    namespace: &str,
) -> Result<RowsAndErrors<Stat>> {
    let listed = runtimes.select(driver, namespace)?.list(namespace).await?;
    let mut measured = sampler.measured(namespace);
    let mut rows = Vec::with_capacity(listed.len());
    let mut unseen = Vec::new();
    for container in listed {
        if driver == CRI && container.kind == Kind::Sandbox {
            rows.push(row(&container, &Measured::default()));
            continue;
        }
        let Some(pid) = container.pid.filter(|_| container.status.is_running()) else { continue };
        match measured.remove(&container.runtime_id).filter(|measured| measured.pid == pid) {
            Some(measured) => rows.push(row(&container, &measured)),
            None => unseen.push(container),
        }
    }
    let mut found = RowsAndErrors { rows, failed: Vec::new() };
    if !unseen.is_empty() {
        let measured = measure_all(unseen).await;
        found.add(Ok(measured));
        found.rows.sort_by(|a, b| a.id.cmp(&b.id));
    }
    Ok(found)
}

/// Measures containers; those that end meanwhile are left out.
async fn measure_all(containers: Vec<Container>) -> RowsAndErrors<Stat> {
    let measuring = tokio::task::spawn_blocking(move || {
        let mut found = RowsAndErrors::of(Vec::new());
        let mut unreadable: Vec<(String, io::Error)> = Vec::new();
        for container in &containers {
            match measure_once(container) {
                Ok(measured) => found.rows.push(row(container, &measured)),
                Err(error) if has_ended(container) => {
                    tracing::debug!(container = %container.id, %error, "not measured");
                }
                Err(error) => unreadable.push((container.id.clone(), error)),
            }
        }
        found.failed.extend(unmeasured(&unreadable));
        found
    });
    measuring.await.unwrap_or_else(|_| RowsAndErrors::of(Vec::new()))
}

fn has_ended(container: &Container) -> bool {
    container.pid.is_none_or(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
}

/// One failure for all control groups that cannot be read: the cause is mostly
/// the same.
fn unmeasured(unreadable: &[(String, io::Error)]) -> Option<Error> {
    let (first, error) = unreadable.first()?;
    let text = match unreadable.len() {
        1 => format!("the control group of {first} cannot be read: {error}"),
        count => format!(
            "the control groups of {count} containers cannot be read, such as that of {first}: {error}"
        ),
    };
    Some(Error::State { reason: text })
}

fn row(container: &Container, measured: &Measured) -> Stat {
    let sample = &measured.sample;
    let [cpu_pressure, memory_pressure, io_pressure] = measured.waited;
    Stat {
        namespace: container.namespace.clone(),
        id: container.id.clone(),
        memory_usage: sample.core.working_set_bytes,
        cpu_usage: sample.core.cpu_ns,
        pod_id: container.pod_id.clone(),
        name: container.name.clone(),
        cpu_percent: measured.cpu_percent,
        throttled_periods: sample.throttled_periods,
        throttled_time: sample.throttled_ns,
        memory_total: sample.core.memory_bytes,
        memory_limit: sample.core.memory_limit.unwrap_or(0),
        oom_kills: sample.oom_kills,
        read_bytes: sample.io.read_bytes,
        written_bytes: sample.io.write_bytes,
        pids: sample.pids,
        received_bytes: measured.received_bytes,
        sent_bytes: measured.sent_bytes,
        cpu_pressure,
        memory_pressure,
        io_pressure,
    }
}
