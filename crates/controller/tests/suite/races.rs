//! Creating what refers to something while that is deleted: whoever comes
//! first, nothing is left that refers to nothing.

use selvage_api::edgeproto as wire;

use super::harness::*;

const ROUNDS: usize = 100;

/// Either both happened in an order that makes sense or one was refused.
fn assert_sound(round: usize, user_made: bool, used_gone: bool, user: bool, used: bool) {
    assert_eq!((user, used), (user_made, !used_gone), "round {round}: what was said is so");
    assert!(!user || used, "round {round}: something refers to nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn apps_and_their_flavor() {
    let house = house().await;
    house.furnish().await;
    let (mut kept, mut deleted) = (0, 0);
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        house.flavors().create_flavor(flavor(&name)).await.unwrap();
        let made = wire::App { default_flavor: Some(flavor_key(&name)), ..app("Acme", &name) };
        let (mut apps, mut flavors) = (house.apps(), house.flavors());
        let (created, removed) =
            tokio::join!(apps.create_app(made), flavors.delete_flavor(flavor(&name)));
        let user = house.stored::<wire::App>(&app_key("Acme", &name, "1.0")).is_some();
        let used = house.stored::<wire::Flavor>(&flavor_key(&name)).is_some();
        assert_sound(round, created.is_ok(), removed.is_ok(), user, used);
        kept += usize::from(used);
        deleted += usize::from(!used);
    }
    assert_eq!(kept + deleted, ROUNDS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn apps_and_their_developer() {
    let house = house_on(memory().await, |settings| settings.strict = true).await;
    house.furnish().await;
    for round in 0..ROUNDS {
        let name = format!("d{round}");
        house.developers().create_developer(developer(&name)).await.unwrap();
        let (mut apps, mut developers) = (house.apps(), house.developers());
        let (created, removed) = tokio::join!(
            apps.create_app(app(&name, "one")),
            developers.delete_developer(developer(&name))
        );
        let user = house.stored::<wire::App>(&app_key(&name, "one", "1.0")).is_some();
        let used = house.stored::<wire::Developer>(&developer_key(&name)).is_some();
        assert_sound(round, created.is_ok(), removed.is_ok(), user, used);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cloudlets_and_their_operator() {
    let house = house_on(memory().await, |settings| settings.strict = true).await;
    for round in 0..ROUNDS {
        let name = format!("o{round}");
        house.operators().create_operator(operator(&name)).await.unwrap();
        let (mut cloudlets, mut operators) = (house.cloudlets(), house.operators());
        let create = async { drain(cloudlets.create_cloudlet(cloudlet(&name, "c")).await).await };
        let (created, removed) = tokio::join!(create, operators.delete_operator(operator(&name)));
        let user = house.stored::<wire::Cloudlet>(&cloudlet_key(&name, "c")).is_some();
        let key = wire::OperatorKey { name };
        let used = house.stored::<wire::Operator>(&key).is_some();
        assert_sound(round, created.is_ok(), removed.is_ok(), user, used);
    }
}

/// On one store with two controllers, each with a view of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_controllers_race() {
    let store = memory().await;
    let (here, there) =
        (house_on(store.clone(), |_| {}).await, house_on(store.clone(), |_| {}).await);
    here.furnish().await;
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        here.flavors().create_flavor(flavor(&name)).await.unwrap();
        let made = wire::App { default_flavor: Some(flavor_key(&name)), ..app("Acme", &name) };
        let (mut apps, mut flavors) = (here.apps(), there.flavors());
        let (created, removed) =
            tokio::join!(apps.create_app(made), flavors.delete_flavor(flavor(&name)));
        let now = store.revision().await.unwrap();
        here.controller.tables.apps.wait_for(now).await.unwrap();
        here.controller.tables.flavors.wait_for(now).await.unwrap();
        let user = here.stored::<wire::App>(&app_key("Acme", &name, "1.0")).is_some();
        let used = here.stored::<wire::Flavor>(&flavor_key(&name)).is_some();
        assert_sound(round, created.is_ok(), removed.is_ok(), user, used);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_creates_wins() {
    let house = house().await;
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let mut client = house.flavors();
            tokio::spawn(async move { client.create_flavor(flavor("same")).await })
        })
        .collect();
    let mut won = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => won += 1,
            Err(status) => assert_eq!(status.message(), "Key already exists"),
        }
    }
    assert_eq!(won, 1);
}

/// The work goes on when the caller goes away, and leaves no hold behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_who_leaves_does_no_harm() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "keeper")).await.unwrap();
    for round in 0..30 {
        let mut flavors = house.flavors();
        let call = tokio::spawn(async move { flavors.delete_flavor(flavor("x1.small")).await });
        tokio::task::yield_now().await;
        call.abort();
        let mut update = app("Acme", "keeper");
        update.fields = vec!["7".into()];
        update.access_ports = format!("tcp:{}", 1000 + round);
        let mut apps = house.apps();
        let call = tokio::spawn(async move { apps.update_app(update).await });
        tokio::task::yield_now().await;
        call.abort();
        let name = format!("a{round}");
        house.apps().create_app(app("Acme", &name)).await.unwrap();
    }
    house.apps().delete_app(app("Acme", "keeper")).await.unwrap();
}
