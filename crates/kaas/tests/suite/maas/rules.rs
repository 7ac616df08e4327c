//! Behaviour of the provider towards machines of a MaaS, one by one.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_api::Code;
use selvage_kaas::{
    Origin,
    provider::{
        Acquired, Capabilities, Error, Observed, Offer, OperationId, Owned, Provider, Request,
        State, Wipe,
        maas::{Erase, MaasOptions},
    },
    record::Phase,
};

use super::{
    super::{
        conformance,
        lab::{admin, request},
    },
    lab::{MaasLab, decode, token},
    sim::{Call, Fault, OWNER, Outcome},
};

fn operation(name: &str) -> OperationId {
    OperationId(name.to_owned())
}

fn wanted(instance_type: &str) -> Request {
    Request {
        cluster: "demo".into(),
        name: "web-1".into(),
        instance_type: instance_type.into(),
        version: "1.36.4".into(),
    }
}

/// The provider, with time that passes whenever it is asked how far it is.
struct Ticking(MaasLab);

#[async_trait]
impl Provider for Ticking {
    fn name(&self) -> &'static str {
        self.0.provider.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.provider.capabilities()
    }

    async fn offers(&self, instance_type: &str) -> Result<Vec<Offer>, Error> {
        self.0.provider.offers(instance_type).await
    }

    async fn acquire(&self, operation: &OperationId, request: &Request) -> Result<Acquired, Error> {
        self.0.provider.acquire(operation, request).await
    }

    async fn observe(&self, operation: &OperationId) -> Result<Observed, Error> {
        self.0.pass(Duration::from_secs(10)).await;
        self.0.provider.observe(operation).await
    }

    async fn release(&self, operation: &OperationId, wipe: Wipe) -> Result<bool, Error> {
        self.0.pass(Duration::from_secs(10)).await;
        self.0.provider.release(operation, wipe).await
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, Error> {
        self.0.provider.list_owned().await
    }
}

#[tokio::test]
async fn maas_conforms() {
    let lab = MaasLab::new(3).await;
    let sim = lab.sim.clone();
    conformance::conforms(Arc::new(Ticking(lab))).await;
    assert_eq!(sim.owned(), Vec::<String>::new());
}

/// A cluster that runs.
async fn running(lab: &MaasLab, control_plane: i32, pools: &[(&str, i32)]) {
    let asked = request("demo", "1.35.8", control_plane, pools);
    lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap();
    lab.settle("demo").await;
    let machines = lab.manager.find("demo").unwrap().machines;
    assert!(machines.iter().all(|machine| machine.phase() == Phase::Ready), "{machines:#?}");
}

#[tokio::test]
async fn a_cluster_comes_up_and_gives_its_machines_back() {
    let lab = MaasLab::new(4).await;
    running(&lab, 1, &[("web", 2)]).await;
    assert_eq!(lab.sim.owned().len(), 3);
    let machines = lab.manager.find("demo").unwrap().machines;
    assert!(machines[0].provider_state.starts_with("Deployed, joined as maas-abc"));
    assert!(machines[0].address.starts_with("192.0.2."));
    lab.delete("demo").await;
    lab.check_end("a quiet day");
    assert_eq!(*lab.outside.lock(), Vec::<String>::new());
}

#[tokio::test]
async fn the_token_in_user_data_is_good_once_and_for_that_machine() {
    let lab = MaasLab::new(1).await;
    running(&lab, 1, &[]).await;
    let user_data = lab.sim.world.lock().user_data.clone();
    assert_eq!(user_data.len(), 1);
    assert!(token(&user_data[0]).starts_with("slvj_"));
    assert!(!decode(&user_data[0]).contains("PRIVATE KEY"));
    // The machine's disk, or the metadata service, in somebody else's hands.
    lab.sim.world.lock().boots.push(("abc009".into(), user_data[0].clone()));
    lab.pass(Duration::ZERO).await;
    assert_eq!(lab.outside.lock().len(), 1, "joined again");
    assert_eq!(lab.auth.machines().len(), 1);
}

