//! Verdict, problems and the stream of what changes.

use std::time::Duration;

use selvage_api::{
    cnct::kaas::api::ClusterStatus,
    edgeproto::{CloudletState, TrackedState},
    selvage::dashboard::{
        GetOverviewRequest, ListEventsRequest, Overview, Severity, WatchOverviewRequest,
    },
};
use selvage_dashboard::{
    facts::{
        Backups, Cloudlet, Cluster, Data, Exporter, Filesystem, Group, Host, Instance, Job,
        KaasCluster, Machine, Operation, Process, Schedule, Section, Volumes,
    },
    source::Failure,
};

use super::lab::{Lab, STALE, noon, object};

async fn overview(lab: &Lab) -> Overview {
    lab.overview().get_overview(GetOverviewRequest {}).await.unwrap().into_inner()
}

async fn rules(lab: &Lab) -> Vec<(String, Severity)> {
    let problems = overview(lab).await.problems;
    problems.iter().map(|problem| (problem.rule.clone(), problem.severity())).collect()
}

fn cloudlet(name: &str, state: CloudletState) -> Cloudlet {
    let object = object("cloudlet", &format!("tmus/{name}"), "tmus");
    Cloudlet { object, location: Some((52.5, 13.4)), state, errors: Vec::new() }
}

fn instance(name: &str, state: TrackedState) -> Instance {
    Instance {
        object: object("appinst", name, "acme"),
        cloudlet: "tmus/c1".into(),
        state,
        errors: vec!["no such image".into()],
        unhealthy: String::new(),
        restarts: 0,
        started_again: 0,
        last_reason: String::new(),
        revision: 1,
    }
}

fn machine(name: &str) -> Machine {
    Machine {
        object: object("machine", &format!("node/{name}"), ""),
        name: name.into(),
        roles: Vec::new(),
        address: "10.0.0.7:8443".into(),
        joined: Some(noon()),
        last_seen: Some(noon()),
        certificate_ends: None,
        copy_suspected: None,
        blocked: false,
    }
}

fn seconds(count: i64) -> jiff::SignedDuration {
    jiff::SignedDuration::from_secs(count)
}

#[tokio::test]
async fn the_verdict_is_one_sentence() {
    let lab = Lab::new().await;
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Ready)].into()));
    lab.tell(Data::Instances(vec![instance("a", TrackedState::Ready)].into()));
    let verdict = overview(&lab).await.verdict.unwrap();
    assert_eq!(verdict.sentence, "All is well: 1 cloudlet, 1 instance.");
    assert_eq!(verdict.severity(), Severity::Ok);
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Offline)].into()));
    let verdict = overview(&lab).await.verdict.unwrap();
    assert_eq!(verdict.sentence, "Cloudlet tmus/c1 is offline.");
    assert_eq!(verdict.severity(), Severity::Critical);
    let mut sick = instance("a", TrackedState::Ready);
    sick.unhealthy = "connection refused".into();
    // Nothing is said of instances of a cloudlet that is offline itself.
    sick.cloudlet = "tmus/c2".into();
    lab.tell(Data::Instances(vec![sick].into()));
    let sentence = overview(&lab).await.verdict.unwrap().sentence;
    assert_eq!(sentence, "1 critical problem and 1 warning: Cloudlet tmus/c1 is offline.");
}

