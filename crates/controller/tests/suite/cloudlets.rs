//! Rules of cloudlets, and how their instances follow them.

use selvage_api::Code;
use selvage_api::distributed_match_engine::Loc;
use selvage_api::edgeproto as wire;

use super::harness::*;

async fn create(
    house: &House,
    change: impl FnOnce(&mut wire::Cloudlet),
) -> Result<(), tonic::Status> {
    let mut made = cloudlet("tmus", "made");
    change(&mut made);
    drain(house.cloudlets().create_cloudlet(made).await).await.map(drop)
}

async fn update(
    house: &House,
    fields: &[&str],
    change: impl FnOnce(&mut wire::Cloudlet),
) -> Result<(), tonic::Status> {
    let mut request = cloudlet("tmus", "west");
    request.fields = fields.iter().map(|field| (*field).to_owned()).collect();
    change(&mut request);
    drain(house.cloudlets().update_cloudlet(request).await).await.map(drop)
}

fn at(latitude: f64, longitude: f64) -> Option<Loc> {
    Some(Loc { latitude, longitude, ..Default::default() })
}

#[tokio::test]
async fn what_a_new_cloudlet_must_be() {
    let house = house().await;
    let invalid = Code::InvalidArgument;
    let missing = "location is missing; 0,0 is not a valid location";
    assert_refused(create(&house, |c| c.location = None).await, invalid, missing);
    assert_refused(create(&house, |c| c.location = at(0.0, 0.0)).await, invalid, missing);
    for latitude in [90.1, -90.1, f64::NAN, f64::INFINITY] {
        let refused = create(&house, |c| c.location = at(latitude, 1.0)).await;
        assert_refused(refused, invalid, "Invalid latitude value");
    }
    for longitude in [180.1, -180.1, f64::NAN] {
        let refused = create(&house, |c| c.location = at(1.0, longitude)).await;
        assert_refused(refused, invalid, "Invalid longitude value");
    }
    for count in [0, -1] {
        assert_refused(
            create(&house, |c| c.num_dynamic_ips = count).await,
            invalid,
            "Must specify at least one dynamic public IP available",
        );
    }
    assert_refused(
        create(&house, |c| c.set_ip_support(wire::IpSupport::Static)).await,
        Code::Unimplemented,
        "Only dynamic IPs are supported currently",
    );
    let status = create(&house, |c| c.ip_support = 9).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().starts_with("invalid IpSupport"), "{status:?}");
    assert!(house.controller.tables.cloudlets.is_empty());
}

