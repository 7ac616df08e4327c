#![allow(clippy::unwrap_used)]

use selvage_store::embedded::{Embedded, Options};
use wire::{IpAccess, Liveness, TrackedState};

use super::*;

const SITE: &str = r#""cloudlet_key":{"operator_key":{"name":"tele"},"name":"north"}"#;
const APP: &str = r#""app_key":{"developer_key":{"name":"Acme"},"name":"shop","version":"1"}"#;

/// A store of the oldest model: instances are found by their cloudlets.
fn oldest() -> String {
    let app_inst = |id: u32, cluster: &str| {
        let key = format!(r#"{{{APP},{SITE},"id":{id}}}"#);
        let ports = r#"[{"proto":1,"internal_port":80,"public_port":80,"FQDN_prefix":"shop-tcp."},
            {"proto":"2","internal_port":5,"public_port":5}]"#
            .replace('\n', "");
        format!(
            "1/AppInst/{key}\n{{\"key\":{key},\"cloudlet_loc\":{{}},\"uri\":\"n.tele.example\",\
             \"cluster_inst_key\":{{\"cluster_key\":{{\"name\":\"{cluster}\"}},{SITE}}},\
             \"liveness\":1,\"mapped_ports\":{ports},\"flavor\":{{\"name\":\"s\"}},\"state\":5,\
             \"runtime_info\":{{}},\"created_at\":{{\"seconds\":7}}}}\n"
        )
    };
    format!("1/Version\n52e6980599cd59bbbd0de8d5f4d53d4b\n{}", app_inst(7, "small"))
}

/// One of each type as the newest model has it.
fn newest() -> String {
    let cluster = format!(r#"{{"cluster_key":{{"name":"small"}},{SITE},"developer":"Others"}}"#);
    let cloudlet = r#"{"operator_key":{"name":"tele"},"name":"north"}"#;
    let app = r#"{"developer_key":{"name":"Acme"},"name":"shop","version":"1"}"#;
    [
        "1/Operator/{\"name\":\"AT\\u0026T\"}".to_owned(),
        r#"{"key":{"name":"AT\u0026T"}}"#.to_owned(),
        "1/Developer/{\"name\":\"Acme\"}".to_owned(),
        r#"{"key":{"name":"Acme"},"username":"ann"}"#.to_owned(),
        "1/Flavor/{\"name\":\"s\"}".to_owned(),
        r#"{"key":{"name":"s"},"ram":1024,"vcpus":1,"disk":1}"#.to_owned(),
        "1/Cluster/{\"name\":\"small\"}".to_owned(),
        r#"{"key":{"name":"small"},"default_flavor":{"name":"s"}}"#.to_owned(),
        format!("1/Cloudlet/{cloudlet}"),
        format!(
            r#"{{"key":{cloudlet},"location":{{"latitude":31,"longitude":-91}},"ip_support":"IpSupportDynamic","num_dynamic_ips":254}}"#
        ),
        format!("1/CloudletInfo/{cloudlet}"),
        format!(r#"{{"key":{cloudlet},"state":"CloudletStateReady"}}"#),
        format!("1/App/{app}"),
        format!(
            r#"{{"key":{app},"image_type":"ImageTypeDocker","access_ports":"tcp:80","configs":null,"default_flavor":{{"name":"s"}},"deployment":"kubernetes"}}"#
        ),
        format!("1/ClusterInst/{cluster}"),
        format!(
            r#"{{"key":{cluster},"flavor":{{"name":"s"}},"liveness":"LivenessStatic","state":"Ready","ip_access":"IpAccessShared","num_masters":1,"num_nodes":2}}"#
        ),
        format!("1/CloudletRefs/{cloudlet}"),
        format!(
            r#"{{"key":{cloudlet},"clusters":[{{"name":"small"}}],"used_ram":3072,"root_lb_ports":{{"80":1}}}}"#
        ),
    ]
    .join("\n")
}

#[tokio::test]
async fn objects_of_all_models_come_over() {
    let dump = Dump::read(&format!("{}\n\n{}", newest(), oldest())).unwrap();
    assert_eq!(dump.left_out, 1);
    let store: SharedStore = Embedded::in_memory(Options::default()).await.unwrap();
    assert_eq!(dump.write(&store, false).await.unwrap(), 9);
    let tables = Tables::open(&store).await.unwrap();
    assert_eq!(tables.operators.list()[0].value.0.key.as_ref().unwrap().name, "AT&T");
    let cluster = &tables.cluster_insts.list()[0].value.0;
    assert_eq!((cluster.state(), cluster.ip_access()), (TrackedState::Ready, IpAccess::Shared));
    assert_eq!((cluster.deployment.as_str(), cluster.num_nodes), ("kubernetes", 2));
    assert_eq!(tables.cloudlet_refs.list()[0].value.0.root_lb_ports[&80], 1);
    assert!(tables.cloudlet_infos.is_empty());
    let inst = &tables.app_insts.list()[0].value.0;
    assert_eq!((inst.state(), inst.liveness()), (TrackedState::Ready, Liveness::Static));
    assert_eq!(inst.mapped_ports[0].fqdn_prefix, "shop-tcp.");
    assert_eq!(inst.mapped_ports[1].proto, 2);
    assert_eq!(inst.created_at.as_ref().unwrap().seconds, 7);
    // Whose its cluster is only the cluster itself says.
    let place = inst.key.as_ref().unwrap().cluster_inst_key.as_ref().unwrap();
    assert_eq!(Some(place), cluster.key.as_ref());

    let again = Dump::read(&newest()).unwrap();
    let refused = again.write(&store, false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert_eq!(Dump::read(&newest()).unwrap().write(&store, true).await.unwrap(), 8);
    assert_eq!(Tables::open(&store).await.unwrap().app_insts.len(), 1);
}

#[test]
fn what_is_wrong_is_named_by_line_and_field() {
    let refused = |text: &str| Dump::read(text).unwrap_err().to_string();
    assert_eq!(refused("1/Flavor/{}\n"), "line 1: a key without a value");
    assert!(refused("Flavor\n{}\n").starts_with("line 1: expected a key such as"));
    assert!(refused("1/Flavor/{}\n{no\n").starts_with("line 2: Flavor: "));
    assert_eq!(
        refused("\n1/Settings/{}\n{}\n"),
        "line 3: Settings: there are no objects of this type"
    );
    let unknown = refused("1/Flavor/{}\n{\"key\":{},\"gpus\":3}\n");
    assert!(unknown.starts_with("line 2: Flavor: ") && unknown.contains("gpus"), "{unknown}");
}
