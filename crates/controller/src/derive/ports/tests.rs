#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use selvage_api::{
    Code,
    edgeproto::{AppKey, ClusterInstKey, ClusterKey, DeveloperKey, OperatorKey},
};

use super::*;

fn app(access_ports: &str) -> App {
    App { access_ports: access_ports.into(), deployment: "docker".into(), ..App::default() }
}

fn key(cluster: &str) -> AppInstKey {
    AppInstKey {
        app_key: Some(AppKey {
            developer_key: Some(DeveloperKey { name: "AcmeAppCo".into() }),
            name: "someapplication1".into(),
            version: "1.0".into(),
        }),
        cluster_inst_key: Some(ClusterInstKey {
            cluster_key: Some(ClusterKey { name: cluster.into() }),
            ..ClusterInstKey::default()
        }),
    }
}

fn port(proto: LProto, internal_port: i32, public_port: i32, path_prefix: &str) -> AppPort {
    AppPort {
        proto: proto.into(),
        internal_port,
        public_port,
        path_prefix: path_prefix.into(),
        fqdn_prefix: String::new(),
    }
}

fn given(ports: &str, exposure: Exposure, bitmap: &mut Bitmap) -> Vec<AppPort> {
    allocate(&app(ports), &key("k"), exposure, bitmap, &TakenPorts::default()).unwrap()
}

fn bitmap<const N: usize>(entries: [(i32, i32); N]) -> Bitmap {
    Bitmap::from(entries)
}

#[test]
fn the_smoke_order_gets_its_ports() {
    let mut held = Bitmap::new();
    let mapped = given("tcp:80,http:443,udp:10002", Exposure::SharedBalancer, &mut held);
    assert_eq!(
        mapped,
        [
            port(LProto::Tcp, 80, 80, ""),
            port(LProto::Http, 443, 443, "acmeappco/someapplication110/p443"),
            port(LProto::Udp, 10002, 10002, ""),
        ]
    );
    assert_eq!(held, bitmap([(80, 1), (10002, 2)]));
    release(&mapped, Exposure::SharedBalancer, &mut held);
    assert_eq!(held, Bitmap::new());
}

#[test]
fn the_golden_bitmaps_come_out() {
    let mut first = Bitmap::new();
    given("tcp:80,tcp:10002,udp:10002", Exposure::SharedBalancer, &mut first);
    assert_eq!(first, bitmap([(80, 1), (10002, 3)]));

    let mut second = Bitmap::new();
    given("tcp:443,udp:11111", Exposure::SharedBalancer, &mut second);
    given("udp:2024", Exposure::SharedBalancer, &mut second);
    assert_eq!(second, bitmap([(10000, 1), (11111, 2), (2024, 2)]));

    let mut dedicated = Bitmap::new();
    given("tcp:443,udp:11111", Exposure::DedicatedBalancer, &mut dedicated);
    assert_eq!(dedicated, Bitmap::new());
}

#[test]
fn a_port_in_use_is_remapped_protocol_by_protocol() {
    let mut held = bitmap([(80, 1), (10000, 2)]);
    let mapped = given("tcp:80,udp:80,udp:443,tcp:443", Exposure::SharedBalancer, &mut held);
    let public: Vec<_> = mapped.iter().map(|port| port.public_port).collect();
    assert_eq!(public, [10000, 80, 10001, 10001]);
    assert_eq!(held, bitmap([(80, 3), (10000, 3), (10001, 3)]));
}

#[test]
fn when_ports_run_out_nothing_is_taken() {
    let mut held: Bitmap = REMAPPED.map(|port| (port, 1)).collect();
    held.remove(&64_999);
    let before = held.clone();
    let refused = allocate(
        &app("tcp:443,tcp:10000"),
        &key("k"),
        Exposure::SharedBalancer,
        &mut held,
        &TakenPorts::default(),
    );
    let error = refused.unwrap_err();
    assert_eq!(
        (error.code(), error.to_string()),
        (Code::ResourceExhausted, "no free external ports".into())
    );
    assert_eq!(held, before);
    let mapped = given("udp:443", Exposure::SharedBalancer, &mut held);
    assert_eq!(mapped[0].public_port, 10000);
}

