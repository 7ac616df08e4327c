//! Flags and files as they go over the wire.

use crate::{controller, person};

/// Runs a line that succeeds and gives what the method was sent.
async fn sent(line: &[&str], method: &str) -> String {
    let server = controller::start().await;
    person(&server).await.run(line).await.good();
    server.state.last(method)
}

#[tokio::test]
async fn every_object_by_its_flags() {
    let cases: &[(&str, &str, &str)] = &[
        (
            "flavor create --name x1.small --ram 2048 --vcpus 2 --disk 2",
            "CreateFlavor",
            r#"{"key":{"name":"x1.small"},"ram":"2048","vcpus":"2","disk":"2"}"#,
        ),
        ("operator create --name tmus", "CreateOperator", r#"{"key":{"name":"tmus"}}"#),
        (
            "developer create --name AcmeAppCo --username acme --email a@acme.example",
            "CreateDeveloper",
            r#"{"key":{"name":"AcmeAppCo"},"username":"acme","email":"a@acme.example"}"#,
        ),
        (
            "cluster create --name small --defaultflavor x1.small",
            "CreateCluster",
            r#"{"key":{"name":"small"},"defaultFlavor":{"name":"x1.small"}}"#,
        ),
        (
            "cloudlet create --name tmus-cloud-1 --operator tmus --latitude 31 --longitude -91 --numdynamicips 254 --ipsupport IpSupportDynamic",
            "CreateCloudlet",
            r#"{"key":{"operatorKey":{"name":"tmus"},"name":"tmus-cloud-1"},"location":{"latitude":31.0,"longitude":-91.0},"ipSupport":"IP_SUPPORT_DYNAMIC","numDynamicIps":254}"#,
        ),
        (
            "cloudletinfo create --name tmus-cloud-1 --operator tmus --state ready --osmaxram 500 --set flavors[0].name=flavor1 --set flavors[0].vcpus=10",
            "InjectCloudletInfo",
            r#"{"fields":["3","6","10.1","10.2","10.3","10.4"],"key":{"operatorKey":{"name":"tmus"},"name":"tmus-cloud-1"},"state":"CLOUDLET_STATE_READY","osMaxRam":"500","flavors":[{"name":"flavor1","vcpus":"10"}]}"#,
        ),
    ];
    for (line, method, expected) in cases {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(sent(&words, method).await, *expected, "{line}");
    }
}

#[tokio::test]
async fn instances_by_short_and_by_long_names() {
    let expected = r#"{"key":{"appKey":{"developerKey":{"name":"AcmeAppCo"},"name":"some app","version":"1.10"},"clusterInstKey":{"clusterKey":{"name":"autoclusterone"},"cloudletKey":{"operatorKey":{"name":"tmus"},"name":"tmus-cloud-1"},"developer":"AcmeAppCo"}},"flavor":{"name":"x1.small"},"crmOverride":"IGNORE_CRM","autoClusterIpAccess":"IP_ACCESS_SHARED"}"#;
    let short = [
        "appinst",
        "create",
        "--appname",
        "some app",
        "--appvers",
        "1.10",
        "--developer",
        "AcmeAppCo",
        "--cluster",
        "autoclusterone",
        "--clusterdeveloper",
        "AcmeAppCo",
        "--cloudlet",
        "tmus-cloud-1",
        "--operator",
        "tmus",
        "--flavor",
        "x1.small",
        "--crmoverride",
        "IgnoreCrm",
        "--autoclusteripaccess",
        "shared",
    ];
    assert_eq!(sent(&short, "CreateAppInst").await, expected);
    let long = [
        "appinsts",
        "create",
        "--key-appkey-name",
        "some app",
        "--key-appkey-version",
        "1.10",
        "--key-appkey-developerkey-name",
        "AcmeAppCo",
        "--key-clusterinstkey-clusterkey-name",
        "autoclusterone",
        "--key-clusterinstkey-developer",
        "AcmeAppCo",
        "--key-clusterinstkey-cloudletkey-name",
        "tmus-cloud-1",
        "--key-clusterinstkey-cloudletkey-operatorkey-name",
        "tmus",
        "--flavor-name",
        "x1.small",
        "--crmoverride",
        "2",
        "--autoclusteripaccess",
        "IP_ACCESS_SHARED",
    ];
    assert_eq!(sent(&long, "CreateAppInst").await, expected);
    let cluster = [
        "clusterinst",
        "create",
        "--cluster",
        "small",
        "--developer",
        "AcmeAppCo",
        "--cloudlet",
        "tmus-cloud-1",
        "--operator",
        "tmus",
        "--flavor",
        "x1.small",
        "--nummasters",
        "1",
        "--numnodes",
        "2",
        "--ipaccess",
        "dedicated",
        "--deployment",
        "kubernetes",
    ];
    assert_eq!(
        sent(&cluster, "CreateClusterInst").await,
        r#"{"key":{"clusterKey":{"name":"small"},"cloudletKey":{"operatorKey":{"name":"tmus"},"name":"tmus-cloud-1"},"developer":"AcmeAppCo"},"flavor":{"name":"x1.small"},"ipAccess":"IP_ACCESS_DEDICATED","numMasters":1,"numNodes":2,"deployment":"kubernetes"}"#
    );
}

#[tokio::test]
async fn an_app_with_everything_that_is_not_plain() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let manifest = person.file("manifest.yaml", "kind: Service\n---\nkind: Deployment\n");
    let manifest = format!("@{}", manifest.display());
    let line = [
        "app",
        "create",
        "--appname",
        "one",
        "--appvers",
        "1.10",
        "--developer",
        "Acme",
        "--imagetype",
        "docker",
        "--defaultflavor-name",
        "x1.small",
        "--permitsplatformapps",
        "true",
        "--delopt",
        "1",
        "--deploymentmanifest",
        &manifest,
        "--set",
        "configs[0].kind=envVarsYaml",
        "--set",
        "configs[0].config=- name: A",
        "--set",
        "configs[1]={kind: x, config: 'y'}",
    ];
    person.run(&line).await.good();
    assert_eq!(
        server.state.last("CreateApp"),
        r#"{"key":{"developerKey":{"name":"Acme"},"name":"one","version":"1.10"},"imageType":"IMAGE_TYPE_DOCKER","defaultFlavor":{"name":"x1.small"},"deploymentManifest":"kind: Service\n---\nkind: Deployment\n","permitsPlatformApps":true,"delOpt":"AUTO_DELETE","configs":[{"kind":"envVarsYaml","config":"- name: A"},{"kind":"x","config":"y"}]}"#
    );
}

