//! Tables, other formats, filters, watching.

use selvage_api::{Code, edgeproto::*};
use tonic::Status;

use crate::{controller, person};

async fn filled() -> controller::Running {
    let server = controller::start().await;
    let mut person = person(&server).await;
    let data = "\
flavors:
- {key: {name: x1.small}, ram: 2048, vcpus: 2, disk: 2}
cloudlets:
- {key: {operatorkey: {name: tmus}, name: tmus-cloud-1}, location: {latitude: 31, longitude: -91}, numdynamicips: 254}
apps:
- key: {developerkey: {name: AcmeAppCo}, name: someapplication1, version: 1.0}
  imagetype: ImageTypeDocker
  accessports: tcp:80,http:443
  defaultflavor: {name: x1.small}
appinsts:
- key:
    appkey: {developerkey: {name: AcmeAppCo}, name: someapplication1, version: 1.0}
    clusterinstkey: {clusterkey: {name: small}, cloudletkey: {operatorkey: {name: tmus}, name: tmus-cloud-1}}
- key:
    appkey: {developerkey: {name: Other}, name: two, version: 2.0}
    clusterinstkey: {clusterkey: {name: big}, cloudletkey: {operatorkey: {name: tmus}, name: tmus-cloud-1}}
";
    person.piping(data).run(&["apply", "-f", "-"]).await.good();
    server
}

#[tokio::test]
async fn tables_show_what_tells_most() {
    let server = filled().await;
    let mut person = person(&server).await;
    assert_eq!(
        person.run(&["appinst", "show", "--developer", "AcmeAppCo"]).await.good(),
        "\
DEVELOPER  APP               VERSION  OPERATOR  CLOUDLET      CLUSTER  STATE  HEALTH  RESTARTS  ADDRESS  URI
AcmeAppCo  someapplication1  1.0      tmus      tmus-cloud-1  small    READY  -       -         -        tmus-cloud-1.tmus.mobiledgex.net
"
    );
    let wide = person.run(&["appinsts", "show", "--appname", "two", "-o", "wide"]).await.good();
    assert!(
        wide.contains("PORTS")
            && wide.contains("tcp:80,http://tmus-cloud-1.tmus.mobiledgex.net:443/"),
        "{wide}"
    );
    assert_eq!(
        person.run(&["app", "show"]).await.good(),
        "\
DEVELOPER  NAME              VERSION  DEPLOYMENT  FLAVOR    ACCESS-PORTS     IMAGE-PATH
AcmeAppCo  someapplication1  1.0      kubernetes  x1.small  tcp:80,http:443  -
"
    );
    assert_eq!(
        person.run(&["cloudlet", "show", "--operator", "tmus"]).await.good(),
        "\
OPERATOR  NAME          STATE  LATITUDE  LONGITUDE  IP-SUPPORT          NUM-DYNAMIC-IPS
tmus      tmus-cloud-1  -      31.0      -91.0      IP_SUPPORT_UNKNOWN  254
"
    );
    assert_eq!(person.run(&["operator", "show"]).await.good(), "");
    let key = CloudletKey {
        operator_key: Some(OperatorKey { name: "tmus".into() }),
        name: "tmus-cloud-1".into(),
    };
    server.state.put(&CloudletRefs {
        key: Some(key),
        clusters: vec![ClusterKey { name: "small".into() }],
        used_ram: 4096,
        root_lb_ports: [(10002, 2), (80, 1), (443, 1)].into(),
        ..Default::default()
    });
    let refs = person.run(&["cloudletrefs", "show"]).await.good();
    assert!(refs.contains("4096") && refs.contains(" small"), "{refs}");
    assert!(refs.contains("80=1,443=1,10002=2"), "{refs}");
    let json = person.run(&["cloudletrefs", "show", "-o", "json"]).await.good();
    assert!(json.contains(r#"{"80":1,"443":1,"10002":2}"#), "{json}");
}

#[tokio::test]
async fn filters_are_the_same_flags() {
    let server = filled().await;
    let mut person = person(&server).await;
    let line = ["appinst", "show", "--state", "Ready", "--cloudlet", "tmus-cloud-1", "-o", "json"];
    assert_eq!(person.run(&line).await.good().lines().count(), 2);
    let sent = server.state.last("ShowAppInst");
    assert_eq!(
        sent,
        r#"{"key":{"clusterInstKey":{"cloudletKey":{"name":"tmus-cloud-1"}}},"state":"READY"}"#
    );
    let none = ["appinst", "show", "--developer", "Nobody", "-o", "edgectl"];
    assert_eq!(person.run(&none).await.good(), "");
}

#[tokio::test]
async fn as_the_original_prints() {
    let server = filled().await;
    let mut person = person(&server).await;
    assert_eq!(
        person.run(&["cloudlet", "show", "-o", "edgectl"]).await.good(),
        "\
- key:
    operatorkey:
      name: tmus
    name: tmus-cloud-1
  location:
    latitude: 31
    longitude: -91
  numdynamicips: 254
"
    );
    let out = person.run(&["appinst", "show", "-o", "edgectl"]).await.good();
    assert_eq!(out.matches("\n  state: Ready\n").count(), 2, "{out}");
    // What it prints can be fed back.
    let out =
        format!("cloudlets:\n{}", person.run(&["cloudlet", "show", "-o", "edgectl"]).await.good());
    let again = person.piping(&out).run(&["apply", "-f", "-"]).await.good();
    assert_eq!(again, "cloudlet tmus/tmus-cloud-1: unchanged\n");
}

#[tokio::test]
async fn watching_tells_what_changes() {
    let server = filled().await;
    let state = server.state.clone();
    let changes = async move {
        let looked = |count: usize| {
            let state = state.clone();
            async move {
                let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(120);
                let looks = || {
                    let calls = state.calls.lock().unwrap();
                    calls.iter().filter(|call| call.method == "ShowFlavor").count()
                };
                let before = looks();
                while looks() < before + count {
                    assert!(tokio::time::Instant::now() < deadline, "nobody looks");
                    tokio::task::yield_now().await;
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            }
        };
        looked(1).await;
        let key = Some(FlavorKey { name: "x1.big".into() });
        state.put(&Flavor { key, ram: 4096, vcpus: 4, disk: 4, ..Default::default() });
        looked(2).await;
        state.refuse("ShowFlavor", Status::unavailable("gone"));
    };
    let mut person = person(&server).await;
    let (outcome, ()) = tokio::join!(person.run(&["flavor", "show", "--watch"]), changes);
    assert_eq!(
        outcome.out,
        "NAME      RAM   VCPUS  DISK\nx1.small  2048  2      2\n  NAME      RAM   VCPUS  DISK\n+ x1.big    4096  4      4\n"
    );
    assert_eq!(outcome.bad().0, Code::Unavailable.exit());
}
