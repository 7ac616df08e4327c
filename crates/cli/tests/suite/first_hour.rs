//! The commands that people type in their first hour: names without flags,
//! one command from an image to an instance, many objects at once.

use selvage_api::{Code, edgeproto::*};
use tonic::Status;

use crate::{controller, harness::Person, person};

const APPS: &str = "\
flavors:
- {key: {name: large}, ram: 4096, vcpus: 4, disk: 20}
- {key: {name: small}, ram: 256, vcpus: 1, disk: 1}
cloudlets:
- key: {operatorkey: {name: telco}, name: east}
- key: {operatorkey: {name: telco}, name: west}
apps:
- key: {developerkey: {name: demo}, name: hello, version: 1.0}
  imagetype: ImageTypeDocker
  accessports: tcp:80
- key: {developerkey: {name: other}, name: hello, version: 1.0}
  imagetype: ImageTypeDocker
- key: {developerkey: {name: demo}, name: shop, version: 1.0}
  imagetype: ImageTypeDocker
  configs:
  - {kind: envVarsYaml, config: first}
  - {kind: envVarsYaml, config: second}
appinsts:
- key:
    appkey: {developerkey: {name: demo}, name: shop, version: 1.0}
    clusterinstkey: {clusterkey: {name: c}, cloudletkey: {operatorkey: {name: telco}, name: east}}
- key:
    appkey: {developerkey: {name: demo}, name: shop, version: 1.0}
    clusterinstkey: {clusterkey: {name: c}, cloudletkey: {operatorkey: {name: telco}, name: west}}
";

async fn filled() -> (controller::Running, Person) {
    let server = controller::start().await;
    let mut person = person(&server).await;
    person.piping(APPS).run(&["apply", "-f", "-"]).await.good();
    (server, person)
}

fn configs(server: &controller::Running) -> Vec<(String, String)> {
    let mut apps = server.state.get(&App::default());
    apps.retain(|app| app.key.as_ref().unwrap().name == "shop");
    apps.remove(0).configs.into_iter().map(|config| (config.kind, config.config)).collect()
}