#[tokio::test]
async fn an_update_names_what_it_changes() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    person.run(&["developer", "create", "--name", "Acme", "--email", "old"]).await.good();
    let update = ["developer", "update", "--name", "Acme", "--email", "", "--address", "here"];
    person.run(&update).await.good();
    assert_eq!(
        server.state.last("UpdateDeveloper"),
        r#"{"fields":["5","6"],"key":{"name":"Acme"},"address":"here"}"#
    );
    let cloudlet = ["--name", "one", "--operator", "tmus"];
    let create = [&["cloudlet", "create", "--latitude", "31", "--longitude", "-91"], &cloudlet[..]];
    person.run(&create.concat()).await.good();
    let update = [
        &["cloudlet", "update", "--latitude", "40", "--longitude", "-99", "--numdynamicips", "100"],
        &cloudlet[..],
    ];
    person.run(&update.concat()).await.good();
    let sent = server.state.last("UpdateCloudlet");
    assert!(sent.starts_with(r#"{"fields":["5.1","5.2","8"],"#), "{sent}");

    let (code, stderr) = person.run(&["developer", "update", "--name", "Acme"]).await.bad();
    assert_eq!(code, 3);
    assert!(stderr.starts_with("error: developer Acme: nothing to update"), "{stderr}");
}

#[tokio::test]
async fn a_mode_of_the_call_is_no_field_to_update() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let key = ["--cluster", "c", "--developer", "d", "--cloudlet", "l", "--operator", "o"];
    person.run(&[&["clusterinst", "create"], &key[..]].concat()).await.good();
    let update = ["clusterinst", "update", "--numnodes", "3", "--crmoverride", "IgnoreCrmErrors"];
    person.run(&[&update[..], &key[..]].concat()).await.good();
    let sent = server.state.last("UpdateClusterInst");
    assert!(sent.starts_with(r#"{"fields":["14"],"#), "{sent}");
    assert!(sent.contains(r#""crmOverride":"IGNORE_CRM_ERRORS""#), "{sent}");
    let delete = ["clusterinst", "delete", "--yes", "--crmoverride", "IgnoreCrm"];
    person.run(&[&delete[..], &key[..]].concat()).await.good();
    assert!(server.state.last("DeleteClusterInst").contains(r#""crmOverride":"IGNORE_CRM""#));
}

#[tokio::test]
async fn objects_come_from_files_with_flags_on_top() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let one = "key:\n  developerkey: {name: Acme}\n  name: one\n  version: 1.10\nImageType: ImageTypeDocker\naccess_ports: tcp:80\n";
    let file = person.file("app.yaml", one).display().to_string();
    person.run(&["app", "create", "-f", &file, "--accessports", "udp:1"]).await.good();
    assert_eq!(
        server.state.last("CreateApp"),
        r#"{"key":{"developerKey":{"name":"Acme"},"name":"one","version":"1.10"},"imageType":"IMAGE_TYPE_DOCKER","accessPorts":"udp:1"}"#
    );
    for many in [
        "- key: {name: a}\n  ram: 1\n- key: {name: b}\n  ram: 2\n",
        "key: {name: a}\nram: 1\n---\nkey: {name: b}\nram: 2\n",
        "flavors:\n- key: {name: a}\n  ram: 1\n- key: {name: b}\n  ram: 2\n",
        "kind: Flavor\nkey: {name: a}\nram: 1\n---\nkind: flavor\nkey: {name: b}\nram: 2\n",
    ] {
        let server = controller::start().await;
        let mut person = crate::person(&server).await;
        person.piping(many).run(&["flavor", "create", "-f", "-"]).await.good();
        assert_eq!(server.state.changes(), ["CreateFlavor", "CreateFlavor"], "{many}");
        assert_eq!(server.state.last("CreateFlavor"), r#"{"key":{"name":"b"},"ram":"2"}"#);
    }
    let mixed = "operators:\n- key: {name: a}\n";
    let (code, stderr) = person.piping(mixed).run(&["flavor", "create", "-f", "-"]).await.bad();
    assert_eq!(code, 3);
    assert!(stderr.contains("stdin holds operators too"), "{stderr}");
}

#[tokio::test]
async fn mistakes_are_named_and_never_sent() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    for (line, expected) in [
        (vec!["--ram", "much"], "--ram: \"much\" is not a whole number"),
        (vec!["--set", "rma=1"], "--set: Flavor has no field \"rma\"; did you mean ram?"),
        (vec!["--set", "ram"], "must be path=value"),
        (
            vec!["--set", "key.nam=1"],
            "--set: key: FlavorKey has no field \"nam\"; did you mean name?",
        ),
        (vec!["--set", "ram[0]=1"], "is no list"),
        (vec!["--set", "fields=3"], "has no field \"fields\""),
    ] {
        let (code, stderr) = person.run(&[vec!["flavor", "create"], line].concat()).await.bad();
        assert_eq!(code, 3, "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    let secret = ["developer", "create", "--name", "a", "--passhash", "canary"];
    let (code, stderr) = person.run(&secret).await.bad();
    assert!(code == 3 && !stderr.contains("canary") && stderr.contains("@FILE"), "{stderr}");
    let (code, stderr) = person.run(&["app", "delete"]).await.bad();
    assert!(code == 3 && stderr.contains("nothing says which app to delete"), "{stderr}");
    assert!(server.state.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn typos_on_the_command_line_and_in_files_are_answered() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let stderr = person.misspelt(&["app", "create", "--appnam", "x"]);
    assert!(stderr.contains("'--appname'"), "{stderr}");
    let stderr = person.misspelt(&["app", "create", "--imagetype", "ImageTypeDocke"]);
    assert!(stderr.contains("ImageTypeDocker"), "{stderr}");
    let stderr = person.misspelt(&["node", "show"]);
    assert!(stderr.contains("nodes"), "{stderr}");

    for (text, expected) in [
        (
            "apps:\n- key:\n    nmae: x\n",
            "stdin line 3: key: AppKey has no field \"nmae\"; did you mean name?",
        ),
        (
            "flavors:\n- key: {name: x}\n\napp:\n- kye: {}\n",
            "stdin line 5: App has no field \"kye\"; did you mean key?",
        ),
        (
            "flavrs:\n- key: {name: x}\n",
            "stdin line 1: there is no kind of object \"flavrs\"; did you mean flavors",
        ),
        ("kind: Flavor\nram: lots\n", "stdin line 2: ram: \"lots\" is not a whole number"),
        ("kind: App\nimage_type: ImageTypeDcker\n", "did you mean ImageTypeDocker"),
        ("nodes:\n- key: {name: x}\n", "stdin line 1: nodes are made by the server"),
        ("flavors: 5\n", "stdin line 1: flavors must be a list"),
        ("flavors:\n- 5\n", "stdin line 2: must be a mapping, a Flavor, and is a single value"),
        ("", "stdin holds no object"),
    ] {
        let (code, stderr) = person.piping(text).run(&["apply", "-f", "-"]).await.bad();
        assert_eq!(code, 3, "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    assert!(server.state.calls.lock().unwrap().is_empty());
}
