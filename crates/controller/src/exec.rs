//! Commands in instances: from the controller that was asked, to the one the
//! cloudlet's agent is connected to, to the agent, and back.
//!
//! The offer and the answer of the two ends are not looked into. The contract
//! has no field for a number of the request, but an agent sends back what it
//! got: so the instance, the command and the offer tell to which call an
//! answer belongs. Calls that are equal in all three get one answer each, in
//! the order in which they were made.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use tokio::sync::oneshot;

use crate::controller::Controller;
use crate::derive::deployment;
use crate::error::{Error, Result};
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};

const NO_AGENT: &str = "no matching CRMs";

/// The calls that wait for an agent.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    waiting: HashMap<String, VecDeque<(u64, oneshot::Sender<wire::ExecRequest>)>>,
}

/// What an answer is recognised by.
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
        if let Some(queue) = calls.waiting.get_mut(&self.correlation) {
            queue.retain(|(number, _)| *number != self.number);
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
        let number = calls.next;
        calls.next += 1;
        calls.waiting.entry(correlation.clone()).or_default().push_back((number, sender));
        Call { calls: self, correlation, number, answer }
    }

    /// An agent answers. Nobody may be waiting any more.
    pub(crate) fn answer(&self, reply: wire::ExecRequest) {
        let sender = {
            let mut calls = self.0.lock();
            let queue = calls.waiting.get_mut(&correlation(&reply));
            queue.and_then(VecDeque::pop_front)
        };
        match sender {
            // Fails when the caller went away at this moment.
            Some((_, sender)) => drop(sender.send(reply)),
            None => tracing::debug!("an answer to a command that nobody waits for"),
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().waiting.len()
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
        let owner = info.map(|info| info.value.0.controller.clone()).unwrap_or_default();
        let reply = if owner == self.settings.controller_id() {
            self.run_command_here(request).await?
        } else {
            self.run_command_there(request, &owner).await?
        };
        if reply.answer.is_empty() && reply.err.is_empty() {
            return Err(Error::unavailable("no one answered the offer"));
        }
        Ok(reply)
    }

    /// Runs a command through an agent that is connected to this controller.
    pub async fn run_command_here(&self, request: wire::ExecRequest) -> Result<wire::ExecRequest> {
        let timeout = self.exec_timeout(&request);
        let mut call = self.memory.waiting.register(&request);
        if self.send_to_agents(&request) == 0 {
            return Err(Error::unavailable(NO_AGENT));
        }
        match tokio::time::timeout(timeout, &mut call.answer).await {
            Ok(Ok(reply)) => Ok(reply),
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

    /// `owner` is how the other controller signs: host@address.
    async fn run_command_there(
        &self,
        request: wire::ExecRequest,
        owner: &str,
    ) -> Result<wire::ExecRequest> {
        let address = owner.rsplit_once('@').map_or("", |(_, address)| address);
        let registered = wire::ControllerKey { addr: address.to_owned() };
        if address.is_empty() || self.tables.get::<wire::Controller>(&registered).is_none() {
            return Err(Error::unavailable(NO_AGENT));
        }
        // The other one waits for the agent; it must be able to say so.
        let timeout = self.exec_timeout(&request) + self.settings.timeouts.peer;
        let asking = async {
            let channel = self.connect_peer(address).await?;
            let mut client = wire::exec_api_client::ExecApiClient::new(channel);
            let reply = client.send_local_request(request).await;
            reply.map(tonic::Response::into_inner).map_err(|status| Error::Peer {
                address: address.to_owned(),
                source: Box::new(status),
            })
        };
        tokio::time::timeout(timeout, asking).await.unwrap_or_else(|_| {
            Err(Error::refused(Code::DeadlineExceeded, "ExecRequest timed out"))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn request(offer: &str) -> wire::ExecRequest {
        wire::ExecRequest { offer: offer.into(), ..Default::default() }
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
        waiting.answer(reply("b", "three"));
        waiting.answer(reply("a", "one"));
        waiting.answer(reply("a", "two"));
        waiting.answer(reply("a", "for nobody"));
        waiting.answer(reply("c", "for nobody"));
        assert_eq!(first.answer.try_recv().unwrap().answer, "one");
        assert_eq!(second.answer.try_recv().unwrap().answer, "two");
        assert_eq!(other.answer.try_recv().unwrap().answer, "three");
        drop((first, second, other));
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn a_call_that_gave_up_does_not_take_the_answer_of_the_next() {
        let waiting = Waiting::default();
        let first = waiting.register(&request("a"));
        let mut second = waiting.register(&request("a"));
        drop(first);
        waiting.answer(reply("a", "one"));
        assert_eq!(second.answer.try_recv().unwrap().answer, "one");
    }
}
