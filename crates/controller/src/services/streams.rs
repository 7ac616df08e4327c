//! Replies that are streams.

use std::future::Future;

use futures::{Stream, StreamExt};
use selvage_api::edgeproto as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Response, Status};

use super::Streamed;
use crate::controller::Progress;
use crate::error::Result;
use crate::objects::Summary;

pub(super) fn streamed<M>(
    stream: impl Stream<Item = std::result::Result<M, Status>> + Send + 'static,
) -> Response<Streamed<M>> {
    Response::new(stream.boxed())
}

/// A stream of what the work says while it goes on, and at its end of its
/// error. The work ends by itself whether or not somebody listens.
pub(super) fn with_progress<F>(work: impl FnOnce(Progress) -> F) -> Response<Streamed<wire::Result>>
where
    F: Future<Output = Result<Summary>> + Send + 'static,
{
    let (sender, messages) = mpsc::unbounded_channel();
    let running = tokio::spawn(work(Progress::new(sender)));
    let end = async move {
        match running.await {
            Ok(Ok(summary)) if summary.is_empty() => None,
            Ok(Ok(summary)) => Some(Ok(wire::Result { message: summary, code: 0 })),
            Ok(Err(error)) => Some(Err(error.into())),
            Err(_) => Some(Err(Status::internal("the work was interrupted"))),
        }
    };
    let messages = UnboundedReceiverStream::new(messages).map(Ok);
    let end = futures::stream::once(end).filter_map(std::future::ready);
    streamed(messages.chain(end))
}
