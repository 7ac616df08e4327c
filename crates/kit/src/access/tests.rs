#![allow(clippy::unwrap_used)]
use prost::Message;
use selvage_api::edgeproto::{
    App, AppInst, AppInstKey, AppKey, CloudletKey, ClusterInstKey, ClusterRefs, DeveloperKey,
    OperatorKey,
};

use std::sync::Arc;

use super::*;
use crate::identity::{Delegation, Form, Grant};

fn user(grants: &[(Role, &str)]) -> Identity {
    let grants = grants
        .iter()
        .map(|(role, organisation)| Grant { role: *role, organisation: (*organisation).into() })
        .collect();
    Identity {
        name: "someone".into(),
        kind: Kind::User { session: "s".into(), expires: 0 },
        grants,
    }
}

fn app_of(developer: &str) -> Vec<u8> {
    let developer_key = Some(DeveloperKey { name: developer.into() });
    App { key: Some(AppKey { developer_key, ..Default::default() }), ..Default::default() }
        .encode_to_vec()
}

fn decide(path: &str, caller: &Identity, message: &[u8]) -> Result<Decision, Code> {
    let access = Access::load().unwrap();
    access.rule(path).unwrap().decide(caller, message).map_err(|denied| denied.code)
}

#[test]
fn every_method_of_every_contract_has_a_row() {
    let access = Access::load().unwrap();
    assert_eq!(access.rules().count(), selvage_api::methods().len());
}

#[test]
fn a_developer_creates_only_his_own_apps() {
    let create = "/edgeproto.AppApi/CreateApp";
    let acme = user(&[(Role::Developer, "Acme")]);
    assert_eq!(decide(create, &acme, &app_of("Acme")), Ok(Decision::Allow));
    assert_eq!(decide(create, &acme, &app_of("Evil")), Err(Code::PermissionDenied));
    assert_eq!(decide(create, &acme, &app_of("")), Err(Code::PermissionDenied));
    // The same organisation's name with another role is another thing.
    let operator = user(&[(Role::Operator, "Acme")]);
    assert_eq!(decide(create, &operator, &app_of("Acme")), Err(Code::PermissionDenied));
}

#[test]
fn a_refusal_names_the_roles_that_would_do() {
    let access = Access::load().unwrap();
    let denial = |path: &str, role| {
        let refused = access.rule(path).unwrap().decide(&user(&[(role, "Acme")]), &[]);
        refused.unwrap_err().message
    };
    assert_eq!(
        denial("/edgeproto.AppApi/CreateApp", Role::Viewer),
        "not authorized: someone is not among those who may call edgeproto.AppApi/CreateApp; that \
         takes the role admin or developer"
    );
    let flavors = denial("/edgeproto.FlavorApi/CreateFlavor", Role::Developer);
    assert!(flavors.ends_with("CreateFlavor; that takes the role admin"), "{flavors}");
    let refs = denial("/edgeproto.CloudletRefsApi/ShowCloudletRefs", Role::Developer);
    assert!(refs.ends_with("; that takes the role admin or operator or viewer"), "{refs}");
}

