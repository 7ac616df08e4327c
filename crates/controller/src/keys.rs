//! Keys of the contract as text, written straight from the generated types.
//!
//! The text is the canonical form of [`selvage_api::object::Key`]; a test
//! holds the two together. It is written here again because every row that is
//! read needs it several times, and going through descriptors costs fifty
//! times as much.

use std::fmt::Write;
use std::sync::LazyLock;

use prost::{Message, Name};
use selvage_api::edgeproto as wire;
use selvage_api::object::{Error, Key};

/// A key that can be written in its canonical form.
pub trait KeyText: Message + Name + Default + Clone + PartialEq + Send + Sync + 'static {
    /// Appends the canonical form.
    fn write(&self, out: &mut String);

    /// The key that names nothing.
    fn empty() -> &'static Self;

    /// Returns true if every name in it is given. A filter may leave some out.
    fn is_complete(&self) -> bool;

    /// The canonical form: the key of the record in the store.
    fn text(&self) -> String {
        let mut out = String::with_capacity(2 * self.encoded_len() + 32);
        self.write(&mut out);
        out
    }

    /// Checks every name of the key, with the texts of the contract.
    fn check(&self) -> Result<(), Error> {
        Key::from_message(self)?.check()
    }
}

/// Writes one JSON object, member by member.
struct Writer<'a> {
    out: &'a mut String,
    first: bool,
}

impl<'a> Writer<'a> {
    fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, first: true }
    }

    fn name(&mut self, name: &str) {
        if !self.first {
            self.out.push(',');
        }
        self.first = false;
        self.out.push('"');
        self.out.push_str(name);
        self.out.push_str("\":");
    }

    fn text(&mut self, name: &str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.name(name);
            write_string(self.out, value);
        }
        self
    }

    fn key<K: KeyText>(&mut self, name: &str, key: Option<&K>) -> &mut Self {
        self.name(name);
        key.unwrap_or(K::empty()).write(self.out);
        self
    }

    fn close(&mut self) {
        self.out.push('}');
    }
}

/// A JSON string with the escapes of Go's encoder.
fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => {
                out.push('\\');
                out.push(letter);
            }
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '&' | '<' | '>' | '\u{2028}' | '\u{2029}' | '\0'..='\x1f' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}

/// Part of a key.
trait Part {
    fn given(&self) -> bool;
}

impl Part for String {
    fn given(&self) -> bool {
        !self.is_empty()
    }
}

impl<K: KeyText> Part for Option<K> {
    fn given(&self) -> bool {
        self.as_ref().is_some_and(KeyText::is_complete)
    }
}

macro_rules! key_text {
    ($($key:ident($($part:ident),+), |$self:ident, $writer:ident| $write:expr;)+) => {$(
        impl KeyText for wire::$key {
            fn write(&self, out: &mut String) {
                let ($self, mut $writer) = (self, Writer::open(out));
                $write;
                $writer.close();
            }

            fn empty() -> &'static Self {
                static EMPTY: LazyLock<wire::$key> = LazyLock::new(Default::default);
                &EMPTY
            }

            fn is_complete(&self) -> bool {
                $(self.$part.given())&&+
            }
        }
    )+};
}

key_text! {
    DeveloperKey(name), |key, writer| writer.text("name", &key.name);
    OperatorKey(name), |key, writer| writer.text("name", &key.name);
    FlavorKey(name), |key, writer| writer.text("name", &key.name);
    ClusterKey(name), |key, writer| writer.text("name", &key.name);
    ControllerKey(addr), |key, writer| writer.text("addr", &key.addr);
    AppKey(developer_key, name, version), |key, writer| writer
        .key("developer_key", key.developer_key.as_ref())
        .text("name", &key.name)
        .text("version", &key.version);
    CloudletKey(operator_key, name), |key, writer| writer
        .key("operator_key", key.operator_key.as_ref())
        .text("name", &key.name);
    ClusterInstKey(cluster_key, cloudlet_key, developer), |key, writer| writer
        .key("cluster_key", key.cluster_key.as_ref())
        .key("cloudlet_key", key.cloudlet_key.as_ref())
        .text("developer", &key.developer);
    AppInstKey(app_key, cluster_inst_key), |key, writer| writer
        .key("app_key", key.app_key.as_ref())
        .key("cluster_inst_key", key.cluster_inst_key.as_ref());
    NodeKey(name, cloudlet_key), |key, writer| {
        writer.text("name", &key.name);
        if key.node_type != 0 {
            writer.name("node_type");
            match wire::NodeType::try_from(key.node_type) {
                Ok(known) => {
                    write_string(writer.out, &selvage_api::object::camel_name(known.as_str_name()));
                }
                Err(_) => {
                    let _ = write!(writer.out, "{}", key.node_type);
                }
            }
        }
        writer.key("cloudlet_key", key.cloudlet_key.as_ref());
    };
}

