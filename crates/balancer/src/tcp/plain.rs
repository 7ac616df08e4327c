//! Two sockets joined.
//!
//! Data that comes in small pieces is copied: that costs two system calls and
//! no file descriptor. What comes in bulk goes through a pipe in the kernel.

use std::{io, sync::atomic::AtomicU64};

use futures::{FutureExt, TryFutureExt, future::try_join};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use super::{BufferPool, Meter, bounded, buffer_pool::Pipe, reset};
use crate::{frontend::Frontend, target::Lease};

/// A piece from this size on is a sign of bulk.
const LARGE: usize = 32 * 1024;

/// A piece below this size is a sign that a pipe is not worthwhile.
const SMALL: usize = 8 * 1024;

/// Number of signs in a row after which the way of copying changes.
const SIGNS: u32 = 4;

/// Moves bytes both ways until both sides are done. When it did not end well,
/// both sides are reset.
pub(crate) async fn join(
    frontend: &Frontend,
    lease: &Lease,
    mut client: TcpStream,
    mut target: TcpStream,
) -> io::Result<()> {
    let activity = AtomicU64::new(0);
    let ended = {
        let (from_client, to_client) = client.split();
        let (from_target, to_target) = target.split();
        let buffer_pool = &frontend.context.buffer_pool;
        let inward = Meter::inward(&frontend.counters, &activity);
        let outward = Meter::outward(&frontend.counters, &activity);
        let both = try_join(
            one_way(from_client, to_target, inward, buffer_pool).map(settle),
            one_way(from_target, to_client, outward, buffer_pool).map(settle),
        );
        let both = both.and_then(async |results| match results {
            (None, None) => Ok(()),
            (Some(error), _) | (_, Some(error)) => Err(error),
        });
        bounded(both, &activity, frontend.context.limits.tcp_idle, &lease.0.cut).await
    };
    if ended.is_err() {
        reset(&client);
        reset(&target);
    }
    ended
}

/// Side on which a direction failed.
enum Ended {
    Reading(io::Error),
    Writing(io::Error),
}

/// A side that takes nothing any more may have said something before: the
/// other direction goes on until that was read. A side that cannot be read
/// from is gone.
fn settle(ended: Result<(), Ended>) -> io::Result<Option<io::Error>> {
    match ended {
        Ok(()) => Ok(None),
        Err(Ended::Writing(error)) => Ok(Some(error)),
        Err(Ended::Reading(error)) => Err(error),
    }
}

/// Pace at which bytes have come lately.
#[derive(Default)]
struct Pace {
    bulk: bool,
    signs: u32,
}

impl Pace {
    fn note(&mut self, moved: usize) {
        let sign = if self.bulk { moved < SMALL } else { moved >= LARGE };
        self.signs = if sign { self.signs + 1 } else { 0 };
        if self.signs == SIGNS {
            *self = Self { bulk: !self.bulk, signs: 0 };
        }
    }
}

/// Moves bytes until there are no more, then says so to the other side.
async fn one_way(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    meter: Meter<'_>,
    buffer_pool: &BufferPool,
) -> Result<(), Ended> {
    let mut pace = Pace::default();
    loop {
        from.readable().await.map_err(Ended::Reading)?;
        let pipe = if pace.bulk { buffer_pool.pipe() } else { None };
        let moved = match pipe {
            Some(pipe) => splice_some(&from, &to, pipe, meter, &mut pace).await?,
            None => copy_some(&mut from, &mut to, buffer_pool, meter, &mut pace).await?,
        };
        if !moved {
            break;
        }
        // Others want to run, even if this one always has something.
        tokio::task::consume_budget().await;
    }
    match to.shutdown().await {
        // It went before it was told.
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(Ended::Writing(error)),
        _ => Ok(()),
    }
}

/// One piece through memory. Answers whether there may be more.
async fn copy_some(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    buffer_pool: &BufferPool,
    meter: Meter<'_>,
    pace: &mut Pace,
) -> Result<bool, Ended> {
    let mut buffer = buffer_pool.buffer();
    let count = from.read(&mut buffer).await.map_err(Ended::Reading)?;
    if count == 0 {
        return Ok(false);
    }
    to.write_all(&buffer[..count]).await.map_err(Ended::Writing)?;
    meter.count(count);
    pace.note(count);
    Ok(true)
}

/// Splices what is there through a pipe, as long as there is something. Answers
/// whether there may be more later.
async fn splice_some(
    from: &ReadHalf<'_>,
    to: &WriteHalf<'_>,
    mut pipe: Pipe<'_>,
    meter: Meter<'_>,
    pace: &mut Pace,
) -> Result<bool, Ended> {
    while pace.bulk {
        match pipe.fill(from.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(moved) => pace.note(moved),
            // Whoever has bytes to move gets the pipe meanwhile.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(Ended::Reading(error)),
        }
        while pipe.held() > 0 {
            match pipe.drain(to.as_ref()) {
                Ok(moved) => meter.count(moved),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    to.writable().await.map_err(Ended::Writing)?;
                }
                Err(error) => return Err(Ended::Writing(error)),
            }
        }
        tokio::task::consume_budget().await;
    }
    Ok(true)
}
