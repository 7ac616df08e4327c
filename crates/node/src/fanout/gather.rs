//! The same call at several nodes, and their answers as one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Extensions, HeaderMap, HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::StreamBody;
use selvage_api::Method;
use selvage_kit::{
    dial::Endpoint,
    serve::relay::{Answer, Here},
};
use tonic::{Status, body::Body};

use super::{Inner, behalf::OnBehalf, body_of, in_time, splice, wire};

/// A node of the request, and where it is.
pub(super) struct Target {
    /// Name as the caller wrote it.
    pub(super) name: String,
    pub(super) endpoint: Result<Endpoint, Status>,
}

/// A call that goes to several nodes.
pub(super) struct Round {
    pub(super) inner: Arc<Inner>,
    pub(super) method: &'static Method,
    pub(super) headers: HeaderMap,
    pub(super) behalf: OnBehalf,
    pub(super) extensions: Extensions,
    /// The request, framed.
    pub(super) body: Bytes,
    pub(super) here: Here,
    pub(super) timeout: Duration,
}

impl Round {
    /// One reply with the messages of all, in the order of the targets.
    pub(super) async fn join(self, targets: Vec<Target>) -> Answer {
        let at_once = self.inner.settings.at_once;
        let round = &self;
        let answers = stream::iter(targets).map(|target| round.reply_of(target));
        let pieces: Vec<Vec<Bytes>> = answers.buffered(at_once).collect().await;
        let framed = wire::framed(pieces.into_iter().flatten().collect())?;
        Ok(response(stream::iter(framed)))
    }

    async fn reply_of(&self, target: Target) -> Vec<Bytes> {
        let Target { name, endpoint } = target;
        let reply = in_time(self.timeout, async {
            let response = self.begin(endpoint).await?;
            wire::only(response).await
        });
        let spliced = reply.await.and_then(|reply| {
            splice::reply(reply, &splice::metadata(&name, ""))
                .map_err(|malformed| Status::internal(malformed.to_string()))
        });
        spliced.unwrap_or_else(|status| {
            tracing::debug!(node = name, %status, "node failed");
            splice::bare(&splice::metadata(&name, &wire::text(&status)))
        })
    }

    /// One stream with the messages of all, as they come.
    pub(super) fn stream(self, targets: Vec<Target>) -> Answer {
        let at_once = self.inner.settings.at_once;
        let round = Arc::new(self);
        let messages = stream::iter(targets)
            .map(move |target| Box::pin(Arc::clone(&round).stream_of(target)))
            .flatten_unordered(at_once);
        Ok(response(messages))
    }

    fn stream_of(self: Arc<Self>, target: Target) -> impl Stream<Item = Bytes> + Send {
        let Target { name, endpoint } = target;
        let opened = async move { in_time(self.timeout, self.begin(endpoint)).await };
        let messages = stream::once(opened).flat_map(|opened| match opened {
            Ok(response) => wire::all(response).boxed(),
            Err(status) => stream::once(async { Err(status) }).boxed(),
        });
        let named = splice::metadata(&name, "");
        messages.map(move |message| match message {
            Ok(message) => framed(&[message, named.clone()]),
            Err(status) => framed(&[splice::metadata(&name, &wire::text(&status))]),
        })
    }

    async fn begin(&self, endpoint: Result<Endpoint, Status>) -> Answer {
        let endpoint = endpoint?;
        let route = self.inner.route(&endpoint, &self.here)?;
        let body = body_of(self.body.clone());
        let mut headers = self.headers.clone();
        if let wire::Route::There(_) = route {
            self.behalf.write(&mut headers, &endpoint)?;
        }
        let mut request = wire::request(&self.method.path, headers, body)?;
        if let wire::Route::Here(_) = route {
            *request.extensions_mut() = self.extensions.clone();
        }
        route.send(request).await
    }
}

/// One message from its pieces. What came in a frame fits in one with a name.
fn framed(pieces: &[Bytes]) -> Bytes {
    let message = pieces.concat();
    let head = splice::frame_head(message.len()).unwrap_or_default();
    [head.as_ref(), &message].concat().into()
}

/// A reply that ends well.
fn response(data: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let end = stream::once(async { Ok::<_, Status>(Frame::trailers(trailers)) });
    let frames = data.map(|data| Ok(Frame::data(data))).chain(end);
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}
