//! Metrics, and a cheap way to count a call.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
    time::Instant,
};

use parking_lot::RwLock;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};
use selvage_api::{Code, code};

use super::collect::{Process, TaskCounts};
use crate::tasks::Tasks;

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Served beside the contracts.
const STANDARD: [(&str, &str, &str); 4] = [
    ("/grpc.health.v1.Health/Check", "grpc.health.v1.Health", "Check"),
    ("/grpc.health.v1.Health/Watch", "grpc.health.v1.Health", "Watch"),
    (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "grpc.reflection.v1.ServerReflection",
        "ServerReflectionInfo",
    ),
    (
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "grpc.reflection.v1alpha.ServerReflection",
        "ServerReflectionInfo",
    ),
];

const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// Protocol that a call came in by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// gRPC.
    Grpc,
    /// gRPC-Web.
    GrpcWeb,
    /// An HTTP route of the method.
    Rest,
    /// Connect with JSON.
    Connect,
}

impl Protocol {
    const COUNT: usize = 4;

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::GrpcWeb => "grpc-web",
            Self::Rest => "rest",
            Self::Connect => "connect",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    service: &'static str,
    method: &'static str,
    protocol: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    service: &'static str,
    method: &'static str,
    protocol: &'static str,
}

type Durations = Family<DurationLabels, Histogram, fn() -> Histogram>;

/// The counters of one method by one protocol, made when first needed.
#[derive(Default)]
struct Cell {
    /// Success first, then the codes in their order.
    calls: [OnceLock<Counter>; code::ALL.len() + 1],
    duration: OnceLock<Histogram>,
}

struct MethodCells {
    service: &'static str,
    method: &'static str,
    by_protocol: [OnceLock<Box<Cell>>; Protocol::COUNT],
}

impl MethodCells {
    fn new(service: &'static str, method: &'static str) -> Self {
        Self { service, method, by_protocol: Default::default() }
    }
}

/// All metrics of a process. Clones are handles of the same.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: RwLock<Registry>,
    /// Index of the cells of a path.
    paths: HashMap<&'static str, usize>,
    /// The first ones are for whatever has no others.
    methods: Vec<MethodCells>,
    calls: Family<CallLabels, Counter>,
    durations: Durations,
    in_flight: Gauge,
    connections: Gauge,
    accepted: Counter,
    handshake_failures: Counter,
    panics: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("methods", &self.0.methods.len()).finish_non_exhaustive()
    }
}

impl Metrics {
    /// Metrics of a binary of this version, with those of the process itself.
    pub fn new(version: &str) -> Self {
        let contracts = selvage_api::methods()
            .iter()
            .map(|method| (method.path.as_str(), method.service.as_str(), method.name.as_str()));
        let mut methods = vec![MethodCells::new("other", "other")];
        let mut paths = HashMap::new();
        for (path, service, method) in contracts.chain(STANDARD) {
            paths.insert(path, methods.len());
            methods.push(MethodCells::new(service, method));
        }
        let inner = Inner {
            registry: RwLock::new(Registry::default()),
            paths,
            methods,
            calls: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            accepted: Counter::default(),
            handshake_failures: Counter::default(),
            panics: Counter::default(),
        };
        inner.register(version);
        Self(Arc::new(inner))
    }

    /// Adds metrics of a part. Names begin with `selvage_` and the part.
    pub fn with_registry<T>(&self, add: impl FnOnce(&mut Registry) -> T) -> T {
        add(&mut self.0.registry.write())
    }

    /// Shows failures and restarts of these tasks.
    pub fn watch_tasks(&self, tasks: &Tasks) {
        let counts = TaskCounts(tasks.clone());
        self.with_registry(|registry| registry.register_collector(Box::new(counts)));
    }

