//! Defects of the original, each by its number in the list of its
//! weaknesses. Those that concern a way to get machines which is not here are
//! tested on what stands in its place.

use base64::{Engine, prelude::BASE64_STANDARD};
use selvage_api::{
    cnct::kaas::api::{
        CreateClusterMsg, DeleteClusterMsg, GetClusterMsg, GetUpgradeClusterInformationMsg,
        GetVersionMsg, KubernetesLabel, cluster_server::Cluster,
    },
    selvage::kubernetes as wire,
};
use selvage_kaas::{
    ClusterApi, Compat, Error, Origin,
    catalogue::Catalogue,
    provider::sim::Fault,
    record::{Phase, Pki},
};
use selvage_kit::identity::{Grant, Identity, Kind, Role};
use selvage_store::Table;
use tonic::{Code, Request};

use super::lab::{Lab, admin, developer, request};

fn insecure<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let kind = Kind::Insecure;
    request.extensions_mut().insert(Identity::all_powerful("test", kind));
    request
}

#[tokio::test]
async fn d01_callers_without_a_right_get_nothing() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[]).await;
    let api = ClusterApi::new(lab.manager.clone(), Compat::Precise);
    let asked = || GetClusterMsg { name: "demo".into() };
    let nobody = api.get_cluster(Request::new(asked())).await.unwrap_err();
    assert_eq!(nobody.code(), Code::NotFound);
    // Those who may look get no key, and whoever gets one is no master of the cluster.
    let mut looks = Request::new(asked());
    let grants = vec![Grant { role: Role::Viewer, organisation: String::new() }];
    let kind = Kind::User { session: "s".into(), expires: 0 };
    looks.extensions_mut().insert(Identity { name: "vic".into(), kind, grants });
    let looked = api.get_cluster(looks).await.unwrap().into_inner().cluster.unwrap();
    assert_eq!((looked.name.as_str(), looked.kubeconfig.as_str()), ("demo", ""));
    let config = api.get_cluster(insecure(asked())).await.unwrap().into_inner();
    let (subject, _) = client_certificate(&config.cluster.unwrap().kubeconfig);
    assert!(
        subject.contains("CN=selvage:test") && !subject.contains("system:masters"),
        "{subject}"
    );
}

/// Subject of the certificate in a kubeconfig, and how long it is good for, in seconds.
fn client_certificate(config: &str) -> (String, i64) {
    let config: serde_json::Value = serde_json::from_str(config).unwrap();
    let data = config["users"][0]["user"]["client-certificate-data"].as_str().unwrap();
    let pem = BASE64_STANDARD.decode(data).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let certificate = pem.parse_x509().unwrap();
    let validity = certificate.validity();
    let life = validity.not_after.timestamp() - validity.not_before.timestamp();
    (certificate.subject().to_string(), life)
}

#[tokio::test]
async fn d02_a_missing_control_plane_is_one_machine_and_no_crash() {
    let lab = Lab::new().await;
    let asked = CreateClusterMsg { name: "demo".into(), ..CreateClusterMsg::default() };
    lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.sim.owned(), 1);
}

#[tokio::test]
async fn d03_names_versions_counts_labels_and_double_pools_are_checked() {
    let lab = Lab::new().await;
    let mut asked = request("UPPER", "nonsense", -3, &[("a", 1), ("a", -1)]);
    asked.worker_node_pools[0].labels =
        vec![KubernetesLabel { name: "a b".into(), value: "c".into() }];
    let refused = lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap_err();
    let Error::Invalid(wrong) = refused else { panic!("{refused}") };
    assert_eq!(wrong.len(), 6, "{wrong:#?}");
}

#[tokio::test]
async fn d04_a_failed_create_leaves_nothing_and_a_duplicate_is_refused() {
    let lab = Lab::new().await;
    lab.create("demo", "9.9.9", 1, &[("a", 1)]).await.unwrap_err();
    assert!(lab.manager.list().is_empty());
    lab.create("demo", "", 1, &[]).await.unwrap();
    let double = lab.create("demo", "", 1, &[]).await.unwrap_err();
    assert_eq!(double.code(), selvage_api::Code::AlreadyExists);
    // The same request, sent again because its answer was lost, is no double.
    let origin = Origin { request_id: "once".into(), ..Origin::default() };
    let asked = request("again", "", 1, &[]);
    let first = lab.manager.create(&admin(), &origin, &asked).await.unwrap();
    let second = lab.manager.create(&admin(), &origin, &asked).await.unwrap();
    assert_eq!(first.cluster.uid, second.cluster.uid);
}

