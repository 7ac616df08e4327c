//! Showing objects: from memory, through an index where the filter gives one,
//! in the order of keys, without holding anything while the caller reads.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use futures::Stream;
use selvage_api::object::Filter;
use tonic::Status;

use crate::error::Result;
use crate::keys::KeyText;
use crate::state::ControllerState;
use crate::tables::{HasTable, StoredRow};

/// Number of objects that are looked at before others get their turn.
const TURN: usize = 256;

/// A snapshot of objects that goes to a caller at its pace.
#[derive(Debug)]
pub struct ShowStream<M> {
    rest: vec::IntoIter<StoredRow<M>>,
    filter: Filter,
}

// Nothing in it is pinned.
impl<M> Unpin for ShowStream<M> {}

impl<M: HasTable> Stream for ShowStream<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        for _ in 0..TURN {
            let Some(held) = self.rest.next() else { return Poll::Ready(None) };
            if self.filter.is_empty() || self.filter.matches(&held.value.0) {
                return Poll::Ready(Some(Ok(held.value.0.clone())));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl ControllerState {
    /// The objects that match a filter.
    pub fn show<M: HasTable>(&self, filter: &M) -> Result<ShowStream<M>> {
        let compiled = Filter::of(filter)?;
        Ok(ShowStream { rest: self.candidates(filter).into_iter(), filter: compiled })
    }

    /// As few objects as an index gives that hold all matches.
    fn candidates<M: HasTable>(&self, filter: &M) -> Vec<StoredRow<M>> {
        let table = self.tables.of::<M>();
        if filter.object_key().is_complete() {
            return table.get(&filter.key_text()).into_iter().collect();
        }
        match filter.index_values().first() {
            Some((index, value)) => table.by_index(index, value),
            None => table.list(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_api::edgeproto as wire;
    use selvage_store::embedded::{Embedded, Options};

    use crate::controller::Dependencies;
    use crate::row::Row;
    use crate::settings::Settings;
    use crate::state::ControllerState;

    fn inst(app: &str, cloudlet: &str) -> wire::AppInst {
        let name = |name: &str| name.to_owned();
        wire::AppInst {
            key: Some(wire::AppInstKey {
                app_key: Some(wire::AppKey {
                    developer_key: Some(wire::DeveloperKey { name: name("Acme") }),
                    name: name(app),
                    version: name("1.0"),
                }),
                cluster_inst_key: Some(wire::ClusterInstKey {
                    cluster_key: Some(wire::ClusterKey { name: name("one") }),
                    cloudlet_key: Some(wire::CloudletKey {
                        operator_key: Some(wire::OperatorKey { name: name("tmus") }),
                        name: name(cloudlet),
                    }),
                    developer: name("Acme"),
                }),
            }),
            ..Default::default()
        }
    }

    /// The original went through all instances for every question, under a
    /// lock.
    #[tokio::test]
    async fn an_index_spares_looking_at_everything() {
        let store = Embedded::in_memory(Options::default()).await.unwrap();
        let dependencies = Dependencies::default();
        let opened = ControllerState::open(store, Settings::default(), &dependencies).await;
        let controller = opened.unwrap();
        for number in 0..200 {
            let row = inst(&format!("app{}", number % 50), &format!("place{}", number % 40));
            controller.tables.app_insts.put(Row(row)).await.unwrap();
        }
        let looked_at = |filter: &wire::AppInst| controller.candidates(filter).len();
        assert_eq!(looked_at(&wire::AppInst::default()), 200);
        assert_eq!(looked_at(&inst("app7", "place7")), 1, "a whole key is looked up");
        let mut on_cloudlet = inst("", "place7");
        on_cloudlet.key.as_mut().unwrap().app_key = None;
        let cluster = on_cloudlet.key.as_mut().unwrap().cluster_inst_key.as_mut().unwrap();
        cluster.cluster_key = None;
        assert_eq!(looked_at(&on_cloudlet), 5);
        let mut of_app = inst("app7", "");
        of_app.key.as_mut().unwrap().cluster_inst_key = None;
        assert_eq!(looked_at(&of_app), 4);
    }
}
