use super::{app, app_inst, matches};
use crate::distributed_match_engine::{AppPort, Loc};
use crate::edgeproto::{
    App, AppInst, AppInstKey, AppKey, Cloudlet, CloudletRefs, ClusterInstKey, ClusterKey,
    DeveloperKey, Flavor, FlavorKey,
};
use crate::object::Filter;

#[test]
fn set_scalars_must_be_equal_and_zeros_match_anything() {
    let object = app_inst();
    assert!(matches(&AppInst::default(), &object));
    assert!(matches(&AppInst { state: 5, ..AppInst::default() }, &object));
    assert!(!matches(&AppInst { state: 4, ..AppInst::default() }, &object));
    assert!(!matches(&AppInst { crm_override: 1, ..AppInst::default() }, &object));
    assert!(!matches(&AppInst { uri: "tmus".into(), ..AppInst::default() }, &object));
    assert!(matches(&AppInst { fields: vec!["4".into()], ..AppInst::default() }, &object));
}

#[test]
fn parts_of_a_key_filter_by_themselves() {
    let by_developer = |name: &str| AppInst {
        key: Some(AppInstKey {
            app_key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: name.into() }),
                ..AppKey::default()
            }),
            cluster_inst_key: Some(ClusterInstKey::default()),
        }),
        ..AppInst::default()
    };
    assert!(matches(&by_developer("AcmeAppCo"), &app_inst()));
    assert!(!matches(&by_developer("Acme"), &app_inst()));
    assert!(!matches(&by_developer("AcmeAppCo"), &AppInst::default()));
    assert!(Filter::of(&by_developer("")).unwrap().is_empty());
}

#[test]
fn lists_match_at_equal_length_and_order() {
    let errors = |texts: &[&str]| AppInst {
        errors: texts.iter().map(ToString::to_string).collect(),
        ..AppInst::default()
    };
    assert!(matches(&errors(&["one", "two"]), &app_inst()));
    assert!(!matches(&errors(&["two", "one"]), &app_inst()));
    assert!(!matches(&errors(&["one"]), &app_inst()));
    assert!(!matches(&errors(&["one", "two", "three"]), &app_inst()));

    let clusters = |names: &[&str]| CloudletRefs {
        clusters: names.iter().map(|name| ClusterKey { name: name.to_string() }).collect(),
        ..CloudletRefs::default()
    };
    assert!(matches(&clusters(&["a", ""]), &clusters(&["a", "b"])));
    assert!(!matches(&clusters(&["a"]), &clusters(&["a", "b"])));
    assert!(!matches(&clusters(&["b", "a"]), &clusters(&["a", "b"])));
}

#[test]
fn contents_of_places_ports_and_configs_filter_too() {
    let at = |latitude| AppInst {
        cloudlet_loc: Some(Loc { latitude, ..Loc::default() }),
        ..AppInst::default()
    };
    assert!(matches(&at(31.0), &app_inst()));
    assert!(!matches(&at(-31.0), &app_inst()));
    let ports = |public_port| AppInst {
        mapped_ports: vec![AppPort { public_port, ..AppPort::default() }, AppPort::default()],
        ..AppInst::default()
    };
    assert!(matches(&ports(80), &app_inst()));
    assert!(!matches(&ports(81), &app_inst()));
    let mut filter = App { configs: app().configs, ..App::default() };
    assert!(matches(&filter, &app()));
    filter.configs[1].config = "c".into();
    assert!(!matches(&filter, &app()));
}

#[test]
fn maps_match_when_equal() {
    let ports = |pairs: &[(i32, i32)]| CloudletRefs {
        root_lb_ports: pairs.iter().copied().collect(),
        ..CloudletRefs::default()
    };
    let object = ports(&[(80, 1), (-1, 2)]);
    assert!(matches(&ports(&[]), &object));
    assert!(matches(&ports(&[(-1, 2), (80, 1)]), &object));
    assert!(!matches(&ports(&[(80, 1)]), &object));
    assert!(!matches(&ports(&[(80, 1), (-1, 3)]), &object));
}

#[test]
fn negative_numbers_and_other_types_are_distinguished() {
    let ips = |num_dynamic_ips| Cloudlet { num_dynamic_ips, ..Cloudlet::default() };
    assert!(matches(&ips(-3), &ips(-3)));
    assert!(!matches(&ips(-3), &ips(3)));
    assert!(!Filter::of(&ips(1)).unwrap().matches(&app()));
}

/// Encodings that other encoders may write: fields in any order, twice, in
/// pieces, with unknown ones between.
#[test]
fn encoded_objects_are_read_as_every_decoder_reads_them() {
    let mut filter = Flavor { key: Some(FlavorKey { name: "b".into() }), ..Flavor::default() };
    filter.ram = 7;
    let filter = Filter::of(&filter).unwrap();
    let twice = b"\x18\x01\x12\x03\x0a\x01a\xa2\x06\x01z\x12\x03\x0a\x01b\x18\x07";
    assert!(filter.matches_encoded(twice).unwrap());
    let group = b"\x7b\x08\x01\x7c\x12\x03\x0a\x01b\x18\x07";
    assert!(filter.matches_encoded(group).unwrap());
    for broken in
        [&b"\x18"[..], b"\x12\x05\x0a", b"\x18\x07\x0c", b"\x00\x01", b"\x12\x03\x0a\x01b\x1a\x01a"]
    {
        assert!(filter.matches_encoded(broken).is_err(), "{broken:?}");
    }
}