#[tokio::test]
async fn types_are_tags_unless_the_settings_say_otherwise() {
    let lab = MaasLab::new(2).await;
    lab.sim.change("abc001", |machine| machine.tags.push("gpu".into()));
    let first = lab.provider.acquire(&operation("a"), &wanted("big")).await.unwrap();
    assert_eq!(first.id, "abc001");
    let none = lab.provider.acquire(&operation("b"), &wanted("gpu")).await.unwrap_err();
    let Error::NoneFree(text) = none else { panic!("{none}") };
    assert!(text.contains("No available machine matches constraints"), "{text}");
    let unknown = lab.provider.acquire(&operation("c"), &wanted("huge")).await.unwrap_err();
    assert_eq!(unknown, Error::Refused("MaaS: tags: No such tag(s): 'huge'.".into()));
    let offers = lab.provider.offers("big").await.unwrap();
    assert_eq!((offers[0].total, offers[0].free), (Some(1), Some(0)));
    let asked = request("demo", "", 3, &[]);
    let refused = lab.manager.create(&admin(), &Origin::default(), &asked).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
}

#[tokio::test]
async fn a_late_clock_is_put_right_once() {
    let lab = MaasLab::new(1).await;
    lab.sim.world.lock().ahead = 3_600_000;
    lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap();
    assert_eq!(lab.sim.owned(), ["abc000"]);
}

#[tokio::test]
async fn a_key_that_maas_does_not_take_is_named_and_not_shown() {
    let lab = MaasLab::new(1).await;
    let file = lab.options.api_key_file.clone().unwrap();
    std::fs::write(file.path(), "conskey:tokenkey:canary-wrong\n").unwrap();
    let mut lab = lab;
    lab.restart().await;
    let refused = lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap_err();
    let Error::Unavailable(text) = refused else { panic!("{refused}") };
    assert!(text.contains("kaas.maas.api_key_file"), "{text}");
    assert!(!text.contains("canary") && !text.contains("tokenkey"), "{text}");
}

#[tokio::test]
async fn what_maas_wants_later_is_not_sent_before() {
    let lab = MaasLab::new(1).await;
    lab.sim.fault(Call::Allocate, 1, Fault::Answer(503, Some(10), "no rack controller"));
    let first = lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap_err();
    assert_eq!(first.to_string(), "MaaS answered 503: no rack controller");
    let second = lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap_err();
    assert_eq!(second.to_string(), "MaaS wants to be asked again in 10 s");
    assert_eq!(lab.sim.world.lock().allocations, 0);
    lab.clock.advance(Duration::from_secs(10));
    lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_got_lost_loses_no_machine() {
    for fault in [Fault::LoseAnswer, Fault::Cut] {
        let lab = MaasLab::new(3).await;
        lab.sim.fault(Call::Allocate, 1, fault);
        lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap_err();
        let found = lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap();
        assert_eq!((lab.sim.owned(), lab.sim.world.lock().allocations), (vec![found.id], 1));
    }
}

#[tokio::test]
async fn of_two_processes_one_keeps_its_machine() {
    let mut lab = MaasLab::new(4).await;
    let first = Arc::clone(&lab.provider);
    lab.restart().await;
    let (op, wanted) = (operation("a"), wanted(""));
    let (a, b) = tokio::join!(first.acquire(&op, &wanted), lab.provider.acquire(&op, &wanted));
    let again = lab.provider.acquire(&op, &wanted).await.unwrap();
    for acquired in [a, b].into_iter().flatten() {
        assert_eq!(acquired, again);
    }
    lab.pass(Duration::from_secs(60)).await;
    assert_eq!(lab.sim.owned(), [again.id]);
}

#[tokio::test]
async fn an_allocation_that_comes_after_the_end_is_found_and_given_back() {
    let lab = MaasLab::new(2).await;
    lab.sim.fault(Call::Allocate, 1, Fault::Late);
    lab.provider.acquire(&operation("a"), &wanted("")).await.unwrap_err();
    assert!(lab.provider.release(&operation("a"), Wipe::Reset).await.unwrap());
    assert_eq!(lab.sim.owned(), Vec::<String>::new());
    lab.pass(Duration::from_secs(30)).await;
    assert_eq!(lab.sim.owned(), ["abc000"], "MaaS was slow");
    assert_eq!(lab.provider.list_owned().await.unwrap().len(), 1);
    lab.delete("none").await;
    assert_eq!(lab.sim.owned(), Vec::<String>::new());
    let kept = lab.provider.list_owned().await.unwrap();
    assert_eq!(kept, Vec::new());
}

#[tokio::test]
async fn a_machine_of_somebody_else_is_never_touched() {
    let lab = MaasLab::new(1).await;
    let op = operation("a");
    lab.provider.acquire(&op, &wanted("")).await.unwrap();
    lab.sim.change("abc000", |machine| machine.owner = Some("root".into()));
    let lost = lab.provider.observe(&op).await.unwrap_err();
    assert_eq!(lost, Error::Refused("MaaS no longer has machine abc000 for us".into()));
    assert!(lab.provider.release(&op, Wipe::Reset).await.unwrap());
    assert_eq!(lab.sim.machine("abc000").unwrap().status, 10, "still allocated");

    // Back with MaaS, and given to our own user for something else.
    let lab = MaasLab::new(1).await;
    lab.provider.acquire(&op, &wanted("")).await.unwrap();
    lab.sim.change("abc000", |machine| {
        machine.agent = "juju".into();
        machine.owner = Some(OWNER.into());
        machine.status = 6;
    });
    assert!(lab.provider.release(&op, Wipe::Reset).await.unwrap());
    assert_eq!(lab.sim.machine("abc000").unwrap().status, 6, "still deployed");
}

#[tokio::test]
async fn a_release_that_fails_is_asked_for_again_until_it_is_done() {
    let lab = MaasLab::with(1, |options| options.erase = Erase::Quick).await;
    let op = operation("a");
    lab.provider.acquire(&op, &wanted("")).await.unwrap();
    lab.sim.world.lock().releases.extend([Outcome::Fails, Outcome::Sticks]);
    assert!(!lab.provider.release(&op, Wipe::Reset).await.unwrap());
    assert_eq!(lab.sim.machine("abc000").unwrap().status, 14, "Disk erasing");
    let mut said = Vec::new();
    loop {
        lab.pass(Duration::from_secs(60)).await;
        match lab.provider.release(&op, Wipe::Reset).await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => said.push(error.to_string()),
        }
    }
    assert_eq!(said, ["MaaS: Failed disk erasing", "MaaS: Failed disk erasing"]);
    assert_eq!(lab.sim.machine("abc000").unwrap().status, 4);
}

