//! The objects of the contract as records of the store.
//!
//! [`Row`] wraps a generated message so that the store's trait can be
//! implemented for it here. What is particular to a type, its key and the
//! indexes it is looked up by, is in [`StoredObject`]; nothing outside this file
//! scans a table for want of an index.

use bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message, Name};
use selvage_api::edgeproto as wire;
use selvage_store::Record;

use crate::keys::{AppInstKeyParts, KeyText};

/// Names of indexes.
pub mod index {
    pub const APP: &str = "app";
    pub const ANDROID_PACKAGE: &str = "android-package";
    pub const CLOUDLET: &str = "cloudlet";
    pub const CLUSTER: &str = "cluster";
    pub const CLUSTER_INST: &str = "cluster-inst";
    pub const CONTROLLER: &str = "controller";
    pub const DEVELOPER: &str = "developer";
    pub const FLAVOR: &str = "flavor";
    pub const OPERATOR: &str = "operator";
    pub const URI: &str = "uri";
}

/// A message of the contract that is kept in the store.
pub trait StoredObject:
    Message + Name + Default + Clone + PartialEq + Send + Sync + 'static
{
    /// Kind under which records of this type are stored; never changes.
    const KIND: &'static str;
    /// The name that people read.
    const TITLE: &'static str;
    /// The type of its key.
    type Key: KeyText;

    /// The key; an object without one has the empty key.
    fn object_key(&self) -> &Self::Key;

    /// Pairs of index and value under which it is found, those first that
    /// few others share. A key that is not complete gives none, so that a
    /// filter can be asked for its indexes as well.
    fn index_values(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The canonical text of its key.
    fn key_text(&self) -> String {
        self.object_key().text()
    }
}

/// A message as the store keeps it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row<M>(pub M);

impl<M: Message + Default> Message for Row<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.0.encode_raw(buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.0.merge_field(tag, wire_type, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        self.0.encoded_len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl<M: StoredObject> Record for Row<M> {
    const KIND: &'static str = M::KIND;
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.0.key_text()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        self.0.index_values()
    }
}

/// The text of a key by which objects can be looked up: all of it is given.
fn whole<K: KeyText>(key: Option<&K>) -> Option<String> {
    key.filter(|key| key.is_complete()).map(KeyText::text)
}

fn pairs(
    values: impl IntoIterator<Item = (&'static str, Option<String>)>,
) -> Vec<(&'static str, String)> {
    values
        .into_iter()
        .filter_map(|(index, value)| {
            value.filter(|value| !value.is_empty()).map(|value| (index, value))
        })
        .collect()
}

/// Implements [`StoredObject`] for types whose field `key` holds the key.
macro_rules! kept {
    ($($message:ident, $key:ident, $kind:literal $(, |$object:ident| $indexes:expr)?;)+) => {$(
        impl StoredObject for wire::$message {
            const KIND: &'static str = $kind;
            const TITLE: &'static str = stringify!($message);
            type Key = wire::$key;

            fn object_key(&self) -> &wire::$key {
                self.key.as_ref().unwrap_or(KeyText::empty())
            }

            $(fn index_values(&self) -> Vec<(&'static str, String)> {
                let $object = self;
                pairs($indexes)
            })?
        }
    )+};
}

kept! {
    Developer, DeveloperKey, "developer";
    Operator, OperatorKey, "operator";
    Flavor, FlavorKey, "flavor";
    Controller, ControllerKey, "controller";
    CloudletRefs, CloudletKey, "cloudlet-refs";
    Cluster, ClusterKey, "cluster", |cluster| [
        (index::FLAVOR, whole(cluster.default_flavor.as_ref())),
    ];
    Cloudlet, CloudletKey, "cloudlet", |cloudlet| [
        (index::OPERATOR, whole(cloudlet.object_key().operator_key.as_ref())),
    ];
    CloudletInfo, CloudletKey, "cloudlet-info", |info| [
        (index::OPERATOR, whole(info.object_key().operator_key.as_ref())),
        (index::CONTROLLER, Some(info.controller.clone())),
    ];
    App, AppKey, "app", |app| [
        (index::ANDROID_PACKAGE, Some(app.android_package_name.clone())),
        (index::DEVELOPER, whole(app.object_key().developer_key.as_ref())),
        (index::FLAVOR, whole(app.default_flavor.as_ref())),
    ];
    ClusterInst, ClusterInstKey, "cluster-inst", |inst| {
        let key = inst.object_key();
        [
            (index::CLUSTER, whole(key.cluster_key.as_ref())),
            (index::CLOUDLET, whole(key.cloudlet_key.as_ref())),
            (index::DEVELOPER, Some(key.developer.clone())),
            (index::FLAVOR, whole(inst.flavor.as_ref())),
        ]
    };
    AppInst, AppInstKey, "app-inst", |inst| {
        let key = inst.object_key();
        let cluster_inst = key.cluster_inst_or_empty();
        [
            (index::CLUSTER_INST, whole(Some(cluster_inst))),
            (index::URI, Some(inst.uri.clone())),
            (index::APP, whole(key.app_key.as_ref())),
            (index::CLOUDLET, whole(cluster_inst.cloudlet_key.as_ref())),
            (index::DEVELOPER, whole(key.app_or_empty().developer_key.as_ref())),
            (index::FLAVOR, whole(inst.flavor.as_ref())),
        ]
    };
    ClusterRefs, ClusterInstKey, "cluster-refs", |refs| [
        (index::CLOUDLET, whole(refs.object_key().cloudlet_key.as_ref())),
        (index::DEVELOPER, Some(refs.object_key().developer.clone())),
    ];
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_row_is_stored_as_its_message() {
        let flavor = wire::Flavor {
            key: Some(wire::FlavorKey { name: "x1.small".into() }),
            ram: 2048,
            ..Default::default()
        };
        let row = Row(flavor.clone());
        assert_eq!(row.encode_to_vec(), flavor.encode_to_vec());
        assert_eq!(Row::<wire::Flavor>::decode(&*flavor.encode_to_vec()).unwrap(), row);
        assert_eq!(row.key(), r#"{"name":"x1.small"}"#);
    }

    #[test]
    fn a_filter_is_looked_up_by_what_it_gives_whole() {
        let mut filter = wire::AppInst {
            key: Some(wire::AppInstKey {
                app_key: Some(wire::AppKey {
                    developer_key: Some(wire::DeveloperKey { name: "Acme".into() }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(filter.index_values(), [(index::DEVELOPER, r#"{"name":"Acme"}"#.to_owned())]);
        filter.key = None;
        assert_eq!(filter.index_values(), []);
    }

    #[test]
    fn an_instance_is_found_by_everything_it_refers_to() {
        let cloudlet = wire::CloudletKey {
            operator_key: Some(wire::OperatorKey { name: "tmus".into() }),
            name: "tmus-cloud-1".into(),
        };
        let app = wire::AppKey {
            developer_key: Some(wire::DeveloperKey { name: "Acme".into() }),
            name: "one".into(),
            version: "1.0".into(),
        };
        let cluster_inst = wire::ClusterInstKey {
            cluster_key: Some(wire::ClusterKey { name: "small".into() }),
            cloudlet_key: Some(cloudlet.clone()),
            developer: "Acme".into(),
        };
        let inst = wire::AppInst {
            key: Some(wire::AppInstKey {
                app_key: Some(app.clone()),
                cluster_inst_key: Some(cluster_inst.clone()),
            }),
            flavor: Some(wire::FlavorKey { name: "x1.small".into() }),
            uri: "small.tmus-cloud-1.tmus.example".into(),
            ..Default::default()
        };
        let mut expected = vec![
            (index::APP, app.text()),
            (index::CLOUDLET, cloudlet.text()),
            (index::CLUSTER_INST, cluster_inst.text()),
            (index::DEVELOPER, r#"{"name":"Acme"}"#.to_owned()),
            (index::FLAVOR, r#"{"name":"x1.small"}"#.to_owned()),
            (index::URI, "small.tmus-cloud-1.tmus.example".to_owned()),
        ];
        let mut found = Row(inst).indexes();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}
