//! Commands in instances: from the controller that was asked, to the one the
//! cloudlet's agent is connected to, to the agent, and back. Where the agent
//! is its CloudletInfo says; when it has just moved, all are asked.
//!
//! The offer and the answer of the two ends are not looked into. An answer is
//! taken from the agent of the cloudlet that the command went to, for the
//! instance it was for, and from nobody else. A request has a random number
//! that our agents send back. The original's do not know it, but send back what
//! they got: so the instance, the command and the offer tell to which call an
//! answer belongs, and calls that are equal in all three get one answer each,
//! in the order in which they were made.

use std::collections::{HashMap, VecDeque};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_kit::identity::Identity;
use tokio::sync::oneshot;

use crate::controller::Controller;
use crate::derive::deployment;
use crate::error::{Error, Result};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};
use crate::registry::owner_of;
use crate::relay::is_agent_of;
use crate::row::StoredObject;

const NO_AGENT: &str = "no matching CRMs";

/// The calls that wait for an agent.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    /// Calls whose answers are recognised without a number.
    waiting: HashMap<String, VecDeque<Pending>>,
    /// Correlation of the call of a number.
    numbers: HashMap<u64, String>,
}

/// A call for which an agent is waited for.
#[derive(Debug)]
struct Pending {
    number: u64,
    instance: wire::AppInstKey,
    sender: oneshot::Sender<wire::ExecRequest>,
}

impl Pending {
    /// Returns true if this is the answer, and comes from the agent that was
    /// asked.
    fn takes(&self, reply: &wire::ExecRequest, from: &Identity) -> bool {
        let instance = reply.app_inst_key.as_ref().unwrap_or(KeyText::empty());
        (reply.id == 0 || reply.id == self.number)
            && *instance == self.instance
            && is_agent_of(from, instance.cluster_inst_or_empty().cloudlet_or_empty())
    }
}

impl Calls {
    fn take(
        &mut self,
        reply: &wire::ExecRequest,
        from: &Identity,
    ) -> Option<oneshot::Sender<wire::ExecRequest>> {
        let correlation = match reply.id {
            0 => correlation(reply),
            number => self.numbers.get(&number)?.clone(),
        };
        let queue = self.waiting.get_mut(&correlation)?;
        let at = queue.iter().position(|pending| pending.takes(reply, from))?;
        queue.remove(at).map(|pending| pending.sender)
    }

    /// A number that no call has, which nobody can guess.
    fn number(&self) -> u64 {
        loop {
            let number = rand::random::<u64>();
            if number != 0 && !self.numbers.contains_key(&number) {
                return number;
            }
        }
    }
}

/// Text that an answer is recognised by.
fn correlation(request: &wire::ExecRequest) -> String {
    let key = request.app_inst_key.as_ref().unwrap_or(KeyText::empty());
    format!("{}\n{}\n{}", key.text(), request.command, request.offer)
}

/// One call; waits no longer once it is dropped.
struct Call<'a> {
    calls: &'a Waiting,
    correlation: String,
    number: u64,
    answer: oneshot::Receiver<wire::ExecRequest>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        calls.numbers.remove(&self.number);
        if let Some(queue) = calls.waiting.get_mut(&self.correlation) {
            queue.retain(|pending| pending.number != self.number);
            if queue.is_empty() {
                calls.waiting.remove(&self.correlation);
            }
        }
    }
}

impl Waiting {
    fn register(&self, request: &wire::ExecRequest) -> Call<'_> {
        let correlation = correlation(request);
        let (sender, answer) = oneshot::channel();
        let mut calls = self.0.lock();
        let number = calls.number();
        let instance = request.app_inst_key.clone().unwrap_or_default();
        let pending = Pending { number, instance, sender };
        calls.waiting.entry(correlation.clone()).or_default().push_back(pending);
        calls.numbers.insert(number, correlation.clone());
        Call { calls: self, correlation, number, answer }
    }

    /// An agent answers. Nobody may be waiting any more, or for somebody else.
    pub(crate) fn answer(&self, reply: wire::ExecRequest, from: &Identity) {
        let sender = self.0.lock().take(&reply, from);
        match sender {
            // Fails when the caller went away at this moment.
            Some(sender) => drop(sender.send(reply)),
            None => tracing::debug!(from = from.name, "an answer that nobody waits for"),
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let calls = self.0.lock();
        calls.waiting.len() + calls.numbers.len()
    }
}

