//! Event loop of one peer: packets, timers and frames, one after the other.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use str0m::{
    Event, IceConnectionState, Input, Output, Rtc,
    channel::{ChannelData, ChannelId},
    net::{Protocol, Receive},
};
use tokio::sync::{mpsc, watch};

use crate::{
    Conversation, Frame, MAX_DATA, Result,
    control::Control,
    conversation::{CHANNEL_CAPACITY, Carrier},
    peer::{CONTROL, DATA, ERRORS},
    sockets::{Packet, Sockets},
};

/// Bytes that may be under way to one of ours that has not taken them.
const WINDOW: u64 = 1024 * 1024;
/// Bytes after which the other end gets an acknowledgement.
const ACK_AFTER: u64 = WINDOW / 8;
/// Bytes that are buffered for a reader that does not read. The original's client
/// does not know when to stop; it is one person's typing.
const MAX_INBOX: usize = 8 * 1024 * 1024;
/// Timeout of a peer that was there and is silent.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the last frames to arrive.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Ids of the channels as they open.
#[derive(Default)]
struct Channels {
    data: Option<ChannelId>,
    errors: Option<ChannelId>,
    control: Option<ChannelId>,
    data_open: bool,
}

/// Bytes of data and of errors, so far.
type Counts = [u64; 2];

/// Incoming frames.
#[derive(Default)]
struct Inbox {
    received: Counts,
    waiting: VecDeque<Frame>,
    buffered: usize,
    /// A frame that comes after so many bytes.
    last: Option<(Counts, Frame)>,
    taken: u64,
    acknowledged: u64,
}

/// Outgoing frames.
#[derive(Default)]
struct Outbox {
    sent: Counts,
    waiting: VecDeque<Frame>,
    controls: VecDeque<Control>,
    /// Bytes that the other end has taken, as it said last.
    taken: u64,
    /// The application has said everything.
    ended: bool,
}

pub(crate) struct Runner {
    rtc: Box<Rtc>,
    sockets: Sockets,
    understood: bool,
    channels: Channels,
    inbox: Inbox,
    outbox: Outbox,
    /// Time at which to stop waiting for the other end.
    give_up: Option<Instant>,
    /// The data channel was closed by either end.
    closed: bool,
    closing: bool,
}

/// The application's ends.
struct Ends {
    incoming: Option<mpsc::Sender<Frame>>,
    outgoing: mpsc::Receiver<Frame>,
    open: watch::Sender<bool>,
}

enum Step {
    Time,
    Packet(Packet),
    Outgoing(Option<Frame>),
    Delivered,
    /// Nobody listens any more.
    Unread,
}

impl Runner {
    pub(crate) fn new(
        rtc: Box<Rtc>,
        sockets: Sockets,
        data: Option<ChannelId>,
        understood: bool,
    ) -> Self {
        Self {
            rtc,
            sockets,
            understood,
            channels: Channels { data, ..Channels::default() },
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            give_up: None,
            closed: false,
            closing: false,
        }
    }

    pub(crate) fn spawn(mut self, arrival_timeout: Duration) -> Conversation {
        let (heard, incoming) = mpsc::channel(CHANNEL_CAPACITY);
        let (outgoing, said) = mpsc::channel(CHANNEL_CAPACITY);
        let (opened, open) = watch::channel(false);
        let understood = self.understood;
        self.give_up = Some(Instant::now() + arrival_timeout);
        let ends = Ends { incoming: Some(heard), outgoing: said, open: opened };
        let carrier = Carrier(tokio::spawn(async move {
            if let Err(error) = self.run(ends).await {
                tracing::debug!(%error, "a direct conversation was cut off");
            }
        }));
        Conversation { incoming, outgoing, understood, open, carrier }
    }

    async fn run(&mut self, mut ends: Ends) -> Result<()> {
        loop {
            let wake = self.advance().await?;
            if self.channels.data_open && !*ends.open.borrow() {
                ends.open.send_replace(true);
            }
            if self.is_over(&ends) {
                return self.close().await;
            }
            match self.wait(&mut ends, wake).await {
                Step::Time => self.rtc.handle_input(Input::Timeout(Instant::now()))?,
                Step::Packet(packet) => self.packet(&packet)?,
                Step::Outgoing(Some(frame)) => self.send(frame),
                Step::Outgoing(None) => self.outbox.ended = true,
                Step::Delivered => self.delivered(),
                Step::Unread => ends.incoming = None,
            }
        }
    }

