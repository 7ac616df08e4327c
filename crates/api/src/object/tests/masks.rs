use super::{app, app_inst};
use crate::Code;
use crate::distributed_match_engine::{Loc, Timestamp};
use crate::edgeproto::{App, AppInst, Cloudlet, CloudletRefs, ClusterInst, ConfigFile};
use crate::object::{Mask, Object, descriptor_of, plan, without_fields};

fn mask<M: Object>(paths: &[&str]) -> Mask {
    Mask::parse(&descriptor_of::<M>().unwrap(), paths).unwrap()
}

/// `3-5` in a list of leaves stands for 3, 4 and 5 at the end of a path.
fn expand(leaves: &str) -> Vec<String> {
    let mut all = Vec::new();
    for leaf in leaves.split(' ') {
        match leaf.split_once('-') {
            None => all.push(leaf.to_owned()),
            Some((from, to)) => {
                let (above, first) = from.rsplit_once('.').map_or(("", from), |(a, b)| (a, b));
                let last = to.rsplit('.').next().unwrap();
                for number in first.parse::<u32>().unwrap()..=last.parse().unwrap() {
                    let dot = if above.is_empty() { "" } else { "." };
                    all.push(format!("{above}{dot}{number}"));
                }
            }
        }
    }
    all
}

#[test]
fn leaves_are_those_of_the_original() {
    let originals = [
        ("Developer", "2.2 3 4 5 6"),
        ("Operator", "2.1"),
        ("Flavor", "2.1 3 4 5"),
        ("Cluster", "2.1 3.1 5"),
        ("Cloudlet", "2.1.1 2.2 4 5.1-5.7 5.8.1 5.8.2 6 7 8"),
        ("CloudletInfo", "2.1.1 2.2 3-9 10.1-10.4"),
        ("App", "2.1.2 2.2 2.3 4 5 7 8 9.1 10.1 11-20 21.1 21.2"),
        ("ClusterInst", "2.1.1 2.2.1.1 2.2.2 2.3 3.1 4-11 13 14 15"),
        (
            "AppInst",
            "2.1.1.2 2.1.2 2.1.3 2.4.1.1 2.4.2.1.1 2.4.2.2 2.4.3 3.1-3.7 3.8.1 3.8.2 4 6 \
             9.1-9.5 12.1 14 15 16 17.1 21.1 21.2 22",
        ),
        ("Node", "2.1 2.2 2.3.1.1 2.3.2 3"),
    ];
    for (name, leaves) in originals {
        let message = crate::pool().get_message_by_name(&format!("edgeproto.{name}")).unwrap();
        let plan = plan(&message);
        // Fields of our own have numbers from 100 up.
        let leaves_there = plan.leaves().iter();
        let original = leaves_there.filter(|leaf| leaf.numbers.iter().all(|number| *number < 100));
        let paths: Vec<_> = original.map(|leaf| leaf.path.clone()).collect();
        assert_eq!(paths, expand(leaves), "{name}");
    }
}

#[test]
fn every_type_has_a_plan_even_one_inside_itself() {
    for message in crate::pool().all_messages() {
        let plan = plan(&message);
        for leaf in plan.leaves() {
            assert_eq!(plan.below(&leaf.numbers).len(), 1, "{} {}", message.name(), leaf.path);
        }
    }
}

#[test]
fn a_leaf_is_copied_and_nothing_else() {
    let mut stored = app_inst();
    let request = AppInst { uri: "other".into(), state: 7, ..AppInst::default() };
    assert_eq!(mask::<AppInst>(&["4"]).apply(&mut stored, &request).unwrap(), 1);
    assert_eq!(stored, AppInst { uri: "other".into(), ..app_inst() });
    assert_eq!(mask::<AppInst>(&["4"]).apply(&mut stored, &request).unwrap(), 0);
    assert_eq!(mask::<AppInst>(&[]).apply(&mut stored, &request).unwrap(), 0);

    let zero = AppInst::default();
    assert_eq!(mask::<AppInst>(&["4", "14"]).apply(&mut stored, &zero).unwrap(), 2);
    assert_eq!(stored, AppInst { uri: String::new(), state: 0, ..app_inst() });
}

#[test]
fn a_message_path_means_all_of_its_leaves_unless_some_are_named() {
    let moved = Loc { latitude: 40.0, longitude: -99.0, speed: 1.0, ..Loc::default() };
    let request = Cloudlet { location: Some(moved), ..Cloudlet::default() };
    let before = Loc { latitude: 31.0, altitude: 7.0, ..Loc::default() };
    let stored = Cloudlet { location: Some(before), ..Cloudlet::default() };

    let mut whole = stored.clone();
    assert_eq!(mask::<Cloudlet>(&["5"]).apply(&mut whole, &request).unwrap(), 4);
    assert_eq!(whole.location, Some(moved));

    let mut partly = stored;
    mask::<Cloudlet>(&["5", "5.1"]).apply(&mut partly, &request).unwrap();
    assert_eq!(partly.location, Some(Loc { latitude: 40.0, ..before }));
    assert_eq!(mask::<Cloudlet>(&["5", "8"]).leaves().len(), 10);
}