#[test]
fn operators_see_what_runs_on_their_sites() {
    let show = "/edgeproto.AppInstApi/ShowAppInst";
    let on = |operator: &str| {
        let operator_key = Some(OperatorKey { name: operator.into() });
        let cloudlet_key = Some(CloudletKey { operator_key, ..Default::default() });
        let cluster_inst_key = Some(ClusterInstKey { cloudlet_key, ..Default::default() });
        let key = Some(AppInstKey { cluster_inst_key, ..Default::default() });
        AppInst { key, ..Default::default() }.encode_to_vec()
    };
    let operator = user(&[(Role::Operator, "Tele")]);
    assert_eq!(decide(show, &operator, &[]), Ok(Decision::Narrow(on("Tele"))));
    assert_eq!(decide(show, &operator, &on("Tele")), Ok(Decision::Allow));
    assert_eq!(decide(show, &operator, &on("Other")), Err(Code::PermissionDenied));
    let in_clusters = "/edgeproto.ClusterRefsApi/ShowClusterRefs";
    let clusters_on = |operator: &str| {
        let operator_key = Some(OperatorKey { name: operator.into() });
        let cloudlet_key = Some(CloudletKey { operator_key, ..Default::default() });
        let key = Some(ClusterInstKey { cloudlet_key, ..Default::default() });
        ClusterRefs { key, ..Default::default() }.encode_to_vec()
    };
    assert_eq!(decide(in_clusters, &operator, &clusters_on("Tele")), Ok(Decision::Allow));
    let other = decide(in_clusters, &operator, &clusters_on("Other"));
    assert_eq!(other, Err(Code::PermissionDenied));
    // They look, and that is all.
    let delete = "/edgeproto.AppInstApi/DeleteAppInst";
    assert_eq!(decide(delete, &operator, &on("Tele")), Err(Code::PermissionDenied));
    let developer = user(&[(Role::Developer, "Tele")]);
    let Ok(Decision::Narrow(own)) = decide(show, &developer, &on("Other")) else {
        unreachable!("a developer sees what is the developer's, wherever it runs")
    };
    let own = AppInst::decode(own.as_slice()).unwrap().key.unwrap();
    assert_eq!(own.app_key.unwrap().developer_key.unwrap().name, "Tele");
}

#[test]
fn asking_for_everything_shows_what_is_ones_own() {
    let show = "/edgeproto.AppApi/ShowApp";
    let acme = user(&[(Role::Developer, "Acme")]);
    let Ok(Decision::Narrow(appended)) = decide(show, &acme, &[]) else {
        unreachable!("an empty filter is narrowed")
    };
    let seen = App::decode(appended.as_slice()).unwrap();
    assert_eq!(seen.key.unwrap().developer_key.unwrap().name, "Acme");

    let both = user(&[(Role::Developer, "Acme"), (Role::Developer, "Beta")]);
    assert_eq!(decide(show, &both, &[]), Err(Code::InvalidArgument));
    assert_eq!(decide(show, &both, &app_of("Beta")), Ok(Decision::Allow));
}

#[test]
fn viewers_see_what_is_no_secret_and_change_nothing() {
    let access = Access::load().unwrap();
    let viewer = user(&[(Role::Viewer, "")]);
    for rule in access.rules() {
        let allowed = rule.decide(&viewer, &[]).is_ok();
        match rule.effect {
            Effect::Read => assert!(allowed, "{}", rule.path),
            Effect::ReadSecret | Effect::Write => {
                let own = [Who::Anyone, Who::Person].iter().any(|who| rule.who.contains(who));
                assert_eq!(allowed, own, "{}", rule.path);
            }
        }
    }
}

#[test]
fn nobody_gets_in_only_where_anyone_may() {
    let access = Access::load().unwrap();
    let admin = Identity::all_powerful("root", Kind::Local);
    for rule in access.rules() {
        let code = rule.decide(&Identity::anonymous(), &[]).map_err(|denied| denied.code);
        let expected =
            if rule.open_to_anyone() { Ok(Decision::Allow) } else { Err(Code::Unauthenticated) };
        assert_eq!(code, expected, "{}", rule.path);
        assert_eq!(rule.decide(&admin, &[]), Ok(Decision::Allow), "{}", rule.path);
    }
}

#[test]
fn machines_do_what_their_kind_does() {
    let cloudlet = Identity::machine(Machine::parse("cloudlet/tmus/c1").unwrap());
    let node = Identity::machine(Machine::parse("node/n1").unwrap());
    let notify = "/edgeproto.NotifyApi/StreamNotice";
    assert_eq!(decide(notify, &cloudlet, &[]), Ok(Decision::Allow));
    assert_eq!(decide(notify, &node, &[]), Err(Code::PermissionDenied));
    let renew = "/selvage.identity.IdentityService/Renew";
    assert_eq!(decide(renew, &node, &[]), Ok(Decision::Allow));
    assert_eq!(decide(renew, &user(&[(Role::Viewer, "")]), &[]), Err(Code::PermissionDenied));
    // A machine that joined says regularly that it is there.
    let engine = Identity::machine(Machine::parse("dme/west").unwrap());
    for joined in [&cloudlet, &node, &engine] {
        let report = "/selvage.identity.IdentityService/Report";
        assert_eq!(decide(report, joined, &[]), Ok(Decision::Allow), "{joined:?}");
    }
}

