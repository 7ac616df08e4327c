//! Results of filters, their order, and the rights of a slow reader.

use futures::StreamExt;
use selvage_api::edgeproto as wire;
use wire::Liveness::Static;

use super::harness::*;

async fn apps(house: &House, filter: wire::App) -> Vec<String> {
    let found = drain(house.apps().show_app(filter).await).await.unwrap();
    found.into_iter().map(|app| app.key.unwrap().name).collect()
}

#[tokio::test]
async fn filters() {
    let house = house().await;
    house.furnish().await;
    house.flavors().create_flavor(flavor("other")).await.unwrap();
    for (developer, name, flavor) in
        [("Acme", "b", "x1.small"), ("Acme", "a", "other"), ("Beta", "c", "x1.small")]
    {
        let mut made = app(developer, name);
        made.default_flavor = Some(flavor_key(flavor));
        made.android_package_name = format!("com.{name}");
        house.apps().create_app(made).await.unwrap();
    }
    let all = wire::App::default();
    assert_eq!(apps(&house, all.clone()).await, ["a", "b", "c"]);
    let key = |developer: &str, name: &str, version: &str| Some(app_key(developer, name, version));
    let by = |key| wire::App { key, ..Default::default() };
    assert_eq!(apps(&house, by(key("Acme", "", ""))).await, ["a", "b"]);
    assert_eq!(apps(&house, by(key("", "c", ""))).await, ["c"]);
    assert_eq!(apps(&house, by(key("Acme", "b", "1.0"))).await, ["b"]);
    assert_eq!(apps(&house, by(key("Acme", "b", "2.0"))).await, [""; 0]);
    let flavored = wire::App { default_flavor: Some(flavor_key("x1.small")), ..all.clone() };
    assert_eq!(apps(&house, flavored.clone()).await, ["b", "c"]);
    let both = wire::App { key: key("Acme", "", ""), ..flavored };
    assert_eq!(apps(&house, both).await, ["b"]);
    let android = wire::App { android_package_name: "com.c".into(), ..all.clone() };
    assert_eq!(apps(&house, android).await, ["c"]);
    let mut masked = by(key("Acme", "", ""));
    masked.fields = vec!["anything".into()];
    assert_eq!(apps(&house, masked).await, ["a", "b"]);
    let ports = wire::App { access_ports: "tcp:1".into(), ..all };
    assert_eq!(apps(&house, ports).await, [""; 0]);
}

#[tokio::test]
async fn instances_are_found_by_whatever_part_of_their_key() {
    let house = house().await;
    for number in 0..20 {
        let app = format!("app{}", number % 4);
        let place = format!("place{}", number % 5);
        house.plant(app_inst(&app, &place, Static)).await;
    }
    let count = |filter: wire::AppInst| house.controller.show(&filter).unwrap().collect::<Vec<_>>();
    assert_eq!(count(wire::AppInst::default()).await.len(), 20);
    let on = |cloudlet: wire::CloudletKey| wire::AppInst {
        key: Some(wire::AppInstKey {
            app_key: None,
            cluster_inst_key: Some(wire::ClusterInstKey {
                cloudlet_key: Some(cloudlet),
                ..Default::default()
            }),
        }),
        ..Default::default()
    };
    assert_eq!(count(on(cloudlet_key("tmus", "place1"))).await.len(), 4);
    // Only part of the cloudlet's key: no index, the same answer.
    assert_eq!(count(on(cloudlet_key("", "place1"))).await.len(), 4);
    assert_eq!(count(on(cloudlet_key("tmus", ""))).await.len(), 20);
    assert_eq!(count(on(cloudlet_key("att", "place1"))).await.len(), 0);
    let whole = app_inst("app1", "place1", Static);
    assert_eq!(count(wire::AppInst { key: whole.key, ..Default::default() }).await.len(), 1);
}

/// A reader who stops in the middle keeps nobody from writing.
#[tokio::test]
async fn a_slow_reader_stalls_nobody() {
    let house = house().await;
    for number in 0..2000 {
        let mut made = developer(&format!("d{number:04}"));
        made.address = "x".repeat(2000);
        house.plant(made).await;
    }
    let mut stream =
        house.developers().show_developer(wire::Developer::default()).await.unwrap().into_inner();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.key.unwrap().name, "d0000");
    for number in 0..20 {
        let name = format!("later{number}");
        house.developers().create_developer(developer(&name)).await.unwrap();
    }
    let rest = stream.collect::<Vec<_>>().await;
    assert_eq!(rest.len(), 1999, "a reader sees what was there when it asked");
}
