#![allow(clippy::unwrap_used)]

use selvage_api::edgeproto::{AppKey, ConfigFile, DeveloperKey, ImageType};

use super::*;

fn app() -> App {
    App {
        key: Some(AppKey {
            developer_key: Some(DeveloperKey { name: "AcmeAppCo".into() }),
            name: "someapplication1".into(),
            version: "1.0".into(),
        }),
        image_type: ImageType::Docker.into(),
        access_ports: "tcp:80,http:443,udp:10002".into(),
        ..App::default()
    }
}

fn made(app: App) -> Result<App, String> {
    make(app, None, &[]).map_err(|error| error.to_string())
}

fn make(app: App, before: Option<&App>, answers: &[Result<String, Failure>]) -> Result<App> {
    let settings = Settings::default();
    let requests = needs(&app, before, &settings)?;
    assert_eq!(requests.len(), answers.len(), "{requests:?}");
    let fetched: Vec<_> = requests
        .into_iter()
        .zip(answers)
        .map(|(request, outcome)| Fetched { request, outcome: outcome.clone() })
        .collect();
    finish(app, before, &fetched, &settings)
}

fn refusal(change: impl FnOnce(&mut App)) -> String {
    let mut app = app();
    change(&mut app);
    made(app).unwrap_err()
}

const SERVED: &str = "\
kind: Service
metadata: {name: mine}
spec: {ports: [{port: 80}, {port: 443}, {port: 10002, protocol: UDP}]}
";

#[test]
fn the_app_of_the_smoke_order_is_completed() {
    let app = made(app()).unwrap();
    assert_eq!(app.deployment, "kubernetes");
    assert_eq!(app.deployment_generator, "kubernetes-basic");
    assert_eq!(app.image_path, "docker.mobiledgex.net/AcmeAppCo/images/someapplication1:1.0");
    assert_eq!(app.deployment_manifest.matches("kind: ").count(), 3);
    let again = make(app.clone(), Some(&app), &[]).unwrap();
    assert_eq!(again, app, "an update that changes nothing changes nothing");
}

#[test]
fn checks_come_in_the_order_of_the_original() {
    let mut wrong = app();
    wrong.deployment_manifest = "a: [".into();
    wrong.config = "text".into();
    wrong.image_type = ImageType::Qcow.into();
    wrong.deployment = "docker".into();
    wrong.auth_public_key = "x".into();
    wrong.access_ports = "x".into();
    wrong.del_opt = 7;
    wrong.key.as_mut().unwrap().name = "-".into();
    let mut refusal_of = |mend: &dyn Fn(&mut App)| {
        let text = made(wrong.clone()).unwrap_err();
        mend(&mut wrong);
        text
    };
    assert_eq!(refusal_of(&|app| app.key.as_mut().unwrap().name = "a".into()), "Invalid app name");
    assert!(refusal_of(&|app| app.del_opt = 1).starts_with("invalid DelOpt"));
    assert_eq!(
        refusal_of(&|app| app.access_ports = "tcp:80".into()),
        "Invalid Access Ports format, expected proto:port but was x"
    );
    assert_eq!(
        refusal_of(&|app| app.auth_public_key.clear()),
        "failed to parse public key: ssh: no key found"
    );
    assert_eq!(
        refusal_of(&|app| app.deployment = "vm".into()),
        "deployment is not valid for image type"
    );
    assert_eq!(
        refusal_of(&|app| app.image_path = "https://images.example/x".into()),
        "imagepath is required for imagetype IMAGE_TYPE_QCOW"
    );
    assert_eq!(
        refusal_of(&|app| app.config = "resources: x".into()),
        "cannot unmarshal json/yaml config str, err it is not an object, config `text`"
    );
    assert_eq!(
        refusal_of(&|app| app.deployment_manifest = "#cloud-config\n".into()),
        "invalid deploymentment manifest only cloud-init script support, \
         must start with '#cloud-config'"
    );
    made(wrong).unwrap();
}

