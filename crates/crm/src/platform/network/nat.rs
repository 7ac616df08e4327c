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
    path::Path,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Mutex, time::Instant};

use super::{
    Networks, conntrack, filter,
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
/// Is there in a kernel that speaks IPv6.
const IPV6: &str = "/proc/sys/net/ipv6";
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
    networks: Networks,
    forwarding: Forwarding,
    egress: Egress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All that could be done was done.
    made: bool,
    /// Why instances are not kept from this machine and its networks; none if
    /// they are.
    unfiltered: Option<String>,
    /// Networks with public addresses that this machine is in, as the rules have
    /// them.
    connected: BTreeSet<String>,
    /// The kernel answered once, before there was anything to filter.
    answered: bool,
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
        networks: Networks,
        forwarding: Forwarding,
        egress: Egress,
    ) -> Self {
        let bridges = namer.bridges();
        let table = format!("selvage_{bridges}");
        Self { table, bridges, networks, forwarding, egress, state: Mutex::default() }
    }

    /// Filters what instances reach, and opens the way out. Fails while there is
    /// no filter: nothing may start then, unless all networks are open to it.
    pub(in crate::platform) async fn open(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        if !state.made {
            // A process before this one may have forwarded somebody: that goes on.
            if self.forwarding != Forwarding::Proxy
                && let Ok(found) = filter::forwards(&self.table).await
            {
                state.inherited = found.into_keys().collect();
            }
            self.make(&mut state).await;
        } else if state.unfiltered.is_some() {
            self.make(&mut state).await;
        }
        self.filtered(&state)
    }

    /// Fails if instances cannot be kept from this machine and its networks,
    /// whether or not there are any yet.
    pub(in crate::platform) async fn check(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        if state.made {
            let connected = self.networks.connected(&self.bridges).await;
            let moved = connected.is_ok_and(|connected| connected != state.connected);
            if moved || state.unfiltered.is_some() {
                if let Ok(counted) = filter::forwards(&self.table).await {
                    state.counted = counted;
                }
                self.make(&mut state).await;
            }
        } else if !state.answered && !self.egress.is_open() {
            filter::answers().await.map_err(|error| not_filtered(&error))?;
            state.answered = true;
        }
        self.filtered(&state)
    }

    fn filtered(&self, state: &State) -> Result<()> {
        match &state.unfiltered {
            Some(reason) if !self.egress.is_open() => Err(not_filtered(reason)),
            _ => Ok(()),
        }
    }

    /// Makes all rules anew, at once. What failed is not tried again for every
    /// cluster, but when somebody wants to start, when the forwards are looked
    /// at or by the next process.
    async fn make(&self, state: &mut State) {
        state.made = true;
        let before = std::mem::take(&mut state.there);
        state.keep_counts(before);
        state.forwards_in = false;
        let known = self.networks.connected(&self.bridges).await;
        let known = known.map(|connected| state.connected = connected);
        let mut obstacle = self.try_to_forward(state).await;
        let filtered = self.filter(state).await;
        let mut unfiltered = known.and(filtered).err().map(|error| error.to_string());
        if let Some(reason) = unfiltered.as_ref().filter(|_| unfiltered != state.unfiltered) {
            tracing::warn!(reason, "instances are not kept from this machine and its networks");
        }
        // Only now: nothing passes on beside the filter.
        if (unfiltered.is_none() || self.egress.is_open())
            && let Err(error) = self.pass_packets()
        {
            obstacle = Some(error.to_string());
            if std::mem::take(&mut state.forwards_in) {
                state.there.clear();
                unfiltered = self.filter(state).await.err().map(|error| error.to_string());
            }
        }
        state.unfiltered = unfiltered;
        let is_news = obstacle != state.obstacle;
        state.obstacle = obstacle;
        let Some(reason) = &state.obstacle else { return };
        state.inherited.clear();
        if is_news && self.forwarding != Forwarding::Proxy {
            tracing::warn!(reason, "public ports are forwarded by the balancer, not by the kernel");
        }
    }

    /// Keeps instances from this machine and its networks, whether or not the
    /// kernel forwards to them.
    async fn filter(&self, state: &State) -> Result<()> {
        if !state.forwards_in {
            filter::tell(&self.rules(state).all(None, &state.listeners)).await?;
        }
        // A kernel without IPv6 has nothing to keep out.
        if !Path::new(IPV6).exists() {
            return Ok(());
        }
        filter::tell(&self.rules(state).ipv6()).await
    }

    /// Makes all rules with the port forwards; why not, if that fails.
    async fn try_to_forward(&self, state: &mut State) -> Option<String> {
        let obstacle = self.obstacle().await;
        if obstacle.is_some() {
            return obstacle;
        }
        let forwards = state.forwards();
        if let Err(error) =
            filter::tell(&self.rules(state).all(Some(&forwards), &state.listeners)).await
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

    fn rules<'a>(&'a self, state: &'a State) -> Rules<'a> {
        let Self { table, bridges, networks, egress, .. } = self;
        Rules { table, bridges, range: networks.range(), egress, connected: &state.connected }
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
                let _ = write!(rules, "{}", self.rules(state).element(what, forward));
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

fn not_filtered(reason: &impl std::fmt::Display) -> Error {
    Error::state(format!(
        "instances cannot be kept from this machine and its networks: {reason} (crm.egress \
         [\"0.0.0.0/0\"] lets them reach everything)"
    ))
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
        if let Err(error) = filter::tell(&self.rules(&state).listeners(&state.listeners)).await {
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
    use std::{os::unix::fs::PermissionsExt, path::PathBuf};

    use selvage_api::edgeproto::CloudletKey;

    use super::super::{
        Range,
        filter::tests::{can_filter, in_a_network_of_its_own},
    };
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
    fn nat(egress: &[&str]) -> Nat {
        let egress: Vec<String> = egress.iter().map(|text| (*text).to_owned()).collect();
        let namer = Namer::new(&CloudletKey::default()).unwrap();
        let egress = Egress::parse(&egress).unwrap();
        let networks = Networks::open(Range::default()).unwrap();
        Nat::new(&namer, networks, Forwarding::Auto, egress)
    }

    fn nft() -> PathBuf {
        let found = std::process::Command::new("sh").args(["-c", "command -v nft"]).output();
        String::from_utf8(found.unwrap().stdout).unwrap().trim().into()
    }

    /// Puts something in the place of the program, for this thread alone.
    fn replace_nft(by: &Path) {
        rustix::mount::mount_bind(by, nft()).unwrap();
    }

    fn passes_packets() -> bool {
        fs::read_to_string(FORWARDING).unwrap().trim() == "1"
    }

    /// Programs in place of nft: one that cannot be run, one that refuses all,
    /// one that refuses the rules for IPv6.
    fn broken(folder: &Path) -> [PathBuf; 3] {
        let own = folder.join("nft");
        fs::copy(nft(), &own).unwrap();
        let without_ipv6 = format!(
            "#!/bin/sh\nsaid=$(cat)\ncase $said in *ip6*) exit 1;; esac\n\
             printf '%s\\n' \"$said\" | {} \"$@\"\n",
            own.display()
        );
        [("none", ""), ("refuses", "#!/bin/sh\nexit 1\n"), ("half", &without_ipv6)].map(
            |(name, script)| {
                let path = folder.join(name);
                fs::write(&path, script).unwrap();
                let mode = if script.is_empty() { 0o600 } else { 0o700 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                path
            },
        )
    }

    #[test]
    fn nothing_starts_and_nothing_passes_without_a_filter() {
        if !can_filter() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for program in &broken(folder.path()) {
            in_a_network_of_its_own(async || {
                fs::write(FORWARDING, "0").unwrap();
                replace_nft(program);
                let nat = nat(&[]);
                // Before there is any instance, it is known where nothing can be told.
                let early = nat.check().await.is_err();
                assert_eq!(early, !program.ends_with("half"), "{program:?}");
                for again in [false, true] {
                    let refused = nat.open().await.unwrap_err().to_string();
                    assert!(refused.starts_with("instances cannot be kept from this"), "{refused}");
                    assert!(!passes_packets(), "{program:?} {again}");
                }
                assert!(nat.check().await.is_err(), "{program:?}");
                // Who opened everything needs no filter.
                let open = self::nat(&["0.0.0.0/0"]);
                open.check().await.unwrap();
                open.open().await.unwrap();
                assert!(passes_packets());
            });
        }
        in_a_network_of_its_own(async || {
            fs::write(FORWARDING, "0").unwrap();
            let nat = nat(&[]);
            nat.check().await.unwrap();
            assert!(!passes_packets(), "there is nothing yet");
            nat.open().await.unwrap();
            assert!(passes_packets());
        });
    }
}
