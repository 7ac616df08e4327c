//! Description of a type, all of it from descriptors, and the key of one object
//! of it.

use std::{borrow::Borrow, cmp::Ordering, fmt, hash, ops::Range, sync::Arc};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::{
    Message, Name,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, skip_field},
};
use prost_reflect::{Kind as FieldKind, MessageDescriptor};
use selvage_api::{
    edgeproto::CloudletKey,
    json,
    object::{Key, Object, descriptor_of},
};

use crate::{Error, frame::TYPE_URL_PREFIX};

const CLOUDLET_KEY: &str = "edgeproto.CloudletKey";
const APP_KEY: &str = "edgeproto.AppKey";
/// Deeper than any key.
const MAX_PATH: usize = 6;

/// Peers with a filter to which objects of the type are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    Everybody,
    /// Clients that report on the cloudlet in the object's key.
    Cloudlet,
    /// Clients that report on a cloudlet with an instance of the object: apps.
    Companion,
}

/// Description of a type of object or message.
pub struct Kind {
    full_name: String,
    type_url: Bytes,
    key_field: Option<u32>,
    key: Option<MessageDescriptor>,
    notify_id_field: Option<u32>,
    /// Numbers of the fields that lead to the cloudlet's key.
    cloudlet_path: Option<Vec<u32>>,
    /// Numbers of the fields that lead from the key to the app's key.
    app_path: Option<Vec<u32>>,
    reach: Reach,
    key_text: fn(&[u8]) -> Result<String, Error>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kind").field(&self.full_name).finish()
    }
}

impl Kind {
    /// The kind of a generated type.
    pub fn of<M: Object>() -> Result<Arc<Self>, Error> {
        let full_name = M::full_name();
        let descriptor = descriptor_of::<M>()
            .map_err(|source| Error::Key { message: full_name.clone(), source })?;
        let key = descriptor.get_field_by_name("key").and_then(|field| match field.kind() {
            FieldKind::Message(key) if !field.is_list() => Some((field.number(), key)),
            _ => None,
        });
        // The key of an object decides whom it concerns; a message has none, so
        // the instance that it names decides.
        let (start, root) = match &key {
            Some((number, key)) => (vec![*number], key),
            None => (Vec::new(), &descriptor),
        };
        let cloudlet_path = path_to(root, CLOUDLET_KEY, start, 0);
        let app_path = key.as_ref().and_then(|(_, key)| path_to(key, APP_KEY, Vec::new(), 0));
        let reach = match (&cloudlet_path, &app_path) {
            (Some(_), _) => Reach::Cloudlet,
            (None, Some(path)) if path.is_empty() => Reach::Companion,
            _ => Reach::Everybody,
        };
        Ok(Arc::new(Self {
            type_url: format!("{TYPE_URL_PREFIX}{full_name}").into(),
            key_field: key.as_ref().map(|(number, _)| *number),
            key: key.map(|(_, key)| key),
            notify_id_field: descriptor.get_field_by_name("notify_id").map(|f| f.number()),
            cloudlet_path,
            app_path: app_path.filter(|path| !path.is_empty()),
            reach,
            key_text: key_text::<M>,
            full_name,
        }))
    }

    /// `edgeproto.AppInst`.
    pub fn full_name(&self) -> &str {
        &self.full_name
    }

    /// `AppInst`.
    pub fn short_name(&self) -> &str {
        self.full_name.rsplit_once('.').map_or(self.full_name.as_str(), |(_, name)| name)
    }