/// Parts of keys, where one that is left out counts as empty.
pub trait AppKeyParts {
    fn developer_or_empty(&self) -> &wire::DeveloperKey;
}

impl AppKeyParts for wire::AppKey {
    fn developer_or_empty(&self) -> &wire::DeveloperKey {
        self.developer_key.as_ref().unwrap_or(KeyText::empty())
    }
}

pub trait CloudletKeyParts {
    fn operator_or_empty(&self) -> &wire::OperatorKey;
}

impl CloudletKeyParts for wire::CloudletKey {
    fn operator_or_empty(&self) -> &wire::OperatorKey {
        self.operator_key.as_ref().unwrap_or(KeyText::empty())
    }
}

pub trait ClusterInstKeyParts {
    fn cluster_or_empty(&self) -> &wire::ClusterKey;
    fn cloudlet_or_empty(&self) -> &wire::CloudletKey;
}

impl ClusterInstKeyParts for wire::ClusterInstKey {
    fn cluster_or_empty(&self) -> &wire::ClusterKey {
        self.cluster_key.as_ref().unwrap_or(KeyText::empty())
    }

    fn cloudlet_or_empty(&self) -> &wire::CloudletKey {
        self.cloudlet_key.as_ref().unwrap_or(KeyText::empty())
    }
}

pub trait AppInstKeyParts {
    fn app_or_empty(&self) -> &wire::AppKey;
    fn cluster_inst_or_empty(&self) -> &wire::ClusterInstKey;
}

impl AppInstKeyParts for wire::AppInstKey {
    fn app_or_empty(&self) -> &wire::AppKey {
        self.app_key.as_ref().unwrap_or(KeyText::empty())
    }

    fn cluster_inst_or_empty(&self) -> &wire::ClusterInstKey {
        self.cluster_inst_key.as_ref().unwrap_or(KeyText::empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn assert_canonical<K: KeyText>(key: &K) {
        assert_eq!(key.text(), Key::from_message(key).unwrap().to_string());
    }

    fn cloudlet(operator: &str, name: &str) -> wire::CloudletKey {
        wire::CloudletKey {
            operator_key: Some(wire::OperatorKey { name: operator.into() }),
            name: name.into(),
        }
    }

    #[test]
    fn what_is_left_out_is_written_as_the_original_does() {
        assert_eq!(wire::FlavorKey::default().text(), "{}");
        assert_eq!(
            wire::AppInstKey::default().text(),
            r#"{"app_key":{"developer_key":{}},"cluster_inst_key":{"cluster_key":{},"cloudlet_key":{"operator_key":{}}}}"#
        );
    }

    proptest! {
        #[test]
        fn text_is_the_canonical_form(a in ".{0,6}", b in "[a-z&<>\\\\\"\u{0}-\u{1f}]{0,6}", node in 0..4) {
            assert_canonical(&wire::DeveloperKey { name: a.clone() });
            assert_canonical(&wire::ControllerKey { addr: b.clone() });
            assert_canonical(&cloudlet(&a, &b));
            let app = wire::AppKey {
                developer_key: (!a.is_empty()).then(|| wire::DeveloperKey { name: a.clone() }),
                name: b.clone(),
                version: a.clone(),
            };
            assert_canonical(&app);
            let cluster_inst = wire::ClusterInstKey {
                cluster_key: Some(wire::ClusterKey { name: b.clone() }),
                cloudlet_key: (!b.is_empty()).then(|| cloudlet(&b, &a)),
                developer: a.clone(),
            };
            assert_canonical(&cluster_inst);
            assert_canonical(&wire::AppInstKey {
                app_key: Some(app),
                cluster_inst_key: Some(cluster_inst),
            });
            assert_canonical(&wire::NodeKey {
                name: a,
                node_type: node,
                cloudlet_key: Some(cloudlet("o", &b)),
            });
        }
    }
}
