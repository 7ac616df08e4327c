//! Clients on unix sockets and whom they say they call.
//!
//! HTTP/2 clients name the host they call. Stock gRPC clients on a unix
//! socket have none to name, and send its path, its path with the slashes
//! escaped, or nothing, all of which our HTTP library refuses before anybody
//! is asked. [`Lenient`] stands between the socket and HTTP/2 and puts
//! `localhost` in the place of such a name. What the server sends is not
//! touched.
//!
//! The headers of a connection are compressed against those before. So all of
//! them are decompressed here, and handed on plain.

mod frames;
pub mod fuzz;
mod hpack;
mod huffman;
mod table;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;
use tonic::transport::server::Connected;

use self::frames::{Frames, MAX_FRAME};

/// The server's side of an HTTP/2 connection whose client may call nobody.
/// Reading begins with the preface.
pub struct Lenient<S> {
    stream: S,
    frames: Frames,
    /// Input that waits for the rest of its frame.
    input: BytesMut,
    /// Output that can be handed on.
    output: BytesMut,
}

impl<S> Lenient<S> {
    pub fn new(stream: S) -> Self {
        let (input, output) = (BytesMut::new(), BytesMut::new());
        Self { stream, frames: Frames::new(), input, output }
    }
}

impl<S: Connected> Connected for Lenient<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lenient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.output.is_empty() {
                this.frames.advance(&mut this.input, &mut this.output).map_err(|error| {
                    tracing::debug!(%error, "cannot read what the client sends");
                    io::Error::new(io::ErrorKind::InvalidData, error)
                })?;
            }
            if !this.output.is_empty() {
                let step = this.output.len().min(buffer.remaining());
                buffer.put_slice(&this.output[..step]);
                this.output.advance(step);
                return Poll::Ready(Ok(()));
            }
            this.input.reserve(MAX_FRAME.saturating_sub(this.input.len()));
            let stream = Pin::new(&mut this.stream);
            if ready!(poll_read_buf(stream, context, &mut this.input))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lenient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
