//! Between this process's streams and a command.

use std::{
    io::{Read, Write},
    thread,
};

use bytes::Bytes;
use selvage_shell::{Conversation, Frame, MAX_DATA};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::terminal;
use crate::{Error, session::Session};

/// Offset that a shell adds to the number of the signal that ended a process.
const BY_SIGNAL: i32 = 128;

/// Streams of this process that the command gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecStreams {
    pub(crate) input: bool,
    pub(crate) terminal: bool,
    /// True if what comes must not steer the terminal.
    pub(crate) plain: bool,
}

/// End of a command.
pub(crate) struct End {
    pub(crate) code: i32,
    pub(crate) reason: String,
}

impl ExecStreams {
    pub(crate) async fn run(
        self,
        conversation: Conversation,
        session: &mut Session<'_>,
    ) -> Result<End, Error> {
        let understood = conversation.understood;
        let (incoming, outgoing, carrier) = conversation.split();
        // The first word says that there is somebody; only then it begins.
        let (columns, rows) = if self.terminal { terminal::size() } else { (0, 0) };
        let _ = outgoing.send(Frame::Size { columns, rows }).await;
        if self.input {
            feed(session.io.take_input("the command")?, outgoing.downgrade());
        } else {
            let _ = outgoing.send(Frame::End).await;
        }
        let end = self.hear(incoming, &outgoing, understood, session).await;
        drop(outgoing);
        carrier.finish().await;
        end
    }

    async fn hear(
        self,
        mut incoming: mpsc::Receiver<Frame>,
        outgoing: &mpsc::Sender<Frame>,
        understood: bool,
        session: &mut Session<'_>,
    ) -> Result<End, Error> {
        let mut signals = Signals::new()?;
        loop {
            tokio::select! {
                word = incoming.recv() => match word {
                    Some(Frame::Data(bytes)) => self.print(&bytes, &mut session.io.out)?,
                    Some(Frame::Errors(bytes)) => self.print(&bytes, &mut session.io.err)?,
                    Some(Frame::Exit { code, reason }) => return Ok(End { code, reason }),
                    Some(Frame::End | Frame::Size { .. }) => {}
                    None if understood => return Err(broken()),
                    // The original's crm says no more than this.
                    None => return Ok(End { code: 0, reason: String::new() }),
                },
                event = signals.next() => match event {
                    SignalEvent::Size if self.terminal => {
                        let (columns, rows) = terminal::size();
                        // The command may be about to end.
                        let _ = outgoing.try_send(Frame::Size { columns, rows });
                    }
                    SignalEvent::Size => {}
                    SignalEvent::End(code) => return Ok(End { code, reason: String::new() }),
                },
            }
        }
    }

    fn print(self, bytes: &[u8], out: &mut impl Write) -> Result<(), Error> {
        let written = if self.plain {
            let tame = |byte: &u8| match byte {
                b'\n' | b'\r' | b'\t' => *byte,
                byte if byte.is_ascii_control() => b'?',
                byte => *byte,
            };
            out.write_all(&bytes.iter().map(tame).collect::<Vec<u8>>())
        } else {
            out.write_all(bytes)
        };
        written.and_then(|()| out.flush()).map_err(Error::Output)
    }
}

fn broken() -> Error {
    Error::Status {
        code: selvage_api::Code::Unavailable,
        message: "the connection to the command broke".into(),
        hints: vec!["how the command ended is not known".into()],
    }
}

/// Reads in a thread that nobody waits for: a read from a terminal ends when
/// somebody types, or never. It does not keep the conversation going.
fn feed(mut input: Box<dyn Read + Send>, outgoing: mpsc::WeakSender<Frame>) {
    thread::spawn(move || {
        let mut buffer = vec![0; MAX_DATA];
        loop {
            let read = input.read(&mut buffer).unwrap_or_default();
            let word = match buffer.get(..read) {
                Some(bytes) if read > 0 => Frame::Data(Bytes::copy_from_slice(bytes)),
                _ => Frame::End,
            };
            let last = word == Frame::End;
            let Some(outgoing) = outgoing.upgrade() else { return };
            if outgoing.blocking_send(word).is_err() || last {
                return;
            }
        }
    });
}

/// Signals to this process.
struct Signals {
    size: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let listen =
            |kind| signal(kind).map_err(|error| Error::Unexpected(format!("signals: {error}")));
        Ok(Self {
            size: listen(SignalKind::window_change())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> SignalEvent {
        let kind = tokio::select! {
            _ = self.size.recv() => return SignalEvent::Size,
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hang_up.recv() => SignalKind::hangup(),
        };
        SignalEvent::End(BY_SIGNAL + kind.as_raw_value())
    }
}

enum SignalEvent {
    Size,
    /// This process is to end, with this exit code.
    End(i32),
}
