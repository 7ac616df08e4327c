//! Showing objects: from memory, through an index where the filter gives one,
//! in the order of keys, without holding anything while the caller reads.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use futures::Stream;
use selvage_api::object::Filter;
use tonic::Status;

use crate::controller::Controller;
use crate::error::Result;
use crate::keys::KeyText;
use crate::tables::{Held, Tabled};

/// How many objects are looked at before others get their turn.
const TURN: usize = 256;

/// A snapshot of objects that goes to a caller at his pace.
#[derive(Debug)]
pub struct Shown<M> {
    rest: vec::IntoIter<Held<M>>,
    filter: Filter,
}

// Nothing in it is pinned.
impl<M> Unpin for Shown<M> {}

impl<M: Tabled> Stream for Shown<M> {
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

impl Controller {
    /// The objects that match a filter.
    pub fn show<M: Tabled>(&self, filter: &M) -> Result<Shown<M>> {
        let compiled = Filter::of(filter)?;
        Ok(Shown { rest: self.candidates(filter).into_iter(), filter: compiled })
    }

    /// As few objects as an index gives that hold all matches.
    fn candidates<M: Tabled>(&self, filter: &M) -> Vec<Held<M>> {
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