#[test]
fn developers_and_operators_may_ask_for_samples() {
    for path in [
        "/selvage.metrics.MetricsService/ListSamples",
        "/edgeproto.AppInstMetricsApi/ShowAppInstMetrics",
        "/edgeproto.CloudletMetricsApi/ShowCloudletMetrics",
    ] {
        for role in [Role::Developer, Role::Operator] {
            assert_eq!(decide(path, &user(&[(role, "demo")]), &[]), Ok(Decision::Allow), "{path}");
        }
        let agent = Identity::machine(Machine::parse("cloudlet/demo/c1").unwrap());
        assert_eq!(decide(path, &agent, &[]), Err(Code::PermissionDenied), "{path}");
    }
}

#[test]
fn the_early_word_never_contradicts_the_last() {
    let access = Access::load().unwrap();
    let callers = [
        Identity::anonymous(),
        user(&[(Role::Viewer, "")]),
        user(&[(Role::Developer, "Acme")]),
        user(&[(Role::Operator, "Acme")]),
        Identity::machine(Machine::parse("node/n1").unwrap()),
    ];
    for rule in access.rules() {
        for caller in &callers {
            let early = rule.decide_early(caller);
            let own = rule.owners.first().map_or(Vec::new(), |owner| owner.path.write("Acme"));
            if let Err(denied) = early {
                assert_eq!(rule.decide(caller, &own), Err(denied), "{}", rule.path);
            }
        }
    }
}

#[test]
fn an_unreadable_request_is_not_let_through() {
    let acme = user(&[(Role::Developer, "Acme")]);
    let broken = [0x12, 0xff, 0xff, 0xff, 0x7f, 1];
    assert_eq!(decide("/edgeproto.AppApi/CreateApp", &acme, &broken), Err(Code::InvalidArgument));
}

/// Rights on a machine by role, as the contract's own list has it.
#[test]
fn on_machines_viewers_look_operators_steer_and_admins_own() {
    const READ: &[&str] = &[
        "/os.OSService/Containers",
        "/os.OSService/Stats",
        "/os.OSService/Dmesg",
        "/os.OSService/Memory",
        "/os.OSService/Processes",
        "/machine.MachineService/Mounts",
        "/machine.MachineService/List",
        "/machine.MachineService/ServiceList",
        "/machine.MachineService/Version",
        "/network.NetworkService/Routes",
        "/network.NetworkService/Interfaces",
        "/time.TimeService/Time",
        "/selvage.node.NodeService/GetHost",
        "/selvage.node.NodeService/WatchStats",
    ];
    const STEER: &[&str] = &[
        "/machine.MachineService/Logs",
        "/os.OSService/Restart",
        "/machine.MachineService/Reboot",
        "/machine.MachineService/Shutdown",
        "/machine.MachineService/ServiceStart",
        "/machine.MachineService/ServiceStop",
        "/machine.MachineService/ServiceRestart",
    ];
    const OWN: &[&str] = &[
        "/machine.MachineService/Read",
        "/machine.MachineService/Copy",
        "/machine.MachineService/Kubeconfig",
        "/machine.MachineService/Reset",
        "/machine.MachineService/Upgrade",
    ];
    let callers = [
        user(&[(Role::Viewer, "")]),
        user(&[(Role::Operator, "Tele")]),
        user(&[(Role::Admin, "")]),
    ];
    for (methods, allowed) in
        [(READ, [true, true, true]), (STEER, [false, true, true]), (OWN, [false, false, true])]
    {
        for path in methods {
            let may: Vec<bool> =
                callers.iter().map(|caller| decide(path, caller, &[]).is_ok()).collect();
            assert_eq!(may, allowed, "{path}");
        }
    }
    let developer = user(&[(Role::Developer, "Acme")]);
    for path in STEER.iter().chain(OWN).chain(&["/os.OSService/Processes"]) {
        assert_eq!(decide(path, &developer, &[]), Err(Code::PermissionDenied), "{path}");
    }
}

