//! The outgoing half of a stream: turns what is queued for a peer into
//! notices, as fast as the peer takes them and no faster.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;
use tonic::Status;

use crate::{
    Kind, ObjectKey, Reach, Role,
    exchange::Outgoing,
    frame::{Action, Frame, MAX_NOTICE},
    hub::{Hub, Lane, Peer, Round},
    stats::{count, count_bytes},
};

/// Interval at which an idle stream checks how far its peer lags behind.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum lag of an idle stream in revisions: a fraction of what a history keeps.
const MAX_LAG: i64 = 1000;

pub(crate) struct Sender {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
    round: Option<Round>,
    tail: VecDeque<Frame>,
    /// The end of sending everything is held back until then at most.
    hold_until: Instant,
    sent_all: bool,
    /// The last revision that the peer was sent, by index of the type.
    sent_revisions: HashMap<usize, i64>,
    sent_scope: u64,
}

/// Reason for which a sender woke up.
enum Woken {
    Work,
    /// Looking whether the peer's revision is far behind.
    Check,
    /// Sign of life.
    Heartbeat,
}

impl Sender {
    pub(crate) fn new(hub: Arc<Hub>, peer: Arc<Peer>, hold_back: Duration) -> Self {
        Self {
            hub,
            peer,
            round: None,
            tail: VecDeque::new(),
            hold_until: Instant::now() + hold_back,
            sent_all: false,
            sent_revisions: HashMap::new(),
            sent_scope: 0,
        }
    }

    /// The next notice, whenever there is one; `None` when the stream ends.
    pub(crate) async fn next(&mut self) -> Option<Result<Frame, Status>> {
        let mut check = false;
        loop {
            if self.peer.ended().is_cancelled() {
                return self.peer.end_status().map(Err);
            }
            if let Some(frame) = self.next_of_round() {
                count_bytes(&self.peer.stats.send_bytes, &frame);
                return Some(Ok(frame));
            }
            if let Some(round) = self.round.take() {
                self.finish(&round, check);
                check = false;
            }
            if let Some(frame) = self.tail.pop_front() {
                count_bytes(&self.peer.stats.send_bytes, &frame);
                return Some(Ok(frame));
            }
            let round = self.peer.gather(self.revisions());
            if check || !round.lanes.is_empty() || (round.may_end && !self.sent_all) {
                self.round = Some(round);
                continue;
            }
            match self.wait().await {
                Woken::Work => check = false,
                Woken::Check => check = true,
                Woken::Heartbeat => {
                    let frame = Frame::bare(Action::None);
                    count_bytes(&self.peer.stats.send_bytes, &frame);
                    return Some(Ok(frame));
                }
            }
        }
    }

    /// Waits for something to do.
    async fn wait(&self) -> Woken {
        let holds = !self.sent_all && self.peer.filtered;
        let now = Instant::now();
        let until = if holds { self.hold_until } else { now + CHECK_INTERVAL };
        let heartbeat = self.peer.liveness.heartbeat;
        tokio::select! {
            () = self.peer.wake.notified() => Woken::Work,
            () = self.peer.ended().cancelled() => Woken::Work,
            () = tokio::time::sleep_until(until), if holds || self.peer.revisions => {
                if holds {
                    // A crm of the original that has no cloudlet yet must not
                    // wait for ever.
                    self.hub.release(&self.peer);
                    return Woken::Work;
                }
                Woken::Check
            }
            () = tokio::time::sleep_until(now + heartbeat.unwrap_or_default()),
                if heartbeat.is_some() => Woken::Heartbeat,
        }
    }

    /// Read before the round is gathered: what is newer is in a later round.
    fn revisions(&self) -> Vec<i64> {
        if !self.peer.revisions {
            return Vec::new();
        }
        let mut revisions = vec![0; self.hub.exchange.sends.len()];
        for (index, source) in self.hub.sources() {
            revisions[index] = source.revision();
        }
        revisions
    }

