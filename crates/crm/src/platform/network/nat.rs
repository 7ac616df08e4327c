//! Network address translation between a machine's clusters and other machines,
//! all in one table of the kernel's packet filter. Outward: what an instance
//! sends bears this machine's address. Inward: a client from elsewhere that
//! comes to a public port gets straight to the instance, past the balancer.
//!
//! The balancer listens all the same. It has those whom the kernel leaves
//! alone: clients on this machine, instances that ask for a public port, and
//! everybody while an instance is not healthy or the kernel is of no help.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write,
    fs,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Mutex, time::Instant};

use super::{
    Range, conntrack, filter,
    names::Namer,
    rules::{Egress, Rules},
};
use crate::{
    Error, Result,
    error::During,
    platform::{Connections, Forwarder, Listener, PortForward},
};

/// Switch of the kernel that lets packets be passed on at all.
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// Interval of checking whether connections have ended.
const CONNECTIONS_INTERVAL: Duration = Duration::from_millis(100);

/// Forwarder of clients that come to a public port from other machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Forwarding {
    /// The kernel, unless it cannot or a firewall drops what it passes on.
    #[default]
    Auto,
    /// The kernel, whatever firewalls there are.
    Kernel,
    /// The balancer.
    Proxy,
}

/// The rules of one cloudlet.
pub(in crate::platform) struct Nat {
    table: String,
    bridges: String,
    range: Range,
    forwarding: Forwarding,
    egress: Egress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All that could be done was done.
    made: bool,
    /// Public ports at which the balancer listens, for instances too.
    listeners: BTreeSet<Listener>,
    /// The table has port forwards.
    forwards_in: bool,
    /// Why it has none, as it was told.
    obstacle: Option<String>,
    /// Ways that there should be; those that are not open only keep their
    /// counts.
    wanted: BTreeMap<PortForward, bool>,
    /// Ways that the kernel has.
    there: BTreeSet<PortForward>,
    /// Those of a process before this one that nobody has asked for yet.
    inherited: BTreeSet<PortForward>,
    /// Connections by the forwards that are there, as last seen,
    counted: BTreeMap<PortForward, u64>,
    /// and before those were made.
    earlier: BTreeMap<PortForward, u64>,
}

impl State {
    /// Forwards that the kernel should have.
    fn forwards(&self) -> BTreeSet<PortForward> {
        let open = self.wanted.iter().filter(|(_, open)| **open).map(|(forward, _)| *forward);
        open.chain(self.inherited.iter().copied()).collect()
    }

    /// Keeps the counts of forwards that begin anew.
    fn keep_counts(&mut self, forwards: impl IntoIterator<Item = PortForward>) {
        for forward in forwards {
            if let Some(count) = self.counted.remove(&forward) {
                *self.earlier.entry(forward).or_default() += count;
            }
        }
        self.earlier.retain(|forward, _| self.wanted.contains_key(forward));
    }
}

impl Nat {
    pub(in crate::platform) fn new(
        namer: &Namer,
        range: Range,
        forwarding: Forwarding,
        egress: Egress,
    ) -> Self {
        let bridges = namer.bridges();
        let table = format!("selvage_{bridges}");
        Self { table, bridges, range, forwarding, egress, state: Mutex::default() }
    }

    /// Opens the way out. A machine that cannot do so runs instances all the same.
    pub(in crate::platform) async fn open(&self) {
        let mut state = self.state.lock().await;
        if state.made {
            return;
        }
        // A process before this one may have forwarded somebody: that goes on.
        if self.forwarding != Forwarding::Proxy
            && let Ok(found) = filter::forwards(&self.table).await
        {
            state.inherited = found.into_keys().collect();
        }
        self.make(&mut state).await;
    }

