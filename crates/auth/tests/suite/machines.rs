//! Join tokens and certificates.

use std::sync::Arc;

use selvage_api::selvage::identity::{
    BlockMachineRequest, CertificateResponse, CreateJoinTokenRequest, CreateJoinTokenResponse,
    JoinRequest, ListBlockedMachinesRequest, ListMachinesRequest, RemoveMachineRequest,
    RenewRequest, ReportRequest, ReportResponse, UnblockMachineRequest,
    WatchBlockedMachinesRequest, WatchBlockedMachinesResponse,
};
use selvage_auth::Auth;
use selvage_kit::identity::{Authenticator, Machine};
use tonic::{Code, Status};

use crate::harness::{
    HERE, Harness, anonymous, as_machine, as_machine_at, as_root, code, csr, memory, options,
};

fn ask(machine: &str, ttl_seconds: u32) -> CreateJoinTokenRequest {
    CreateJoinTokenRequest { machine: machine.into(), ttl_seconds, names: Vec::new() }
}

async fn join_token(h: &Harness, machine: &str, ttl: u32) -> CreateJoinTokenResponse {
    h.identities().create_join_token(as_root(ask(machine, ttl))).await.unwrap().into_inner()
}

async fn join(h: &Harness, token: &str, csr: &str) -> Result<CertificateResponse, Status> {
    let request = JoinRequest { token: token.into(), csr: csr.into() };
    Ok(h.identities().join(anonymous(HERE, request)).await?.into_inner())
}

#[tokio::test]
async fn a_join_token_is_good_for_one_certificate() {
    let h = Harness::new().await;
    let made = join_token(&h, "cloudlet/tmus/cloud 1", 0).await;
    assert_eq!(made.ca_sha256.len(), 64);
    let hour = "2026-06-01T13:00:00Z".parse::<jiff::Timestamp>().unwrap();
    assert_eq!(made.expires.unwrap().seconds, hour.as_second());
    let certificate = join(&h, &made.token, &csr()).await.unwrap();
    assert_eq!(certificate.machine, "cloudlet/tmus/cloud 1");
    assert!(certificate.certificate.contains("BEGIN CERTIFICATE"));
    assert!(certificate.ca.contains("BEGIN CERTIFICATE") && certificate.not_after.is_some());

    let status = join(&h, &made.token, &csr()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("used already"), "{}", status.message());
}

#[tokio::test]
async fn a_request_that_cannot_be_signed_leaves_the_token_good() {
    let h = Harness::new().await;
    let made = join_token(&h, "node/n1", 60).await;
    let large = "x".repeat(100_000);
    for bad in ["", "garbage", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", &large] {
        let status = join(&h, &made.token, bad).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("csr: "), "{}", status.message());
    }
    join(&h, &made.token, &csr()).await.unwrap();
}

#[tokio::test]
async fn late_and_made_up_tokens_are_refused() {
    let h = Harness::new().await;
    h.add("anna", &[]).await;
    let made = join_token(&h, "node/n1", 60).await;
    let session = h.token("anna").await;
    assert_eq!(code(join(&h, "", &csr()).await), Code::InvalidArgument);
    for wrong in ["x", "slvj_", &session, &made.token.to_lowercase()] {
        assert_eq!(code(join(&h, wrong, &csr()).await), Code::Unauthenticated, "{wrong}");
    }
    h.advance(60);
    let status = join(&h, &made.token, &csr()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("expired"), "{}", status.message());

    assert_eq!(h.auth.sweep().await.unwrap().join_tokens, 0);
    h.advance(24 * 60 * 60);
    assert_eq!(h.auth.sweep().await.unwrap().join_tokens, 1);
    assert_eq!(code(join(&h, &made.token, &csr()).await), Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_who_join_with_one_token_one_wins() {
    let h = Arc::new(Harness::new().await);
    for round in 0..20 {
        let token = join_token(&h, &format!("node/n{round}"), 60).await.token;
        let request = csr();
        let mut joins = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (h, token, request) = (Arc::clone(&h), token.clone(), request.clone());
            joins.spawn(async move { join(&h, &token, &request).await });
        }
        let outcomes = joins.join_all().await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{round}");
        for status in outcomes.into_iter().filter_map(Result::err) {
            assert_eq!(status.code(), Code::Unauthenticated);
        }
    }
}

#[tokio::test]
async fn only_administrators_let_machines_in() {
    let h = Harness::new().await;
    h.add("anna", &[("developer", "tmus"), ("viewer", "")]).await;
    let token = h.token("anna").await;
    let mut client = h.identities();
    for machine in ["cloudlet/tmus/c1", "cloudlet/other/c1", "node/n1", "controller", "dme/d1"] {
        let request = h.with_token(&token, ask(machine, 60)).await;
        assert_eq!(code(client.create_join_token(request).await), Code::PermissionDenied);
    }
    let by_machine = as_machine("controller", ask("node/n1", 60));
    assert_eq!(code(client.create_join_token(by_machine).await), Code::PermissionDenied);
    let by_nobody = anonymous(HERE, ask("node/n1", 60));
    assert_eq!(code(client.create_join_token(by_nobody).await), Code::Unauthenticated);
    for (machine, ttl, field) in [
        ("toaster/1", 60, "machine: "),
        ("node/a\nb", 60, "machine: "),
        ("node/n1", 604_801, "ttl_seconds: "),
    ] {
        let status = client.create_join_token(as_root(ask(machine, ttl))).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(field), "{}", status.message());
    }
}