#[tokio::test]
async fn a_deployment_is_begun_once_also_where_maas_is_slow_to_show_it() {
    let lab = MaasLab::new(1).await;
    let op = operation("a");
    lab.provider.acquire(&op, &wanted("")).await.unwrap();
    assert_eq!(lab.provider.observe(&op).await.unwrap().state, State::Deploying);
    lab.sim.change("abc000", |machine| machine.status = 10);
    lab.clock.advance(Duration::from_secs(30));
    assert_eq!(lab.provider.observe(&op).await.unwrap().state, State::Deploying);
    assert_eq!(lab.sim.world.lock().user_data.len(), 1);
}

#[test]
fn settings_are_checked_and_the_field_is_named() {
    let good = MaasOptions {
        url: "http://maas:5240/MAAS".into(),
        api_key_file: Some(selvage_kit::config::SecretFile("/key".into())),
        binary_url: "https://edge/selvage".into(),
        binary_sha256: "0".repeat(64),
        ..MaasOptions::default()
    };
    good.validate().unwrap();
    let bad = |change: fn(&mut MaasOptions), field: &str| {
        let mut options = good.clone();
        change(&mut options);
        let wrong = options.validate().unwrap_err();
        assert!(wrong.starts_with(field), "{wrong}");
    };
    bad(|o| o.url = "maas".into(), "kaas.maas.url");
    bad(|o| o.url = "file:///etc".into(), "kaas.maas.url");
    bad(|o| o.api_key_file = None, "kaas.maas.api_key_file");
    bad(|o| o.binary_url.clear(), "kaas.maas.binary_url");
    bad(|o| o.binary_sha256 = "xyz".into(), "kaas.maas.binary_sha256");
    bad(|o| o.controller = "host".into(), "kaas.maas.controller");
    assert!(!format!("{good:?}").contains("canary"));
}