impl Controller {
    /// Runs a command wherever the instance is.
    pub async fn run_command(&self, request: wire::ExecRequest) -> Result<wire::ExecRequest> {
        let key = request.app_inst_key.as_ref().unwrap_or(KeyText::empty());
        if self.tables.get::<wire::AppInst>(key).is_none() {
            return Err(Error::missing(format!("app inst {} not found", key.text())));
        }
        let cloudlet = key.cluster_inst_or_empty().cloudlet_or_empty();
        let info = self.tables.get::<wire::CloudletInfo>(cloudlet);
        let owner = info.as_ref().map_or("", |info| owner_of(&info.value.0));
        let reply = match self.run_command_at(&request, owner).await {
            // It is not where it is said to be, or on its way.
            Err(error) if nobody_there(&error) => {
                self.run_command_anywhere(&request, owner).await.ok_or(error)
            }
            outcome => outcome,
        }?;
        if reply.answer.is_empty() && reply.err.is_empty() {
            return Err(Error::unavailable("no one answered the offer"));
        }
        Ok(reply)
    }

    /// Runs a command through an agent that is connected to this controller.
    pub async fn run_command_here(&self, request: wire::ExecRequest) -> Result<wire::ExecRequest> {
        let timeout = self.exec_timeout(&request);
        let mut call = self.memory.waiting.register(&request);
        let numbered = wire::ExecRequest { id: call.number, ..request };
        if self.send_to_agents(&numbered) == 0 {
            return Err(Error::unavailable(NO_AGENT));
        }
        match tokio::time::timeout(timeout, &mut call.answer).await {
            // The number is of no use to the caller.
            Ok(Ok(reply)) => Ok(wire::ExecRequest { id: 0, ..reply }),
            Ok(Err(_)) => Err(Error::unavailable(NO_AGENT)),
            Err(_) => Err(Error::refused(Code::DeadlineExceeded, "ExecRequest timed out")),
        }
    }

    fn exec_timeout(&self, request: &wire::ExecRequest) -> std::time::Duration {
        let key = request.app_inst_key.as_ref().unwrap_or(KeyText::empty());
        let app = self.tables.get::<wire::App>(key.app_or_empty());
        if app.is_some_and(|app| app.value.0.deployment == deployment::VM) {
            self.settings.timeouts.exec_vm
        } else {
            self.settings.timeouts.exec_container
        }
    }

    /// Runs a command through the controller at an address.
    async fn run_command_at(
        &self,
        request: &wire::ExecRequest,
        address: &str,
    ) -> Result<wire::ExecRequest> {
        if address == self.settings.external_address {
            return self.run_command_here(request.clone()).await;
        }
        let registered = wire::ControllerKey { addr: address.to_owned() };
        if address.is_empty() || self.tables.get::<wire::Controller>(&registered).is_none() {
            return Err(Error::unavailable(NO_AGENT));
        }
        // The other one waits for the agent; it must be able to say so.
        let timeout = self.exec_timeout(request) + self.settings.timeouts.peer;
        let asking = async {
            let connecting = self.connect_peer(address);
            let channel = tokio::time::timeout(self.peer_timeout(), connecting)
                .await
                .unwrap_or_else(|_| Err(Error::unavailable(NO_AGENT)))?;
            let mut client = wire::exec_api_client::ExecApiClient::new(channel);
            let reply = client.send_local_request(request.clone()).await;
            reply.map(tonic::Response::into_inner).map_err(|status| Error::Peer {
                address: address.to_owned(),
                source: Box::new(status),
            })
        };
        tokio::time::timeout(timeout, asking).await.unwrap_or_else(|_| {
            Err(Error::refused(Code::DeadlineExceeded, "ExecRequest timed out"))
        })
    }

    /// Asks all controllers but one at the same time. One that has no agent
    /// for it says so at once, one that is dead holds up nobody.
    async fn run_command_anywhere(
        &self,
        request: &wire::ExecRequest,
        but: &str,
    ) -> Option<wire::ExecRequest> {
        let controllers = self.tables.controllers.list();
        let others = controllers.iter().map(|held| held.value.0.object_key().addr.as_str());
        let mut asked: FuturesUnordered<_> = others
            .filter(|address| *address != but)
            .map(|address| self.run_command_at(request, address))
            .collect();
        while let Some(outcome) = asked.next().await {
            if let Ok(reply) = outcome {
                return Some(reply);
            }
        }
        None
    }
}