    /// Returns true if there is nothing left to wait for.
    fn is_over(&mut self, ends: &Ends) -> bool {
        let late = self.give_up.is_some_and(|when| Instant::now() >= when);
        let unread = ends.incoming.is_none();
        let unwanted = unread && ends.outgoing.is_closed() && ends.outgoing.is_empty();
        if late || self.inbox.buffered > MAX_INBOX || (unwanted && !self.channels.data_open) {
            return true;
        }
        // Received data is passed to the application even if no more will come.
        if self.closed || !self.rtc.is_alive() {
            return unread || self.inbox.waiting.is_empty();
        }
        if !self.outbox.ended || !self.is_flushed() {
            return false;
        }
        if !self.understood && !self.closing {
            // To the original's peers this is the end of it.
            self.closing = true;
            self.give_up = Some(Instant::now() + SHUTDOWN_TIMEOUT);
            if let Some(data) = self.channels.data {
                self.rtc.direct_api().close_data_channel(data);
            }
        }
        self.understood && unread
    }

    fn is_flushed(&mut self) -> bool {
        let all = [self.channels.data, self.channels.errors, self.channels.control];
        let empty = self.outbox.waiting.is_empty() && self.outbox.controls.is_empty();
        empty
            && all.into_iter().flatten().all(|id| {
                self.rtc.channel(id).is_none_or(|mut channel| channel.buffered_amount() == 0)
            })
    }

    /// Sends what can be sent, and learns until when nothing happens by
    /// itself. Each change is followed by all that follows from it.
    async fn advance(&mut self) -> Result<Instant> {
        loop {
            let wake = loop {
                match self.rtc.poll_output()? {
                    Output::Timeout(when) => break when,
                    Output::Transmit(packet) => self.sockets.send(&packet).await,
                    Output::Event(event) => self.event(event),
                }
            };
            if !self.write()? {
                return Ok(wake);
            }
        }
    }

    async fn wait(&mut self, ends: &mut Ends, wake: Instant) -> Step {
        let wake = self.give_up.map_or(wake, |when| wake.min(when));
        let listens = self.channels.data_open && self.outbox.waiting.is_empty();
        let hands = !self.inbox.waiting.is_empty();
        tokio::select! {
            () = tokio::time::sleep_until(wake.into()) => Step::Time,
            Some(packet) = self.sockets.receive() => Step::Packet(packet),
            frame = ends.outgoing.recv(), if listens && !self.outbox.ended => Step::Outgoing(frame),
            step = deliver(&ends.incoming, &self.inbox.waiting), if hands => step,
            () = receiver_closed(&ends.incoming), if ends.incoming.is_some() => Step::Unread,
        }
    }

