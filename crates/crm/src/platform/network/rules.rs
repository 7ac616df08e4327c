//! Rules of the kernel's packet filter for the instances of a cloudlet, as text
//! that `nft` reads.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use super::Range;
use crate::{
    Error, Result,
    platform::{Listener, PortForward},
};

/// Networks that are not public: those of the operator, of the machine and of
/// nobody. Instances reach what [`Egress`] names of them.
pub(in crate::platform) const PRIVATE: [&str; 8] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/3",
];
const DNS: u16 = 53;
/// Files with the machine's name servers; the first that is there counts. A
/// local forwarder cannot be reached from another network.
pub(in crate::platform) const NAME_SERVERS: [&str; 2] =
    ["/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"];

/// Networks that instances may reach though they are not public, and addresses
/// of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress(Vec<Allowed>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Allowed {
    network: Ipv4Addr,
    prefix: u8,
    port: Option<u16>,
}

impl FromStr for Allowed {
    type Err = Error;

    /// Reads `10.1.0.0/16`, `10.1.2.3` or either with `:PORT`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let reason =
                format!("{text:?} is not like 10.1.0.0/16, 10.1.2.3 or either with a :port");
            Error::invalid("crm.egress", reason)
        };
        let (place, port) = match text.split_once(':') {
            Some((place, port)) => (place, Some(port.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let (network, prefix) = place.split_once('/').unwrap_or((place, "32"));
        let network: Ipv4Addr = network.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= 32).ok_or_else(wrong)?;
        if port == Some(0) || u64::from(u32::from(network)) << prefix & u64::from(u32::MAX) != 0 {
            return Err(wrong());
        }
        Ok(Self { network, prefix, port })
    }
}

impl Egress {
    /// Reads `crm.egress`.
    pub fn parse(texts: &[String]) -> Result<Self> {
        texts.iter().map(|text| text.parse()).collect::<Result<_>>().map(Self)
    }

    /// Networks and ports, each as text.
    pub(in crate::platform) fn networks(&self) -> impl Iterator<Item = (String, Option<u16>)> {
        self.0
            .iter()
            .map(|allowed| (format!("{}/{}", allowed.network, allowed.prefix), allowed.port))
    }

    /// Returns whether the operator opened everything, so that nothing has to be
    /// filtered.
    pub(in crate::platform) fn is_open(&self) -> bool {
        self.0.iter().any(|allowed| allowed.prefix == 0 && allowed.port.is_none())
    }

    /// Rules for what is accepted by name, and for the name servers that
    /// instances are told.
    fn accepted(&self) -> String {
        let known = name_servers().into_iter();
        let known = known.map(|network| Allowed { network, prefix: 32, port: Some(DNS) });
        let all = self.0.iter().copied().chain(known);
        all.map(|Allowed { network, prefix, port }| match port {
            Some(port) => format!(
                "ip daddr {network}/{prefix} meta l4proto {{ tcp, udp }} th dport {port} accept\n"
            ),
            None => format!("ip daddr {network}/{prefix} accept\n"),
        })
        .collect()
    }
}

/// Name servers in the file that instances get, as far as they are reached by
/// a network.
pub(in crate::platform) fn name_servers() -> Vec<Ipv4Addr> {
    let text = NAME_SERVERS.iter().find_map(|path| fs::read_to_string(path).ok());
    let servers = text.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        match words.next()?.parse() {
            Ok(IpAddr::V4(server)) if !server.is_loopback() => Some(server),
            _ => None,
        }
    });
    servers.collect()
}

/// The table of one cloudlet.
#[derive(Debug, Clone, Copy)]
pub(in crate::platform) struct Rules<'a> {
    pub(in crate::platform) table: &'a str,
    pub(in crate::platform) bridges: &'a str,
    pub(in crate::platform) range: Range,
    pub(in crate::platform) egress: &'a Egress,
    /// Networks with public addresses that this machine is in.
    pub(in crate::platform) connected: &'a BTreeSet<String>,
}