/// Returns true if the command has certainly not reached an agent.
fn nobody_there(error: &Error) -> bool {
    match error {
        Error::Connect { .. } => true,
        Error::Peer { source, .. } => source.message() == NO_AGENT,
        error => error.code() == Code::Unavailable && error.to_string() == NO_AGENT,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    use selvage_kit::identity::{Kind, Machine};

    fn request(offer: &str) -> wire::ExecRequest {
        let app_inst_key = Some(instance("one", "west"));
        wire::ExecRequest { app_inst_key, offer: offer.into(), ..Default::default() }
    }

    fn instance(app: &str, cloudlet: &str) -> wire::AppInstKey {
        let operator_key = Some(wire::OperatorKey { name: "tmus".into() });
        let cloudlet_key = Some(wire::CloudletKey { operator_key, name: cloudlet.into() });
        wire::AppInstKey {
            app_key: Some(wire::AppKey { name: app.into(), ..Default::default() }),
            cluster_inst_key: Some(wire::ClusterInstKey { cloudlet_key, ..Default::default() }),
        }
    }

    fn machine(name: &str) -> Identity {
        Identity::machine(Machine::parse(name).unwrap())
    }

    fn west() -> Identity {
        machine("cloudlet/tmus/west")
    }

    fn reply(offer: &str, answer: &str) -> wire::ExecRequest {
        wire::ExecRequest { answer: answer.into(), ..request(offer) }
    }

    #[test]
    fn each_call_gets_its_own_answer_and_leaves_nothing_behind() {
        let waiting = Waiting::default();
        let mut first = waiting.register(&request("a"));
        let mut second = waiting.register(&request("a"));
        let mut other = waiting.register(&request("b"));
        waiting.answer(reply("b", "three"), &west());
        waiting.answer(reply("a", "one"), &west());
        waiting.answer(reply("a", "two"), &west());
        waiting.answer(reply("a", "for nobody"), &west());
        waiting.answer(reply("c", "for nobody"), &west());
        assert_eq!(first.answer.try_recv().unwrap().answer, "one");
        assert_eq!(second.answer.try_recv().unwrap().answer, "two");
        assert_eq!(other.answer.try_recv().unwrap().answer, "three");
        drop((first, second, other));
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn a_number_tells_calls_apart_that_are_equal_otherwise() {
        let waiting = Waiting::default();
        let mut calls = [(); 3].map(|()| waiting.register(&request("a")));
        let numbers: Vec<u64> = calls.iter().map(|call| call.number).collect();
        let numbered =
            |at: usize, answer: &str| wire::ExecRequest { id: numbers[at], ..reply("a", answer) };
        waiting.answer(numbered(2, "three"), &west());
        waiting.answer(numbered(1, "two"), &west());
        waiting.answer(numbered(1, "two again"), &west());
        assert_eq!(calls[2].answer.try_recv().unwrap().answer, "three");
        assert_eq!(calls[1].answer.try_recv().unwrap().answer, "two");
        assert!(calls[0].answer.try_recv().is_err(), "not for this one");

        // One that nobody waits for does not go to an equal call.
        let late = waiting.register(&request("a"));
        let number = late.number;
        drop(late);
        waiting.answer(wire::ExecRequest { id: number, ..reply("a", "late") }, &west());
        assert!(calls[0].answer.try_recv().is_err());
        waiting.answer(reply("a", "of the original's"), &west());
        assert_eq!(calls[0].answer.try_recv().unwrap().answer, "of the original's");
        drop(calls);
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn a_call_that_gave_up_does_not_take_the_answer_of_the_next() {
        let waiting = Waiting::default();
        let first = waiting.register(&request("a"));
        let mut second = waiting.register(&request("a"));
        drop(first);
        waiting.answer(reply("a", "one"), &west());
        assert_eq!(second.answer.try_recv().unwrap().answer, "one");
    }

    /// Whoever knows everything of a call still has to be who was asked.
    #[test]
    fn only_the_agent_that_was_asked_can_answer() {
        let waiting = Waiting::default();
        let mut call = waiting.register(&request("a"));
        let number = call.number;
        let user = Identity {
            name: "ann".into(),
            kind: Kind::User { session: String::new(), expires: 0 },
            grants: Vec::new(),
        };
        for id in [number, 0] {
            let forged = wire::ExecRequest { id, ..reply("a", "forged") };
            for from in [
                machine("cloudlet/tmus/east"),
                machine("cloudlet/att/west"),
                machine("dme/west"),
                machine("node/west"),
                machine("controller"),
                user.clone(),
                Identity::anonymous(),
            ] {
                waiting.answer(forged.clone(), &from);
                assert!(call.answer.try_recv().is_err(), "{id}: {from:?}");
            }
            // The agent of another cloudlet, for an instance of its own.
            let east =
                wire::ExecRequest { app_inst_key: Some(instance("one", "east")), ..forged.clone() };
            waiting.answer(east, &machine("cloudlet/tmus/east"));
            // The right agent, for another instance.
            let other = wire::ExecRequest { app_inst_key: Some(instance("two", "west")), ..forged };
            waiting.answer(other, &west());
            assert!(call.answer.try_recv().is_err(), "{id}");
        }
        waiting.answer(wire::ExecRequest { id: number, ..reply("a", "meant") }, &west());
        assert_eq!(call.answer.try_recv().unwrap().answer, "meant");
    }

    #[test]
    fn numbers_do_not_tell_the_next() {
        let waiting = Waiting::default();
        let calls: Vec<_> = (0..64).map(|_| waiting.register(&request("a"))).collect();
        let near = |pair: &[Call<'_>]| pair[0].number.abs_diff(pair[1].number) < 1 << 32;
        assert!(!calls.windows(2).any(near));
    }
}