#[test]
fn texts_of_the_original_are_kept() {
    assert!(refusal(|app| app.image_type = 9).starts_with("invalid ImageType"));
    assert_eq!(refusal(|app| app.image_type = 0), "unknown image type IMAGE_TYPE_UNKNOWN");
    assert_eq!(
        refusal(|app| app.deployment = "lxc".into()),
        "invalid deployment, must be one of [kubernetes vm helm docker]"
    );
    assert_eq!(
        refusal(|app| app.deployment_generator = "other".into()),
        "invalid deployment generator other"
    );
    assert_eq!(
        refusal(|app| app.key.as_mut().unwrap().name = "Inc.".into()),
        "failed to use default deployment generator kubernetes, \
         \"inc.\", made from the name of the app, cannot be a label in kubernetes"
    );
    let mut other = app();
    other.android_package_name = "com.acme".into();
    let error = android_in_use(&other);
    assert_eq!(error.to_string(), "AndroidPackageName: com.acme in use by another app");
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[test]
fn a_manifest_of_the_developer_is_checked() {
    let mut app = app();
    app.deployment_manifest = SERVED.into();
    let stored = made(app.clone()).unwrap();
    assert_eq!(stored.deployment_manifest, SERVED);
    assert_eq!(stored.deployment_generator, "");
    app.access_ports = "tcp:81".into();
    assert_eq!(
        made(app.clone()).unwrap_err(),
        "access port tcp:81 is missing from the deployment manifest: \
         it needs a Service with protocol TCP and targetPort 81"
    );
    app.deployment_generator = KUBERNETES_BASIC.into();
    assert!(made(app).unwrap().deployment_manifest.contains("tcp81"));
}

/// D17: the original made its own manifest again and again.
#[test]
fn a_later_manifest_of_the_developer_stays() {
    let before = made(app()).unwrap();
    let mut merged = before.clone();
    merged.deployment_manifest = SERVED.into();
    let after = make(merged, Some(&before), &[]).unwrap();
    assert_eq!(after.deployment_manifest, SERVED);
    assert_eq!(after.deployment_generator, "");

    let mut merged = after.clone();
    merged.command = "run".into();
    assert_eq!(make(merged, Some(&after), &[]).unwrap().deployment_manifest, SERVED);

    let mut merged = after.clone();
    merged.deployment_manifest.clear();
    let back = make(merged, Some(&after), &[]).unwrap();
    assert_eq!(back, before);
}

#[test]
fn a_generated_manifest_follows_the_app() {
    let before = made(app()).unwrap();
    let mut merged = before.clone();
    merged.access_ports = "tcp:8080".into();
    let after = make(merged, Some(&before), &[]).unwrap();
    assert!(after.deployment_manifest.contains("containerPort: 8080"));
    assert_eq!(changes_of_instances(&before, &after), ["access_ports"]);

    let mut merged = before.clone();
    merged.deployment = "docker".into();
    let after = make(merged, Some(&before), &[]).unwrap();
    assert_eq!((after.deployment_manifest.as_str(), after.deployment_generator.as_str()), ("", ""));
    assert_eq!(changes_of_instances(&before, &after), ["deployment"]);
}

/// D18: the original did not look at what an update made of an App.
#[test]
fn the_merged_app_of_an_update_is_checked() {
    let before = made(app()).unwrap();
    let refused = |change: &dyn Fn(&mut App)| {
        let mut merged = before.clone();
        change(&mut merged);
        make(merged, Some(&before), &[]).unwrap_err().to_string()
    };
    assert_eq!(refused(&|app| app.access_ports = "tcp:0".into()), "Port 0 out of range");
    assert_eq!(
        refused(&|app| app.deployment = "vm".into()),
        "deployment is not valid for image type"
    );
    assert!(refused(&|app| app.image_type = 5).starts_with("invalid ImageType"));
    let mut merged = before.clone();
    merged.access_ports = "TCP:080,http:443,udp:10002".into();
    let after = make(merged, Some(&before), &[]).unwrap();
    assert_eq!(after, before);
    assert_eq!(changes_of_instances(&before, &after), [""; 0]);
}

#[test]
fn addresses_are_fetched_and_stored_inline() {
    let mut app = app();
    app.config = "http://files.example/config".into();
    app.deployment_manifest = "https://files.example/manifest".into();
    app.configs =
        vec![ConfigFile { kind: "envVarsYaml".into(), config: "https://files.example/env".into() }];
    let answers = [Ok("resources: r".into()), Ok("- name: A".into()), Ok(SERVED.into())];
    let stored = make(app.clone(), None, &answers).unwrap();
    assert_eq!(stored.config, "resources: r");
    assert_eq!(stored.deployment_manifest, SERVED);
    assert_eq!(stored.configs[0].config, "- name: A");
    assert_eq!(make(stored.clone(), Some(&stored), &[]).unwrap(), stored);

    let stale = finish(app, None, &[], &Settings::default()).unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
}

#[test]
fn failed_fetches_have_the_texts_of_the_original() {
    let refusal_of = |change: &dyn Fn(&mut App), failure: Failure| {
        let mut app = app();
        change(&mut app);
        let error = make(app, None, &[Err(failure)]).unwrap_err();
        (error.code(), error.to_string())
    };
    let config: &dyn Fn(&mut App) = &|app| app.config = "http://x.example/c".into();
    let manifest: &dyn Fn(&mut App) = &|app| app.deployment_manifest = "http://x.example/m".into();
    let generator: &dyn Fn(&mut App) =
        &|app| app.deployment_generator = "http://x.example/g".into();
    assert_eq!(
        refusal_of(config, Failure::Denied("no".into())),
        (Code::InvalidArgument, "cannot get config from http://x.example/c, no".into())
    );
    assert_eq!(
        refusal_of(config, Failure::Status(404)),
        (
            Code::InvalidArgument,
            "cannot get config from http://x.example/c, bad response 404".into()
        )
    );
    assert_eq!(
        refusal_of(manifest, Failure::Unreachable("gone".into())),
        (Code::Unavailable, "cannot get manifest from http://x.example/m, gone".into())
    );
    for change in [manifest, generator] {
        assert_eq!(
            refusal_of(change, Failure::Status(500)),
            (Code::InvalidArgument, "bad response from remote manifest 500".into())
        );
    }
}

#[test]
fn a_remote_generator_receives_the_app() {
    let mut app = app();
    app.deployment_generator = "https://gen.example/make".into();
    app.command = "run \"it\"".into();
    app.annotations = "note".into();
    let requests = needs(&app, None, &Settings::default()).unwrap();
    assert_eq!(requests[0].purpose, Purpose::Generator);
    assert_eq!(
        requests[0].body.as_deref(),
        Some(
            "{\"name\":\"someapplication1\",\"devname\":\"AcmeAppCo\",\"version\":\"1.0\",\
             \"imagepath\":\"docker.mobiledgex.net/AcmeAppCo/images/someapplication1:1.0\",\
             \"imagetype\":\"IMAGE_TYPE_DOCKER\",\"command\":\"run \\\"it\\\"\",\"config\":\"\",\
             \"annotations\":\"note\",\"ports\":[{\"Proto\":\"tcp\",\"Port\":\"80\"},\
             {\"Proto\":\"http\",\"Port\":\"443\"},{\"Proto\":\"udp\",\"Port\":\"10002\"}]}"
        )
    );
    let stored = make(app.clone(), None, &[Ok(SERVED.into())]).unwrap();
    assert_eq!(stored.deployment_manifest, SERVED);
    let useless = make(app, None, &[Ok("kind: Pod".into())]).unwrap_err().to_string();
    assert!(useless.starts_with("access port tcp:80 is missing"));
}

#[test]
fn large_texts_are_refused_by_name() {
    assert_eq!(
        refusal(|app| app.annotations = "x".repeat(10 << 20)),
        "annotations is too large: 10485760 bytes, at most 16384 are possible"
    );
    assert_eq!(
        refusal(|app| app.configs = vec![ConfigFile::default(); 33]),
        "configs is too large: 33 files, at most 32 are possible"
    );
    let files = vec![ConfigFile { kind: "envVarsYaml".into(), config: "x".repeat(200 << 10) }; 6];
    assert!(refusal(|app| app.configs = files).starts_with("App is too large: "));
}

#[test]
fn an_image_path_cannot_be_mistaken_for_something_else() {
    let docker = |path: &str| {
        let mut app = app();
        app.image_path = path.into();
        made(app).map(|app| app.image_path)
    };
    for good in [
        "nginx",
        "registry.example:5000/Acme_Co/images/app-1:1.0",
        "registry.example/app@sha256:0123456789abcdef",
        "https://registry.example/app:1.0",
    ] {
        assert_eq!(docker(good).unwrap(), good);
    }
    for bad in ["--privileged", "a b", "a\nb: c", "a;b", "$(a)", "a\"b", "a'b", "\u{fc}", " "] {
        assert!(docker(bad).unwrap_err().starts_with("Invalid image_path: "), "{bad}");
    }
    let machine = |path: &str| {
        let mut app = app();
        app.image_type = ImageType::Qcow.into();
        app.image_path = path.into();
        made(app).map(drop)
    };
    machine("https://images.example/vm.qcow2?a=1&b=%20#md5:d41d8cd98f00b204e9800998ecf8427e")
        .unwrap();
    for bad in ["-o", "https://images.example/my vm", "https://images.example/\t"] {
        assert!(machine(bad).unwrap_err().starts_with("Invalid image_path: "), "{bad}");
    }
}

#[test]
fn texts_can_be_printed() {
    for bad in ["a\0b", "\u{1b}[2J", "\u{9b}"] {
        let refusal_of = refusal(|app| app.annotations = bad.into());
        assert_eq!(refusal_of, "annotations has a control character in it");
        let refusal_of = refusal(|app| app.command = bad.into());
        assert_eq!(refusal_of, "command has a control character in it");
    }
    let mut lines = app();
    lines.annotations = "one: 1\r\n\ttwo: 2\n".into();
    made(lines).unwrap();
}

#[test]
fn helm_and_docker_need_no_manifest() {
    let mut helm = app();
    helm.image_type = ImageType::Unknown.into();
    helm.deployment = "helm".into();
    helm.image_path = "stable/prometheus-operator".into();
    helm.configs = vec![ConfigFile { kind: "hemlCustomizationYaml".into(), config: "a: 1".into() }];
    let helm = made(helm).unwrap();
    assert_eq!((helm.deployment_manifest.as_str(), helm.deployment_generator.as_str()), ("", ""));
    let mut docker = app();
    docker.deployment = "docker".into();
    docker.access_ports.clear();
    assert_eq!(made(docker).unwrap().deployment_manifest, "");
}