#[tokio::test]
async fn d05_three_control_planes_are_three_machines() {
    let lab = Lab::new().await;
    lab.running("demo", 3, &[]).await;
    let machines = lab.manager.find("demo").unwrap().machines;
    let control_plane = machines.iter().filter(|machine| machine.is_control_plane());
    assert_eq!(control_plane.count(), 3);
}

#[tokio::test]
async fn d06_an_upgrade_upgrades_and_growth_during_it_is_never_ahead() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.upgrade("demo", "1.36.4").await.unwrap();
    assert!(lab.scale("demo", "a", 3).await.is_err());
    lab.settle("demo").await;
    lab.scale("demo", "a", 3).await.unwrap();
    lab.settle("demo").await;
    let machines = lab.manager.find("demo").unwrap().machines;
    assert!(machines.iter().all(|machine| machine.running.kubelet == "1.36.4"));
    assert_eq!(lab.sim.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn d07_upgrade_information_is_about_the_cluster() {
    let lab = Lab::new().await;
    let api = ClusterApi::new(lab.manager.clone(), Compat::Precise);
    let ask = |name: &str| {
        api.get_upgrade_cluster_information(insecure(GetUpgradeClusterInformationMsg {
            name: name.into(),
        }))
    };
    assert_eq!(ask("demo").await.unwrap_err().code(), Code::NotFound);
    lab.running("demo", 1, &[]).await;
    let reply = ask("demo").await.unwrap().into_inner();
    assert_eq!((reply.ok, reply.versions), (true, vec!["1.36.4".to_owned()]));
}

#[tokio::test]
async fn d08_every_status_can_be_seen_and_has_a_message() {
    let lab = Lab::new().await;
    lab.create("demo", "1.35.8", 1, &[("a", 1)]).await.unwrap();
    let message = |lab: &Lab| lab.manager.message(&lab.manager.find("demo").unwrap());
    assert_eq!(lab.status("demo"), "PROVISIONING");
    assert!(!message(&lab).is_empty());
    lab.settle("demo").await;
    let node = |pool: &str| {
        let machines = lab.manager.find("demo").unwrap().machines;
        machines.into_iter().find(|machine| machine.pool == pool).unwrap().name
    };
    for (pool, status) in [("a", "DEGRADED"), ("", "ERROR")] {
        lab.sim.change_node("demo", &node(pool), false, 0, false);
        lab.manager.check_soon("demo");
        lab.manager.reconcile("demo").await.unwrap();
        assert_eq!(lab.status("demo"), status);
        assert!(!message(&lab).is_empty());
    }
    lab.manager.delete(&admin(), "demo").await.unwrap();
    assert_eq!(lab.status("demo"), "STOPPING");
    assert!(message(&lab).starts_with("Deleting"));
}

#[tokio::test]
async fn d09_a_negative_size_is_refused_and_others_go_on() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    lab.running("other", 1, &[("a", 1)]).await;
    let refused = lab.scale("demo", "a", -5).await.unwrap_err();
    assert_eq!(refused.code(), selvage_api::Code::InvalidArgument);
    lab.scale("demo", "a", 2).await.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.manager.find("demo").unwrap().machines.len(), 3);
    lab.scale("other", "a", 3).await.unwrap();
    lab.settle("other").await;
    assert_eq!(lab.manager.find("other").unwrap().machines.len(), 4);
}

#[tokio::test]
async fn d10_a_machine_is_not_released_before_its_pods_have_left() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1)]).await;
    let machines = lab.manager.find("demo").unwrap().machines;
    let node = machines.iter().find(|machine| machine.pool == "a").unwrap().name.clone();
    lab.sim.change_node("demo", &node, true, 1, false);
    lab.scale("demo", "a", 0).await.unwrap();
    for _ in 0..5 {
        lab.manager.reconcile("demo").await.unwrap();
    }
    assert_eq!(lab.sim.owned(), 2);
    lab.sim.change_node("demo", &node, true, 0, false);
    lab.settle("demo").await;
    assert_eq!(lab.sim.owned(), 1);
}