    /// Returns the peers with a filter to which objects are sent.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    pub(crate) fn type_url(&self) -> Bytes {
        self.type_url.clone()
    }

    /// Returns true if the type has a key: objects have one, messages have not.
    pub fn has_key(&self) -> bool {
        self.key_field.is_some()
    }

    /// The key of an encoded object. What else the object holds is not read.
    pub fn key_of(&self, object: &[u8]) -> Result<ObjectKey, Error> {
        let number = self.key_field.ok_or_else(|| Error::NoKey(self.full_name.clone()))?;
        let wire = self.field(object, number)?;
        let text = (self.key_text)(&enclose(number, &wire))?;
        Ok(self.assemble(text, wire))
    }

    /// Does what [`Kind::key_of`] does, for a caller that has the canonical
    /// text of the key already: much cheaper.
    pub fn key_with_text(&self, text: &str, object: &[u8]) -> Result<ObjectKey, Error> {
        let number = self.key_field.ok_or_else(|| Error::NoKey(self.full_name.clone()))?;
        let wire = self.field(object, number)?;
        Ok(self.assemble(text.to_owned(), wire))
    }

    /// The key that has this canonical text.
    pub fn key_of_text(&self, text: &str) -> Result<ObjectKey, Error> {
        let (Some(number), Some(key)) = (self.key_field, &self.key) else {
            return Err(Error::NoKey(self.full_name.clone()));
        };
        let wrong = || Error::KeyText { message: self.full_name.clone(), text: text.to_owned() };
        let message =
            json::from_json(key, text.as_bytes(), json::Options::connect()).map_err(|_| wrong())?;
        let wire = Bytes::from(message.encode_to_vec());
        if (self.key_text)(&enclose(number, &wire))? != text {
            return Err(wrong());
        }
        Ok(self.assemble(text.to_owned(), wire))
    }

    fn assemble(&self, text: String, wire: Bytes) -> ObjectKey {
        let cloudlet = self.cloudlet_path.as_ref().and_then(|path| match path.len() {
            1 => Some(0..text.len()),
            _ => nested(&text, "\"cloudlet_key\":"),
        });
        ObjectKey(Arc::new(Parts { text: text.into(), wire, cloudlet }))
    }

    /// An object with nothing but its key: what a DELETE carries.
    pub(crate) fn only_key(&self, key: &ObjectKey) -> Bytes {
        enclose(self.key_field.unwrap_or(2), key.wire())
    }

    /// The key of the app whose instance this is the key of.
    pub(crate) fn companion(&self, key: &ObjectKey) -> Option<ObjectKey> {
        let path = self.app_path.as_ref()?;
        let range = nested(key.text(), "\"app_key\":")?;
        let text = key.text().get(range)?;
        let mut wire = key.wire().clone();
        for number in path {
            wire = self.field(&wire, *number).ok()?;
        }
        Some(ObjectKey(Arc::new(Parts { text: text.into(), wire, cloudlet: None })))
    }

    /// The cloudlet that an encoded object or message is about; an empty key
    /// when it should name one and does not.
    pub fn cloudlet_of(&self, object: &[u8]) -> Result<Option<CloudletKey>, Error> {
        let Some(path) = &self.cloudlet_path else { return Ok(None) };
        let mut bytes = Bytes::copy_from_slice(object);
        for number in path {
            bytes = self.field(&bytes, *number)?;
        }
        let key = CloudletKey::decode(bytes);
        key.map(Some).map_err(|source| Error::Payload { message: CLOUDLET_KEY.into(), source })
    }

    /// The object with the id of the connection that brought it, where the
    /// type has a place for it.
    pub(crate) fn stamped(&self, object: &Bytes, notify_id: i64) -> Bytes {
        let Some(number) = self.notify_id_field else { return object.clone() };
        let mut stamped = BytesMut::with_capacity(object.len() + 16);
        stamped.put_slice(object);
        // The last of several occurrences of a field counts.
        prost::encoding::int64::encode(number, &notify_id, &mut stamped);
        stamped.freeze()
    }

    fn field(&self, bytes: &[u8], number: u32) -> Result<Bytes, Error> {
        message_field(bytes, number)
            .map_err(|source| Error::Payload { message: self.full_name.clone(), source })
    }
}

fn key_text<M: Object>(object: &[u8]) -> Result<String, Error> {
    let object =
        M::decode(object).map_err(|source| Error::Payload { message: M::full_name(), source })?;
    let key = Key::of(&object).map_err(|source| Error::Key { message: M::full_name(), source })?;
    Ok(key.to_string())
}

/// The canonical text of a cloudlet's key, by which everything here names
/// cloudlets.
pub fn cloudlet_text(key: &CloudletKey) -> Result<String, Error> {
    Key::from_message(key)
        .map(|key| key.to_string())
        .map_err(|source| Error::Key { message: CLOUDLET_KEY.into(), source })
}

fn path_to(
    from: &MessageDescriptor,
    wanted: &str,
    path: Vec<u32>,
    depth: usize,
) -> Option<Vec<u32>> {
    if from.full_name() == wanted {
        return Some(path);
    }
    if depth == MAX_PATH {
        return None;
    }
    from.fields().filter(|field| !field.is_list() && !field.is_map()).find_map(|field| {
        let FieldKind::Message(inner) = field.kind() else { return None };
        let mut path = path.clone();
        path.push(field.number());
        path_to(&inner, wanted, path, depth + 1)
    })
}