impl Rules<'_> {
    /// The whole table, in place of whatever was there.
    pub(in crate::platform) fn all(
        &self,
        forwards: Option<&BTreeSet<PortForward>>,
        listeners: &BTreeSet<Listener>,
    ) -> String {
        let Self { table, bridges, range, .. } = self;
        // Naming the table before deleting it makes it right whether or not
        // it was there; all of it takes effect at once.
        let mut rules = format!(
            "table ip {table}\n\
             delete table ip {table}\n\
             table ip {table} {{\n\
             chain leaving {{\n\
             type nat hook postrouting priority 100; policy accept;\n\
             ip saddr {range} ip daddr != {range} oifname != \"{bridges}*\" masquerade\n\
             }}\n"
        );
        rules += &self.filtering();
        if forwards.is_some() {
            rules += &self.arriving();
        }
        rules += "}\n";
        for forward in forwards.into_iter().flatten() {
            rules += &self.element("add", forward);
        }
        for listener in listeners {
            rules += &self.listener(listener);
        }
        rules
    }

    /// Instances reach public addresses, public ports of other instances, and
    /// what is named; nothing else of this machine and of its networks.
    fn filtering(&self) -> String {
        let (bridges, range, accepted) = (self.bridges, self.range, self.egress.accepted());
        let closed = PRIVATE.into_iter().chain(self.connected.iter().map(String::as_str));
        let closed: String = closed.map(|network| format!("ip daddr {network} drop\n")).collect();
        format!(
            "set own_doors {{ type ipv4_addr . inet_proto . inet_service; }}\n\
             set every_door {{ type inet_proto . inet_service; }}\n\
             chain allowed {{\n\
             ct state established,related accept\n\
             {accepted}\
             }}\n\
             chain passing {{\n\
             type filter hook forward priority 0; policy accept;\n\
             iifname != \"{bridges}*\" accept\n\
             ip saddr != {range} drop\n\
             jump allowed\n\
             {closed}\
             }}\n\
             chain entering {{\n\
             type filter hook input priority 0; policy accept;\n\
             iifname != \"{bridges}*\" accept\n\
             ip saddr != {range} drop\n\
             jump allowed\n\
             meta l4proto {{ tcp, udp }} ip daddr . meta l4proto . th dport @own_doors accept\n\
             meta l4proto {{ tcp, udp }} meta l4proto . th dport @every_door accept\n\
             icmp type echo-request accept\n\
             drop\n\
             }}\n"
        )
    }

    /// Instances have no address of IPv6 but those that every interface makes
    /// itself: nothing of theirs is for this machine or for others.
    pub(in crate::platform) fn ipv6(&self) -> String {
        let Self { table, bridges, .. } = self;
        let chain = |hook: &str| {
            format!(
                "chain {hook}_6 {{\n\
                 type filter hook {hook} priority 0; policy accept;\n\
                 iifname \"{bridges}*\" drop\n\
                 }}\n"
            )
        };
        format!(
            "table ip6 {table}\ndelete table ip6 {table}\ntable ip6 {table} {{\n{}{}}}\n",
            chain("input"),
            chain("forward")
        )
    }

    fn arriving(&self) -> String {
        let bridges = self.bridges;
        let there = "ipv4_addr . inet_service";
        let asked = "meta l4proto . th dport";
        format!(
            "map own {{ type ipv4_addr . inet_proto . inet_service : {there}; counter; }}\n\
             map every {{ type inet_proto . inet_service : {there}; counter; }}\n\
             chain arriving {{\n\
             type nat hook prerouting priority -100; policy accept;\n\
             iifname \"lo\" accept\n\
             iifname \"{bridges}*\" accept\n\
             ip daddr 127.0.0.0/8 accept\n\
             fib daddr type != local accept\n\
             meta l4proto {{ tcp, udp }} dnat ip to ip daddr . {asked} map @own\n\
             meta l4proto {{ tcp, udp }} dnat ip to {asked} map @every\n\
             }}\n"
        )
    }

    /// One forward, to be added or deleted.
    pub(in crate::platform) fn element(&self, what: &str, forward: &PortForward) -> String {
        let (table, protocol) = (self.table, protocol(forward.udp));
        let (address, port) = (forward.public.ip(), forward.public.port());
        let key = if address.is_unspecified() {
            format!("every {{ {protocol} . {port}")
        } else {
            format!("own {{ {address} . {protocol} . {port}")
        };
        let (target, inner) = (forward.target.ip(), forward.target.port());
        format!("{what} element ip {table} {key} : {target} . {inner} }}\n")
    }

    /// These listeners and no others.
    pub(in crate::platform) fn listeners(&self, listeners: &BTreeSet<Listener>) -> String {
        let table = self.table;
        let mut rules =
            format!("flush set ip {table} own_doors\nflush set ip {table} every_door\n");
        rules.extend(listeners.iter().map(|listener| self.listener(listener)));
        rules
    }

    fn listener(&self, (udp, at): &Listener) -> String {
        let (table, protocol, port) = (self.table, protocol(*udp), at.port());
        let element = match at.ip() {
            any if any.is_unspecified() => format!("every_door {{ {protocol} . {port} }}"),
            own => format!("own_doors {{ {own} . {protocol} . {port} }}"),
        };
        format!("add element ip {table} {element}\n")
    }
}