    /// Makes all rules anew, at once. What failed is not tried again for every
    /// cluster, but when the forwards are looked at or by the next process.
    async fn make(&self, state: &mut State) {
        state.made = true;
        let before = std::mem::take(&mut state.there);
        state.keep_counts(before);
        state.forwards_in = false;
        // A kernel without IPv6 has nothing to keep out.
        if let Err(error) = filter::tell(&self.rules().ipv6()).await {
            tracing::debug!(%error, "IPv6 of instances is not filtered");
        }
        let passing = self.pass_packets();
        let obstacle = match &passing {
            Ok(()) => self.try_to_forward(state).await,
            Err(error) => Some(error.to_string()),
        };
        let is_news = obstacle != state.obstacle;
        state.obstacle = obstacle;
        let Some(reason) = &state.obstacle else { return };
        state.inherited.clear();
        // What keeps instances from this machine holds whether or not packets
        // are passed on.
        let loaded = filter::tell(&self.rules().all(None, &state.listeners)).await;
        let outward = passing.and(loaded);
        if is_news && self.forwarding != Forwarding::Proxy {
            tracing::warn!(reason, "public ports are forwarded by the balancer, not by the kernel");
        }
        if is_news && let Err(error) = outward {
            tracing::warn!(%error, "instances reach all ports of this machine, and no other");
        }
    }

    /// Makes all rules with the port forwards; why not, if that fails.
    async fn try_to_forward(&self, state: &mut State) -> Option<String> {
        let obstacle = self.obstacle().await;
        if obstacle.is_some() {
            return obstacle;
        }
        let forwards = state.forwards();
        if let Err(error) = filter::tell(&self.rules().all(Some(&forwards), &state.listeners)).await
        {
            return Some(error.to_string());
        }
        (state.there, state.forwards_in) = (forwards, true);
        None
    }

    fn pass_packets(&self) -> Result<()> {
        if fs::read_to_string(FORWARDING).is_ok_and(|value| value.trim() == "0") {
            fs::write(FORWARDING, "1").during("letting packets through")?;
        }
        Ok(())
    }

    /// Why the kernel shall not or cannot forward anybody.
    async fn obstacle(&self) -> Option<String> {
        match self.forwarding {
            Forwarding::Proxy => Some("the configuration says so".into()),
            Forwarding::Kernel => None,
            Forwarding::Auto => match filter::barrier().await {
                Ok(barrier) => barrier,
                Err(error) => Some(error.to_string()),
            },
        }
    }

    fn rules(&self) -> Rules<'_> {
        let Self { table, bridges, range, egress, .. } = self;
        Rules { table, bridges, range: *range, egress }
    }

    /// Brings the kernel to what is wanted, in one step.
    async fn change(&self, state: &mut State) {
        if !state.forwards_in {
            return;
        }
        let forwards = state.forwards();
        let gone: Vec<PortForward> = state.there.difference(&forwards).copied().collect();
        let fresh: Vec<PortForward> = forwards.difference(&state.there).copied().collect();
        if gone.is_empty() && fresh.is_empty() {
            return;
        }
        if !gone.is_empty()
            && let Ok(counted) = filter::forwards(&self.table).await
        {
            state.counted = counted;
        }
        let mut rules = String::new();
        for (what, forwards) in [("delete", &gone), ("add", &fresh)] {
            for forward in forwards {
                let _ = write!(rules, "{}", self.rules().element(what, forward));
            }
        }
        match filter::tell(&rules).await {
            Ok(()) => {
                state.there = forwards;
                state.keep_counts(gone.iter().copied());
            }
            Err(error) => {
                tracing::warn!(%error, "the forwards to instances are made anew");
                self.make(state).await;
            }
        }
        // Datagrams of one client are one connection for as long as they flow.
        let gone: Vec<PortForward> = gone.into_iter().filter(|forward| forward.udp).collect();
        forget(&gone, Duration::ZERO).await;
    }

    /// Sees whether the kernel still has what it was given, and whether it
    /// could have what it was not.
    async fn look(&self, state: &mut State) {
        let obstacle = self.obstacle().await;
        if !state.forwards_in {
            // Whoever reloads a firewall takes away what protects this machine.
            if obstacle.is_none() || filter::forwards(&self.table).await.is_err() {
                self.make(state).await;
            }
            return;
        }
        match filter::forwards(&self.table).await {
            Ok(found) if found.keys().eq(&state.there) && obstacle.is_none() => {
                state.counted = found;
            }
            found => {
                if obstacle.is_none() {
                    let error = found.err().map(|error| error.to_string());
                    tracing::warn!(error, "somebody changed the forwards to instances");
                }
                self.make(state).await;
            }
        }
    }

    /// Removes all rules.
    pub(in crate::platform) async fn close(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        *state = State::default();
        let table = &self.table;
        let gone =
            |family: &str| format!("table {family} {table}\ndelete table {family} {table}\n");
        // A kernel without IPv6 has no such table.
        let _ = filter::tell(&gone("ip6")).await;
        match filter::tell(&gone("ip")).await {
            Err(Error::Missing { .. }) => Ok(()),
            other => other,
        }
    }
}