#[tokio::test]
async fn the_worst_and_oldest_problem_comes_first_and_keeps_its_time() {
    let lab = Lab::new().await;
    lab.tell(Data::Cloudlets(vec![cloudlet("late", CloudletState::Offline)].into()));
    lab.wait(Duration::from_secs(60));
    let both =
        vec![cloudlet("early", CloudletState::Offline), cloudlet("late", CloudletState::Offline)];
    lab.tell(Data::Cloudlets(both.into()));
    lab.tell(Data::Instances(vec![instance("a", TrackedState::CreateError)].into()));
    let problems = overview(&lab).await.problems;
    let names: Vec<&str> =
        problems.iter().map(|problem| problem.object.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(names, ["tmus/late", "tmus/early", "a"]);
    assert_eq!(problems[0].since.unwrap().seconds, noon().as_second());
    assert_eq!(problems[1].since.unwrap().seconds, noon().as_second() + 60);
    assert_eq!(problems[2].detail, "no such image");
    for problem in &problems {
        assert!(problem.command.starts_with("selvage "), "{}", problem.command);
        assert_eq!(problem.runbook, problem.rule);
    }
}

/// Each rule finds what it is there for, and nothing once that is over.
#[tokio::test]
async fn every_rule_of_ours_finds_its_problem() {
    use Severity::{Critical, Notice, Warning};
    let lab = Lab::new().await;
    let found = async |rule: &str, severity: Severity, data: Data, cure: Data| {
        lab.tell(data);
        let now = rules(&lab).await;
        assert!(now.contains(&(rule.to_owned(), severity)), "{rule}: {now:?}");
        lab.tell(cure);
        let after = rules(&lab).await;
        assert!(!after.iter().any(|(known, _)| known == rule), "{rule} is still there: {after:?}");
    };
    let cloudlets = |state| Data::Cloudlets(vec![cloudlet("c1", state)].into());
    let ready = || cloudlets(CloudletState::Ready);
    found("cloudlet_offline", Critical, cloudlets(CloudletState::Offline), ready()).await;
    found("cloudlet_offline", Notice, cloudlets(CloudletState::NotPresent), ready()).await;
    found("cloudlet_errors", Critical, cloudlets(CloudletState::Errors), ready()).await;

    let instances = |change: fn(&mut Instance)| {
        let mut changed = instance("a", TrackedState::Ready);
        change(&mut changed);
        Data::Instances(vec![changed].into())
    };
    let fine = || instances(|_| {});
    let failed = instances(|instance| instance.state = TrackedState::UpdateError);
    found("instance_failed", Critical, failed, fine()).await;
    found("instance_crash_loop", Critical, instances(|i| i.restarts = 3), fine()).await;
    let silent = instances(|instance| instance.unhealthy = "port 80".into());
    found("instance_unhealthy", Warning, silent, fine()).await;

    let clusters = |state| {
        let object = object("clusterinst", "tmus/c1/k", "acme");
        Data::Clusters(vec![Cluster { object, state, errors: Vec::new() }].into())
    };
    let broken = clusters(TrackedState::CreateError);
    found("cluster_failed", Critical, broken, clusters(TrackedState::Ready)).await;

    let kaas = |status| {
        let object = object("kaas", "prod", "acme");
        Data::Kaas(vec![KaasCluster { object, status, message: "m1 is gone".into() }].into())
    };
    let running = || kaas(ClusterStatus::Running);
    found("kaas_cluster", Critical, kaas(ClusterStatus::Error), running()).await;
    found("kaas_cluster", Warning, kaas(ClusterStatus::Degraded), running()).await;

    let operations = |ago| {
        let operation = Operation {
            object: object("operation", "7", "acme"),
            kind: "CreateAppInst".into(),
            step: "wait".into(),
            updated: Some(noon() - seconds(ago)),
        };
        Data::Operations(vec![operation].into())
    };
    found("operation_stuck", Warning, operations(601), operations(599)).await;

    let machines = |change: fn(&mut Machine)| {
        let mut changed = machine("m");
        change(&mut changed);
        Data::Machines(vec![changed].into())
    };
    let there = || machines(|_| {});
    let away = machines(|machine| machine.last_seen = Some(noon() - seconds(181)));
    found("machine_away", Critical, away, there()).await;
    found("machine_blocked", Notice, machines(|machine| machine.blocked = true), there()).await;
    let week = machines(|machine| machine.certificate_ends = Some(noon() + seconds(6 * 86_400)));
    found("certificate_ends", Warning, week, there()).await;
    let over = machines(|machine| machine.certificate_ends = Some(noon() - seconds(1)));
    found("certificate_ends", Critical, over, there()).await;
    let copied = machines(|machine| machine.copy_suspected = Some(noon() - seconds(1)));
    found("key_copied", Critical, copied, there()).await;

    let groups = |free, missing| {
        let object = object("volume_group", "vg", "");
        let group = Group { object, size: 100, free, missing, parent: None, written: 0 };
        Data::Volumes(Volumes { groups: vec![group], ..Volumes::default() }.into())
    };
    found("volume_group_full", Warning, groups(15, false), groups(16, false)).await;
    found("volume_group_full", Critical, groups(5, false), groups(16, false)).await;
    found("volume_group_missing", Critical, groups(0, true), groups(50, false)).await;

    let disks = |available| {
        let disk = Filesystem { size: 100, available: Some(available), ..Filesystem::default() };
        let filesystems = vec![disk];
        Data::Exporters(vec![Exporter { filesystems, ..Exporter::default() }].into())
    };
    found("filesystem_full", Warning, disks(15), disks(16)).await;
    found("filesystem_full", Critical, disks(5), disks(16)).await;

    let process = |failure: &str| {
        let process = Process { store_failure: failure.into(), ..Process::default() };
        Data::Process(process.into())
    };
    found("store_failing", Critical, process("disk full"), process("")).await;
}

/// A machine that joined tells of its memory itself.
#[tokio::test]
async fn memory_of_scraped_machines_is_counted_once() {
    let lab = Lab::new().await;
    let short = |instance: &str| Exporter {
        instance: instance.into(),
        memory_bytes: 100,
        memory_available: 4,
        ..Exporter::default()
    };
    let machines = vec![short("10.0.0.7:9100"), short("10.0.0.8:9100")];
    lab.tell(Data::Machines(vec![machine("m")].into()));
    lab.tell(Data::Exporters(machines.into()));
    lab.wait(Duration::from_secs(61));
    let problems = overview(&lab).await.problems;
    let low = problems.iter().filter(|problem| problem.rule == "exporter_memory_low");
    let names: Vec<&str> = low.map(|low| low.object.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(names, ["10.0.0.8:9100"]);
}

#[tokio::test]
async fn backups_that_failed_or_are_overdue_are_problems() {
    use selvage_api::selvage::volumes::JobState::{JobComplete, JobFailed};
    let lab = Lab::new().await;
    let job = |state, ago| Job {
        volume: "vg/data".into(),
        state,
        error: "no room".into(),
        ended: Some(noon() - seconds(ago)),
        backup: true,
    };
    let schedule = |error: &str| Schedule {
        object: object("backup", "nightly", ""),
        volume: "data".into(),
        every_seconds: 3600,
        error: error.into(),
    };
    let tell = |jobs: Vec<Job>, error: &str| {
        let backups = Backups { jobs, schedules: vec![schedule(error)] };
        lab.tell(Data::Backups(backups.into()));
    };
    let names =
        async || -> Vec<String> { rules(&lab).await.into_iter().map(|(rule, _)| rule).collect() };
    tell(vec![job(JobComplete, 7000)], "");
    assert_eq!(names().await, Vec::<String>::new());
    tell(vec![job(JobComplete, 7300)], "");
    assert_eq!(names().await, ["backup_late"]);
    tell(vec![job(JobFailed, 10), job(JobComplete, 3000)], "");
    assert_eq!(names().await, ["backup_failed"]);
    tell(vec![job(JobComplete, 10), job(JobFailed, 3000)], "");
    assert_eq!(names().await, Vec::<String>::new());
    tell(vec![job(JobComplete, 10)], "credentials are gone");
    assert_eq!(names().await, ["backup_late"]);
}

#[tokio::test]
async fn what_must_last_before_it_counts_lasts() {
    let lab = Lab::new().await;
    let host = |skew_ms| Host { name: "m".into(), skew_ms, ..Host::default() };
    lab.tell(Data::Hosts(vec![host(6000)].into()));
    assert_eq!(rules(&lab).await, []);
    lab.wait(Duration::from_secs(11));
    lab.tell(Data::Hosts(vec![host(6500)].into()));
    assert_eq!(rules(&lab).await, [("clock_skew".to_owned(), Severity::Warning)]);
    lab.tell(Data::Hosts(vec![host(-100)].into()));
    assert_eq!(rules(&lab).await, []);
}

#[tokio::test]
async fn a_source_that_flaps_makes_no_storm() {
    let lab = Lab::new().await;
    lab.tell(Data::Machines(vec![machine("m")].into()));
    for _ in 0..30 {
        lab.answer(Section::Machines, Err(Failure::Failed("reset".into())));
        lab.wait(Duration::from_secs(1));
        lab.tell(Data::Machines(vec![machine("m")].into()));
        lab.wait(Duration::from_secs(1));
    }
    let events = lab.overview().list_events(ListEventsRequest::default()).await.unwrap();
    assert_eq!(events.into_inner().events, []);
    // One that stays away is told, with what it said last.
    lab.answer(Section::Machines, Err(Failure::Failed("connection refused".into())));
    lab.wait(STALE + Duration::from_secs(10));
    let overview = overview(&lab).await;
    assert_eq!(overview.problems[0].rule, "source_failing");
    assert_eq!(overview.problems[0].detail, "connection refused");
    assert_eq!(overview.counts[0].total, 1, "the last good data stays");
    assert!(overview.sources[0].stale);
}

#[tokio::test]
async fn a_watcher_receives_only_what_changed() {
    let lab = Lab::new().await;
    let many = |last| {
        let mut all: Vec<Cloudlet> =
            (0..50).map(|number| cloudlet(&format!("c{number}"), CloudletState::Ready)).collect();
        all[49].state = last;
        Data::Cloudlets(all.into())
    };
    lab.tell(many(CloudletState::Ready));
    let mut watcher = lab.overview();
    let stream = watcher.watch_overview(WatchOverviewRequest::default()).await.unwrap();
    let mut stream = stream.into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.overview.unwrap().places.len(), 50);
    // The same again is no change: what comes next is the real one.
    lab.tell(many(CloudletState::Ready));
    lab.tell(many(CloudletState::Offline));
    let update = stream.message().await.unwrap().unwrap();
    assert_eq!(update.problems.len(), 1);
    assert_eq!(update.problems[0].summary, "Cloudlet tmus/c49 is offline");
    assert!(update.changed.contains(&"verdict".to_owned()), "{:?}", update.changed);
    assert!(!update.changed.contains(&"capacity".to_owned()));
    assert!(update.overview.unwrap().problems.is_empty(), "problems are told one by one");
    let whats: Vec<&str> = update.events.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(whats, ["began", "changed"]);
    lab.tell(many(CloudletState::Ready));
    let update = stream.message().await.unwrap().unwrap();
    assert_eq!(update.problems_ended, ["cloudlet_offline/cloudlet/tmus/c49"]);
}

#[tokio::test]
async fn places_carry_their_instances() {
    let lab = Lab::new().await;
    lab.tell(Data::Cloudlets(vec![cloudlet("c1", CloudletState::Errors)].into()));
    let mut sick = instance("b", TrackedState::Ready);
    sick.unhealthy = "silent".into();
    let all = vec![instance("a", TrackedState::Ready), sick];
    lab.tell(Data::Instances(all.into()));
    let place = overview(&lab).await.places.remove(0);
    assert_eq!((place.latitude, place.longitude), (52.5, 13.4));
    assert_eq!((place.instances, place.ready_instances), (2, 1));
    assert_eq!((place.state.as_str(), place.severity()), ("errors", Severity::Critical));
}