/// Range of the object after this name in a canonical text. Within its strings
/// quotes are escaped, so the name cannot be found there.
fn nested(text: &str, name: &str) -> Option<Range<usize>> {
    let start = text.find(name)? + name.len();
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted && depth <= 1 => return Some(start..at + 1),
            b'}' if !quoted => depth -= 1,
            _ => {}
        }
    }
    None
}

/// All occurrences of a message field, one after the other, which is what
/// merging them means.
fn message_field(mut bytes: &[u8], number: u32) -> Result<Bytes, prost::DecodeError> {
    let mut found = BytesMut::new();
    while bytes.has_remaining() {
        let (at, wire_type) = decode_key(&mut bytes)?;
        let value = bytes;
        skip_field(wire_type, at, &mut bytes, DecodeContext::default())?;
        if at == number && wire_type == WireType::LengthDelimited {
            let mut inner = &value[..value.len() - bytes.len()];
            decode_varint(&mut inner)?;
            found.put_slice(inner);
        }
    }
    Ok(found.freeze())
}

fn enclose(number: u32, inner: &[u8]) -> Bytes {
    let mut whole = BytesMut::with_capacity(inner.len() + 8);
    encode_key(number, WireType::LengthDelimited, &mut whole);
    prost::encoding::encode_varint(inner.len() as u64, &mut whole);
    whole.put_slice(inner);
    whole.freeze()
}

/// The key of one object. Two are equal when their canonical texts are;
/// cloning one is cheap.
#[derive(Clone)]
pub struct ObjectKey(Arc<Parts>);

struct Parts {
    text: Box<str>,
    wire: Bytes,
    cloudlet: Option<Range<usize>>,
}

impl ObjectKey {
    /// The key of an object.
    pub fn of<M: Object>(object: &M) -> Result<Self, Error> {
        Kind::of::<M>()?.key_of(&object.encode_to_vec())
    }

    /// The canonical text, as `selvage_api::object::Key` writes it.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The key, encoded.
    pub fn wire(&self) -> &Bytes {
        &self.0.wire
    }

    /// The canonical text of the cloudlet it lies on.
    pub fn cloudlet(&self) -> Option<&str> {
        self.0.cloudlet.clone().and_then(|range| self.0.text.get(range))
    }

    /// The key as a message of its type.
    pub fn decode<K: Message + Name + Default>(&self) -> Result<K, Error> {
        K::decode(self.0.wire.clone())
            .map_err(|source| Error::Payload { message: K::full_name(), source })
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl PartialEq for ObjectKey {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for ObjectKey {}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text().cmp(other.text())
    }
}

impl hash::Hash for ObjectKey {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        self.text()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_api::edgeproto::*;

    use super::*;

    fn cloudlet(name: &str) -> CloudletKey {
        CloudletKey {
            operator_key: Some(OperatorKey { name: "TMUS".into() }),
            name: name.to_owned(),
        }
    }

    fn instance(app: &str, cloudlet_name: &str) -> AppInst {
        let app_key = AppKey {
            developer_key: Some(DeveloperKey { name: "Acme \"quoted\" {x}".into() }),
            name: app.into(),
            version: "1.0".into(),
        };
        let cluster_inst_key = ClusterInstKey {
            cluster_key: Some(ClusterKey { name: "c".into() }),
            cloudlet_key: Some(cloudlet(cloudlet_name)),
            developer: "d".into(),
        };
        AppInst {
            key: Some(AppInstKey {
                app_key: Some(app_key),
                cluster_inst_key: Some(cluster_inst_key),
            }),
            uri: "somewhere".into(),
            ..AppInst::default()
        }
    }