    fn next_of_round(&mut self) -> Option<Frame> {
        loop {
            let round = self.round.as_mut()?;
            let (index, frame, last) = match round.lanes.front_mut()? {
                Lane::Messages(index, left) => match self.peer.next_message(*index, left) {
                    Some(message) => (*index, message_frame(&self.hub, *index, message), false),
                    None => {
                        round.lanes.pop_front();
                        continue;
                    }
                },
                Lane::Objects(index, keys) => match keys.next() {
                    Some(key) => {
                        let (index, last) = (*index, keys.len() == 0);
                        (index, self.object_frame(index, &key), last)
                    }
                    None => {
                        round.lanes.pop_front();
                        continue;
                    }
                },
            };
            let Some(mut frame) = frame else { continue };
            if frame.encoded_len() > MAX_NOTICE {
                count(&self.peer.stats.marshal_errors);
                let kind = self.hub.kind(index).map(|kind| kind.short_name());
                tracing::warn!(kind, peer = ?self.peer.stream.peer, "an object is too large to be sent");
                continue;
            }
            if last && self.sent_all {
                self.tell(index, &mut frame);
            }
            self.peer.stats.sent(index);
            return Some(frame);
        }
    }

    fn object_frame(&self, index: usize, key: &ObjectKey) -> Option<Frame> {
        let round = self.round.as_ref()?;
        let Some(Outgoing::Objects(source)) = self.hub.exchange.sends.get(index) else {
            return None;
        };
        let kind = source.kind();
        let object = match self.hub.visible(&self.peer, round, index, key) {
            true if self.peer.concealed => source.get_public(key),
            true => source.get(key),
            false => None,
        };
        Some(match object {
            Some(object) => Frame::about(Action::Update, kind.type_url(), object),
            None => Frame::about(Action::Delete, kind.type_url(), kind.only_key(key)),
        })
    }

    /// Puts the round's revision of a type on a notice.
    fn tell(&mut self, index: usize, frame: &mut Frame) {
        let Some(round) = &self.round else { return };
        if let Some(revision) = round.revisions.get(index).copied().filter(|r| *r > 0) {
            (frame.revision, frame.scope) = (revision, self.scope(round, index));
            self.sent_revisions.insert(index, revision);
        }
    }

    fn scope(&self, round: &Round, index: usize) -> u64 {
        let filtered = self.hub.kind(index).is_some_and(|kind| kind.reach() != Reach::Everybody);
        if self.peer.filtered && filtered { round.scope } else { 0 }
    }

    /// Queues what follows a round: once the end of sending everything, and later
    /// revisions of types that had no notice to carry them.
    fn finish(&mut self, round: &Round, check: bool) {
        if !self.sent_all {
            if round.may_end {
                self.end_of_all(round);
            }
            return;
        }
        let moved = self.sent_scope != round.scope;
        for (index, revision) in round.revisions.iter().copied().enumerate() {
            let behind = revision - self.sent_revisions.get(&index).copied().unwrap_or(0);
            let due = moved || (check && behind >= MAX_LAG);
            if due && revision > 0 && self.peer.wants(index) {
                self.push_revision(round, index, revision);
            }
        }
        self.sent_scope = round.scope;
    }

    /// One notice with all revisions: it is most of what a peer gets that
    /// comes back and has missed nothing.
    fn end_of_all(&mut self, round: &Round) {
        let mut end = Frame::bare(Action::SendAllEnd);
        if self.peer.revisions {
            end.last_revision =
                self.peer.by_want(|index| round.revisions.get(index).copied().unwrap_or(0));
            end.scope = if self.peer.filtered { round.scope } else { 0 };
            let resumed = self.peer.by_want(|index| round.resumed.contains(&index));
            end.resumed = (0..).zip(resumed).filter_map(|(at, yes)| yes.then_some(at)).collect();
            self.sent_revisions.extend(round.revisions.iter().copied().enumerate());
            self.sent_scope = round.scope;
        }
        if !end.resumed.is_empty() {
            count(&self.peer.stats.resumed);
        }
        self.tail.push_back(end);
        self.sent_all = true;
        count(&self.peer.stats.send_all);
    }

    fn push_revision(&mut self, round: &Round, index: usize, revision: i64) {
        let Some(kind) = self.hub.kind(index) else { return };
        let frame = Frame::about(Action::None, kind.type_url(), Bytes::new());
        let scope = self.scope(round, index);
        self.tail.push_back(Frame { revision, scope, ..frame });
        self.sent_revisions.insert(index, revision);
    }
}

fn message_frame(hub: &Hub, index: usize, message: Bytes) -> Option<Frame> {
    let kind: &Arc<Kind> = hub.kind(index)?;
    Some(Frame::about(Action::Update, kind.type_url(), message))
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.peer.has_unsent() || self.round.as_ref().is_some_and(|r| !r.lanes.is_empty()) {
            count(&self.peer.stats.send_errors);
        }
        // A client may still have to read why.
        if self.peer.stream.role == Role::Downstream {
            self.peer.end(None);
        }
    }
}