#[test]
fn without_a_shared_balancer_ports_keep_their_number() {
    let ports = "tcp:443,http:80,udp:53,tcp:9:intvis";
    let mut held = Bitmap::new();
    let per_service = given(ports, Exposure::PerService, &mut held);
    assert_eq!(
        per_service,
        [
            port(LProto::Tcp, 443, 443, ""),
            port(LProto::Tcp, 80, 80, ""),
            port(LProto::Udp, 53, 53, ""),
            port(LProto::Tcp, 9, 0, ""),
        ]
    );
    assert_eq!(given(ports, Exposure::Machine, &mut held), per_service);
    let own = given(ports, Exposure::DefaultCloudlet, &mut held);
    assert!(own.iter().all(|port| port.public_port == 0 && port.path_prefix.is_empty()));
    assert_eq!(own[1].proto(), LProto::Http);
    assert_eq!(held, Bitmap::new());
}

#[test]
fn instances_in_one_dedicated_cluster_do_not_share_ports() {
    let mut unused = Bitmap::new();
    let first = AppInst {
        mapped_ports: given("http:8080,tcp:90,udp:90", Exposure::DedicatedBalancer, &mut unused),
        ..AppInst::default()
    };
    let taken = TakenPorts::by([&first]);
    let second = allocate(
        &app("tcp:90,udp:91,tcp:443,http:1"),
        &key("k"),
        Exposure::DedicatedBalancer,
        &mut unused,
        &taken,
    )
    .unwrap();
    let public: Vec<_> = second.iter().map(|port| port.public_port).collect();
    assert_eq!(public, [10000, 91, 10001, 443]);

    let plain = AppInst {
        mapped_ports: given("tcp:443", Exposure::DedicatedBalancer, &mut unused),
        ..AppInst::default()
    };
    assert_eq!(plain.mapped_ports[0].public_port, 443);
    let refused = allocate(
        &app("http:80"),
        &key("k"),
        Exposure::DedicatedBalancer,
        &mut unused,
        &TakenPorts::by([&plain]),
    );
    assert_eq!(refused.unwrap_err().to_string(), "no free external ports");
}

#[test]
fn a_path_in_use_gets_the_cluster_into_it() {
    let mut taken = TakenPorts::default();
    let mut paths = Vec::new();
    for _ in 0..3 {
        let mapped = allocate(
            &app("http:80"),
            &key("East.1"),
            Exposure::SharedBalancer,
            &mut Bitmap::new(),
            &taken,
        );
        let path = mapped.unwrap()[0].path_prefix.clone();
        assert!(taken.paths.insert(path.clone()));
        paths.push(path);
    }
    assert_eq!(
        paths,
        [
            "acmeappco/someapplication110/p80",
            "acmeappco/someapplication110/east1/p80",
            "acmeappco/someapplication110/east1-2/p80",
        ]
    );
}

/// D11: the original freed the shared ports of other Apps.
#[test]
fn a_dedicated_instance_gives_back_nothing_shared() {
    let mut held = bitmap([(80, 1)]);
    let dedicated = given("tcp:80", Exposure::DedicatedBalancer, &mut Bitmap::new());
    for exposure in [
        Exposure::DedicatedBalancer,
        Exposure::PerService,
        Exposure::Machine,
        Exposure::DefaultCloudlet,
    ] {
        release(&dedicated, exposure, &mut held);
        assert_eq!(held, bitmap([(80, 1)]));
    }
}