#[tokio::test]
async fn a_name_stands_for_its_object() {
    let (server, mut person) = filled().await;
    let shown = person.run(&["app", "get", "shop", "-o", "json"]).await.good();
    assert!(shown.lines().count() == 1 && shown.contains("\"shop\""), "{shown}");
    for word in ["show", "list", "get", "describe"] {
        let all = person.run(&["app", word, "-o", "json"]).await.good();
        assert_eq!(all.lines().count(), 3, "{word}: {all}");
    }
    person.run(&["app", "update", "shop", "--accessports", "tcp:1"]).await.good();
    let sent = server.state.last("UpdateApp");
    assert!(sent.contains("\"demo\"") && sent.contains("\"shop\""), "{sent}");
    person.run(&["flavor", "create", "tiny", "--ram", "1"]).await.good();
    assert!(server.state.last("CreateFlavor").contains(r#"{"name":"tiny"}"#));
    person.run(&["app", "delete", "demo/hello", "--yes"]).await.good();
    let left = server.state.get(&App::default());
    assert!(left.iter().all(|app| {
        let key = app.key.as_ref().unwrap();
        key.name != "hello" || key.developer_key.as_ref().unwrap().name == "other"
    }));
}

#[tokio::test]
async fn a_name_that_means_two_or_none_is_asked_back() {
    let (server, mut person) = filled().await;
    let before = server.state.changes().len();
    let (code, stderr) = person.run(&["app", "delete", "hello", "--yes"]).await.bad();
    assert_eq!(code, Code::InvalidArgument.exit());
    assert!(stderr.contains("demo/hello/1.0, other/hello/1.0"), "{stderr}");
    let (code, stderr) = person.run(&["app", "delete", "shp", "--yes"]).await.bad();
    assert_eq!(code, Code::NotFound.exit());
    assert!(stderr.contains("there is no app \"shp\"; did you mean shop?"), "{stderr}");
    let (code, _) = person.run(&["app", "show", "nothing"]).await.bad();
    assert_eq!(code, Code::NotFound.exit());
    assert_eq!(server.state.changes().len(), before, "nothing was changed");
    let west = ["appinst", "delete", "shop", "--cloudlet", "west", "--yes"];
    person.run(&west).await.good();
    assert!(server.state.last("DeleteAppInst").contains("\"west\""));
}

/// An update changes what is named and nothing else.
#[tokio::test]
async fn an_element_of_a_list_is_changed_alone() {
    let (server, mut person) = filled().await;
    let named = |text: &str| ("envVarsYaml".to_owned(), text.to_owned());
    person.run(&["app", "update", "shop", "--set", "configs[0].config=new"]).await.good();
    assert_eq!(configs(&server), [named("new"), named("second")]);
    let whole = "configs[1]={kind: envVarsYaml, config: last}";
    let key = ["--developer", "demo", "--appname", "shop", "--appvers", "1.0"];
    person.run(&[&["app", "update", "--set", whole][..], &key].concat()).await.good();
    assert_eq!(configs(&server), [named("new"), named("last")]);
    person.run(&["app", "update", "shop", "--set", "configs[2].config=third"]).await.good();
    assert_eq!(configs(&server).len(), 3);
    let far = ["app", "update", "shop", "--set", "configs[9].config=x"];
    let (code, stderr) = person.run(&far).await.bad();
    assert_eq!(code, Code::InvalidArgument.exit());
    assert!(stderr.contains("there are 3 before it"), "{stderr}");
}

#[tokio::test]
async fn a_dry_run_shows_what_would_differ() {
    let (server, mut person) = filled().await;
    let line = ["app", "update", "demo/hello", "--accessports", "tcp:81", "--dry-run"];
    let out = person.run(&line).await.good();
    assert_eq!(out, "- access_ports: tcp:80\n+ access_ports: tcp:81\n");
    let moved = APPS.replace("accessports: tcp:80", "accessports: udp:9");
    let out = person.piping(&moved).run(&["apply", "-f", "-", "--dry-run"]).await.good();
    let expected =
        "app demo/hello/1.0: would be updated\n  - access_ports: tcp:80\n  + access_ports: udp:9\n";
    assert!(out.contains(expected), "{out}");
    let secret = APPS.replace("config: first", "config: canary");
    let out = person.piping(&secret).run(&["apply", "-f", "-", "--dry-run"]).await.good();
    assert!(out.contains("~ configs: another secret") && !out.contains("canary"), "{out}");
    let apps = server.state.get(&App::default());
    assert!(apps.iter().all(|app| app.access_ports != "udp:9"));
}

#[tokio::test]
async fn many_instances_are_updated_by_one_command() {
    let (server, mut person) = filled().await;
    let out = person.run(&["appinst", "update", "--all"]).await.good();
    assert_eq!(out.lines().filter(|line| line.ends_with(": updated")).count(), 2, "{out}");
    let out = person.run(&["appinst", "update", "--selector", "cloudlet=west"]).await.good();
    assert_eq!(out, "appinst demo/shop/1.0/c/telco/west/demo: updated\n");
    let out = person.run(&["appinst", "update", "--all", "--cloudlet", "east"]).await.good();
    assert_eq!(out, "appinst demo/shop/1.0/c/telco/east/demo: updated\n");
    let before = server.state.changes().len();
    let (code, stderr) = person.run(&["appinst", "update", "-l", "clodlet!=west"]).await.bad();
    assert_eq!(code, Code::InvalidArgument.exit());
    assert!(stderr.contains("did you mean cloudlet?"), "{stderr}");
    let none = person.run(&["appinst", "update", "-l", "cloudlet=north"]).await;
    assert_eq!((none.out.as_str(), none.err.as_str()), ("", "No appinsts fit.\n"));
    assert_eq!(server.state.changes().len(), before);
}

#[tokio::test]
async fn a_roll_stops_at_the_first_instance_that_fails() {
    let (server, mut person) = filled().await;
    server.state.refuse("UpdateAppInst", Status::aborted("the new version does not answer"));
    let tried =
        || server.state.changes().iter().filter(|method| *method == "UpdateAppInst").count();
    let outcome = person.run(&["appinst", "update", "--all"]).await;
    let lines: Vec<&str> = outcome.out.lines().collect();
    assert!(lines[0].contains(": failed: ") && lines[0].contains("does not answer"), "{lines:?}");
    assert!(lines[1].ends_with(": not updated"), "{lines:?}");
    assert_eq!(tried(), 1, "the other serves as before");
    let (code, stderr) = outcome.bad();
    assert_eq!(code, Code::Aborted.exit());
    assert!(stderr.contains("1 of 2 objects failed, 1 not updated"), "{stderr}");
    assert!(stderr.contains("--keep-going"), "{stderr}");

    let outcome = person.run(&["appinst", "update", "--all", "--keep-going"]).await;
    assert_eq!(outcome.out.lines().filter(|line| line.contains(": failed: ")).count(), 2);
    assert_eq!(tried(), 3);
    let (_, stderr) = outcome.bad();
    assert!(stderr.contains("2 of 2 objects failed\n"), "{stderr}");

    // A dry run stops nothing: it says of each what would come of it.
    person.run(&["appinst", "update", "--all", "--dry-run"]).await.bad();
    assert_eq!(tried(), 5);
    let moved = APPS.replace("config: first", "config: changed");
    let outcome = person.piping(&moved).run(&["apply", "-f", "-", "--roll"]).await;
    assert!(outcome.out.contains(": not updated"), "{}", outcome.out);
    assert_eq!(tried(), 6);
}

#[tokio::test]
async fn an_app_that_changed_is_rolled_where_it_runs() {
    let (server, mut person) = filled().await;
    let moved = APPS.replace("config: first", "config: changed");
    let quiet = person.piping(&moved).run(&["apply", "-f", "-"]).await;
    assert!(quiet.err.contains("its 2 instances run what it was"), "{}", quiet.err);
    let updates = |server: &controller::Running| {
        server.state.changes().iter().filter(|method| *method == "UpdateAppInst").count()
    };
    assert_eq!(updates(&server), 0);
    let again = APPS.replace("config: first", "config: again");
    let file = person.file("apps.yaml", &again).display().to_string();
    let asked = person.answering(&["y"]).run(&["apply", "-f", &file]).await;
    assert!(
        asked.err.starts_with("app demo/shop/1.0 changed; update its 2 instances"),
        "{}",
        asked.err
    );
    assert_eq!(updates(&server), 2);
    let last = person.piping(APPS).run(&["apply", "--roll", "-f", "-"]).await.good();
    assert!(last.ends_with("appinst demo/shop/1.0/c/telco/west/demo: updated\n"), "{last}");
    assert_eq!(updates(&server), 4);
}

#[tokio::test]
async fn folders_and_several_files_are_one_set() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let folder = person.dir.path().join("site");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("b.yaml"), "kind: Flavor\nkey: {name: b}\n").unwrap();
    std::fs::write(folder.join("a.yml"), "kind: Flavor\nkey: {name: a}\n").unwrap();
    std::fs::write(folder.join("notes.txt"), "not: [yaml").unwrap();
    let file = person.file("c.yaml", "kind: Flavor\nkey: {name: c}\n").display().to_string();
    let site = folder.display().to_string();
    let out = person.run(&["apply", "-f", &site, "-f", &file]).await.good();
    assert_eq!(out, "flavor a: created\nflavor b: created\nflavor c: created\n");
    let empty = person.dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (_, stderr) = person.run(&["apply", "-f", empty.to_str().unwrap()]).await.bad();
    assert!(stderr.contains("holds no file .yaml or .yml"), "{stderr}");
}

