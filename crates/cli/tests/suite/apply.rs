//! Many objects at once, and out again.

use selvage_api::{Code, edgeproto::*};
use tonic::Status;

use crate::{controller, person};

/// Written in the opposite order of what it needs, half in each form.
const DATA: &str = "\
appinstances:
- key:
    appkey: {developerkey: {name: AcmeAppCo}, name: someapplication1, version: 1.0}
    clusterinstkey:
      clusterkey: {name: autoclustersomeapplication1}
      cloudletkey: {operatorkey: {name: tmus}, name: tmus-cloud-1}
  crmoverride: IgnoreCrm
clusterinsts:
- key:
    clusterkey: {name: SmallCluster}
    cloudletkey: {operatorkey: {name: tmus}, name: tmus-cloud-1}
    developer: AcmeAppCo
  flavor: {name: x1.small}
  ipaccess: IpAccessShared
  nummasters: 1
  numnodes: 2
apps:
- key: {developerkey: {name: AcmeAppCo}, name: someapplication1, version: 1.0}
  imagetype: ImageTypeDocker
  accessports: tcp:80,http:443,udp:10002
  defaultflavor: {name: x1.small}
- key: {developerkey: {name: AcmeAppCo}, name: own manifest, version: 1.10}
  imagetype: ImageTypeDocker
  deploymentmanifest: |
    kind: Service
    ---
    kind: Deployment
  configs:
  - {kind: envVarsYaml, config: \"- name: A\\n  value: b\\n\"}
cloudlets:
- key: {operatorkey: {name: tmus}, name: tmus-cloud-1}
  location: {latitude: 31, longitude: -91.5}
  ipsupport: IpSupportDynamic
  numdynamicips: 254
cloudletinfos:
- key: {operatorkey: {name: tmus}, name: tmus-cloud-1}
  state: CloudletStateReady
  flavors:
  - {name: flavor1, vcpus: 10, ram: 101024, disk: 500}
---
kind: Cluster
key: {name: SmallCluster}
default_flavor: {name: x1.small}
---
kind: Developer
key: {name: AcmeAppCo}
---
kind: Operator
key: {name: tmus}
---
kind: Flavor
key: {name: x1.small}
ram: 2048
vcpus: 2
disk: 2
---
kind: Flavor
key: {name: x1.small}
ram: 2048
";

#[tokio::test]
async fn objects_are_made_in_the_order_they_need() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let file = person.file("edge.yaml", DATA).display().to_string();
    assert_eq!(
        person.run(&["apply", "-f", &file]).await.good(),
        "\
flavor x1.small: created
flavor x1.small: unchanged
operator tmus: created
developer AcmeAppCo: created
cloudlet tmus/tmus-cloud-1: created
cloudletinfo tmus/tmus-cloud-1: created
cluster SmallCluster: created
app AcmeAppCo/someapplication1/1.0: created
app AcmeAppCo/own manifest/1.10: created
clusterinst SmallCluster/tmus/tmus-cloud-1/AcmeAppCo: created
appinst AcmeAppCo/someapplication1/1.0/autoclustersomeapplication1/tmus/tmus-cloud-1: created
"
    );
    let made = server.state.changes();
    let before = made.len();
    let again = person.run(&["apply", "-f", &file]).await.good();
    assert!(again.lines().all(|line| line.ends_with(": unchanged")), "{again}");
    assert_eq!(server.state.changes().len(), before, "nothing was sent a second time");

    let taken = person.run(&["unapply", "--yes", "-f", &file]).await.good();
    let kinds: Vec<&str> = taken.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(
        kinds,
        [
            "appinst",
            "clusterinst",
            "app",
            "app",
            "cluster",
            "cloudletinfo",
            "cloudlet",
            "developer",
            "operator",
            "flavor",
            "flavor"
        ]
    );
    assert!(taken.lines().take(10).all(|line| line.ends_with(": deleted")), "{taken}");
    assert!(taken.ends_with("flavor x1.small: deleted\nflavor x1.small: absent\n"), "{taken}");
    assert!(server.state.last("DeleteClusterInst").starts_with(r#"{"key":{"#));
    assert!(server.state.get(&Flavor::default()).is_empty());
    let gone = person.run(&["delete", "--yes", "-f", &file]).await.good();
    assert!(gone.lines().all(|line| line.ends_with(": absent")), "{gone}");
}

/// The server writes the names of clusters that it makes itself in lower case;
/// whoever wrote the file need not know.
#[tokio::test]
async fn instances_of_auto_clusters_are_found_however_the_file_spells_them() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let data = DATA.replace("autoclustersomeapplication1", "autoclusterSomeApplication1");
    person.piping(&data).run(&["apply", "-f", "-"]).await.good();
    let again = person.piping(&data).run(&["apply", "-f", "-"]).await.good();
    assert!(again.lines().all(|line| line.ends_with(": unchanged")), "{again}");
    let taken = person.piping(&data).run(&["unapply", "--yes", "-f", "-"]).await.good();
    assert!(taken.starts_with("appinst ") && taken.contains(": deleted\n"), "{taken}");
    assert!(server.state.last("DeleteAppInst").contains("\"autoclustersomeapplication1\""));
    assert!(server.state.get(&AppInst::default()).is_empty());
}

/// Other clusters are those of exactly that name, and without a developer the
/// app's is meant.
#[tokio::test]
async fn instances_of_other_clusters_are_left_alone() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let in_cluster = |name: &str| {
        let data = DATA.replace("autoclustersomeapplication1", name);
        data.split_once("clusterinsts:").unwrap().0.to_owned()
    };
    person.piping(&in_cluster("Small")).run(&["apply", "-f", "-"]).await.good();
    let mut foreign = server.state.get(&AppInst::default()).remove(0);
    foreign.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap().developer = "Other".into();
    server.state.put(&foreign);
    let other =
        person.piping(&in_cluster("small")).run(&["unapply", "--yes", "-f", "-"]).await.good();
    assert!(other.ends_with(": absent\n"), "{other}");
    let own =
        person.piping(&in_cluster("Small")).run(&["unapply", "--yes", "-f", "-"]).await.good();
    assert!(own.ends_with(": deleted\n"), "{own}");
    assert_eq!(server.state.get(&AppInst::default()), [foreign]);
}