#[test]
fn services_of_the_manifest_become_prefixes() {
    let mut app = app("tcp:80,http:443,udp:10002");
    app.deployment = "kubernetes".into();
    app.deployment_manifest = "\
kind: Service
metadata: {name: someapplication1-tcp}
spec: {ports: [{port: 80}, {port: 443}]}
---
kind: Service
metadata: {name: someapplication1-udp}
spec: {ports: [{port: 9, targetPort: 10002, protocol: UDP}]}
"
    .into();
    let prefixes = |app: &App, exposure| -> Vec<String> {
        let mapped = allocate(app, &key("k"), exposure, &mut Bitmap::new(), &TakenPorts::default());
        mapped.unwrap().into_iter().map(|port| port.fqdn_prefix).collect()
    };
    let (tcp, udp) = ("someapplication1-tcp.", "someapplication1-udp.");
    assert_eq!(prefixes(&app, Exposure::SharedBalancer), [tcp, "", udp]);
    assert_eq!(prefixes(&app, Exposure::PerService), [tcp, tcp, udp]);
    assert_eq!(prefixes(&app, Exposure::DefaultCloudlet), ["", "", ""]);
    app.deployment = "helm".into();
    assert_eq!(prefixes(&app, Exposure::SharedBalancer), ["", "", ""]);
    app.deployment = "kubernetes".into();
    app.deployment_manifest = "}{".into();
    assert_eq!(prefixes(&app, Exposure::SharedBalancer), ["", "", ""]);
}

#[test]
fn the_exposure_follows_operator_deployment_and_access() {
    let cloudlet = |operator: &str, name: &str| CloudletKey {
        operator_key: Some(OperatorKey { name: operator.into() }),
        name: name.into(),
    };
    let tmus = cloudlet("tmus", "c");
    assert_eq!(exposure(&tmus, "kubernetes", IpAccess::Shared), Exposure::SharedBalancer);
    assert_eq!(exposure(&tmus, "docker", IpAccess::Dedicated), Exposure::DedicatedBalancer);
    assert_eq!(exposure(&tmus, "vm", IpAccess::Unknown), Exposure::Machine);
    assert_eq!(
        exposure(&cloudlet("gcp", "c"), "kubernetes", IpAccess::Dedicated),
        Exposure::PerService
    );
    assert_eq!(
        exposure(&cloudlet("developer", "default"), "vm", IpAccess::Shared),
        Exposure::DefaultCloudlet
    );
}

proptest! {
    #[test]
    fn no_port_is_given_twice_and_all_come_back(
        steps in prop::collection::vec(
            (any::<bool>(), any::<prop::sample::Index>(), prop::collection::btree_set((any::<bool>(), 1u16..60), 0..6)),
            1..60,
        )
    ) {
        let mut held = Bitmap::new();
        let mut alive: Vec<Vec<AppPort>> = Vec::new();
        for (create, which, ports) in steps {
            if create || alive.is_empty() {
                let ports: Vec<_> = ports
                    .iter()
                    .filter(|(udp, port)| *udp || *port != 22)
                    .map(|(udp, port)| format!("{}:{port}", if *udp { "udp" } else { "tcp" }))
                    .collect();
                alive.push(given(&ports.join(","), Exposure::SharedBalancer, &mut held));
            } else {
                let gone = alive.remove(which.index(alive.len()));
                release(&gone, Exposure::SharedBalancer, &mut held);
            }
            let mut sum = Bitmap::new();
            for port in alive.iter().flatten() {
                let bits = sum.entry(port.public_port).or_default();
                prop_assert_eq!(*bits & bit(port.proto()), 0, "given twice: {:?}", port);
                *bits |= bit(port.proto());
            }
            prop_assert_eq!(&held, &sum);
        }
        for gone in alive {
            release(&gone, Exposure::SharedBalancer, &mut held);
        }
        prop_assert_eq!(held, Bitmap::new());
    }
}

#[test]
fn the_port_of_ssh_is_for_machines_only() {
    let ports = access_ports::parse("udp:22,tcp:20-30").unwrap();
    check_reserved(&ports, "vm").unwrap();
    check_reserved(&access_ports::parse("udp:22,tcp:222").unwrap(), "docker").unwrap();
    assert_eq!(
        check_reserved(&ports, "docker").unwrap_err().to_string(),
        "Invalid Access Ports: tcp:20-30, port 22 is reserved for SSH to load balancers"
    );
}
