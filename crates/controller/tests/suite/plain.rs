//! Texts and codes of the rules of the plain objects.

use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_controller::Compat;

use super::harness::*;

#[tokio::test]
async fn names() {
    let house = house().await;
    for name in ["AT&T Inc.", "Niantic, Inc.", "Pokemon Go!", "a", "0_-x"] {
        house.developers().create_developer(developer(name)).await.unwrap();
    }
    for name in ["", " name", "-name", "a;sldfj", "$fadf", "ümlaut"] {
        let refused = house.developers().create_developer(developer(name)).await;
        assert_refused(refused, Code::InvalidArgument, "Invalid developer name");
        let refused = house.operators().create_operator(operator(name)).await;
        assert_refused(refused, Code::InvalidArgument, "Invalid operator name");
        let refused = house.flavors().create_flavor(flavor(name)).await;
        assert_refused(refused, Code::InvalidArgument, "Invalid flavor name");
        let refused = house.clusters().create_cluster(cluster(name, "")).await;
        assert_refused(refused, Code::InvalidArgument, "Invalid cluster name");
        let refused = drain(house.cloudlets().create_cloudlet(cloudlet("tmus", name)).await).await;
        assert_refused(refused, Code::InvalidArgument, "Invalid cloudlet name");
        let refused = drain(house.cloudlets().create_cloudlet(cloudlet(name, "x")).await).await;
        assert_refused(refused, Code::InvalidArgument, "Invalid operator name");
    }
    let refused = house.clusters().create_cluster(cluster("under_score", "")).await;
    assert_refused(refused, Code::InvalidArgument, "Invalid cluster name");
}

#[tokio::test]
async fn developers_whose_images_would_lie_in_one_folder_collide() {
    let house = house().await;
    house.developers().create_developer(developer("Acme Co")).await.unwrap();
    for name in ["AcmeCo", "acmeco", "Acme, Co", "acme co"] {
        let refused = house.developers().create_developer(developer(name)).await;
        let status = refused.unwrap_err();
        assert_eq!(status.code(), tonic::Code::AlreadyExists, "{name}");
        let text = "Developer name gives the image folder acmeco, which another Developer has";
        assert!(status.message().starts_with(text), "{status:?}");
    }
    house.developers().create_developer(developer("Acme-Co")).await.unwrap();
    // The folder is free again with the developer that had it.
    house.developers().delete_developer(developer("Acme Co")).await.unwrap();
    house.developers().create_developer(developer("AcmeCo")).await.unwrap();
}

/// Stores of before folders were claimed.
#[tokio::test]
async fn of_two_developers_who_share_a_folder_already_the_older_one_has_it() {
    let store = memory().await;
    let before = house_on(store.clone(), |_| {}).await;
    for name in ["Zeta Co", "acmeco", "ZetaCo"] {
        before.plant(developer(name)).await;
    }
    let after = house_on(store, |_| {}).await;
    after.flavors().create_flavor(flavor("x1.small")).await.unwrap();
    for name in ["Zeta Co", "acmeco"] {
        after.apps().create_app(app(name, "shop")).await.unwrap();
    }
    assert_refused(
        after.apps().create_app(app("ZetaCo", "shop")).await,
        Code::AlreadyExists,
        "Developer name gives the image folder zetaco, which another Developer has: choose a \
         name that differs in more than case, blanks and punctuation",
    );
    let refused = after.developers().create_developer(developer("Acme Co")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::AlreadyExists, "claimed at the start");
}

#[tokio::test]
async fn the_operator_named_developer_is_reserved() {
    let house = house().await;
    assert_refused(
        house.operators().create_operator(operator("developer")).await,
        Code::InvalidArgument,
        "Cannot create operator with name = developer",
    );
}

#[tokio::test]
async fn a_flavor_needs_all_its_numbers() {
    let house = house().await;
    type Change = fn(&mut wire::Flavor);
    let changes: [(Change, &str); 3] = [
        (|flavor| flavor.ram = 0, "Ram cannot be 0"),
        (|flavor| flavor.vcpus = 0, "Vcpus cannot be 0"),
        (|flavor| flavor.disk = 0, "Disk cannot be 0"),
    ];
    for (change, text) in changes {
        let mut wrong = flavor("x");
        change(&mut wrong);
        let refused = house.flavors().create_flavor(wrong).await;
        assert_refused(refused, Code::InvalidArgument, text);
    }
}

#[tokio::test]
async fn clusters() {
    let house = house().await;
    assert_refused(
        house.clusters().create_cluster(cluster("autoclusterx", "nope")).await,
        Code::InvalidArgument,
        "Cluster name prefix \"autocluster\" is reserved",
    );
    // The flavor is looked at before the name.
    assert_refused(
        house.clusters().create_cluster(cluster("", "nope")).await,
        Code::NotFound,
        "default flavor nope not found",
    );
    let mut made = cluster("c", "");
    made.auto = true;
    house.clusters().create_cluster(made).await.unwrap();
    let key = wire::ClusterKey { name: "c".into() };
    assert_eq!(house.stored::<wire::Cluster>(&key), Some(cluster("c", "")));
}

