//! Connections to nodes: made when first needed, kept while they are used.

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::{io::AsyncRead, io::AsyncWrite, net::TcpStream, time::Instant};
use tokio_rustls::TlsConnector;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use super::Place;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// The same for all of several places together.
const ALL: Duration = Duration::from_secs(8);
/// A node that does not say that it lives is asked, and given up.
const ASK_AFTER: Duration = Duration::from_secs(20);
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// Connections that are kept; beyond it the longest unused one goes.
const MOST: usize = 4096;

pub(super) struct Pool {
    tls: Option<TlsConnector>,
    idle: Duration,
    kept: Mutex<HashMap<Place, Kept>>,
}

struct Kept {
    channel: Channel,
    used: Instant,
}

impl Pool {
    /// Without TLS everything is in the clear, for laboratories.
    pub(super) fn new(tls: Option<Arc<rustls::ClientConfig>>, idle: Duration) -> Self {
        Self { tls: tls.map(TlsConnector::from), idle, kept: Mutex::default() }
    }

    /// The connection to a place. A call over it connects when need be.
    pub(super) fn channel(&self, place: &Place) -> Result<Channel, Status> {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        if let Some(found) = kept.get_mut(place) {
            found.used = now;
            return Ok(found.channel.clone());
        }
        if kept.len() >= MOST
            && let Some(oldest) = kept.iter().min_by_key(|(_, kept)| kept.used)
        {
            let oldest = oldest.0.clone();
            kept.remove(&oldest);
        }
        let channel = self.connect(place)?;
        kept.insert(place.clone(), Kept { channel: channel.clone(), used: now });
        Ok(channel)
    }

    /// Lets go of what nobody has used for a while. Calls under way keep
    /// their connection to their end.
    pub(super) fn sweep(&self) {
        self.kept.lock().retain(|_, kept| kept.used.elapsed() < self.idle);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.lock().len()
    }

    fn connect(&self, place: &Place) -> Result<Channel, Status> {
        channel(self.tls.clone(), place)
    }
}

/// A connection that is made when it is first used, and anew when it broke.
pub(crate) fn channel(tls: Option<TlsConnector>, place: &Place) -> Result<Channel, Status> {
    channel_to_first(tls, std::slice::from_ref(place))
}

/// The same to the first of several places that is there, each time that a
/// connection is made.
pub(crate) fn channel_to_first(
    tls: Option<TlsConnector>,
    places: &[Place],
) -> Result<Channel, Status> {
    let first = places.first().ok_or_else(|| Status::invalid_argument("no place to go to"))?;
    let endpoint = Endpoint::from_shared(format!("http://{first}"))
        .map_err(|error| Status::invalid_argument(format!("{first}: {error}")))?
        .http2_keep_alive_interval(ASK_AFTER)
        .keep_alive_timeout(GIVE_UP_AFTER);
    let places = places.to_vec();
    let connector = tower::service_fn(move |_: http::Uri| {
        let (tls, places) = (tls.clone(), places.clone());
        async move { open_first(tls, &places).await.map(TokioIo::new) }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

async fn open_first(tls: Option<TlsConnector>, places: &[Place]) -> io::Result<Box<dyn Stream>> {
    let mut failures: Vec<(String, io::Error)> = Vec::new();
    // Whoever waits for an answer waits for all of this.
    let each = match u32::try_from(places.len()).unwrap_or(u32::MAX) {
        0 | 1 => CONNECT,
        several => ALL / several,
    };
    for place in places {
        let opened = tokio::time::timeout(each, open(tls.clone(), place)).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        match opened.unwrap_or_else(|_| Err(late())) {
            Ok(stream) => return Ok(stream),
            Err(error) => failures.push((place.to_string(), error)),
        }
    }
    if failures.len() < 2 {
        return Err(failures.pop().map_or_else(|| io::ErrorKind::NotConnected.into(), |one| one.1));
    }
    let told: Vec<_> = failures.iter().map(|(place, error)| format!("{place}: {error}")).collect();
    Err(io::Error::other(told.join("; ")))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn open(tls: Option<TlsConnector>, place: &Place) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((place.host.as_str(), place.port)).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(place.server_name().to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(tls.connect(name, stream).await?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn of_several_places_the_first_is_taken_that_is_there() {
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place =
            |of: &tokio::net::TcpListener| Place::new("127.0.0.1", of.local_addr().unwrap().port());
        let (absent, present) = (place(&gone), place(&there));
        drop(gone);
        let places = [absent.clone(), present];
        let (opened, met) = tokio::join!(open_first(None, &places), there.accept());
        assert!(opened.is_ok() && met.is_ok());
        let error = open_first(None, &[absent.clone(), absent.clone()]).await.err().unwrap();
        let told = error.to_string();
        assert_eq!(told.matches(&absent.to_string()).count(), 2, "{told}");
        let error = open_first(None, &[absent]).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_used_is_let_go() {
        let pool = Pool::new(None, Duration::from_secs(900));
        pool.channel(&Place::new("a", 1)).unwrap();
        tokio::time::advance(Duration::from_secs(600)).await;
        pool.channel(&Place::new("b", 1)).unwrap();
        pool.channel(&Place::new("b", 1)).unwrap();
        assert_eq!(pool.len(), 2);
        tokio::time::advance(Duration::from_secs(400)).await;
        pool.sweep();
        assert_eq!(pool.len(), 1);
    }
}
