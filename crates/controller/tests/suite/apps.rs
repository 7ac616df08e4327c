//! Rules of apps that need the store; what is derived has tests of its own.

use selvage_api::Code;
use selvage_api::edgeproto as wire;
use wire::Liveness::Static;

use super::harness::*;

#[tokio::test]
async fn an_app_needs_its_flavor() {
    let house = house().await;
    let text = "Specified flavor not found";
    assert_refused(house.apps().create_app(app("Acme", "one")).await, Code::NotFound, text);
    house.furnish().await;
    let flavorless = wire::App { default_flavor: None, ..app("Acme", "one") };
    assert_refused(house.apps().create_app(flavorless.clone()).await, Code::NotFound, text);
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    // The flavor is looked at before whether the app is there.
    assert_refused(house.apps().create_app(flavorless).await, Code::NotFound, text);
}

#[tokio::test]
async fn defaults_are_stored() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    let stored = house.stored::<wire::App>(&app_key("Acme", "one", "1.0")).unwrap();
    assert_eq!(stored.deployment, "kubernetes");
    assert_eq!(stored.image_path, "docker.mobiledgex.net/Acme/images/one:1.0");
    assert!(stored.deployment_manifest.contains("kind: Deployment"));
    assert!(stored.fields.is_empty());
}

#[tokio::test]
async fn wrong_apps_are_refused_and_leave_nothing() {
    let house = house().await;
    house.furnish().await;
    let changes: [fn(&mut wire::App); 6] = [
        |app| app.image_type = 9,
        |app| app.del_opt = 9,
        |app| app.access_ports = "tcp".into(),
        |app| app.deployment = "nonsense".into(),
        |app| app.set_image_type(wire::ImageType::Unknown),
        |app| app.auth_public_key = "no key".into(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut wrong = app("Acme", "one");
        change(&mut wrong);
        let status = house.apps().create_app(wrong).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{number}: {status:?}");
    }
    assert!(house.controller.tables.apps.is_empty());
}

#[tokio::test]
async fn an_android_package_belongs_to_one_app() {
    let house = house().await;
    house.furnish().await;
    let packaged = |developer: &str, name: &str, version: &str, package: &str| wire::App {
        key: Some(app_key(developer, name, version)),
        android_package_name: package.into(),
        ..app(developer, name)
    };
    let mut apps = house.apps();
    apps.create_app(packaged("Acme", "one", "1.0", "com.one")).await.unwrap();
    apps.create_app(packaged("Acme", "one", "2.0", "com.one")).await.unwrap();
    for other in
        [packaged("Acme", "two", "1.0", "com.one"), packaged("Beta", "one", "1.0", "com.one")]
    {
        let status = apps.create_app(other).await.unwrap_err();
        assert_eq!(status.message(), "AndroidPackageName: com.one in use by another app");
    }
    apps.create_app(packaged("Acme", "two", "1.0", "com.two")).await.unwrap();
    let mut update = packaged("Acme", "two", "1.0", "com.one");
    update.fields = vec!["18".into()];
    let status = apps.update_app(update.clone()).await.unwrap_err();
    assert_eq!(status.message(), "AndroidPackageName: com.one in use by another app");
    // Free again when all versions have gone.
    apps.delete_app(packaged("Acme", "one", "1.0", "")).await.unwrap();
    assert!(apps.update_app(update.clone()).await.is_err());
    apps.delete_app(packaged("Acme", "one", "2.0", "")).await.unwrap();
    apps.update_app(update).await.unwrap();
    apps.create_app(packaged("Beta", "two", "1.0", "com.two")).await.unwrap();
}

#[tokio::test]
async fn an_update_is_checked_as_a_whole() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    let update = |field: &str, change: fn(&mut wire::App)| {
        let mut request =
            wire::App { key: Some(app_key("Acme", "one", "1.0")), ..Default::default() };
        request.fields = vec![field.to_owned()];
        change(&mut request);
        let mut apps = house.apps();
        async move { apps.update_app(request).await }
    };
    assert!(update("7", |app| app.access_ports = "tcp".into()).await.is_err());
    assert!(update("5", |app| app.image_type = 9).await.is_err());
    assert_refused(
        update("9.1", |app| app.default_flavor = Some(flavor_key("nope"))).await,
        Code::NotFound,
        "Specified flavor not found",
    );
    update("13", |app| app.command = "run".into()).await.unwrap();
    let stored = house.stored::<wire::App>(&app_key("Acme", "one", "1.0")).unwrap();
    assert_eq!(stored.command, "run");
    assert_eq!(stored.access_ports, "tcp:80,http:443,udp:10002");
}

#[tokio::test]
async fn ports_stay_while_there_are_instances() {
    let house = house().await;
    house.furnish().await;
    house.apps().create_app(app("Acme", "one")).await.unwrap();
    house.plant(app_inst("one", "west", Static)).await;
    let mut request = app("Acme", "one");
    request.fields = vec!["7".into()];
    request.access_ports = "tcp:81".into();
    let status = house.apps().update_app(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert!(status.message().contains("access_ports"), "{status:?}");
    house.uproot(&app_inst("one", "west", Static)).await;
    house.apps().update_app(request).await.unwrap();
    let stored = house.stored::<wire::App>(&app_key("Acme", "one", "1.0")).unwrap();
    assert_eq!(stored.access_ports, "tcp:81");
}