#[tokio::test]
async fn d11_a_crash_between_acquire_and_record_leaks_nothing() {
    let mut lab = Lab::new().await;
    lab.create("demo", "", 1, &[]).await.unwrap();
    lab.sim.fault(1, Fault::CrashAfter);
    tokio::select! {
        () = lab.sim.crashed() => {}
        () = lab.settle("demo") => panic!("it did not crash"),
    }
    assert_eq!(lab.sim.owned(), 1);
    lab.restart().await;
    lab.settle("demo").await;
    assert_eq!((lab.sim.owned(), lab.status("demo").as_str()), (1, "RUNNING"));
}

#[tokio::test]
async fn d11_two_managers_at_once_take_no_machine_twice() {
    let lab = Lab::new().await;
    let other = lab.another_manager().await;
    lab.create("demo", "", 3, &[("a", 2)]).await.unwrap();
    for _ in 0..20 {
        let (a, b) = tokio::join!(lab.manager.reconcile("demo"), other.reconcile("demo"));
        a.unwrap();
        b.unwrap();
    }
    lab.settle("demo").await;
    assert_eq!((lab.sim.owned(), lab.sim.violations()), (5, Vec::new()));
}

#[tokio::test]
async fn d12_a_deployment_that_fails_is_seen_and_replaced() {
    let lab = Lab::new().await;
    lab.create("demo", "", 1, &[]).await.unwrap();
    lab.sim.fault(2, Fault::RefuseForGood);
    lab.settle("demo").await;
    let cluster = lab.manager.find("demo").unwrap().cluster;
    assert!(cluster.events.iter().any(|event| event.message.contains("given up")));
    assert_eq!(lab.status("demo"), "RUNNING");
}

#[tokio::test]
async fn d13_labels_that_would_inject_are_refused() {
    let lab = Lab::new().await;
    for value in ["x\nruncmd: [reboot]", "$(reboot)", "\"", "a: b", "x y"] {
        let mut asked = request("demo", "", 1, &[("a", 1)]);
        let label = KubernetesLabel { name: "zone".into(), value: value.into() };
        asked.worker_node_pools[0].labels = vec![label];
        let refused = lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap_err();
        assert!(
            refused.to_string().starts_with("worker_node_pools[0].labels[0].value"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn d14_keys_in_the_store_are_sealed_and_kubeconfigs_short_lived() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[]).await;
    let cluster = lab.manager.find("demo").unwrap().cluster;
    let config = lab.manager.kubeconfig(&cluster, "ann").await.unwrap().unwrap();
    let keys: std::sync::Arc<Table<Pki>> = Table::open(lab.store.clone()).await.unwrap();
    let stored = keys.get(&cluster.uid).unwrap();
    assert!(!String::from_utf8_lossy(&stored.value.sealed).contains("PRIVATE KEY"));
    assert!(config.contains("ann@demo"));
    let (subject, life) = client_certificate(&config);
    assert!(subject.contains("CN=selvage:ann"), "{subject}");
    // A day, and what clocks may differ by.
    assert!(life <= 25 * 3600, "{life}");
}

#[test]
fn d15_every_program_of_a_cluster_has_one_exact_version() {
    let catalogue = Catalogue::load(None).unwrap();
    for release in catalogue.releases() {
        let versions = wire::Versions {
            kubernetes: release.version.to_string(),
            etcd: release.etcd.clone(),
            coredns: release.coredns.clone(),
            containerd: release.containerd.clone(),
            cni: release.cni.clone(),
            kubelet: String::new(),
        };
        let needed: Vec<_> = selvage_components::needed(&versions).collect();
        for program in ["kube-apiserver", "kubelet", "etcd", "coredns", "containerd"] {
            assert!(needed.iter().any(|(.., name)| *name == program), "{program}: {needed:?}");
        }
        for (folder, version, name) in needed {
            let exact = version.parse::<selvage_kaas::catalogue::Version>();
            assert!(exact.is_ok(), "{folder}/{version}/{name}");
        }
    }
}

#[tokio::test]
async fn d16_ready_means_that_nodes_are_not_that_they_were_asked_for() {
    let lab = Lab::new().await;
    lab.create("demo", "", 1, &[("a", 1)]).await.unwrap();
    lab.sim.fault(4, Fault::Refuse);
    lab.manager.reconcile("demo").await.unwrap();
    assert_ne!(lab.status("demo"), "RUNNING");
}

#[tokio::test]
async fn d17_all_machines_of_a_cluster_are_found_and_no_others() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 2)]).await;
    lab.running("demo-2", 1, &[("a", 1)]).await;
    assert_eq!(lab.manager.find("demo").unwrap().machines.len(), 3);
    assert_eq!(lab.manager.find("demo-2").unwrap().machines.len(), 2);
}