    /// Counts a call from now until the answer is dropped. The path is the
    /// gRPC path of the method, by whatever protocol it came.
    pub fn call(&self, path: &str, protocol: Protocol) -> RpcCall {
        self.0.in_flight.inc();
        let cells = self.0.paths.get(path).copied().unwrap_or(0);
        RpcCall { metrics: self.clone(), cells, protocol, started: Instant::now(), code: None }
    }

    /// Counts a connection until the answer is dropped.
    pub fn connection(&self) -> OpenConnection {
        self.0.accepted.inc();
        self.0.connections.inc();
        OpenConnection(self.clone())
    }

    /// Counts a TLS handshake that failed.
    pub fn handshake_failure(&self) {
        self.0.handshake_failures.inc();
    }

    /// Counts a panic. [`super::install_panic_hook`] does so for all.
    pub fn panic(&self) {
        self.0.panics.inc();
    }

    /// Calls under way.
    pub fn in_flight(&self) -> i64 {
        self.0.in_flight.get()
    }

    /// Connections open.
    pub fn connections(&self) -> i64 {
        self.0.connections.get()
    }

    /// All metrics as OpenMetrics text, for [`CONTENT_TYPE`].
    pub fn render(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.0.registry.read()) {
            Ok(()) => text,
            // Writing to a string does not fail; a collector might. Half a
            // page would be taken for the whole.
            Err(fmt::Error) => "# EOF\n".to_owned(),
        }
    }
}

impl Inner {
    fn register(&self, version: &str) {
        let mut registry = self.registry.write();
        let build = Info::new([("version", version.to_owned())]);
        registry.register("selvage_build", "Version of this binary", build);
        registry.register("selvage_rpc_calls", "Calls answered", self.calls.clone());
        registry.register(
            "selvage_rpc_duration_seconds",
            "Time from the start of a call to the end of its answer",
            self.durations.clone(),
        );
        registry.register("selvage_rpc_in_flight", "Calls under way", self.in_flight.clone());
        registry.register("selvage_connections", "Connections open", self.connections.clone());
        registry.register(
            "selvage_connections_accepted",
            "Connections accepted since the start",
            self.accepted.clone(),
        );
        registry.register(
            "selvage_tls_handshake_failures",
            "TLS handshakes that failed",
            self.handshake_failures.clone(),
        );
        registry.register("selvage_panics", "Panics, all contained", self.panics.clone());
        registry.register_collector(Box::new(Process));
    }

    fn count(&self, cells: &MethodCells, protocol: Protocol, code: Option<Code>, seconds: f64) {
        let cell = cells.by_protocol[protocol as usize].get_or_init(Box::default);
        let (service, method, protocol) = (cells.service, cells.method, protocol.name());
        let position = code.map_or(0, |code| {
            code::ALL.iter().position(|known| *known == code).map_or(0, |index| index + 1)
        });
        let calls = cell.calls[position].get_or_init(|| {
            let code = code.map_or("OK", Code::name);
            self.calls.get_or_create_owned(&CallLabels { service, method, protocol, code })
        });
        calls.inc();
        let duration = cell.duration.get_or_init(|| {
            self.durations.get_or_create_owned(&DurationLabels { service, method, protocol })
        });
        duration.observe(seconds);
    }
}

/// A call under way. Dropped without [`RpcCall::finish`] it was cancelled.
#[derive(Debug)]
pub struct RpcCall {
    metrics: Metrics,
    cells: usize,
    protocol: Protocol,
    started: Instant,
    /// The outer option: not finished yet.
    code: Option<Option<Code>>,
}

impl RpcCall {
    /// The call ended: well, or with a code.
    pub fn finish(mut self, code: Option<Code>) {
        self.code = Some(code);
    }
}

