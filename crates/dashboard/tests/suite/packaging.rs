//! Rules and dashboards for other people's Prometheus and Grafana fit the metrics
//! that we serve.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use selvage_api::edgeproto::CloudletState;
use selvage_dashboard::facts::{Cloudlet, Data, Group, Volumes};
use selvage_kit::{
    tasks::Tasks,
    telemetry::{Metrics, Protocol},
};
use tokio_util::sync::CancellationToken;

use super::lab::{Lab, object};

fn packaging() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// The external label with the base of runbooks, which is no metric.
const LABEL: &str = "selvage_docs";

/// Names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let prefixed = |word: &str| word.starts_with("selvage_") || word.starts_with("process_");
    let ours = |word: &&str| *word != LABEL && prefixed(word);
    words.filter(ours).map(str::to_owned).collect()
}

/// Metrics of backups. The volume service has them; its own suite looks at them.
const OF_BACKUPS: [&str; 3] = [
    "selvage_backup_age_seconds",
    "selvage_backup_schedule_period_seconds",
    "selvage_backup_verify_failed",
];

async fn metrics_text() -> String {
    let lab = Lab::new().await;
    let offline = Cloudlet {
        object: object("cloudlet", "tmus/c1", "tmus"),
        location: None,
        state: CloudletState::Offline,
        errors: Vec::new(),
    };
    lab.tell(Data::Cloudlets(vec![offline].into()));
    let group = Group {
        object: object("volume_group", "vg", ""),
        size: 10,
        free: 4,
        missing: false,
        parent: None,
        written: 0,
    };
    lab.tell(Data::Volumes(Volumes { groups: vec![group], ..Volumes::default() }.into()));
    let metrics = Metrics::new("1");
    lab.dashboard.watch(&metrics);
    let tasks = Tasks::new(CancellationToken::new());
    metrics.watch_tasks(&tasks);
    metrics.call("/edgeproto.AppApi/CreateApp", Protocol::Grpc).finish(None);
    metrics.render()
}

#[tokio::test]
async fn problems_and_room_are_among_the_metrics() {
    let text = metrics_text().await;
    for line in [
        r#"selvage_problems{rule="cloudlet_offline",severity="critical"} 1"#,
        r#"selvage_problems{rule="machine_away",severity="critical"} 0"#,
        r#"selvage_capacity_used_bytes{kind="volume_group",name="vg"} 6.0"#,
        r#"selvage_source_failing{source="test",section="cloudlets"} 0"#,
        r#"selvage_radar{mark="cluster_health"} 0.0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn rules_and_dashboards_ask_for_metrics_that_there_are() {
    let known = metrics_text().await;
    let mut files = vec![packaging().join("prometheus/selvage.rules.yml")];
    for entry in std::fs::read_dir(packaging().join("grafana")).unwrap() {
        files.push(entry.unwrap().path());
    }
    assert!(files.len() >= 3);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        if file.extension().is_some_and(|ending| ending == "json") {
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
        for name in metrics(&text) {
            let base = ["_bucket", "_total"]
                .iter()
                .fold(name.as_str(), |name, end| name.strip_suffix(end).unwrap_or(name));
            let there = known.contains(&format!("# TYPE {base} "))
                || known.contains(&name)
                || OF_BACKUPS.contains(&base);
            assert!(there, "{}: there is no {name}", file.display());
        }
    }
}

/// Value of a key in a line of Cargo.lock.
fn quoted<'a>(package: &'a str, key: &str) -> Option<&'a str> {
    let start = format!("{key} = \"");
    package.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'))
}

#[test]
fn the_licences_on_the_page_are_those_of_the_crates_we_build_with() {
    let root = packaging().join("..");
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
    // Ours have no source.
    let crates = lock.split("[[package]]").filter(|package| quoted(package, "source").is_some());
    let wanted: BTreeSet<(&str, &str)> = crates
        .filter_map(|package| Some((quoted(package, "name")?, quoted(package, "version")?)))
        .collect();
    assert!(wanted.len() > 100);
    let text = std::fs::read_to_string(root.join("ui/src/licences.json")).unwrap();
    let listed: Vec<[&str; 3]> = serde_json::from_str(&text).unwrap();
    let found = listed.iter().map(|[name, version, _]| (*name, *version)).collect();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let gone: Vec<_> = found.difference(&wanted).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "run `node ui/licences.mjs`: missing {missing:?}, no longer used {gone:?}"
    );
    assert!(listed.iter().all(|[_, _, licence]| !licence.is_empty()));
}

/// Panels say what the page says.
#[test]
fn panels_have_the_words_of_the_page() {
    let mut titles = Vec::new();
    for entry in std::fs::read_dir(packaging().join("grafana")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
        for panel in shown["panels"].as_array().unwrap() {
            titles.push(panel["title"].as_str().unwrap().to_owned());
        }
    }
    for word in ["Scores", "Capacity in use"] {
        assert!(titles.iter().any(|title| title == word), "no panel {word}: {titles:?}");
    }
    let old = |title: &&String| ["Mark", "Room"].iter().any(|word| title.contains(word));
    assert_eq!(titles.iter().find(old), None);
}

#[test]
fn prometheus_takes_the_rules_and_they_fire_when_they_should() {
    let folder = packaging().join("prometheus");
    let run = |words: &[&str]| Command::new("promtool").args(words).current_dir(&folder).output();
    let Ok(checked) = run(&["check", "rules", "selvage.rules.yml"]) else {
        selvage_testkit::skip("promtool", "it is not installed: run ./dev test");
        return;
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let tested = run(&["test", "rules", "selvage.rules.test.yml"]).unwrap();
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
}

/// Values of a key in the file of rules.
fn values<'a>(rules: &'a str, key: &str) -> Vec<&'a str> {
    let of_key = |line: &'a str| line.trim().trim_start_matches("- ").strip_prefix(key);
    rules.lines().filter_map(of_key).map(|value| value.trim().trim_matches('"')).collect()
}

/// Anchors of a page: its headings, as a reader of Markdown makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|heading| heading.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn every_alert_has_a_test_and_a_runbook_that_is_there() {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let rules = read(packaging().join("prometheus/selvage.rules.yml"));
    let tests = read(packaging().join("prometheus/selvage.rules.test.yml"));
    let alerts = values(&rules, "alert:");
    assert!(alerts.len() >= 12, "{alerts:?}");
    for alert in &alerts {
        let line = format!("- alertname: {alert}");
        assert!(tests.lines().any(|found| found.trim() == line), "{alert} has no test");
    }
    let runbooks = values(&rules, "runbook_url:");
    assert_eq!(runbooks.len(), alerts.len());
    for runbook in runbooks {
        let (base, place) = runbook.split_once("{{ end }}/").unwrap();
        assert!(base.contains("https://"), "{runbook} is no URL");
        let (page, anchor) = place.split_once('#').unwrap();
        let known = anchors(&read(packaging().join("../docs").join(page)));
        assert!(anchor == "{{ $labels.rule }}" || known.contains(anchor), "{runbook}");
    }
}