#[tokio::test]
async fn a_new_cloudlet_says_nothing_and_is_dynamic_by_default() {
    let house = house().await;
    let mut made = cloudlet("tmus", "made");
    made.ip_support = 0;
    let said = messages(house.cloudlets().create_cloudlet(made).await).await.unwrap();
    assert_eq!(said, Vec::<String>::new());
    let stored = house.stored::<wire::Cloudlet>(&cloudlet_key("tmus", "made")).unwrap();
    assert_eq!(stored, cloudlet("tmus", "made"));
    create(&house, |c| {
        c.key = Some(cloudlet_key("tmus", "fixed"));
        c.set_ip_support(wire::IpSupport::Static);
        c.static_ips = "192.0.2.1,192.0.2.2".into();
        c.num_dynamic_ips = 0;
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn names_that_become_one_host_name_collide() {
    let house = house().await;
    create(&house, |c| c.key = Some(cloudlet_key("tmus", "my cloud"))).await.unwrap();
    let status =
        create(&house, |c| c.key = Some(cloudlet_key("tmus", "MyCloud"))).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::AlreadyExists);
    assert!(status.message().contains("mycloud.tmus"), "{status:?}");
    create(&house, |c| c.key = Some(cloudlet_key("att", "MyCloud"))).await.unwrap();
    // The name is free again with the cloudlet that had it.
    drain(house.cloudlets().delete_cloudlet(cloudlet("tmus", "my cloud")).await).await.unwrap();
    create(&house, |c| c.key = Some(cloudlet_key("tmus", "MyCloud"))).await.unwrap();
}

/// The cloudlet of those who run their apps themselves is there without having
/// been made, and nobody can put another in its place.
#[tokio::test]
async fn the_default_cloudlet_cannot_be_made() {
    let house = house().await;
    assert_refused(
        create(&house, |c| c.key = Some(cloudlet_key("developer", "default"))).await,
        Code::InvalidArgument,
        "Cannot create cloudlet developer/default: it is always there",
    );
    assert!(house.controller.tables.cloudlets.is_empty());
    create(&house, |c| c.key = Some(cloudlet_key("tmus", "default"))).await.unwrap();
}

/// The list of static addresses of a new cloudlet and of one that is changed.
#[tokio::test]
async fn static_addresses_are_read_before_they_are_kept() {
    let house = house().await;
    house.furnish().await;
    for ips in ["192.0.2.1,,192.0.2.2", " ", "192.0.2.1,", "::/0", "0.0.0.0/0", "here"] {
        let fixed = |cloudlet: &mut wire::Cloudlet| {
            cloudlet.set_ip_support(wire::IpSupport::Static);
            cloudlet.static_ips = ips.into();
        };
        for refused in [create(&house, fixed).await, update(&house, &["6", "7"], fixed).await] {
            let status = refused.unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{ips}");
            assert!(status.message().starts_with("Invalid static IPs: "), "{status:?}");
        }
    }
    let kept = house.stored::<wire::Cloudlet>(&cloudlet_key("tmus", "west"));
    assert_eq!(kept, Some(cloudlet("tmus", "west")));
}

#[tokio::test]
async fn what_an_update_may_not_say() {
    let house = house().await;
    house.furnish().await;
    let invalid = Code::InvalidArgument;
    assert_refused(
        update(&house, &["8"], |c| c.num_dynamic_ips = 0).await,
        invalid,
        "Cannot specify less than one dynamic IP unless Ip Support Static is specified",
    );
    let refused = update(&house, &["5.1"], |c| c.location = at(0.0, 3.0)).await;
    assert_refused(refused, invalid, "Invalid latitude value of 0");
    let refused = update(&house, &["5.2"], |c| c.location = at(3.0, 0.0)).await;
    assert_refused(refused, invalid, "Invalid longitude value of 0");
    let refused = update(&house, &["5.1"], |c| c.location = at(91.0, 3.0)).await;
    assert_refused(refused, invalid, "Invalid latitude value");
    let refused = update(&house, &["5.2"], |c| c.location = at(3.0, 181.0)).await;
    assert_refused(refused, invalid, "Invalid longitude value");
    // What cannot be created cannot be had by an update either.
    assert_refused(
        update(&house, &["6"], |c| c.set_ip_support(wire::IpSupport::Static)).await,
        Code::Unimplemented,
        "Only dynamic IPs are supported currently",
    );
    update(&house, &["6", "7", "8"], |c| {
        c.set_ip_support(wire::IpSupport::Static);
        c.static_ips = "192.0.2.1".into();
        c.num_dynamic_ips = 0;
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn addresses_in_use_stay() {
    let house = house().await;
    house.furnish().await;
    house
        .plant(wire::CloudletRefs {
            key: Some(cloudlet_key("tmus", "west")),
            used_dynamic_ips: 5,
            ..Default::default()
        })
        .await;
    let status = update(&house, &["8"], |c| c.num_dynamic_ips = 5).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    update(&house, &["8"], |c| c.num_dynamic_ips = 6).await.unwrap();
}

#[tokio::test]
async fn instances_move_with_their_cloudlet() {
    let house = house().await;
    house.furnish().await;
    drain(house.cloudlets().create_cloudlet(cloudlet("tmus", "east")).await).await.unwrap();
    let old = cloudlet("tmus", "west").location;
    for number in 0..150 {
        let name = format!("a{number}");
        for place in ["west", "east"] {
            let mut inst = app_inst(&name, place, wire::Liveness::Static);
            inst.cloudlet_loc = old;
            house.plant(inst).await;
        }
    }
    let refused = update(&house, &["5.1", "5.2"], |c| c.location = at(95.0, -99.0)).await;
    assert!(refused.is_err());
    let places = |house: &House, place: &str| -> Vec<Option<Loc>> {
        let key = selvage_controller::keys::KeyText::text(&cloudlet_key("tmus", place));
        let found = house.controller.tables.find::<wire::AppInst>("cloudlet", &key);
        assert_eq!(found.len(), 150);
        let mut found: Vec<_> = found.iter().map(|held| held.value.0.cloudlet_loc).collect();
        found.dedup();
        found
    };
    assert_eq!(places(&house, "west"), [old], "a refused update moves nothing");
    update(&house, &["5.1", "5.2", "8"], |c| {
        c.location = at(40.0, -99.0);
        c.num_dynamic_ips = 100;
    })
    .await
    .unwrap();
    assert_eq!(places(&house, "west"), [at(40.0, -99.0)]);
    assert_eq!(places(&house, "east"), [old]);
}

/// A controller that died after moving the cloudlet and before moving its
/// instances left work that the next one does.
#[tokio::test]
async fn instances_that_were_left_behind_are_moved_at_start() {
    let store = memory().await;
    {
        let first = house_on(store.clone(), |_| {}).await;
        first.furnish().await;
        let mut inst = app_inst("one", "west", wire::Liveness::Static);
        inst.cloudlet_loc = at(1.0, 1.0);
        first.stop.cancel();
        first.plant(inst).await;
    }
    let second = house_on(store, |_| {}).await;
    let key = app_inst("one", "west", wire::Liveness::Static).key.unwrap();
    eventually("the instance is moved", || {
        let now = second.stored::<wire::AppInst>(&key).unwrap().cloudlet_loc;
        async move { now == cloudlet("tmus", "west").location }
    })
    .await;
}
