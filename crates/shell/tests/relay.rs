//! A relay whose other side takes its time.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use selvage_api::selvage::shell::{
    Piece,
    shell_service_server::{ShellService, ShellServiceServer},
};
use selvage_shell::{Frame, MAX_DATA};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// Smallest window of HTTP/2, so that little is under way.
const WINDOW: u32 = 65_535;
/// More than the window and one of the two channels hold, and less than both.
const FRAMES: usize = 30;

/// The other side of a meeting: what was said so far, and its own voice.
struct Other {
    pieces: Streaming<Piece>,
    _voice: mpsc::Sender<Result<Piece, Status>>,
}

struct Relay(mpsc::Sender<Other>);

#[tonic::async_trait]
impl ShellService for Relay {
    type AttachStream = BoxStream<'static, Result<Piece, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<Piece>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (voice, replies) = mpsc::channel(1);
        let other = Other { pieces: request.into_inner(), _voice: voice };
        self.0.send(other).await.map_err(|_| Status::aborted("the test has ended"))?;
        Ok(Response::new(ReceiverStream::new(replies).boxed()))
    }
}

async fn serve() -> (String, mpsc::Receiver<Other>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (others, met) = mpsc::channel(1);
    let server = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .add_service(ShellServiceServer::new(Relay(others)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    (address, met)
}

/// As when a log is piped into a pager: what was written before the end, and the
/// end itself, are there when somebody reads on.
#[tokio::test]
async fn the_last_words_wait_for_whoever_listens() {
    let (address, mut met) = serve().await;
    let channel = selvage_shell::dial(&address, None).await.unwrap();
    let conversation = selvage_shell::attach(channel, "token".into(), |_| {}).await.unwrap();
    let mut other = met.recv().await.unwrap();
    let (incoming, outgoing, mut carrier) = conversation.split();
    for number in 0..FRAMES {
        let bytes = vec![u8::try_from(number).unwrap(); MAX_DATA];
        outgoing.send(Frame::Data(Bytes::from(bytes))).await.unwrap();
    }
    outgoing.send(Frame::Exit { code: 3, reason: String::new() }).await.unwrap();
    drop((incoming, outgoing));
    let saying = tokio::spawn(async move { carrier.delivered().await });
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    tokio::time::resume();
    assert!(!saying.is_finished(), "nobody has listened yet");

    other.pieces.message().await.unwrap().unwrap();
    for number in 0..FRAMES {
        let piece = other.pieces.message().await.unwrap().unwrap();
        let expected = vec![u8::try_from(number).unwrap(); MAX_DATA];
        assert!(Frame::from_piece(piece).unwrap() == Frame::Data(expected.into()), "{number}");
    }
    let last = other.pieces.message().await.unwrap().unwrap();
    let exit = Frame::Exit { code: 3, reason: String::new() };
    assert_eq!(Frame::from_piece(last).unwrap(), exit);
    assert!(other.pieces.message().await.unwrap().is_none());
    drop(other);
    saying.await.unwrap();
}