impl Drop for RpcCall {
    fn drop(&mut self) {
        let inner = &self.metrics.0;
        inner.in_flight.dec();
        let code = self.code.unwrap_or(Some(Code::Cancelled));
        if let Some(cells) = inner.methods.get(self.cells) {
            inner.count(cells, self.protocol, code, self.started.elapsed().as_secs_f64());
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub struct OpenConnection(Metrics);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.connections.dec();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const LOGIN: &str = r#"service="edgeproto.AppApi",method="CreateApp",protocol="grpc""#;

    fn assert_line(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }

    #[test]
    fn calls_are_counted_by_method_protocol_and_code() {
        let metrics = Metrics::new("1.2.3");
        let first = metrics.call("/edgeproto.AppApi/CreateApp", Protocol::Grpc);
        let second = metrics.call("/edgeproto.AppApi/CreateApp", Protocol::Grpc);
        let third = metrics.call("/edgeproto.AppApi/CreateApp", Protocol::Rest);
        assert_line(&metrics.render(), "selvage_rpc_in_flight 3");
        first.finish(None);
        second.finish(Some(Code::NotFound));
        drop(third);
        let text = metrics.render();
        assert_line(&text, &format!("selvage_rpc_calls_total{{{LOGIN},code=\"OK\"}} 1"));
        assert_line(&text, &format!("selvage_rpc_calls_total{{{LOGIN},code=\"NOT_FOUND\"}} 1"));
        let rest = LOGIN.replace("grpc", "rest");
        assert_line(&text, &format!("selvage_rpc_calls_total{{{rest},code=\"CANCELLED\"}} 1"));
        assert_line(&text, &format!("selvage_rpc_duration_seconds_count{{{LOGIN}}} 2"));
        assert_line(&text, "selvage_rpc_in_flight 0");
        assert_line(&text, "selvage_build_info{version=\"1.2.3\"} 1");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn garbage_paths_share_one_line() {
        let metrics = Metrics::new("1");
        for number in 0..1000 {
            let path = format!("/evil\"\n{number}/x");
            metrics.call(&path, Protocol::Grpc).finish(Some(Code::Unimplemented));
        }
        let text = metrics.render();
        assert_line(
            &text,
            r#"selvage_rpc_calls_total{service="other",method="other",protocol="grpc",code="UNIMPLEMENTED"} 1000"#,
        );
        assert!(!text.contains("evil"));
        assert_eq!(text.matches("selvage_rpc_calls_total{").count(), 1);
    }

    #[test]
    fn every_method_and_code_has_its_place() {
        let metrics = Metrics::new("1");
        for code in code::ALL {
            metrics.call("/grpc.health.v1.Health/Check", Protocol::Connect).finish(Some(code));
        }
        let text = metrics.render();
        assert_eq!(text.matches("selvage_rpc_calls_total{").count(), code::ALL.len());
        for method in selvage_api::methods() {
            assert!(metrics.0.paths.contains_key(method.path.as_str()));
        }
    }

    #[test]
    fn connections_failures_and_the_process_are_shown() {
        let metrics = Metrics::new("1");
        let connection = metrics.connection();
        metrics.handshake_failure();
        metrics.panic();
        let text = metrics.render();
        assert_line(&text, "selvage_connections 1");
        assert_line(&text, "selvage_connections_accepted_total 1");
        assert_line(&text, "selvage_tls_handshake_failures_total 1");
        assert_line(&text, "selvage_panics_total 1");
        drop(connection);
        assert_eq!(metrics.connections(), 0);
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_start_time_seconds") > 1_600_000_000.0);
    }

    #[tokio::test]
    async fn failures_of_tasks_are_shown() {
        let metrics = Metrics::new("1");
        let tasks = Tasks::new(Default::default());
        metrics.watch_tasks(&tasks);
        tasks.spawn("bad \"one\"", async { Err(std::io::Error::other("x")) });
        tasks.shutdown(std::time::Duration::from_secs(20)).await.unwrap();
        let text = metrics.render();
        assert_line(&text, r#"selvage_task_failures_total{task="bad \"one\""} 1"#);
        assert_line(&text, r#"selvage_task_restarts_total{task="bad \"one\""} 0"#);
    }
}