#[tokio::test]
async fn what_differs_is_updated_and_nothing_else() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    person.piping(DATA).run(&["apply", "-f", "-"]).await.good();
    let moved = DATA.replace("latitude: 31", "latitude: 40").replace("numnodes: 2", "numnodes: 3");
    let out = person.piping(&moved).run(&["apply", "-f", "-"]).await.good();
    let updated: Vec<&str> = out.lines().filter(|line| line.ends_with(": updated")).collect();
    assert_eq!(
        updated,
        [
            "cloudlet tmus/tmus-cloud-1: updated",
            "clusterinst SmallCluster/tmus/tmus-cloud-1/AcmeAppCo: updated"
        ]
    );
    assert!(server.state.last("UpdateCloudlet").starts_with(r#"{"fields":["5.1"],"#));
    assert!(server.state.last("UpdateClusterInst").starts_with(r#"{"fields":["14"],"#));
    let configs = "kind: App\nkey: {developer_key: {name: AcmeAppCo}, name: own manifest, version: 1.10}\nconfigs: []\n";
    let out = person.piping(configs).run(&["apply", "-f", "-"]).await.good();
    assert_eq!(out, "app AcmeAppCo/own manifest/1.10: updated\n");
    assert!(server.state.last("UpdateApp").starts_with(r#"{"fields":["21.1","21.2"],"#));
    let mut app = server.state.get(&App::default());
    app.retain(|app| app.key.as_ref().unwrap().name == "own manifest");
    assert!(app[0].configs.is_empty() && app[0].deployment_manifest.contains("Deployment"));
}

#[tokio::test]
async fn a_failure_is_reported_and_the_rest_goes_on() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    server.state.refuse("CreateCloudlet", Status::invalid_argument("Invalid latitude value"));
    server.state.refuse("CreateDeveloper", Status::already_exists("Key already exists"));
    let outcome = person.piping(DATA).run(&["apply", "-f", "-"]).await;
    assert!(
        outcome.out.contains(
            "cloudlet tmus/tmus-cloud-1: failed: CreateCloudlet failed: Invalid latitude value\n"
        ),
        "{}",
        outcome.out
    );
    assert!(outcome.out.contains("developer AcmeAppCo: unchanged\n"), "{}", outcome.out);
    assert!(outcome.out.contains("app AcmeAppCo/someapplication1/1.0: created\n"));
    let (code, stderr) = outcome.bad();
    assert_eq!(code, Code::InvalidArgument.exit());
    assert!(stderr.starts_with("error: 1 of 11 objects failed\n"), "{stderr}");

    server.state.refuse("DeleteApp", Status::failed_precondition("Application in use"));
    let outcome = person.piping(DATA).run(&["unapply", "--yes", "-f", "-", "-o", "json"]).await;
    let rows: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(rows[2]["outcome"], "failed: DeleteApp failed: Application in use");
    assert_eq!(outcome.bad().0, Code::FailedPrecondition.exit());
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    server.state.refuse("CreateClusterInst", Status::not_found("Specified Cloudlet not found"));
    let out = person.piping(DATA).run(&["apply", "-f", "-", "--dry-run"]).await.good();
    assert!(out.starts_with("flavor x1.small: would be created\n"), "{out}");
    assert!(out.ends_with("tmus-cloud-1: would be created\n  plan: 1 step\n"), "{out}");
    assert!(
        out.contains("would be created, unchecked: CreateClusterInst failed: Specified Cloudlet"),
        "{out}"
    );
    let calls = server.state.calls.lock().unwrap().clone();
    assert!(calls.iter().all(|call| call.dry_run || call.method.starts_with("Show")));
    assert!(server.state.get(&Flavor::default()).is_empty());
    let out = person.piping(DATA).run(&["apply", "-f", "-", "--dry-run", "-o", "json"]).await;
    let rows: serde_json::Value = serde_json::from_str(&out.good()).unwrap();
    assert_eq!(rows[10]["plan"][0], "plan: 1 step");
}

/// A deletion keeps nothing in a dry run: whether the rest could go then is
/// not known, and is no failure.
#[tokio::test]
async fn a_dry_run_of_unapply_does_not_trip_over_what_would_be_gone() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    person.piping(DATA).run(&["apply", "-f", "-"]).await.good();
    let text = "Developer in use by Application";
    server.state.refuse("DeleteDeveloper", Status::failed_precondition(text));
    let out = person.piping(DATA).run(&["unapply", "--yes", "-f", "-", "--dry-run"]).await.good();
    let stderr = "developer AcmeAppCo: would be deleted, unchecked: DeleteDeveloper failed: ";
    assert!(out.contains(&format!("{stderr}{text}\n")), "{out}");
    let alone = "kind: Developer\nkey: {name: AcmeAppCo}\n";
    let outcome = person.piping(alone).run(&["unapply", "--yes", "-f", "-", "--dry-run"]).await;
    assert!(outcome.out.contains("failed: DeleteDeveloper failed"), "{}", outcome.out);
    assert_eq!(outcome.bad().0, Code::FailedPrecondition.exit());
    assert_eq!(server.state.get(&Developer::default()).len(), 1);
}

#[tokio::test]
async fn a_person_is_asked_before_a_file_is_undone() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let (code, stderr) =
        person.piping(DATA).answering(&["n"]).run(&["unapply", "-f", "-"]).await.bad();
    assert_eq!(code, Code::Cancelled.exit());
    assert!(stderr.starts_with("Delete the 11 objects of stdin? [y/N] "), "{stderr}");
    assert!(server.state.changes().is_empty());
}

#[tokio::test]
async fn what_is_exported_can_be_applied_and_changes_nothing() {
    let server = controller::start().await;
    let mut person = person(&server).await;
    person.piping(DATA).run(&["apply", "-f", "-"]).await.good();
    for format in ["yaml", "json"] {
        let out = person.run(&["export", "-o", format]).await.good();
        let again = person.piping(&out).run(&["apply", "-f", "-"]).await.good();
        assert_eq!(again.lines().count(), 9, "{again}\n{out}");
        assert!(again.lines().all(|line| line.ends_with(": unchanged")), "{again}\n{out}");

        // The same in an empty place is the same.
        let other = controller::start().await;
        let mut there = crate::person(&other).await;
        there.piping(&out).run(&["apply", "-f", "-"]).await.good();
        assert_eq!(there.run(&["export", "-o", format]).await.good(), out);
    }
    let out = person.run(&["export", "appinsts", "clusterinsts"]).await.good();
    assert_eq!(
        out,
        "\
clusterinsts:
- key:
    cluster_key:
      name: SmallCluster
    cloudlet_key:
      operator_key:
        name: tmus
      name: tmus-cloud-1
    developer: AcmeAppCo
  flavor:
    name: x1.small
  ip_access: IP_ACCESS_SHARED
  num_masters: 1
  num_nodes: 2
appinsts:
- key:
    app_key:
      developer_key:
        name: AcmeAppCo
      name: someapplication1
      version: \"1.0\"
    cluster_inst_key:
      cluster_key:
        name: autoclustersomeapplication1
      cloudlet_key:
        operator_key:
          name: tmus
        name: tmus-cloud-1
      developer: AcmeAppCo
"
    );
    let (code, stderr) = person.run(&["export", "aps"]).await.bad();
    assert!(code == 4 && stderr.contains("did you mean apps?"), "{stderr}");
    let infos = person.run(&["export", "cloudletinfos"]).await.good();
    assert!(infos.contains("CLOUDLET_STATE_READY"), "{infos}");
}
