//! Problems and sources among a process's metrics, for those who have a
//! monitoring of their own.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
};
use selvage_api::selvage::dashboard::Severity;
use selvage_kit::telemetry::Metrics;

use crate::{board::Board, rules::RULES};

struct BoardCollector(Arc<Board>);

impl fmt::Debug for BoardCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProblemLabels {
    rule: &'static str,
    severity: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: &'static str,
    section: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MarkLabels {
    mark: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupLabels {
    kind: String,
    name: String,
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Notice => "notice",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

pub(crate) fn watch(board: &Arc<Board>, metrics: &Metrics) {
    let shown = BoardCollector(Arc::clone(board));
    metrics.with_registry(|registry| registry.register_collector(Box::new(shown)));
}

impl Collector for BoardCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.snapshot();
        let problems: Family<ProblemLabels, Gauge> = Family::default();
        for rule in RULES {
            for severity in [Severity::Notice, Severity::Warning, Severity::Critical] {
                let found = snapshot.overview.problems.iter();
                let found = found.filter(|p| p.rule == rule.id && p.severity() == severity).count();
                if found > 0 || severity == rule.severity {
                    let labels = ProblemLabels { rule: rule.id, severity: word(severity) };
                    problems.get_or_create(&labels).set(i64::try_from(found).unwrap_or(i64::MAX));
                }
            }
        }
        let encoder = &mut encoder;
        show(encoder, "selvage_problems", "Problems that last, by rule", &problems)?;
        let (ages, failing) = self.sources();
        let help = "Time since a source last answered";
        show(encoder, "selvage_source_age_seconds", help, &ages)?;
        let help = "1 while a source should answer and does not";
        show(encoder, "selvage_source_failing", help, &failing)?;
        let Room { used, total, full_at } = self.room();
        show(encoder, "selvage_capacity_used_bytes", "Bytes in use", &used)?;
        show(encoder, "selvage_capacity_total_bytes", "Bytes there are", &total)?;
        let help = "When it will be full at its growth, in seconds since 1970";
        show(encoder, "selvage_capacity_full_timestamp_seconds", help, &full_at)?;
        let marks: Family<MarkLabels, Gauge<f64, std::sync::atomic::AtomicU64>> = Family::default();
        for mark in &snapshot.overview.radar {
            marks.get_or_create(&MarkLabels { mark: mark.name.clone() }).set(mark.value);
        }
        show(encoder, "selvage_radar", "Scores, 0 to 100", &marks)?;
        let version = i64::try_from(snapshot.overview.version).unwrap_or(i64::MAX);
        let help = "Changes of the overview since the start";
        show(encoder, "selvage_dashboard_version", help, &ConstGauge::new(version))
    }
}

fn show(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

type Floats<L> = Family<L, Gauge<f64, std::sync::atomic::AtomicU64>>;

/// Room for data, by what it is in.
#[derive(Default)]
struct Room {
    used: Floats<GroupLabels>,
    total: Floats<GroupLabels>,
    /// Only of what is sure to grow.
    full_at: Floats<GroupLabels>,
}

impl BoardCollector {
    fn sources(&self) -> (Floats<SourceLabels>, Family<SourceLabels, Gauge>) {
        let (ages, failing) = (Floats::default(), Family::<SourceLabels, Gauge>::default());
        for state in self.0.sources().iter().filter(|state| !state.absent) {
            let labels = SourceLabels { source: state.source, section: state.section.name() };
            ages.get_or_create(&labels).set(state.age.as_secs_f64());
            failing.get_or_create(&labels).set(i64::from(state.failing()));
        }
        (ages, failing)
    }

    fn room(&self) -> Room {
        let room = Room::default();
        for capacity in &self.0.snapshot().overview.capacity {
            let object = capacity.object.clone().unwrap_or_default();
            let labels = GroupLabels { kind: object.kind, name: object.name };
            room.used.get_or_create(&labels).set(capacity.used_bytes as f64);
            room.total.get_or_create(&labels).set(capacity.total_bytes as f64);
            if let Some(full_at) = capacity.full_at {
                room.full_at.get_or_create(&labels).set(full_at.seconds as f64);
            }
        }
        room
    }
}