fn protocol(udp: bool) -> &'static str {
    if udp { "udp" } else { "tcp" }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::LazyLock;

    use super::*;

    fn egress(texts: &[&str]) -> Result<Egress> {
        Egress::parse(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    fn rules(egress: &Egress) -> Rules<'_> {
        static CONNECTED: LazyLock<BTreeSet<String>> =
            LazyLock::new(|| ["203.0.113.0/24".to_owned()].into());
        let (bridges, range) = ("slvx", Range::default());
        Rules { table: "selvage_slvx", bridges, range, egress, connected: &CONNECTED }
    }

    fn forward(public: &str) -> PortForward {
        let target = "10.101.1.2:8080".parse().unwrap();
        PortForward { udp: false, public: public.parse().unwrap(), target }
    }

    #[test]
    fn only_what_leaves_the_machine_is_given_its_address() {
        let script = rules(&Egress::default()).all(None, &BTreeSet::new());
        let rule =
            "ip saddr 10.101.0.0/16 ip daddr != 10.101.0.0/16 oifname != \"slvx*\" masquerade";
        assert!(script.contains(rule), "{script}");
        assert!(!script.contains("dnat"), "{script}");
    }

    /// The rules of a chain, line by line.
    fn chain<'a>(script: &'a str, hook: &str) -> Vec<&'a str> {
        let begin = script.split(&format!("hook {hook} ")).nth(1).unwrap();
        begin.split("\n}\n").next().unwrap().lines().skip(1).collect()
    }

    #[test]
    fn instances_reach_neither_this_machine_nor_its_networks() {
        let allowed = egress(&["10.1.2.0/24", "192.168.7.9:5432"]).unwrap();
        for forwards in [None, Some(&BTreeSet::new())] {
            let script = rules(&allowed).all(forwards, &BTreeSet::new());
            let passing = chain(&script, "forward");
            let [others, forged, jump, closed @ ..] = &passing[..] else { panic!("{script}") };
            assert_eq!((*others, *jump), ("iifname != \"slvx*\" accept", "jump allowed"));
            assert_eq!(*forged, "ip saddr != 10.101.0.0/16 drop");
            // The machine's own network, too, though it is public.
            for network in ["169.254.0.0/16", "10.0.0.0/8", "203.0.113.0/24"] {
                assert!(closed.contains(&format!("ip daddr {network} drop").as_str()), "{script}");
            }
            let entering = chain(&script, "input");
            assert_eq!(entering.last(), Some(&"drop"), "{script}");
            assert!(script.contains("\nip daddr 10.1.2.0/24 accept\n"), "{script}");
            let named =
                "\nip daddr 192.168.7.9/32 meta l4proto { tcp, udp } th dport 5432 accept\n";
            assert!(script.contains(named), "{script}");
        }
        let script = rules(&allowed).ipv6();
        for hook in ["input", "forward"] {
            assert_eq!(chain(&script, hook), ["iifname \"slvx*\" drop"], "{script}");
        }
    }

    #[test]
    fn what_cannot_be_a_network_is_refused_by_name() {
        for wrong in ["", "all", "10.1.2.3/33", "10.1.2.3/24", "10.1.2.3:0", "fe80::/10", "a:b"] {
            let refused = egress(&[wrong]).unwrap_err().to_string();
            assert!(refused.starts_with("crm.egress: "), "{wrong}: {refused}");
        }
        assert!(egress(&["0.0.0.0/0", "10.0.0.0/8:443"]).is_ok());
    }

    #[test]
    fn a_way_begins_at_its_own_address_or_at_every_one() {
        let allowed = Egress::default();
        let forwards = BTreeSet::from([forward("0.0.0.0:80"), forward("198.51.100.4:80")]);
        let script = rules(&allowed).all(Some(&forwards), &BTreeSet::new());
        assert!(script.contains(" every { tcp . 80 : 10.101.1.2 . 8080 }\n"), "{script}");
        assert!(
            script.contains(" own { 198.51.100.4 . tcp . 80 : 10.101.1.2 . 8080 }"),
            "{script}"
        );
        let listeners = forwards.iter().map(PortForward::listener).collect();
        let script = rules(&allowed).listeners(&listeners);
        assert!(script.contains(" every_door { tcp . 80 }\n"), "{script}");
        assert!(script.contains(" own_doors { 198.51.100.4 . tcp . 80 }\n"), "{script}");
    }
}