/// Methods that a machine's certificate opens besides those that are open to
/// anyone. Written down here once more on purpose: a row that opens more is
/// noticed by somebody who did not write it.
const OF_MACHINES: [(&str, &[&str]); 3] = [
    (
        "cloudlet/tmus/c1",
        &[
            "/cnct.kaas.api.Cluster/CreateCluster",
            "/cnct.kaas.api.Cluster/DeleteCluster",
            "/cnct.kaas.api.Cluster/GetCluster",
            "/cnct.kaas.api.Cluster/GetClusterList",
            "/cnct.kaas.api.Cluster/ScaleNodePool",
            "/edgeproto.NotifyApi/StreamNotice",
            "/selvage.clusters.ClusterService/GetCluster",
            "/selvage.clusters.ClusterService/ListVersions",
            "/selvage.clusters.ClusterService/WatchCluster",
            "/selvage.identity.IdentityService/CheckCertificate",
            "/selvage.identity.IdentityService/Renew",
            "/selvage.identity.IdentityService/Report",
            "/selvage.identity.IdentityService/WatchBlockedMachines",
            "/selvage.identity.IdentityService/WhoAmI",
            "/selvage.shell.ShellService/Attach",
        ],
    ),
    (
        "dme/west",
        &[
            "/edgeproto.NotifyApi/StreamNotice",
            "/selvage.identity.IdentityService/CheckCertificate",
            "/selvage.identity.IdentityService/Renew",
            "/selvage.identity.IdentityService/Report",
            "/selvage.identity.IdentityService/WatchBlockedMachines",
            "/selvage.identity.IdentityService/WhoAmI",
            "/selvage.matching.MatchingService/ListCookieKeys",
        ],
    ),
    (
        "node/n1",
        &[
            "/selvage.identity.IdentityService/CheckAssertion",
            "/selvage.identity.IdentityService/CheckCertificate",
            "/selvage.identity.IdentityService/Renew",
            "/selvage.identity.IdentityService/Report",
            "/selvage.identity.IdentityService/WatchBlockedMachines",
            "/selvage.identity.IdentityService/WhoAmI",
        ],
    ),
];

/// Every kind of machine against every method.
#[test]
fn a_certificate_of_a_machine_opens_nothing_but_its_own_methods() {
    let access = Access::load().unwrap();
    for (name, own) in OF_MACHINES {
        let machine = Identity::machine(Machine::parse(name).unwrap());
        for rule in access.rules().filter(|rule| !rule.open_to_anyone()) {
            // Requests that name an organisation open no more than empty ones.
            let named = rule.owners.first().map(|owner| owner.path.write("tmus"));
            for message in [Vec::new()].into_iter().chain(named) {
                let allowed = rule.decide(&machine, &message).is_ok();
                assert_eq!(allowed, own.contains(&rule.path.as_str()), "{name}: {}", rule.path);
            }
        }
    }
}

#[test]
fn what_a_machine_reaches_by_a_method_is_written_down() {
    let access = Access::load().unwrap();
    for rule in access.rules() {
        let machines = rule
            .who
            .iter()
            .any(|who| matches!(who, Who::Machine(kind) if *kind != MachineKind::Controller));
        assert_eq!(rule.limit_of_machines().is_some(), machines, "{}", rule.path);
    }
}

fn delegate(grants: &[(Role, &str)], methods: &[&str]) -> Identity {
    let limits = Delegation {
        form: Form::Token,
        id: "t".into(),
        expires: i64::MAX,
        methods: methods.iter().map(|method| (*method).to_owned()).collect(),
    };
    Identity { kind: Kind::Delegate(Arc::new(limits)), ..user(grants) }
}