    fn packet(&mut self, packet: &Packet) -> Result<()> {
        let received =
            Receive::new(Protocol::Udp, packet.source, packet.destination, &packet.bytes);
        // Packets that are not of WebRTC are ignored.
        let Ok(received) = received else { return Ok(()) };
        Ok(self.rtc.handle_input(Input::Receive(Instant::now(), received))?)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::ChannelOpen(id, label) => self.opened(id, &label),
            Event::ChannelData(data) => self.received(data),
            Event::ChannelClose(id) if Some(id) == self.channels.data => self.closed = true,
            Event::Closed => self.closed = true,
            Event::IceConnectionStateChange(state) if self.channels.data_open && !self.closing => {
                let silent = state == IceConnectionState::Disconnected;
                self.give_up = silent.then(|| Instant::now() + IDLE_TIMEOUT);
            }
            _ => {}
        }
    }

    fn opened(&mut self, id: ChannelId, label: &str) {
        let channels = &mut self.channels;
        match label {
            CONTROL if self.understood => channels.control = Some(id),
            ERRORS if self.understood => channels.errors = Some(id),
            DATA if channels.data.is_none_or(|data| data == id) => {
                channels.data = Some(id);
                channels.data_open = true;
                self.give_up = None;
            }
            _ => tracing::debug!(label, "a channel that nobody asked for"),
        }
    }

    fn received(&mut self, data: ChannelData) {
        let id = Some(data.id);
        let bytes = Bytes::from(data.data);
        if id == self.channels.control && self.understood {
            match serde_json::from_slice(&bytes) {
                Ok(control) => self.controlled(control),
                Err(error) => tracing::debug!(%error, "not a control"),
            }
            return;
        }
        let errors = id == self.channels.errors && self.understood;
        if !errors && id != self.channels.data {
            return;
        }
        let inbox = &mut self.inbox;
        inbox.received[usize::from(errors)] += bytes.len() as u64;
        inbox.buffered += bytes.len();
        inbox.waiting.push_back(if errors { Frame::Errors(bytes) } else { Frame::Data(bytes) });
        inbox.complete();
    }

    fn controlled(&mut self, control: Control) {
        let inbox = &mut self.inbox;
        if let Some([columns, rows]) = control.resize {
            inbox.waiting.push_back(Frame::Size { columns, rows });
        }
        if let Some(taken) = control.taken {
            self.outbox.taken = taken;
        }
        if let Some(code) = control.exit {
            inbox.last = Some((control.after, Frame::Exit { code, reason: control.reason }));
        } else if control.end {
            inbox.last = Some((control.after, Frame::End));
        }
        inbox.complete();
    }

    /// A frame was taken by the application.
    fn delivered(&mut self) {
        let inbox = &mut self.inbox;
        if let Some(Frame::Data(bytes) | Frame::Errors(bytes)) = inbox.waiting.pop_front() {
            inbox.buffered -= bytes.len();
            inbox.taken += bytes.len() as u64;
        }
        if self.understood && inbox.taken - inbox.acknowledged >= ACK_AFTER {
            inbox.acknowledged = inbox.taken;
            let taken = Some(inbox.taken);
            self.outbox.controls.push_back(Control { taken, ..Control::default() });
        }
    }

    /// The application says something.
    fn send(&mut self, frame: Frame) {
        let outbox = &mut self.outbox;
        let control = |control| Some(control).filter(|_| self.understood);
        let said = match frame {
            Frame::Data(bytes) => return outbox.cut(&bytes, Frame::Data),
            Frame::Errors(bytes) => return outbox.cut(&bytes, Frame::Errors),
            Frame::Size { columns, rows } => {
                control(Control { resize: Some([columns, rows]), ..Control::default() })
            }
            Frame::Exit { code, reason } => {
                let after = outbox.sent;
                control(Control { exit: Some(code), reason, after, ..Control::default() })
            }
            Frame::End => {
                let after = outbox.sent;
                // The original closes the channel where its input ends.
                outbox.ended |= !self.understood;
                control(Control { end: true, after, ..Control::default() })
            }
        };
        outbox.controls.extend(said);
    }

    /// Writes one message, if there is one and it may go now.
    fn write(&mut self) -> Result<bool> {
        if let Some(control) = self.outbox.controls.front() {
            let text = control.text();
            if self.write_to(self.channels.control, false, text.as_bytes())? {
                self.outbox.controls.pop_front();
                return Ok(true);
            }
        }
        let [data, errors] = self.outbox.sent;
        let behind = (data + errors).saturating_sub(self.outbox.taken);
        if self.understood && behind >= WINDOW {
            return Ok(false);
        }
        let (bytes, at) = match self.outbox.waiting.front() {
            Some(Frame::Data(bytes)) => (bytes.clone(), 0),
            Some(Frame::Errors(bytes)) => (bytes.clone(), 1),
            _ => return Ok(false),
        };
        let apart = at == 1 && self.understood;
        let channel = if apart { self.channels.errors } else { self.channels.data };
        let written = self.write_to(channel, true, &bytes)?;
        if written {
            self.outbox.sent[at] += bytes.len() as u64;
            self.outbox.waiting.pop_front();
        }
        Ok(written)
    }

    fn write_to(&mut self, id: Option<ChannelId>, binary: bool, bytes: &[u8]) -> Result<bool> {
        let Some(mut channel) = id.and_then(|id| self.rtc.channel(id)) else { return Ok(false) };
        Ok(channel.write(binary, bytes)?)
    }

    /// Ends it for both.
    async fn close(&mut self) -> Result<()> {
        self.outbox.waiting.clear();
        self.outbox.controls.clear();
        self.rtc.close()?;
        while self.rtc.is_alive() {
            match self.rtc.poll_output()? {
                Output::Timeout(_) => break,
                Output::Transmit(packet) => self.sockets.send(&packet).await,
                Output::Event(_) => {}
            }
        }
        Ok(())
    }
}

/// Gives the first frame to the application, once it can take one. The frame
/// stays where it is until then.
async fn deliver(incoming: &Option<mpsc::Sender<Frame>>, waiting: &VecDeque<Frame>) -> Step {
    let Some(incoming) = incoming else { return Step::Delivered };
    match incoming.reserve().await {
        Ok(permit) => {
            if let Some(frame) = waiting.front() {
                permit.send(frame.clone());
            }
            Step::Delivered
        }
        Err(_) => Step::Unread,
    }
}

async fn receiver_closed(incoming: &Option<mpsc::Sender<Frame>>) {
    match incoming {
        Some(incoming) => incoming.closed().await,
        None => std::future::pending().await,
    }
}

impl Inbox {
    /// The last frame comes when all the bytes before it have.
    fn complete(&mut self) {
        let due = self.last.as_ref().is_some_and(|(after, _)| {
            self.received.iter().zip(after).all(|(received, after)| received >= after)
        });
        if let Some((_, frame)) = self.last.take_if(|_| due) {
            self.waiting.push_back(frame);
        }
    }
}

impl Outbox {
    /// Splits bytes into messages that every peer can receive.
    fn cut(&mut self, bytes: &Bytes, frame: fn(Bytes) -> Frame) {
        let starts = (0..bytes.len()).step_by(MAX_DATA);
        let cuts = starts.map(|start| bytes.slice(start..bytes.len().min(start + MAX_DATA)));
        self.waiting.extend(cuts.map(frame));
    }
}
