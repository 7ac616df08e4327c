//! Pool of buffers and pipes, which connections borrow while data is moving. An
//! idle connection has neither.

use std::{
    io,
    ops::{Deref, DerefMut},
    os::fd::OwnedFd,
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::{io::Interest, net::TcpStream};

/// Size of a buffer in bytes.
const BUFFER: usize = 64 * 1024;

/// Size of a pipe in bytes, if the kernel allows it.
const PIPE: usize = 1024 * 1024;

/// Maximum number of idle buffers, and of idle pipes.
const IDLE_LIMIT: usize = 64;

/// Limit of pipes: each is two file descriptors.
const PIPES: usize = 1024;

#[derive(Clone, Default)]
pub(crate) struct BufferPool(Arc<Mutex<Pools>>);

#[derive(Default)]
struct Pools {
    buffers: Vec<Box<[u8]>>,
    pipes: Vec<Ends>,
    /// Number of pipes, idle and borrowed.
    made: usize,
}

struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    size: usize,
}

impl BufferPool {
    pub(crate) fn buffer(&self) -> Buffer<'_> {
        let kept = self.0.lock().buffers.pop();
        let bytes = kept.unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice());
        Buffer { bytes, buffer_pool: self }
    }

    /// Returns a pipe; `None` if there are too many, or no file descriptors
    /// left.
    pub(crate) fn pipe(&self) -> Option<Pipe<'_>> {
        let mut pools = self.0.lock();
        if let Some(ends) = pools.pipes.pop() {
            return Some(Pipe { ends: Some(ends), held: 0, buffer_pool: self });
        }
        if pools.made >= PIPES {
            return None;
        }
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // An unprivileged user may be granted less.
        let size = fcntl_setpipe_size(&write, PIPE).unwrap_or(BUFFER);
        pools.made += 1;
        Some(Pipe { ends: Some(Ends { read, write, size }), held: 0, buffer_pool: self })
    }
}

pub(crate) struct Buffer<'a> {
    bytes: Box<[u8]>,
    buffer_pool: &'a BufferPool,
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut pools = self.buffer_pool.0.lock();
        if pools.buffers.len() < IDLE_LIMIT {
            pools.buffers.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// A pipe through which the kernel moves bytes without showing them to us.
pub(crate) struct Pipe<'a> {
    ends: Option<Ends>,
    held: usize,
    buffer_pool: &'a BufferPool,
}

impl Pipe<'_> {
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Takes what a socket has. Only to be called while nothing is held: then
    /// that it would block is said of the socket.
    pub(crate) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Ok(0) };
        let moved = from.try_io(Interest::READABLE, || {
            Ok(splice(from, None, &ends.write, None, ends.size, flags())?)
        })?;
        self.held += moved;
        Ok(moved)
    }

    /// Gives a socket as much as it takes of what is held.
    pub(crate) fn drain(&mut self, to: &TcpStream) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Ok(0) };
        let moved = to.try_io(Interest::WRITABLE, || {
            Ok(splice(&ends.read, None, to, None, self.held, flags())?)
        })?;
        self.held -= moved;
        Ok(moved)
    }
}

fn flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        let mut pools = self.buffer_pool.0.lock();
        // Whoever comes next must not find what belongs to another.
        if self.held == 0
            && pools.pipes.len() < IDLE_LIMIT
            && let Some(ends) = self.ends.take()
        {
            pools.pipes.push(ends);
        } else {
            pools.made -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[tokio::test]
    async fn a_pipe_with_something_in_it_is_not_lent_again() {
        let buffer_pool = BufferPool::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(b"secret").await.unwrap();
        server.readable().await.unwrap();
        let mut pipe = buffer_pool.pipe().unwrap();
        assert_eq!(pipe.fill(&server).unwrap(), 6);
        drop(pipe);
        assert!(buffer_pool.0.lock().pipes.is_empty());
        assert_eq!(buffer_pool.0.lock().made, 0);
        drop(buffer_pool.pipe().unwrap());
        assert_eq!(buffer_pool.0.lock().pipes.len(), 1, "an empty one is kept");
    }

    #[test]
    fn there_are_only_so_many_pipes() {
        let buffer_pool = BufferPool::default();
        buffer_pool.0.lock().made = PIPES - 1;
        let last = buffer_pool.pipe().unwrap();
        assert!(buffer_pool.pipe().is_none());
        drop(last);
        assert!(buffer_pool.pipe().is_some());
    }
}