#[tokio::test]
async fn d18_a_cluster_that_waits_holds_up_no_other() {
    let lab = Lab::new().await;
    lab.running("slow", 1, &[("a", 1)]).await;
    let machines = lab.manager.find("slow").unwrap().machines;
    let node = machines.iter().find(|machine| machine.pool == "a").unwrap().name.clone();
    lab.sim.change_node("slow", &node, true, 1, false);
    lab.scale("slow", "a", 0).await.unwrap();
    let again = lab.manager.reconcile("slow").await.unwrap();
    assert!(again.is_some(), "it looks again later instead of waiting");
    lab.running("fast", 1, &[]).await;
    assert_eq!(lab.status("fast"), "RUNNING");
}

#[tokio::test]
async fn d19_changes_at_the_same_time_are_all_kept() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[("a", 1), ("b", 1)]).await;
    let (a, b, c) = tokio::join!(
        lab.scale("demo", "a", 3),
        lab.scale("demo", "b", 2),
        lab.add_pool("demo", "c", 1),
    );
    a.unwrap();
    b.unwrap();
    c.unwrap();
    lab.settle("demo").await;
    assert_eq!(lab.manager.find("demo").unwrap().machines.len(), 7);
}

#[tokio::test]
async fn d20_names_of_namespaces_are_names_like_others() {
    let lab = Lab::new().await;
    lab.running("kube-system", 1, &[]).await;
    lab.running("demo", 1, &[]).await;
    lab.manager.delete(&admin(), "kube-system").await.unwrap();
    lab.settle("kube-system").await;
    assert_eq!(lab.status("demo"), "RUNNING");
    assert_eq!(lab.sim.owned(), 1);
}

#[tokio::test]
async fn d21_the_version_is_built_in() {
    let commit = "2db1e7d0c2ff1ae5f1f2a1b2c3d4e5f60718293a";
    let source = selvage_kit::build::Source { commit, tree: "dirty", built: "1795038444" };
    // As the program does it at its start.
    selvage_kit::build::set_source(source);
    let lab = Lab::new().await;
    let api = ClusterApi::new(lab.manager.clone(), Compat::Precise);
    let reply = api.get_version_information(insecure(GetVersionMsg {})).await.unwrap();
    let version = reply.into_inner().version_information.unwrap();
    let build = selvage_kit::build::build();
    assert!(version.git_version.contains(&build.tag), "{version:?}");
    assert_eq!((version.git_commit.as_str(), version.git_tree_state.as_str()), (commit, "dirty"));
    assert_eq!(version.build_date, "2026-11-18T21:47:24Z");
    for field in [version.git_version, version.go_version, version.compiler, version.platform] {
        assert!(!field.is_empty());
    }
}

#[test]
fn d22_a_setting_is_used_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalogue.toml");
    let text = include_str!("../../catalogue.toml").replace("1.37.1", "1.37.2");
    std::fs::write(&path, text).unwrap();
    let own = Catalogue::load(Some(&path)).unwrap();
    assert_eq!(own.newest().unwrap().to_string(), "1.37.2");
    let options = r#"{ "provider": "maas", "maas": { "api_version": "2.0" } }"#;
    let unused = serde_json::from_str::<selvage_kaas::Options>(options).unwrap_err();
    assert!(unused.to_string().contains("api_version"), "{unused}");
}

#[tokio::test]
async fn d23_a_deletion_says_stopping_until_the_last_machine_is_back() {
    let lab = Lab::new().await;
    lab.running("demo", 1, &[]).await;
    let api = ClusterApi::new(lab.manager.clone(), Compat::Precise);
    let deleted = api.delete_cluster(insecure(DeleteClusterMsg { name: "demo".into() })).await;
    assert_eq!(deleted.unwrap().into_inner().status, "Deleting");
    lab.sim.fault(1, Fault::Refuse);
    lab.manager.reconcile("demo").await.unwrap();
    assert_eq!((lab.status("demo").as_str(), lab.sim.owned()), ("STOPPING", 1));
    let phase = lab.manager.find("demo").unwrap().machines[0].phase();
    assert_eq!(phase, Phase::Releasing);
    lab.settle("demo").await;
    assert!(lab.manager.snapshot("demo").is_none());
    assert!(lab.manager.delete(&developer("acme"), "demo").await.is_err());
}