#[async_trait]
impl Forwarder for Nat {
    async fn set_listeners(&self, listeners: BTreeSet<Listener>) {
        let mut state = self.state.lock().await;
        if state.listeners == listeners || !state.made {
            state.listeners = listeners;
            return;
        }
        state.listeners = listeners;
        if let Err(error) = filter::tell(&self.rules().listeners(&state.listeners)).await {
            tracing::warn!(%error, "the rules for instances are made anew");
            self.make(&mut state).await;
        }
    }

    async fn set_forwards(&self, forwards: BTreeMap<PortForward, bool>) {
        let mut state = self.state.lock().await;
        let claimed: BTreeSet<_> = forwards.keys().map(PortForward::listener).collect();
        state.inherited.retain(|forward| !claimed.contains(&forward.listener()));
        state.wanted = forwards;
        self.change(&mut state).await;
    }

    async fn settled(&self) {
        let mut state = self.state.lock().await;
        let orphans: Vec<PortForward> = std::mem::take(&mut state.inherited).into_iter().collect();
        self.change(&mut state).await;
        forget(&orphans, Duration::ZERO).await;
    }

    async fn end(&self, forwards: Vec<PortForward>, grace: Duration) {
        if self.state.lock().await.forwards_in {
            forget(&forwards, grace).await;
        }
    }

    async fn connections(&self) -> HashMap<PortForward, Connections> {
        let mut state = self.state.lock().await;
        if state.made {
            self.look(&mut state).await;
        }
        if state.wanted.is_empty() {
            return HashMap::new();
        }
        let entries = match conntrack::list().await {
            Ok(entries) => entries,
            Err(error) => {
                tracing::debug!(%error, "open connections are not known");
                Vec::new()
            }
        };
        let open: Vec<_> = entries.into_iter().filter(conntrack::Entry::is_open).collect();
        let count = |forward: &PortForward| {
            let kept = [&state.counted, &state.earlier];
            let total = kept.iter().filter_map(|counts| counts.get(forward)).sum();
            let active = open.iter().filter(|entry| entry.is_of(forward)).count() as u64;
            (*forward, Connections { active, total })
        };
        state.wanted.keys().map(count).collect()
    }
}

/// Makes the kernel forget who came by these forwards, once their connections have
/// ended or have had their time: what comes afterwards is new.
async fn forget(forwards: &[PortForward], grace: Duration) {
    let until = Instant::now() + grace;
    while !forwards.is_empty() {
        let mut left = match conntrack::list().await {
            Ok(left) => left,
            Err(error) => {
                tracing::debug!(%error, "connections that were forwarded are not known");
                return;
            }
        };
        left.retain(|entry| forwards.iter().any(|forward| entry.is_of(forward)));
        if Instant::now() < until && left.iter().any(conntrack::Entry::wants_time) {
            tokio::time::sleep(CONNECTIONS_INTERVAL).await;
            continue;
        }
        if let Err(error) = conntrack::forget(left).await {
            tracing::debug!(%error, "connections that were forwarded are remembered");
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn forward(public: &str) -> PortForward {
        let target = "10.101.1.2:8080".parse().unwrap();
        PortForward { udp: false, public: public.parse().unwrap(), target }
    }

    #[test]
    fn counts_outlive_the_rules_but_not_the_way() {
        let (one, other) = (forward("0.0.0.0:80"), forward("0.0.0.0:81"));
        let mut state = State {
            wanted: BTreeMap::from([(one, true), (other, false)]),
            counted: BTreeMap::from([(one, 3)]),
            ..State::default()
        };
        assert_eq!(state.forwards(), BTreeSet::from([one]), "the other is not open");
        state.keep_counts([one, other]);
        state.counted.insert(one, 4);
        state.keep_counts([one]);
        assert_eq!(state.earlier, BTreeMap::from([(one, 7)]));
        state.wanted.clear();
        state.keep_counts([]);
        assert_eq!(state.earlier, BTreeMap::new());
    }
}