const GRANTS: [&[(Role, &str)]; 5] = [
    &[(Role::Admin, "")],
    &[(Role::Operator, "Acme")],
    &[(Role::Developer, "Acme")],
    &[(Role::Viewer, "")],
    &[(Role::Viewer, ""), (Role::Developer, "Acme"), (Role::Operator, "Acme")],
];

/// Requests of a rule: empty, and of two organisations where it has owners.
fn messages(rule: &Rule) -> Vec<Vec<u8>> {
    let named = rule.owners.iter().flat_map(|owner| {
        ["Acme", "Evil"].into_iter().map(|organisation| owner.path.write(organisation))
    });
    [Vec::new()].into_iter().chain(named).collect()
}

#[test]
fn a_token_reaches_nothing_that_a_person_of_its_grants_does_not() {
    let access = Access::load().unwrap();
    for grants in GRANTS {
        for rule in access.rules() {
            let (person, token) = (user(grants), delegate(grants, &[]));
            for message in messages(rule) {
                let (may, got) = (rule.decide(&person, &message), rule.decide(&token, &message));
                let early = rule.decide_early(&token);
                assert!(got.is_err() || early.is_ok(), "{}", rule.path);
                match rule.delegates() {
                    Delegates::Welcome => assert_eq!(got, may, "{}", rule.path),
                    _ => assert!(got.is_err() && early.is_err(), "{}", rule.path),
                }
            }
        }
    }
}

#[test]
fn a_list_of_methods_opens_those_and_no_others() {
    let access = Access::load().unwrap();
    let admin = [(Role::Admin, "")];
    for listed in access.rules() {
        let token = delegate(&admin, &[listed.path.trim_start_matches('/')]);
        for rule in access.rules() {
            let open = rule.open_to_anyone() || ABOUT_THE_CALLER.contains(&rule.path.as_str());
            let own = rule.path == listed.path && rule.delegates() != Delegates::Never;
            let allowed = rule.decide(&token, &[]).is_ok();
            assert_eq!(allowed, open || own, "{} with {}", rule.path, listed.path);
            assert_eq!(rule.decide_early(&token).is_ok(), allowed, "{}", rule.path);
        }
    }
}

#[test]
fn a_service_on_the_list_does_not_open_what_makes_credentials() {
    let access = Access::load().unwrap();
    let token = delegate(&[(Role::Admin, "")], &["selvage.identity.IdentityService/*"]);
    for rule in access.rules().filter(|rule| rule.delegates() != Delegates::Welcome) {
        assert!(rule.decide(&token, &[]).is_err(), "{}", rule.path);
    }
    assert!(
        access
            .rule("/selvage.identity.IdentityService/ListUsers")
            .is_some_and(|rule| { rule.decide(&token, &[]).is_ok() })
    );
}

/// Methods of identities that change something and leave no credential behind.
/// Written down here so that a new one is noticed.
const HARMLESS: &[&str] = &[
    // Open to anyone: they judge another credential, which is shown to them.
    "/selvage.identity.IdentityService/Join",
    "/selvage.identity.IdentityService/FinishLogin",
    "/services.auth.AuthService/Login",
    "/services.auth.AuthService/Logout",
    // Machines only.
    "/selvage.identity.IdentityService/Renew",
    "/selvage.identity.IdentityService/RemoveMachine",
];

#[test]
fn whatever_makes_credentials_needs_a_person() {
    let access = Access::load().unwrap();
    for rule in access.rules() {
        let identities = ["/selvage.identity.", "/services.auth."];
        let ours = identities.iter().any(|prefix| rule.path.starts_with(prefix));
        if !ours || rule.effect != Effect::Write {
            continue;
        }
        let harmless = HARMLESS.contains(&rule.path.as_str());
        assert_eq!(rule.delegates() == Delegates::Welcome, harmless, "{}", rule.path);
    }
    for (path, _) in table::DELEGATES {
        assert!(access.rule(path).is_some(), "{path}");
    }
}