    #[test]
    fn types_concern_whom_their_keys_say() {
        let reach = |kind: std::result::Result<Arc<Kind>, Error>| kind.unwrap().reach();
        assert_eq!(reach(Kind::of::<Flavor>()), Reach::Everybody);
        assert_eq!(reach(Kind::of::<Cluster>()), Reach::Everybody);
        assert_eq!(reach(Kind::of::<Cloudlet>()), Reach::Cloudlet);
        assert_eq!(reach(Kind::of::<ClusterInst>()), Reach::Cloudlet);
        assert_eq!(reach(Kind::of::<AppInst>()), Reach::Cloudlet);
        assert_eq!(reach(Kind::of::<App>()), Reach::Companion);
        assert_eq!(reach(Kind::of::<ExecRequest>()), Reach::Cloudlet);
        assert_eq!(reach(Kind::of::<Metric>()), Reach::Everybody);
        assert!(!Kind::of::<Metric>().unwrap().has_key());
        assert!(!Kind::of::<ExecRequest>().unwrap().has_key());
    }

    #[test]
    fn a_key_knows_its_cloudlet_and_its_app() {
        let kind = Kind::of::<AppInst>().unwrap();
        let object = instance("go", "west").encode_to_vec();
        let key = kind.key_of(&object).unwrap();
        assert_eq!(key.text(), Key::of(&instance("go", "west")).unwrap().to_string());
        assert_eq!(key.cloudlet().unwrap(), cloudlet_text(&cloudlet("west")).unwrap());
        assert_eq!(kind.cloudlet_of(&object).unwrap(), Some(cloudlet("west")));
        assert_eq!(kind.key_with_text(key.text(), &object).unwrap().wire(), key.wire());
        assert_eq!(kind.key_of_text(key.text()).unwrap().wire(), key.wire());
        for wrong in ["", "{}", "x", "{\"name\":\"x\"}", &format!(" {}", key.text())] {
            assert!(kind.key_of_text(wrong).is_err(), "{wrong}");
        }

        let app = App { key: instance("go", "west").key.unwrap().app_key, ..App::default() };
        let companion = kind.companion(&key).unwrap();
        assert_eq!(companion, ObjectKey::of(&app).unwrap());
        assert_eq!(companion.wire(), ObjectKey::of(&app).unwrap().wire());

        let info = CloudletInfo { key: Some(cloudlet("west")), ..CloudletInfo::default() };
        let info = ObjectKey::of(&info).unwrap();
        assert_eq!(info.cloudlet(), Some(info.text()));
    }

    #[test]
    fn a_message_knows_its_cloudlet() {
        let kind = Kind::of::<ExecRequest>().unwrap();
        let request =
            ExecRequest { app_inst_key: instance("go", "west").key, ..ExecRequest::default() };
        let found = kind.cloudlet_of(&request.encode_to_vec()).unwrap();
        assert_eq!(found, Some(cloudlet("west")));
        assert_eq!(kind.cloudlet_of(&[]).unwrap(), Some(CloudletKey::default()));
        assert_eq!(Kind::of::<Metric>().unwrap().cloudlet_of(&[]).unwrap(), None);
    }

    #[test]
    fn an_empty_nested_key_and_an_absent_one_are_the_same_key() {
        let kind = Kind::of::<Node>().unwrap();
        let absent = kind.key_of(b"\x12\x03\x0a\x01n").unwrap();
        let empty = kind.key_of(b"\x12\x07\x0a\x01n\x1a\x02\x0a\x00").unwrap();
        assert_eq!(absent, empty);
    }

    #[test]
    fn a_delete_carries_the_key_and_nothing_else() {
        let kind = Kind::of::<AppInst>().unwrap();
        let object = instance("go", "west");
        let key = kind.key_of(&object.encode_to_vec()).unwrap();
        let decoded = AppInst::decode(kind.only_key(&key)).unwrap();
        assert_eq!(decoded, AppInst { key: object.key, ..AppInst::default() });
    }

    #[test]
    fn a_stamp_replaces_the_id() {
        let kind = Kind::of::<Node>().unwrap();
        let node = Node { notify_id: 3, ..Node::default() }.encode_to_vec();
        let stamped = kind.stamped(&node.into(), -1);
        assert_eq!(Node::decode(stamped).unwrap().notify_id, -1);
        let flavor = Bytes::from_static(b"\x12\x00");
        assert_eq!(Kind::of::<Flavor>().unwrap().stamped(&flavor, 7), flavor);
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error() {
        let kind = Kind::of::<AppInst>().unwrap();
        for bytes in [&b"\x12\x05ab"[..], b"\xff", b"\x12\x02\x0a\x09", b"\x0b"] {
            assert!(kind.key_of(bytes).is_err(), "{bytes:?}");
        }
    }
}
