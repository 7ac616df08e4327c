//! The kernel's packet filter, by way of `nft`: told what to do, and asked
//! what it does.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    process::Stdio,
};

use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{Error, Result, error::During, platform::PortForward};

/// Tables of the filter's older form.
const OLDER_TABLES: &str = "/proc/net/ip_tables_names";

/// Does all of it at once, or nothing.
pub(in crate::platform) async fn tell(rules: &str) -> Result<()> {
    run(&["-f", "-"], rules).await.map(drop)
}

/// Fails if there is no packet filter to be told anything.
pub(in crate::platform) async fn answers() -> Result<()> {
    ask(&["list", "tables"]).await.map(drop)
}

async fn ask(arguments: &[&str]) -> Result<Value> {
    let listing = run(&[&["-j"], arguments].concat(), "").await?;
    serde_json::from_slice(&listing)
        .map_err(|error| Error::state(format!("the packet filter speaks in riddles: {error}")))
}

async fn run(arguments: &[&str], input: &str) -> Result<Vec<u8>> {
    let command = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = command.map_err(|_| Error::missing("program nft (package nftables)"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await.during("telling the packet filter")?;
    }
    let output = child.wait_with_output().await.during("telling the packet filter")?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Error::state(format!("the packet filter refused: {}", words.trim())))
}

fn things<'a>(listing: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let all = listing.get("nftables").and_then(Value::as_array).map(Vec::as_slice);
    all.unwrap_or_default().iter().filter_map(move |thing| thing.get(kind))
}

/// The forwards in a table, with how many connections each has had.
pub(in crate::platform) async fn forwards(table: &str) -> Result<BTreeMap<PortForward, u64>> {
    Ok(read_forwards(&ask(&["list", "table", "ip", table]).await?))
}

fn read_forwards(listing: &Value) -> BTreeMap<PortForward, u64> {
    let maps = things(listing, "map").filter_map(|map| map.get("elem")?.as_array());
    maps.flatten().filter_map(read_forward).collect()
}

fn read_forward(element: &Value) -> Option<(PortForward, u64)> {
    let [key, target] = element.as_array()?.as_slice() else { return None };
    let key = key.get("elem")?;
    let count = key.get("counter").and_then(|counter| counter.get("packets")?.as_u64());
    let parts = key.get("val")?.get("concat")?.as_array()?;
    let (address, rest) = match parts.as_slice() {
        [address, rest @ ..] if rest.len() == 2 => (address.as_str()?.parse().ok()?, rest),
        rest => (Ipv4Addr::UNSPECIFIED, rest),
    };
    let [protocol, port] = rest else { return None };
    let udp = match protocol.as_str()? {
        "tcp" => false,
        "udp" => true,
        _ => return None,
    };
    let number = |value: &Value| u16::try_from(value.as_u64()?).ok();
    let [inner, inner_port] = target.get("concat")?.as_array()?.as_slice() else { return None };
    let target = SocketAddrV4::new(inner.as_str()?.parse().ok()?, number(inner_port)?);
    let public = SocketAddrV4::new(address, number(port)?);
    Some((PortForward { udp, public, target }, count.unwrap_or_default()))
}

/// Returns the rule on this machine that drops packets that it passes on to
/// others, those included that it leads elsewhere itself; nothing that can be
/// seen, if none.
pub(in crate::platform) async fn barrier() -> Result<Option<String>> {
    for chain in things(&ask(&["list", "chains"]).await?, "chain") {
        let text = |field: &str| chain.get(field).and_then(Value::as_str).unwrap_or_default();
        let (family, table, name) = (text("family"), text("table"), text("name"));
        if text("hook") != "forward" || !matches!(family, "ip" | "inet") {
            continue;
        }
        // A name that the filter itself cannot read has its policy.
        let rules = ask(&["list", "chain", family, table, name]).await.unwrap_or_default();
        if stops(text("policy"), &rules) {
            return Ok(Some(format!(
                "chain {name} of table {family} {table} drops what is passed on"
            )));
        }
    }
    Ok(older_barrier().await)
}

/// Returns whether what is forwarded does not get through a chain.
fn stops(policy: &str, rules: &Value) -> bool {
    let rules = || things(rules, "rule").filter_map(|rule| rule.get("expr")?.as_array());
    let lets_through = rules().any(|rule| {
        let status = rule.iter().filter_map(|part| part.get("match")).any(|test| {
            let of_status = test.pointer("/left/ct/key").and_then(Value::as_str) == Some("status");
            of_status && test.get("right").is_some_and(|right| right.to_string().contains("dnat"))
        });
        status && rule.iter().any(|part| part.get("accept").is_some())
    });
    let without_question = |part: &Value| {
        let name = part.pointer("/xt/name").and_then(Value::as_str);
        let ends = part.get("drop").or(part.get("reject")).is_some() || name == Some("REJECT");
        (ends || part.get("counter").is_some()).then_some(ends)
    };
    let stops_all = rules().any(|rule| {
        let parts: Option<Vec<bool>> = rule.iter().map(without_question).collect();
        parts.is_some_and(|parts| parts.contains(&true))
    });
    (policy == "drop" || stops_all) && !lets_through
}

/// The same of the filter's older form, which the newer one does not show.
async fn older_barrier() -> Option<String> {
    let tables = std::fs::read_to_string(OLDER_TABLES).ok()?;
    // Merely asking would make a table.
    if !tables.lines().any(|table| table == "filter") {
        return None;
    }
    let output = Command::new("iptables-legacy").args(["-S", "FORWARD"]).output().await.ok()?;
    older_stops(&String::from_utf8_lossy(&output.stdout))
        .then(|| "the chain FORWARD of iptables drops what is passed on".to_owned())
}

