//! Containers and what they use, as the contract tells of them.

use std::sync::Arc;

use selvage_api::os::{ContainerInfo, Stat};
use selvage_runtime::{
    Container, Kind, Result,
    select::{CONTAINERD, CRI, Runtimes},
};

use crate::sampler::{Measured, Sampler, measure_once};

/// Stands for every namespace that has containers.
const EVERY: &str = "*";

/// The namespaces that were asked for.
async fn namespaces(runtimes: &Runtimes, driver: i32, asked: &str) -> Result<Vec<String>> {
    if driver != CONTAINERD || asked != EVERY {
        return Ok(vec![asked.to_owned()]);
    }
    let (mut names, mut answered, mut failed) = (Vec::new(), false, None);
    // What CRI runs, its containerd runs.
    for runtime in runtimes.all().into_iter().filter(|one| one.name() != "cri") {
        match runtime.namespaces().await {
            Ok(found) => {
                answered = true;
                names.extend(found);
            }
            Err(error) => failed = Some(error),
        }
    }
    names.sort();
    names.dedup();
    match failed {
        Some(error) if !answered => Err(error),
        _ => Ok(names),
    }
}

/// The containers of a namespace.
pub(crate) async fn containers(
    runtimes: &Runtimes,
    driver: i32,
    namespace: &str,
) -> Result<Vec<ContainerInfo>> {
    let mut all = Vec::new();
    for namespace in namespaces(runtimes, driver, namespace).await? {
        let listed = runtimes.select(driver, &namespace)?.list(&namespace).await?;
        all.extend(listed.into_iter().map(info));
    }
    Ok(all)
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

/// What the containers of a namespace use. Those that the loop has not seen
/// yet are measured here and now.
pub(crate) async fn stats(
    runtimes: &Runtimes,
    sampler: &Sampler,
    driver: i32,
    namespace: &str,
) -> Result<Vec<Stat>> {
    let mut all = Vec::new();
    for namespace in namespaces(runtimes, driver, namespace).await? {
        all.extend(stats_of(runtimes, sampler, driver, &namespace).await?);
    }
    Ok(all)
}

async fn stats_of(
    runtimes: &Runtimes,
    sampler: &Sampler,
    driver: i32,
    namespace: &str,
) -> Result<Vec<Stat>> {
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
    if !unseen.is_empty() {
        rows.extend(measure_all(unseen).await);
        rows.sort_by(|a, b| a.id.cmp(&b.id));
    }
    Ok(rows)
}

/// Those that end meanwhile are left out.
async fn measure_all(containers: Vec<Container>) -> Vec<Stat> {
    let containers = Arc::new(containers);
    let measuring = tokio::task::spawn_blocking(move || {
        let one = |container: &Container| match measure_once(container) {
            Ok(measured) => Some(row(container, &measured)),
            Err(error) => {
                tracing::debug!(container = %container.id, %error, "not measured");
                None
            }
        };
        containers.iter().filter_map(one).collect()
    });
    measuring.await.unwrap_or_default()
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
