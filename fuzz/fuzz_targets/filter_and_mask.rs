//! Any bytes as filter, object and update: matched, merged or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use selvage_api::{
    edgeproto::AppInst,
    object::{Filter, Key, Mask, check_enums},
};

fuzz_target!(|input: (&[u8], &[u8], Vec<String>)| {
    let (first, second, paths) = input;
    let Ok(mut object) = AppInst::decode(first) else { return };
    let Ok(mut update) = AppInst::decode(second) else { return };
    let _ = Key::of(&object).map(|key| key.check());
    let _ = check_enums(&object);
    if let Ok(filter) = Filter::of(&update) {
        let typed = filter.matches(&object);
        assert_eq!(filter.matches_encoded(&object.encode_to_vec()).ok(), Some(typed));
    }
    update.fields = paths;
    if let Ok(mask) = Mask::of(&update) {
        let _ = mask.apply(&mut object, &update);
        let once = object.clone();
        assert_eq!(mask.apply(&mut object, &update).ok(), Some(0), "a second time changes nothing");
        assert_eq!(once.encode_to_vec(), object.encode_to_vec());
    }
});
