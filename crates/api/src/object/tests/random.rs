use proptest::prelude::*;
use prost::Message;
use prost_reflect::DynamicMessage;

use super::{app_inst, matches};
use crate::distributed_match_engine::{AppPort, Loc, Timestamp};
use crate::edgeproto::{AppInst, AppInstKey, AppInstRuntime, AppKey, DeveloperKey, OperatorKey};
use crate::object::{Filter, Key, Mask, check_enums, descriptor_of, plan, to_dynamic};

prop_compose! {
    fn any_port()(
        proto in 0..4i32, internal_port: i32, public_port in 0..3i32, path_prefix in "[a-c]{0,2}",
    ) -> AppPort {
        AppPort { proto, internal_port, public_port, path_prefix, fqdn_prefix: String::new() }
    }
}

prop_compose! {
    fn any_loc()(
        latitude in any::<f64>(), longitude in 0..3u8, stamp in proptest::option::of((0..3i64, 0..3i32)),
    ) -> Loc {
        Loc {
            latitude,
            longitude: longitude.into(),
            timestamp: stamp.map(|(seconds, nanos)| Timestamp { seconds, nanos }),
            ..Loc::default()
        }
    }
}

prop_compose! {
    fn any_app_inst()(
        names in proptest::collection::vec("[a-c]{0,2}", 4),
        keyed: bool,
        cloudlet_loc in proptest::option::of(any_loc()),
        mapped_ports in proptest::collection::vec(any_port(), 0..3),
        errors in proptest::collection::vec("[a-c]{0,2}", 0..3),
        containers in proptest::option::of(proptest::collection::vec("[a-c]{0,2}", 0..3)),
        state in 0..14i32,
        fields in proptest::collection::vec("[1-9]", 0..2),
    ) -> AppInst {
        let app_key = AppKey {
            developer_key: Some(DeveloperKey { name: names[0].clone() }),
            name: names[1].clone(),
            version: names[2].clone(),
        };
        AppInst {
            fields,
            key: keyed.then_some(AppInstKey { app_key: Some(app_key), cluster_inst_key: None }),
            cloudlet_loc,
            uri: names[3].clone(),
            mapped_ports,
            errors,
            runtime_info: containers
                .map(|container_ids| AppInstRuntime { container_ids, ..AppInstRuntime::default() }),
            state,
            ..AppInst::default()
        }
    }
}

fn any_mask() -> impl Strategy<Value = Vec<String>> {
    let leaves = plan(&descriptor_of::<AppInst>().unwrap()).leaves().to_vec();
    let mut paths: Vec<String> = leaves.into_iter().map(|leaf| leaf.path).collect();
    paths.extend(["2", "2.1", "3", "3.8", "9", "17"].map(String::from));
    proptest::sample::subsequence(paths, 0..8)
}

proptest! {
    #[test]
    fn a_mask_applied_twice_is_applied_once(
        target in any_app_inst(), source in any_app_inst(), paths in any_mask(),
    ) {
        let mask = Mask::parse(&descriptor_of::<AppInst>().unwrap(), &paths).unwrap();
        let mut once = target.clone();
        let changes = mask.apply(&mut once, &source).unwrap();
        prop_assert_eq!(changes == 0, once.encode_to_vec() == target.encode_to_vec());
        prop_assert_eq!(&once.fields, &target.fields);
        let mut twice = once.clone();
        mask.apply(&mut twice, &source).unwrap();
        prop_assert_eq!(once.encode_to_vec(), twice.encode_to_vec());
    }

    #[test]
    fn the_mask_of_all_leaves_makes_the_source(target in any_app_inst(), source in any_app_inst()) {
        let mut merged = target;
        Mask::all(&descriptor_of::<AppInst>().unwrap()).apply(&mut merged, &source).unwrap();
        let wanted = Filter::of(&source).unwrap();
        prop_assert!(wanted.matches(&merged));
        let made = Filter::of(&merged).unwrap();
        prop_assert!(made.matches(&source));
    }

    #[test]
    fn an_object_matches_itself_and_the_empty_filter(object in any_app_inst()) {
        prop_assert!(matches(&object, &object));
        prop_assert!(matches(&AppInst::default(), &object));
    }

    #[test]
    fn a_filter_agrees_with_a_plain_reading(filter in any_app_inst(), object in any_app_inst()) {
        let plain = reference(&to_dynamic(&filter).unwrap(), &to_dynamic(&object).unwrap());
        prop_assert_eq!(matches(&filter, &object), plain);
    }

    #[test]
    fn random_bytes_are_refused_or_read_but_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..64), text in ".{0,16}",
    ) {
        let filter = Filter::of(&app_inst()).unwrap();
        let _ = filter.matches_encoded(&bytes);
        let descriptor = descriptor_of::<AppInst>().unwrap();
        let _ = Filter::of_encoded(descriptor.clone(), &bytes);
        let _ = Mask::parse(&descriptor, [&text]);
        if let Ok(object) = AppInst::decode(bytes.as_slice()) {
            prop_assert!(matches(&object, &object));
            let _ = Key::of(&object).unwrap().check();
            let _ = check_enums(&object);
        }
        if let Ok(key) = OperatorKey::decode(bytes.as_slice()) {
            let json: serde_json::Value =
                serde_json::from_str(&Key::from_message(&key).unwrap().to_string()).unwrap();
            prop_assert_eq!(json["name"].as_str().unwrap_or(""), key.name);
        }
    }
}

/// The rules of a filter once more, on decoded messages and without haste.
fn reference(filter: &DynamicMessage, object: &DynamicMessage) -> bool {
    use prost_reflect::Value;
    fn value(filter: &Value, object: &Value) -> bool {
        match (filter, object) {
            (Value::Message(filter), Value::Message(object)) => reference(filter, object),
            (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
            _ => filter == object,
        }
    }
    filter.fields().filter(|(field, _)| field.name() != "fields").all(|(field, wanted)| {
        let found = object.get_field(&field);
        match (wanted, &*found) {
            (Value::List(wanted), Value::List(found)) => {
                wanted.len() == found.len()
                    && wanted.iter().zip(found).all(|(wanted, found)| value(wanted, found))
            }
            (wanted, found) => value(wanted, found),
        }
    })
}