#[test]
fn messages_that_are_absent_appear_and_vanish() {
    let when = Loc { timestamp: Some(Timestamp { seconds: 5, nanos: 6 }), ..Loc::default() };
    let with = Cloudlet { location: Some(when), ..Cloudlet::default() };
    let without = Cloudlet::default();
    let seconds = mask::<Cloudlet>(&["5.8.1"]);
    let both = mask::<Cloudlet>(&["5.8"]);

    let mut object = without.clone();
    assert_eq!(seconds.apply(&mut object, &with).unwrap(), 1);
    assert_eq!(object.location.unwrap().timestamp, Some(Timestamp { seconds: 5, nanos: 0 }));
    assert_eq!(both.apply(&mut object, &with).unwrap(), 1);
    assert_eq!(object, with);
    assert_eq!(seconds.apply(&mut object, &without).unwrap(), 1);
    assert_eq!(object.location.unwrap().timestamp, Some(Timestamp { seconds: 0, nanos: 6 }));
    assert_eq!(both.apply(&mut object, &without).unwrap(), 1);
    assert_eq!(object, without);
    assert_eq!(both.apply(&mut object, &without).unwrap(), 0);
}

#[test]
fn lists_are_replaced_and_can_be_cleared() {
    let mut object = app_inst();
    let request = AppInst { errors: vec!["three".into()], ..AppInst::default() };
    assert_eq!(mask::<AppInst>(&["15"]).apply(&mut object, &request).unwrap(), 1);
    assert_eq!(object.errors, ["three"]);
    assert_eq!(
        mask::<AppInst>(&["15", "17.1"]).apply(&mut object, &AppInst::default()).unwrap(),
        2
    );
    assert_eq!((object.errors.len(), object.runtime_info), (0, None));

    let mut object = app();
    let config = ConfigFile { kind: "k".into(), config: "c".into() };
    let request = App { configs: vec![config.clone()], ..App::default() };
    assert_eq!(mask::<App>(&["21"]).apply(&mut object, &request).unwrap(), 1);
    assert_eq!(object.configs, [config]);
    let kinds = mask::<App>(&["21", "21.1"]);
    assert_eq!(kinds.apply(&mut object, &app()).unwrap(), 1);
    let only_kinds = app().configs.into_iter().map(|c| ConfigFile { config: String::new(), ..c });
    assert_eq!(object.configs, only_kinds.collect::<Vec<_>>());
    assert_eq!(kinds.apply(&mut object, &app()).unwrap(), 0);
    assert_eq!(mask::<App>(&["21.2"]).apply(&mut object, &App::default()).unwrap(), 1);
    assert!(object.configs.is_empty());
}

#[test]
fn maps_are_replaced_and_can_be_cleared() {
    let ports = |pairs: &[(i32, i32)]| CloudletRefs {
        root_lb_ports: pairs.iter().copied().collect(),
        ..CloudletRefs::default()
    };
    let mut object = ports(&[(80, 1)]);
    let map = mask::<CloudletRefs>(&["8"]);
    assert_eq!(map.apply(&mut object, &ports(&[(443, 1), (53, 2)])).unwrap(), 1);
    assert_eq!(object, ports(&[(443, 1), (53, 2)]));
    assert_eq!(map.apply(&mut object, &ports(&[])).unwrap(), 1);
    assert_eq!(object, ports(&[]));
}

#[test]
fn what_is_no_field_is_named() {
    let request = App {
        fields: ["4", "6", "1", "2.9", "4.1", "", "x", "04", "99999999999"]
            .map(String::from)
            .to_vec(),
        ..App::default()
    };
    let error = Mask::of(&request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "App has no field(s) 6, 1, 2.9, 4.1, , x, 04, 99999999999 to be updated"
    );
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[test]
fn fields_are_neither_copied_nor_stored() {
    let request = App { fields: vec!["4".into()], image_path: "p".into(), ..App::default() };
    let mut stored = App::default();
    Mask::of(&request).unwrap().apply(&mut stored, &request).unwrap();
    assert_eq!(stored, App { image_path: "p".into(), ..App::default() });
    assert_eq!(without_fields(&request).unwrap(), stored);
    assert!(Mask::of(&App::default()).unwrap().require_some().is_err());
}

#[test]
fn leaves_that_are_not_allowed_are_refused_by_name() {
    let given = mask::<ClusterInst>(&["2", "6", "13", "14"]);
    let rest = given.without(&["2", "6"]);
    assert!(rest.touches("13") && !rest.touches("2") && given.touches("2.2.1"));
    let error = rest.allow_only(&["14"]).unwrap_err();
    assert_eq!(error.to_string(), "specified field(s) num_masters cannot be modified");
    let error = given.allow_only(&["13", "14", "2.1"]).unwrap_err();
    assert!(error.to_string().contains("key.cloudlet_key.operator_key.name"), "{error}");
    assert!(error.to_string().contains("crm_override"), "{error}");
    assert!(rest.without(&["13"]).allow_only(&["14"]).is_ok());
}