fn older_stops(rules: &str) -> bool {
    let stops = ["-P FORWARD DROP", "-A FORWARD -j DROP", "-A FORWARD -j REJECT"];
    let lets_through = |line: &str| line.contains("--ctstate DNAT") && line.ends_with("-j ACCEPT");
    rules.lines().any(|line| stops.iter().any(|stop| line.starts_with(stop)))
        && !rules.lines().any(lets_through)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::json;

    use super::*;

    #[test]
    fn forwards_are_read_from_the_listing_of_nft() {
        let listing = json!({"nftables": [
            {"metainfo": {"version": "1.0.6"}},
            {"map": {"name": "own", "elem": [[
                {"elem": {"val": {"concat": ["10.1.1.1", "tcp", 80]},
                          "counter": {"packets": 7, "bytes": 420}}},
                {"concat": ["10.1.1.2", 8080]},
            ]]}},
            {"map": {"name": "every", "elem": [
                [{"elem": {"val": {"concat": ["udp", 53]}}}, {"concat": ["10.1.1.3", 5353]}],
                [{"elem": {"val": {"concat": ["sctp", 53]}}}, {"concat": ["10.1.1.3", 5353]}],
                [{"elem": {"val": 5}}, "x"],
            ]}},
            {"map": {"name": "empty"}},
        ]});
        let forward = |udp, public: &str, target: &str| PortForward {
            udp,
            public: public.parse().unwrap(),
            target: target.parse().unwrap(),
        };
        let expected = [
            (forward(false, "10.1.1.1:80", "10.1.1.2:8080"), 7),
            (forward(true, "0.0.0.0:53", "10.1.1.3:5353"), 0),
        ];
        assert_eq!(read_forwards(&listing), BTreeMap::from(expected));
        assert_eq!(read_forwards(&Value::Null), BTreeMap::new());
    }

    fn rules(rules: &[Value]) -> Value {
        let rules: Vec<_> = rules.iter().map(|expr| json!({"rule": {"expr": expr}})).collect();
        json!({ "nftables": rules })
    }

    #[test]
    fn a_chain_that_lets_nothing_through_is_seen() {
        let one = json!([{"match": {"left": {"meta": {"key": "iifname"}}, "right": "x"}},
                         {"drop": null}]);
        let reject = json!([{"counter": {"packets": 0}}, {"reject": {"type": "icmpx"}}]);
        let older = json!([{"counter": {"packets": 0}},
                           {"xt": {"type": "target", "name": "REJECT"}}]);
        let led = json!([{"match": {"op": "in", "left": {"ct": {"key": "status"}},
                                    "right": ["snat", "dnat"]}}, {"accept": null}]);
        assert!(!stops("accept", &Value::Null) && stops("drop", &Value::Null));
        assert!(!stops("accept", &rules(std::slice::from_ref(&one))));
        assert!(stops("accept", &rules(&[one, reject.clone()])));
        assert!(stops("accept", &rules(&[older])));
        assert!(!stops("drop", &rules(&[led, reject])));
    }

    /// Does something in a network of its own that is gone afterwards, and so are
    /// its mounts.
    pub(in super::super) fn in_a_network_of_its_own(work: impl AsyncFnOnce() + Send) {
        use nix::sched::CloneFlags;
        use rustix::mount::{MountPropagationFlags, mount_change};
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                nix::sched::unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
                let own = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
                mount_change("/", own).unwrap();
                let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
                tokio.unwrap().block_on(work());
            });
            thread.join().unwrap();
        });
    }

    pub(in super::super) fn can_filter() -> bool {
        let reason = if !rustix::process::geteuid().is_root() {
            "this needs root"
        } else if std::process::Command::new("nft").arg("--version").output().is_err() {
            "nft is not installed: run ./dev test"
        } else {
            return true;
        };
        selvage_testkit::skip("firewalls", reason);
        false
    }

    #[test]
    fn firewalls_of_the_kernel_are_seen() {
        if !can_filter() {
            return;
        }
        let firewall = |hook: &str, policy: &str, rules: &str| {
            format!(
                "table inet guard {{\n}}\ndelete table inet guard\n\
                 table inet guard {{\nchain passing {{\n\
                 type filter hook {hook} priority 0; policy {policy};\n{rules}\n}}\n}}\n"
            )
        };
        in_a_network_of_its_own(async || {
            assert_eq!(barrier().await.unwrap(), None, "a new network has none");
            let seen = "chain passing of table inet guard drops what is passed on";
            let led = "iifname \"lan\" accept\nct status dnat accept";
            for (hook, policy, rules, expected) in [
                ("forward", "drop", "", Some(seen)),
                (
                    "forward",
                    "drop",
                    "ct state established accept\niifname \"lan\" accept",
                    Some(seen),
                ),
                ("forward", "accept", "iifname \"lan\" accept\ncounter reject", Some(seen)),
                ("forward", "drop", led, None),
                ("forward", "accept", "iifname \"lan\" drop", None),
                ("input", "drop", "", None),
            ] {
                tell(&firewall(hook, policy, rules)).await.unwrap();
                let found = barrier().await.unwrap();
                assert_eq!(found.as_deref(), expected, "{hook} {policy} {rules}");
            }
        });
    }

    #[test]
    fn the_older_form_is_read_too() {
        assert!(!older_stops("-P FORWARD ACCEPT\n-A FORWARD -i x -j DROP\n"));
        assert!(older_stops("-P FORWARD DROP\n"));
        assert!(older_stops("-P FORWARD ACCEPT\n-A FORWARD -j REJECT --reject-with x\n"));
        let led = "-P FORWARD DROP\n-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n";
        assert!(!older_stops(led));
    }
}
