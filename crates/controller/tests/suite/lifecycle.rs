//! The same life for every plain object: create, create again, show, delete,
//! update what is not there, create anew, an empty key, a masked update.

use selvage_api::Code;
use selvage_api::edgeproto as wire;

use super::harness::*;

macro_rules! lifecycle {
    ($test:ident, $message:ident, $client:ident, $make:expr, $create:ident, $update:ident, $delete:ident,
     $show:ident, $empty_key:literal, $run:ident, update: $missing:expr) => {
        #[tokio::test]
        async fn $test() {
            let house = house().await;
            house.furnish().await;
            let make = $make;
            let mut client = house.$client();
            let before = drain(client.$show(wire::$message::default()).await).await.unwrap();
            for name in ["one", "two", "three"] {
                $run(client.$create(make(name)).await).await.unwrap();
            }
            let again = $run(client.$create(make("two")).await).await;
            assert_refused(again, Code::AlreadyExists, "Key already exists");
            let all = drain(client.$show(wire::$message::default()).await).await.unwrap();
            assert_eq!(all.len(), before.len() + 3);
            let texts = keys(&all);
            assert!(texts.is_sorted(), "{texts:?}");

            $run(client.$delete(make("two")).await).await.unwrap();
            let gone = $run(client.$delete(make("two")).await).await;
            assert_refused(gone, Code::NotFound, "Key not found");
            let (code, text) = $missing;
            assert_refused($run(client.$update(make("two")).await).await, code, text);
            let left = drain(client.$show(make("two")).await).await.unwrap();
            assert!(left.is_empty());
            $run(client.$create(make("two")).await).await.unwrap();
            let all_again = drain(client.$show(wire::$message::default()).await).await.unwrap();
            assert_eq!(all_again, all);

            let mut nameless = make("one");
            nameless.key = None;
            let nameless = $run(client.$create(nameless).await).await;
            assert_refused(nameless, Code::InvalidArgument, $empty_key);
            let all_again = drain(client.$show(wire::$message::default()).await).await.unwrap();
            assert_eq!(all_again, all);
        }
    };
}

async fn unary(
    reply: Result<tonic::Response<wire::Result>, tonic::Status>,
) -> Result<wire::Result, tonic::Status> {
    std::future::ready(reply.map(tonic::Response::into_inner)).await
}

const KEY_NOT_FOUND: (Code, &str) = (Code::NotFound, "Key not found");

lifecycle!(developers, Developer, developers, developer, create_developer, update_developer,
    delete_developer, show_developer, "Invalid developer name", unary, update: KEY_NOT_FOUND);
lifecycle!(operators, Operator, operators, operator, create_operator, update_operator,
    delete_operator, show_operator, "Invalid operator name", unary, update: KEY_NOT_FOUND);
lifecycle!(flavors, Flavor, flavors, flavor, create_flavor, update_flavor,
    delete_flavor, show_flavor, "Invalid flavor name", unary,
    update: KEY_NOT_FOUND);
lifecycle!(clusters, Cluster, clusters, |name| cluster(name, "x1.small"), create_cluster, update_cluster,
    delete_cluster, show_cluster, "Invalid cluster name", unary,
    update: KEY_NOT_FOUND);
lifecycle!(cloudlets, Cloudlet, cloudlets, |name| cloudlet("tmus", name), create_cloudlet, update_cloudlet,
    delete_cloudlet, show_cloudlet, "Invalid operator name", drain, update: KEY_NOT_FOUND);
lifecycle!(apps, App, apps, |name| app("Acme", name), create_app, update_app,
    delete_app, show_app, "Invalid app name", unary, update: KEY_NOT_FOUND);

#[tokio::test]
async fn a_masked_update_changes_that_leaf_only() {
    let house = house().await;
    house.furnish().await;
    let request = wire::Developer {
        fields: vec!["6".into()],
        key: Some(developer_key("Acme")),
        email: "new@example.com".into(),
        address: "ignored".into(),
        ..Default::default()
    };
    house.developers().update_developer(request).await.unwrap();
    let expected = wire::Developer { email: "new@example.com".into(), ..developer("Acme") };
    assert_eq!(house.stored::<wire::Developer>(&developer_key("Acme")), Some(expected));

    let request = wire::Cloudlet {
        fields: vec!["4".into()],
        access_uri: "https://west.example".into(),
        num_dynamic_ips: 1,
        ..cloudlet("tmus", "west")
    };
    drain(house.cloudlets().update_cloudlet(request).await).await.unwrap();
    let expected =
        wire::Cloudlet { access_uri: "https://west.example".into(), ..cloudlet("tmus", "west") };
    assert_eq!(house.stored::<wire::Cloudlet>(&cloudlet_key("tmus", "west")), Some(expected));
}

#[tokio::test]
async fn the_mask_is_never_stored_and_an_empty_one_changes_nothing() {
    let house = house().await;
    let mut made = developer("Acme");
    made.fields = vec!["3".into(), "4".into()];
    house.developers().create_developer(made).await.unwrap();
    assert_eq!(house.stored::<wire::Developer>(&developer_key("Acme")), Some(developer("Acme")));
    let request = wire::Developer { email: "other".into(), ..developer("Acme") };
    house.developers().update_developer(request).await.unwrap();
    assert_eq!(house.stored::<wire::Developer>(&developer_key("Acme")), Some(developer("Acme")));
    let mut request = developer("Acme");
    request.fields = vec!["99".into()];
    let status = house.developers().update_developer(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("99"), "{status:?}");
}

#[tokio::test]
async fn a_write_is_seen_by_the_next_show() {
    let house = house().await;
    for number in 0..50 {
        let name = format!("d{number}");
        house.developers().create_developer(developer(&name)).await.unwrap();
        let filter = wire::Developer { key: Some(developer_key(&name)), ..Default::default() };
        let found = drain(house.developers().show_developer(filter).await).await.unwrap();
        assert_eq!(found.len(), 1, "{name}");
    }
}

/// Two updates of different leaves at the same time both hold.
#[tokio::test]
async fn concurrent_updates_are_merged() {
    let house = house().await;
    house.furnish().await;
    for round in 0..20 {
        let update = |field: &str, change: fn(&mut wire::Developer, String)| {
            let mut request =
                wire::Developer { key: Some(developer_key("Acme")), ..Default::default() };
            request.fields = vec![field.to_owned()];
            change(&mut request, format!("v{round}"));
            let mut client = house.developers();
            tokio::spawn(async move { client.update_developer(request).await })
        };
        let updates = [
            update("3", |developer, value| developer.username = value),
            update("5", |developer, value| developer.address = value),
            update("6", |developer, value| developer.email = value),
        ];
        for update in updates {
            update.await.unwrap().unwrap();
        }
        let now = house.stored::<wire::Developer>(&developer_key("Acme")).unwrap();
        let value = format!("v{round}");
        assert_eq!((&now.username, &now.address, &now.email), (&value, &value, &value));
    }
}