#[tokio::test]
async fn a_machine_renews_its_own_certificate_and_nobody_else_does() {
    let h = Harness::new().await;
    h.add("anna", &[("admin", "")]).await;
    let renew = || RenewRequest { csr: csr() };
    let mut client = h.identities();
    let reply = client.renew(as_machine("node/n1", renew())).await.unwrap().into_inner();
    assert_eq!(reply.machine, "node/n1");
    let bad = RenewRequest { csr: "garbage".into() };
    assert_eq!(code(client.renew(as_machine("node/n1", bad)).await), Code::InvalidArgument);
    let token = h.token("anna").await;
    let by_anna = h.with_token(&token, renew()).await;
    for request in [by_anna, as_root(renew()), anonymous(HERE, renew())] {
        assert_eq!(code(client.renew(request).await), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn without_an_authority_there_are_no_certificates() {
    let h = Harness::new().await;
    let auth = Auth::open(memory().await, options(&h.clock), None).await.unwrap();
    let bare = Harness { auth, ..h };
    let outcome = bare.identities().create_join_token(as_root(ask("node/n1", 0))).await;
    assert_eq!(code(outcome), Code::FailedPrecondition);
}

fn block(machine: &str) -> BlockMachineRequest {
    BlockMachineRequest { machine: machine.into() }
}

fn unblock(machine: &str) -> UnblockMachineRequest {
    UnblockMachineRequest { machine: machine.into() }
}

#[tokio::test]
async fn a_blocked_machine_neither_joins_nor_renews_nor_is_let_in() {
    let h = Harness::new().await;
    let (thief, other) =
        (Machine::parse("node/n1").unwrap(), Machine::parse("cloudlet/tmus/c1").unwrap());
    let made = join_token(&h, "node/n1", 60).await;
    let mut client = h.identities();
    let reply = client.block_machine(as_root(block("node/n1"))).await.unwrap().into_inner();
    let blocked = reply.blocked.unwrap();
    assert_eq!((blocked.machine.as_str(), blocked.blocked_by.as_str()), ("node/n1", "local"));
    assert!(blocked.blocked_at.is_some());
    assert!(h.auth.is_blocked(&thief) && !h.auth.machine_allowed(&thief));
    assert!(!h.auth.is_blocked(&other) && h.auth.machine_allowed(&other));

    let renew = || RenewRequest { csr: csr() };
    let status = client.renew(as_machine("node/n1", renew())).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("node/n1"), "{}", status.message());
    assert_eq!(code(join(&h, &made.token, &csr()).await), Code::PermissionDenied);
    client.renew(as_machine("cloudlet/tmus/c1", renew())).await.unwrap();

    // Again changes nothing, not even the time.
    h.advance(10);
    let again = client.block_machine(as_root(block("node/n1"))).await.unwrap().into_inner();
    assert_eq!(again.blocked.unwrap(), blocked);
    client.block_machine(as_root(block("cloudlet/tmus/c1"))).await.unwrap();
    let list = client.list_blocked_machines(as_root(ListBlockedMachinesRequest {})).await.unwrap();
    let names: Vec<_> = list.into_inner().machines.into_iter().map(|m| m.machine).collect();
    assert_eq!(names, ["cloudlet/tmus/c1", "node/n1"]);

    client.unblock_machine(as_root(unblock("node/n1"))).await.unwrap();
    assert!(h.auth.machine_allowed(&thief) && !h.auth.machine_allowed(&other));
    client.renew(as_machine("node/n1", renew())).await.unwrap();
    // The refusal did not use up the token.
    join(&h, &made.token, &csr()).await.unwrap();
    assert_eq!(code(client.unblock_machine(as_root(unblock("node/n1"))).await), Code::NotFound);
}

#[tokio::test]
async fn only_administrators_block_machines_and_only_by_their_names() {
    let h = Harness::new().await;
    h.add("anna", &[("operator", "tmus"), ("viewer", "")]).await;
    let token = h.token("anna").await;
    let mut client = h.identities();
    let by_anna = h.with_token(&token, block("cloudlet/tmus/c1")).await;
    assert_eq!(code(client.block_machine(by_anna).await), Code::PermissionDenied);
    let by_machine = as_machine("node/n1", unblock("node/n1"));
    assert_eq!(code(client.unblock_machine(by_machine).await), Code::PermissionDenied);
    let list = h.with_token(&token, ListBlockedMachinesRequest {}).await;
    assert_eq!(code(client.list_blocked_machines(list).await), Code::PermissionDenied);
    let by_nobody = anonymous(HERE, block("node/n1"));
    assert_eq!(code(client.block_machine(by_nobody).await), Code::Unauthenticated);
    for wrong in ["", "toaster/1", "node/a\nb"] {
        for status in [
            client.block_machine(as_root(block(wrong))).await.map(drop).unwrap_err(),
            client.unblock_machine(as_root(unblock(wrong))).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().starts_with("machine: "), "{}", status.message());
        }
    }
}

fn report(labels: &[(&str, &str)]) -> ReportRequest {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ReportRequest { port: 8443, labels: labels.collect(), ..ReportRequest::default() }
}

async fn tell(h: &Harness, machine: &str, report: ReportRequest) -> ReportResponse {
    h.identities().report(as_machine(machine, report)).await.unwrap().into_inner()
}

async fn listed(h: &Harness, selector: &str) -> Vec<String> {
    let request = ListMachinesRequest { selector: selector.into() };
    let answer = h.identities().list_machines(as_root(request)).await.unwrap().into_inner();
    answer.machines.into_iter().map(|machine| machine.machine).collect()
}

#[tokio::test]
async fn machines_are_listed_from_when_they_join_and_found_by_what_they_report() {
    let h = Harness::new().await;
    for machine in ["node/b", "node/a", "dme/d"] {
        let made = join_token(&h, machine, 60).await;
        join(&h, &made.token, &csr()).await.unwrap();
    }
    assert_eq!(listed(&h, "").await, ["dme/d", "node/a", "node/b"]);
    let alone = tell(&h, "node/a", report(&[("rack", "3")])).await;
    assert_eq!(alone.machines.len(), 1, "others have not told where they are");
    let both = tell(&h, "node/b", report(&[("rack", "4")])).await;
    let places: Vec<_> = both.machines.iter().map(|one| (&*one.machine, &*one.address)).collect();
    assert_eq!(places, [("node/a", "192.0.2.1:8443"), ("node/b", "192.0.2.1:8443")]);
    assert_eq!(listed(&h, "rack=3").await, ["node/a"]);
    assert_eq!(listed(&h, "rack!=3").await, ["dme/d", "node/b"]);
    let wrong = as_root(ListMachinesRequest { selector: "rack".into() });
    let refused = h.identities().list_machines(wrong).await.unwrap_err();
    assert!(refused.message().starts_with("selector: "), "{refused}");

    let seen = |machines: Vec<selvage_api::selvage::identity::Machine>| {
        machines.into_iter().find(|one| one.machine == "node/a").unwrap().last_seen.unwrap().seconds
    };
    let before = seen(h.auth.machines());
    h.advance(30);
    tell(&h, "node/a", report(&[("rack", "3")])).await;
    assert_eq!(seen(h.auth.machines()), before, "written once a minute");
    h.advance(30);
    tell(&h, "node/a", report(&[("rack", "3")])).await;
    assert_eq!(seen(h.auth.machines()), before + 60);

    let remove = || as_root(RemoveMachineRequest { machine: "node/a".into() });
    h.identities().remove_machine(remove()).await.unwrap();
    assert_eq!(code(h.identities().remove_machine(remove()).await), Code::NotFound);
    assert_eq!(listed(&h, "").await, ["dme/d", "node/b"]);
}

#[tokio::test]
async fn a_blocked_machine_is_kept_from_the_others() {
    let h = Harness::new().await;
    tell(&h, "node/a", report(&[])).await;
    let block = BlockMachineRequest { machine: "node/a".into() };
    h.identities().block_machine(as_root(block)).await.unwrap();
    let answered = tell(&h, "node/b", report(&[])).await;
    let names: Vec<_> = answered.machines.iter().map(|one| one.machine.as_str()).collect();
    assert_eq!((names, answered.blocked), (vec!["node/b"], vec!["node/a".to_owned()]));
    assert!(h.auth.machine(&Machine::parse("node/a").unwrap()).unwrap().blocked);
}

#[tokio::test]
async fn every_machine_hears_at_once_who_is_blocked() {
    let h = Harness::new().await;
    let mut client = h.identities();
    let listen = |machine: &str| as_machine(machine, WatchBlockedMachinesRequest {});
    let mut heard = Vec::new();
    for machine in ["node/a", "cloudlet/t/c", "dme/d"] {
        heard.push(client.watch_blocked_machines(listen(machine)).await.unwrap().into_inner());
    }
    async fn lists(heard: &mut [tonic::Streaming<WatchBlockedMachinesResponse>]) -> Vec<String> {
        let mut all = Vec::new();
        for stream in heard {
            all.push(stream.message().await.unwrap().unwrap().blocked.join(","));
        }
        all.dedup();
        all
    }
    assert_eq!(lists(&mut heard).await, [""]);
    client.block_machine(as_root(block("node/b"))).await.unwrap();
    assert_eq!(lists(&mut heard).await, ["node/b"]);
    client.block_machine(as_root(block("dme/x"))).await.unwrap();
    assert_eq!(lists(&mut heard).await, ["dme/x,node/b"]);
    client.unblock_machine(as_root(unblock("node/b"))).await.unwrap();
    assert_eq!(lists(&mut heard).await, ["dme/x"]);
    let stranger = anonymous(HERE, WatchBlockedMachinesRequest {});
    assert_eq!(code(client.watch_blocked_machines(stranger).await), Code::Unauthenticated);
}

#[tokio::test]
async fn a_crm_that_reports_receives_only_the_blocked_machines() {
    let h = Harness::new().await;
    tell(&h, "node/a", report(&[])).await;
    tell(&h, "node/b", report(&[])).await;
    let block = BlockMachineRequest { machine: "node/b".into() };
    h.identities().block_machine(as_root(block)).await.unwrap();
    let answered = tell(&h, "cloudlet/t/c", report(&[])).await;
    assert_eq!((answered.machines.len(), answered.blocked), (0, vec!["node/b".to_owned()]));
    assert_eq!(listed(&h, "").await, ["cloudlet/t/c", "node/a", "node/b"]);
}

fn report_from(address: &str, instance: &str) -> ReportRequest {
    let (address, instance) = (address.to_owned(), instance.to_owned());
    ReportRequest { address, instance, ..report(&[]) }
}

fn rivals(h: &Harness) -> Vec<String> {
    h.auth.machine(&Machine::parse("node/a").unwrap()).unwrap().rivals
}

#[tokio::test]
async fn two_agents_of_one_name_are_noticed() {
    let h = Harness::new().await;
    let both = ["rack1:8443".to_owned(), "rack2:8443".to_owned()];
    for round in 0..3 {
        tell(&h, "node/a", report_from("rack1:8443", "1111")).await;
        assert_eq!(rivals(&h), if round == 0 { &[][..] } else { &both });
        h.advance(7);
        tell(&h, "node/a", report_from("rack2:8443", "2222")).await;
        assert_eq!(rivals(&h), if round == 0 { &[][..] } else { &both });
        h.advance(8);
    }
    let listed = ListMachinesRequest::default();
    let listed = h.identities().list_machines(as_root(listed)).await.unwrap().into_inner();
    assert_eq!(listed.machines[0].rivals, both);
    // One of them is gone.
    h.advance(300);
    tell(&h, "node/a", report_from("rack2:8443", "2222")).await;
    assert!(rivals(&h).is_empty());
}

#[tokio::test]
async fn an_agent_that_starts_again_is_no_second_one() {
    let h = Harness::new().await;
    for instance in ["1111", "2222", "3333", "", "4444", ""] {
        for _ in 0..2 {
            tell(&h, "node/a", report_from("rack1:8443", instance)).await;
            assert!(rivals(&h).is_empty(), "{instance}");
            h.advance(15);
        }
    }
    // One that was thought lost returns much later.
    tell(&h, "node/a", report_from("rack1:8443", "5555")).await;
    h.advance(15);
    tell(&h, "node/a", report_from("rack2:8443", "6666")).await;
    h.advance(3600);
    tell(&h, "node/a", report_from("rack1:8443", "5555")).await;
    assert!(rivals(&h).is_empty());
}

#[tokio::test]
async fn bad_reports_are_refused_by_field() {
    let h = Harness::new().await;
    let base = || report(&[]);
    for (wrong, field) in [
        (ReportRequest { port: 0, ..base() }, "port: "),
        (ReportRequest { port: 70_000, ..base() }, "port: "),
        (ReportRequest { address: "here".into(), ..base() }, "address: "),
        (ReportRequest { address: "a b:1".into(), ..base() }, "address: "),
        (ReportRequest { version: "x\n".into(), ..base() }, "version: "),
        (ReportRequest { instance: "x y".into(), ..base() }, "instance: "),
        (ReportRequest { instance: "x".repeat(65), ..base() }, "instance: "),
        (ReportRequest { authorities: vec!["x".into()], ..base() }, "authorities: "),
        (report(&[("a b", "c")]), "labels: "),
    ] {
        let refused = h.identities().report(as_machine("node/a", wrong)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().starts_with(field), "{refused}");
    }
    let refused = h.identities().report(as_machine("controller", base())).await;
    assert_eq!(code(refused), Code::FailedPrecondition);
    assert_eq!(code(h.identities().report(as_root(base())).await), Code::FailedPrecondition);
    let named = ReportRequest { address: "[2001:db8::1]:7".into(), ..base() };
    assert_eq!(tell(&h, "node/a", named).await.machines[0].address, "[2001:db8::1]:7");
}

#[tokio::test]
async fn certificates_name_what_an_administrator_said_and_where_the_machine_is() {
    let h = Harness::new().await;
    let names = || h.ca.names.lock().unwrap().clone();
    let given = |names: &[&str]| CreateJoinTokenRequest {
        machine: "node/rack3-7".into(),
        ttl_seconds: 60,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let made = h.identities().create_join_token(as_root(given(&["edge.example"]))).await.unwrap();
    join(&h, &made.into_inner().token, &csr()).await.unwrap();
    let expected = ["127.0.0.1", HERE, "::1", "edge.example", "localhost", "rack3-7"];
    assert_eq!(names(), expected);
    let renewal = as_machine("node/rack3-7", RenewRequest { csr: csr() });
    h.identities().renew(renewal).await.unwrap();
    assert_eq!(names(), expected, "a renewal keeps them");
    let elsewhere = as_machine_at("203.0.113.9", "node/rack3-7", RenewRequest { csr: csr() });
    h.identities().renew(elsewhere).await.unwrap();
    assert_eq!(names(), expected, "a renewal from elsewhere adds none");
    let made = join_token(&h, "cloudlet/t/c", 60).await;
    join(&h, &made.token, &csr()).await.unwrap();
    assert!(names().is_empty(), "a cloudlet serves nobody");
    let refused = h.identities().create_join_token(as_root(given(&["a b"]))).await.unwrap_err();
    assert!(refused.message().starts_with("names: "), "{refused}");
}

#[tokio::test]
async fn a_join_token_names_its_ca() {
    let h = Harness::new().await;
    let made = join_token(&h, "node/n1", 60).await;
    assert_eq!(selvage_kit::pki::pin_in_token(&made.token), Some(made.ca_sha256.as_str()));
    let bare = selvage_kit::pki::without_pin(&made.token).to_owned();
    join(&h, &bare, &csr()).await.unwrap();
    assert_eq!(code(join(&h, &made.token, &csr()).await), Code::Unauthenticated, "one token");
}