#[tokio::test]
async fn an_image_runs_by_one_command() {
    let (server, mut person) = filled().await;
    person.env.push(("SECRET_OF_MINE".into(), "hidden".into()));
    let line = [
        "run",
        "registry.example/web:2.1",
        "--developer",
        "demo",
        "--on",
        "east",
        "-p",
        "tcp:80",
        "-p",
        "udp:53",
        "--env",
        "MODE=demo",
        "--env",
        "SECRET_OF_MINE",
    ];
    let out = person.run(&line).await.good();
    assert!(out.contains("app demo/web/2.1: created\n"), "{out}");
    assert!(out.contains("HEALTH") && out.contains("east"), "the instance is shown: {out}");
    let app = server.state.last("CreateApp");
    for part in [
        "registry.example/web:2.1",
        "tcp:80,udp:53",
        r#""defaultFlavor":{"name":"small"}"#,
        "hidden",
    ] {
        assert!(app.contains(part), "{part} in {app}");
    }
    assert!(server.state.last("CreateAppInst").contains("\"autoclusterweb\""));
    let again = person.run(&line).await.good();
    assert!(again.contains("appinst demo/web/2.1/autoclusterweb/telco/east: unchanged"), "{again}");
    let moved = [&line[..], &["--env", "MODE=other"]].concat();
    let out = person.run(&moved).await.good();
    assert!(out.contains("/east: updated"), "the instance takes the change: {out}");
    let (_, stderr) = person.run(&["run", "web", "--developer", "demo"]).await.bad();
    assert!(stderr.contains("there are 2 cloudlets: say which"), "{stderr}");
    let (_, stderr) = person.run(&["run", "web", "--on", "est", "--developer", "demo"]).await.bad();
    assert!(stderr.contains("did you mean east or west?"), "{stderr}");
}

#[tokio::test]
async fn an_empty_list_is_reported_on_stderr() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let outcome = person.run(&["app", "list"]).await;
    assert_eq!((outcome.out.as_str(), outcome.err.as_str()), ("", "No apps here.\n"));
}
