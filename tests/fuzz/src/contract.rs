//! Messages of the contracts.

use prost::Message;
use selvage_api::{
    edgeproto::{AppInst, Notice},
    object::{Filter, Key, Mask, check_enums},
};

/// Splits bytes at a length that their first two say.
fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return (bytes, &[]) };
    rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()))
}

/// Any bytes as filter, object and update: matched, merged or refused.
pub(crate) fn filter_and_mask(bytes: &[u8]) {
    let (first, rest) = halves(bytes);
    let (second, paths) = halves(rest);
    let Ok(mut object) = AppInst::decode(first) else { return };
    let Ok(mut update) = AppInst::decode(second) else { return };
    let _ = Key::of(&object).map(|key| key.check());
    let _ = check_enums(&object);
    if let Ok(filter) = Filter::of(&update) {
        let typed = filter.matches(&object);
        assert_eq!(filter.matches_encoded(&object.encode_to_vec()).ok(), Some(typed));
    }
    let paths = String::from_utf8_lossy(paths);
    update.fields = paths.split('\n').map(str::to_owned).collect();
    if let Ok(mask) = Mask::of(&update) {
        let _ = mask.apply(&mut object, &update);
        let once = object.clone();
        assert_eq!(mask.apply(&mut object, &update).ok(), Some(0), "a second time changes nothing");
        assert_eq!(once.encode_to_vec(), object.encode_to_vec());
    }
}

/// A notice is the same by our reader and by that of the contract.
pub(crate) fn notice(bytes: &[u8]) {
    let ours = selvage_notify::Frame::decode(bytes);
    let Ok(theirs) = Notice::decode(bytes) else { return };
    let ours = ours.expect("what the contract can read, we can");
    let again = Notice::decode(ours.encode_to_vec().as_slice());
    assert_eq!(again.ok(), Some(theirs));
    let _ = ours.any.as_ref().map(selvage_notify::Payload::type_name);
}

const VERBS: [http::Method; 5] = [
    http::Method::GET,
    http::Method::POST,
    http::Method::PUT,
    http::Method::DELETE,
    http::Method::PATCH,
];

/// Any verb, path, query and body: a message that decodes as the method's
/// request, or an error. Each on a line; the body is the rest.
pub(crate) fn transcode(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<3>() else { return };
    let verb = &VERBS[usize::from(head[0]) % VERBS.len()];
    let known = u16::from_be_bytes([head[1], head[2]]);
    let mut lines = rest.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (path, query, body) = (line(), line(), line());
    let (Ok(path), Ok(query)) = (std::str::from_utf8(path), std::str::from_utf8(query)) else {
        return;
    };
    // Half of the time a path that leads somewhere.
    let methods = selvage_api::methods();
    let method = &methods[usize::from(known / 2) % methods.len()];
    let path = match (known % 2, method.http.first()) {
        (0, Some(binding)) => binding.path.as_str(),
        (0, None) => method.path.as_str(),
        _ => path,
    };
    let query = (!query.is_empty()).then_some(query);
    if let Ok((path, message)) = selvage_transcode::transcode_request(verb, path, query, body) {
        let method = selvage_api::method(path).expect("leads to a method");
        Filter::of_encoded(method.input.clone(), &message)
            .expect("what was transcoded can be read");
    }
}