#[tokio::test]
async fn strict_mode_asks_for_developers_and_operators() {
    let house = house_on(memory().await, |settings| settings.strict = true).await;
    house.flavors().create_flavor(flavor("x1.small")).await.unwrap();
    assert_refused(
        house.apps().create_app(app("Acme", "one")).await,
        Code::NotFound,
        "Specified developer not found",
    );
    assert_refused(
        drain(house.cloudlets().create_cloudlet(cloudlet("tmus", "west")).await).await,
        Code::NotFound,
        "Specified operator not found",
    );
    house.developers().create_developer(developer("Acme")).await.unwrap();
    house.operators().create_operator(operator("tmus")).await.unwrap();
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    drain(house.cloudlets().create_cloudlet(cloudlet("tmus", "west")).await).await.unwrap();
}

/// Clients that count on the refusals of the original get them when that is wanted.
#[tokio::test]
async fn flavors_and_clusters_are_not_changed_in_compat_mode() {
    let house = house_on(memory().await, |settings| settings.compat = Compat::EdgeCloud).await;
    house.flavors().create_flavor(flavor("x1.small")).await.unwrap();
    house.clusters().create_cluster(cluster("small", "x1.small")).await.unwrap();
    let larger = wire::Flavor { fields: vec!["3".into()], ram: 9999, ..flavor("x1.small") };
    assert_refused(
        house.flavors().update_flavor(larger).await,
        Code::Unimplemented,
        "Update flavor not supported",
    );
    let other = wire::Cluster { fields: vec!["3".into()], ..cluster("small", "x1.small") };
    assert_refused(
        house.clusters().update_cluster(other).await,
        Code::Unimplemented,
        "Update cluster not supported",
    );
}

/// The platforms of cloudlets decide the deployment of an image that names none.
#[tokio::test]
async fn an_app_is_of_deployment_docker_where_cloudlets_run_containers() {
    let house = house().await;
    house.flavors().create_flavor(flavor("x1.small")).await.unwrap();
    let deployment = async |name: &str| {
        house.apps().create_app(app("Acme", name)).await.unwrap();
        house.stored::<wire::App>(&app("Acme", name).key.unwrap()).unwrap().deployment
    };
    assert_eq!(deployment("before").await, "kubernetes");
    let tell = async |name: &str, kind: &str| {
        let info = wire::CloudletInfo { kind: kind.into(), ..cloudlet_info("tmus", name) };
        house.cloudlet_infos().inject_cloudlet_info(info).await.unwrap();
    };
    tell("west", "containers").await;
    assert_eq!(deployment("here").await, "docker");
    tell("east", "kubernetes").await;
    assert_eq!(deployment("both").await, "kubernetes");
}

/// Every controller keeps every object in memory and sends it in one message.
#[tokio::test]
async fn nothing_but_an_app_is_larger_than_it_need_be() {
    let house = house().await;
    house.furnish().await;
    let huge = "x".repeat(65 * 1024);
    let assert_too_large = |refused: Result<(), tonic::Status>, kind: &str| {
        let status = refused.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
        let text = status.message();
        assert!(text.starts_with(kind) && text.contains("is too large: at most 65536"), "{text}");
    };
    let large = wire::Developer { address: huge.clone(), ..developer("Large") };
    let refused = house.developers().create_developer(large.clone()).await.map(drop);
    assert_too_large(refused, "Developer of ");
    let grown = wire::Developer {
        key: Some(developer_key("Acme")),
        fields: vec!["5".into()],
        ..large.clone()
    };
    let refused = house.developers().update_developer(grown).await.map(drop);
    assert_too_large(refused, "Developer of ");
    let large = wire::Cloudlet { access_uri: huge.clone(), ..cloudlet("tmus", "large") };
    let refused = drain(house.cloudlets().create_cloudlet(large).await).await.map(drop);
    assert_too_large(refused, "Cloudlet of ");
    let refused = house.flavors().create_flavor(flavor(&huge)).await.map(drop);
    assert_too_large(refused, "Flavor of ");
    let refused = house.operators().create_operator(operator(&huge)).await.map(drop);
    assert_too_large(refused, "Operator of ");
    let refused = house.clusters().create_cluster(cluster(&huge, "")).await.map(drop);
    assert_too_large(refused, "Cluster of ");
    let large = wire::CloudletInfo { errors: vec![huge.clone()], ..cloudlet_info("tmus", "large") };
    let refused = house.cloudlet_infos().inject_cloudlet_info(large).await.map(drop);
    assert_too_large(refused, "CloudletInfo of ");
    let kept = house.stored::<wire::Developer>(&developer_key("Acme"));
    assert_eq!(kept, Some(developer("Acme")));
    let mut app = app("Acme", "large");
    app.config = format!("# {huge}\nresources: some\n");
    house.apps().create_app(app).await.unwrap();
}
