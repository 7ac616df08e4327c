#![allow(clippy::unwrap_used)]
use super::*;

fn label(name: &str, value: &str) -> KubernetesLabel {
    KubernetesLabel { name: name.into(), value: value.into() }
}

fn pool(name: &str, count: i32) -> MachineSpec {
    MachineSpec { name: name.into(), count, ..MachineSpec::default() }
}

fn fields(request: &CreateClusterMsg) -> Vec<String> {
    let catalogue = Catalogue::load(None).unwrap();
    match create(request, &catalogue, &Limits::default()) {
        Err(Error::Invalid(wrong)) => wrong.into_iter().map(|wrong| wrong.field).collect(),
        other => vec![format!("{other:?}")],
    }
}

fn request(name: &str) -> CreateClusterMsg {
    CreateClusterMsg { name: name.into(), ..CreateClusterMsg::default() }
}

#[test]
fn an_empty_request_gets_defaults() {
    let catalogue = Catalogue::load(None).unwrap();
    let new = create(&request("demo"), &catalogue, &Limits::default()).unwrap();
    assert_eq!(new.version.to_string(), "1.37.1");
    assert_eq!((new.control_plane.count, new.control_plane.instance_type.as_str()), (1, STANDARD));
    let zero = CreateClusterMsg {
        control_plane_nodes: Some(ControlPlaneMachineSpec::default()),
        k8s_version: "v1.35.8".into(),
        ..request("demo")
    };
    let new = create(&zero, &catalogue, &Limits::default()).unwrap();
    assert_eq!((new.control_plane.count, new.control_plane.instance_type.as_str()), (1, ""));
    assert_eq!(new.version.to_string(), "1.35.8");
}

#[test]
fn every_wrong_field_is_named_at_once() {
    let mut bad = request("Demo");
    bad.k8s_version = "9.9.9".into();
    bad.control_plane_nodes = Some(ControlPlaneMachineSpec {
        count: 2,
        instance_type: "a b".into(),
        labels: vec![label("node-pool", "x")],
    });
    bad.worker_node_pools = vec![pool("a", -1), pool("a", 1), pool("", 1)];
    bad.worker_node_pools[1].labels = vec![label("zone", "a\n: b")];
    assert_eq!(
        fields(&bad),
        [
            "name",
            "k8s_version",
            "control_plane_nodes.instanceType",
            "control_plane_nodes.count",
            "control_plane_nodes.labels[0].name",
            "worker_node_pools[0].count",
            "worker_node_pools[1].name",
            "worker_node_pools[1].labels[0].value",
            "worker_node_pools[2].name",
        ]
    );
}

#[test]
fn names_are_lower_case_labels_of_forty() {
    for good in ["a", "a-1", "0", &"a".repeat(40)] {
        let mut wrong = Vec::new();
        check_name("name", good, &mut wrong);
        assert!(wrong.is_empty(), "{good}");
    }
    for bad in ["", "A", "a_b", "-a", "a-", "a.b", "ä", "a\n", "../a", &"a".repeat(41)] {
        assert_eq!(fields(&request(bad)), ["name"], "{bad}");
    }
}

#[test]
fn a_thousand_pools_and_endless_nodes_are_refused() {
    let mut many = request("demo");
    many.worker_node_pools = (0..1000).map(|n| pool(&format!("p{n}"), 1)).collect();
    assert_eq!(fields(&many), ["worker_node_pools"]);
    let mut large = request("demo");
    large.worker_node_pools = vec![pool("a", i32::MAX), pool("b", i32::MAX), pool("c", i32::MAX)];
    assert_eq!(fields(&large), ["worker_node_pools"]);
}

#[test]
fn even_control_planes_have_no_majority_to_gain() {
    for (count, right) in [(1, true), (2, false), (3, true), (4, false), (5, true), (-1, false)] {
        let mut asked = request("demo");
        asked.control_plane_nodes =
            Some(ControlPlaneMachineSpec { count, ..ControlPlaneMachineSpec::default() });
        let named = fields(&asked) == ["control_plane_nodes.count"];
        assert_eq!(named, !right, "{count}");
    }
}

#[test]
fn reserved_labels_are_refused_and_open_ones_are_not() {
    for good in [
        "zone",
        "example.com/zone",
        "node.kubernetes.io/gpu",
        "topology.kubernetes.io/zone",
        "kubelet.kubernetes.io/x",
        "mykubernetes.io/x",
    ] {
        assert_eq!(wrong_key(good), None, "{good}");
    }
    for bad in [
        "node-pool",
        "kubernetes.io/role",
        "node-role.kubernetes.io/master",
        "x.k8s.io/y",
        "k8s.io/y",
        "selvage.io/x",
        "",
        "a/b/c",
        "/x",
        "x/",
        "Example.com/x",
        "a b",
        "a: b\nc",
    ] {
        assert!(wrong_key(bad).is_some(), "{bad}");
    }
}

#[test]
fn sizes_are_checked_together() {
    let sized = |name: &str, count| ScaleNodePoolSpec { name: name.into(), count };
    let limits = Limits::default();
    assert_eq!(scale(&[sized("a", 0), sized("b", 3)], &limits).unwrap().len(), 2);
    let Err(Error::Invalid(wrong)) =
        scale(&[sized("a", -5), sized("a", 1), sized("b", i32::MAX)], &limits)
    else {
        unreachable!("it is refused")
    };
    let fields: Vec<&str> = wrong.iter().map(|wrong| wrong.field.as_str()).collect();
    assert_eq!(fields, ["node_pools[0].count", "node_pools[1].name", "node_pools[2].count"]);
}
