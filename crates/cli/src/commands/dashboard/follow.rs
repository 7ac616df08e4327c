//! The stream of updates, opened anew when it ends: a server that is restarted is back
//! within seconds.

use std::time::Duration;

use futures::{Stream, StreamExt, stream::BoxStream};
use selvage_api::selvage::dashboard::{
    OverviewUpdate, WatchOverviewRequest, dashboard_service_client::DashboardServiceClient,
};
use tokio::sync::mpsc;
use tonic::Status;

use crate::{Error, client::Client, target::Target};

/// Interval at which a server that is away is tried again.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// News for the screen.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    /// The first update of a stream, in place of all that was known.
    Whole(OverviewUpdate),
    /// An update of what is known.
    Change(OverviewUpdate),
    /// Reason why there is nothing new.
    Broken(String),
}

pub(super) type Updates = BoxStream<'static, Result<OverviewUpdate, Status>>;

/// Opens a stream over a connection of its own, which lives as long as the stream.
pub(super) async fn open(target: &Target, timeout: Option<Duration>) -> Result<Updates, Error> {
    let client = Client::connect(target, timeout).await?;
    let request = client.request(WatchOverviewRequest::default(), client.limit(true))?;
    let opened = DashboardServiceClient::new(client.channel()).watch_overview(request).await;
    let stream = opened.map_err(|status| client.refused(&status))?.into_inner();
    Ok(stream
        .inspect(move |_| {
            let _kept = &client;
        })
        .boxed())
}

/// Tells what a stream says, and what those after it say, as long as anybody listens.
pub(super) async fn follow<S>(
    mut stream: S,
    retry_interval: Duration,
    open: impl AsyncFn() -> Result<S, Error>,
    news: mpsc::Sender<News>,
) where
    S: Stream<Item = Result<OverviewUpdate, Status>> + Unpin,
{
    loop {
        let why = tell(&mut stream, &news).await;
        if news.send(News::Broken(why)).await.is_err() {
            return;
        }
        stream = loop {
            tokio::time::sleep(retry_interval).await;
            match open().await {
                Ok(stream) => break stream,
                Err(error) if news.send(News::Broken(error.to_string())).await.is_err() => return,
                Err(_) => {}
            }
        };
    }
}

/// Tells of one stream; returns the reason for its end.
async fn tell<S>(stream: &mut S, news: &mpsc::Sender<News>) -> String
where
    S: Stream<Item = Result<OverviewUpdate, Status>> + Unpin,
{
    let mut first = true;
    while let Some(update) = stream.next().await {
        let update = match update {
            Ok(update) if std::mem::take(&mut first) => News::Whole(update),
            Ok(update) => News::Change(update),
            Err(status) => return status.message().to_owned(),
        };
        if news.send(update).await.is_err() {
            break;
        }
    }
    "the server has ended".to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::stream;

    use super::*;

    fn updates(versions: &[u64], end: Option<Status>) -> Updates {
        let said: Vec<_> = versions
            .iter()
            .map(|version| Ok(OverviewUpdate { version: *version, ..OverviewUpdate::default() }))
            .chain(end.map(Err))
            .collect();
        stream::iter(said).boxed()
    }

    #[tokio::test]
    async fn a_server_that_is_restarted_is_followed_again() {
        let (sender, mut news) = mpsc::channel(64);
        let attempts = AtomicU64::new(0);
        let open = async || match attempts.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::invalid("nobody is there")),
            // The next process counts from the start again, and stays.
            1 => Ok(updates(&[1], None).chain(stream::pending()).boxed()),
            _ => unreachable!(),
        };
        let first = updates(&[7, 8], Some(Status::unavailable("broken off")));
        let mut received = Vec::new();
        tokio::select! {
            () = follow(first, Duration::ZERO, open, sender) => {}
            () = async {
                while received.len() < 5 {
                    received.push(news.recv().await.unwrap());
                }
            } => {}
        }
        let update = |version| OverviewUpdate { version, ..OverviewUpdate::default() };
        let expected = [
            News::Whole(update(7)),
            News::Change(update(8)),
            News::Broken("broken off".into()),
            News::Broken("nobody is there".into()),
            News::Whole(update(1)),
        ];
        assert_eq!(received, expected);
    }
}
