//! Every table of the controller, opened once.

use std::sync::Arc;

use selvage_api::edgeproto as wire;
use selvage_store::{Revision, SharedStore, Stored, Table};

use crate::keys::KeyText;
use crate::row::{Row, StoredObject};

/// A row as the tables hand it out.
pub type StoredRow<M> = Arc<Stored<Row<M>>>;

/// A type that has a table here.
pub trait HasTable: StoredObject {
    fn table(tables: &Tables) -> &Arc<Table<Row<Self>>>;
}

macro_rules! tables {
    ($($field:ident: $message:ident,)+) => {
        /// The state of the controller as this process sees it.
        #[derive(Debug, Clone)]
        pub struct Tables {
            $(pub $field: Arc<Table<Row<wire::$message>>>,)+
        }

        impl Tables {
            /// Lists everything; returns once all of it is in memory. Any
            /// record that cannot be read is an error.
            pub async fn open(store: &SharedStore) -> selvage_store::Result<Self> {
                Ok(Self {
                    $($field: Table::open(Arc::clone(store)).await?,)+
                })
            }

            /// Returns true if there is no object of any type.
            pub fn is_empty(&self) -> bool {
                [$(self.$field.is_empty(),)+].into_iter().all(|is_empty| is_empty)
            }
        }

        $(impl HasTable for wire::$message {
            fn table(tables: &Tables) -> &Arc<Table<Row<Self>>> {
                &tables.$field
            }
        })+
    };
}

tables! {
    developers: Developer,
    operators: Operator,
    flavors: Flavor,
    clusters: Cluster,
    cloudlets: Cloudlet,
    cloudlet_infos: CloudletInfo,
    apps: App,
    app_insts: AppInst,
    cluster_insts: ClusterInst,
    cloudlet_refs: CloudletRefs,
    cluster_refs: ClusterRefs,
    controllers: Controller,
}

impl Tables {
    /// The table of a type.
    pub fn of<M: HasTable>(&self) -> &Arc<Table<Row<M>>> {
        M::table(self)
    }

    /// The object with a key, as this process sees it.
    pub fn get<M: HasTable>(&self, key: &M::Key) -> Option<StoredRow<M>> {
        self.of::<M>().get(&key.text())
    }

    /// The objects that an index finds, in the order of their keys.
    pub fn find<M: HasTable>(&self, index: &str, value: &str) -> Vec<StoredRow<M>> {
        self.of::<M>().by_index(index, value)
    }

    /// Returns once the view of a type has everything up to `revision`.
    pub async fn caught_up<M: HasTable>(&self, revision: Revision) -> selvage_store::Result<()> {
        self.of::<M>().wait_for(revision).await
    }
}
