//! Dry runs: all checks, nothing written.

use selvage_api::Code;
use selvage_api::edgeproto as wire;
use tonic::Request;
use wire::Liveness::Dynamic;

use super::harness::*;

fn dry<M>(message: M) -> Request<M> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-selvage-dry-run", "true".parse().unwrap());
    request
}

#[tokio::test]
async fn a_dry_run_tells_and_writes_nothing() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(auto_delete(app("Acme", "one"))).await.unwrap();
    house.plant(app_inst("other", "west", Dynamic)).await;
    let before = house.controller.store.revision().await.unwrap();

    let reply = house.flavors().create_flavor(dry(flavor("new"))).await.unwrap().into_inner();
    assert_eq!(reply.message, r#"dry run: would create Flavor {"name":"new"}"#);
    let mut change = developer("Acme");
    change.fields = vec!["6".into()];
    change.email = "other".into();
    let reply = house.developers().update_developer(dry(change)).await.unwrap().into_inner();
    assert_eq!(reply.message, r#"dry run: would update Developer {"name":"Acme"}"#);
    let reply = house.developers().delete_developer(dry(developer("Acme"))).await.unwrap();
    let message = reply.into_inner().message;
    assert!(message.contains(r#"would delete Developer {"name":"Acme"} and App "#), "{message}");
    let said =
        messages(house.cloudlets().delete_cloudlet(dry(cloudlet("tmus", "west"))).await).await;
    assert!(said.unwrap().concat().contains(" and AppInst "));
    let said =
        messages(house.cloudlets().create_cloudlet(dry(cloudlet("tmus", "new"))).await).await;
    assert_eq!(said.unwrap().len(), 1);
    house.apps().create_app(dry(app("Acme", "new"))).await.unwrap();
    house.cloudlet_infos().inject_cloudlet_info(dry(cloudlet_info("tmus", "west"))).await.unwrap();

    assert_eq!(house.controller.store.revision().await.unwrap(), before);
}

#[tokio::test]
async fn a_dry_run_is_refused_like_the_real_thing() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    assert_refused(
        house.flavors().create_flavor(dry(flavor("x1.small"))).await,
        Code::AlreadyExists,
        "Key already exists",
    );
    assert_refused(
        house.developers().delete_developer(dry(developer("Acme"))).await,
        Code::FailedPrecondition,
        "Developer in use by Application",
    );
    assert_refused(
        house.flavors().delete_flavor(dry(flavor("nope"))).await,
        Code::NotFound,
        "Key not found",
    );
    let mut request = Request::new(flavor("new"));
    request.metadata_mut().insert("x-selvage-dry-run", "perhaps".parse().unwrap());
    assert_refused(
        house.flavors().create_flavor(request).await,
        Code::InvalidArgument,
        "x-selvage-dry-run must be true or false",
    );
}
