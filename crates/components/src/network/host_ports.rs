//! Ports of the machine that lead to pods (`hostPort`): the CNI plugin `portmap`
//! forwards them, and what it leaves is removed here.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{note, run};
use crate::{Result, artifact};

/// Name of the network of pods, which stands in the plugin's rules.
pub(crate) const NETWORK: &str = "pods";
const PLUGIN: &str = "portmap";
/// Table that the plugin makes with nftables. Only one that knows it has its name in it.
const NFT_TABLE: &str = "cni_hostport";
/// Chains that the plugin makes with iptables.
const ENTRY: &str = "CNI-HOSTPORT-DNAT";
const SHARED: [&str; 3] = [ENTRY, "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"];
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// Abilities of the installed plugin, read once for each file.
static INSTALLED: Mutex<Option<Installed>> = Mutex::new(None);

struct Installed {
    path: PathBuf,
    modified: SystemTime,
    knows_nftables: bool,
}

/// Returns the plugin as a list of plugins has it; none where it is not installed, or has
/// nothing to work with: it would then fail for pods without such ports too.
pub(crate) fn plugin(folder: &Path) -> Option<Value> {
    let program = folder.join(PLUGIN);
    let mut plugin = json!({
        "type": PLUGIN,
        "capabilities": { "portMappings": true },
        "snat": true,
    });
    // Earlier versions have iptables alone.
    if knows_nftables(&program)? {
        plugin["backend"] = json!("nftables");
        return Some(plugin);
    }
    artifact::installed("", "iptables").map(|_| plugin)
}

fn knows_nftables(program: &Path) -> Option<bool> {
    let modified = fs::metadata(program).ok()?.modified().ok()?;
    let mut installed = INSTALLED.lock();
    if let Some(known) = &*installed
        && known.path == program
        && known.modified == modified
    {
        return Some(known.knows_nftables);
    }
    let content = fs::read(program).ok()?;
    let knows_nftables = content.windows(NFT_TABLE.len()).any(|part| part == NFT_TABLE.as_bytes());
    *installed = Some(Installed { path: program.to_owned(), modified, knows_nftables });
    Some(knows_nftables)
}

/// Removes what the plugin left for pods that ended with the machine's membership.
pub(super) async fn remove(removed: &mut Vec<String>, left: &mut Vec<String>) {
    for family in FAMILIES {
        if run("nft", &["list", "table", family, NFT_TABLE], None).await.is_ok() {
            let gone = run("nft", &["delete", "table", family, NFT_TABLE], None).await;
            note(format!("nftables {family} {NFT_TABLE}"), gone, removed, left);
        }
    }
    // Without it the plugin did nothing.
    if artifact::installed("", "iptables-save").is_none() {
        return;
    }
    match remove_chains().await {
        Ok(false) => {}
        gone => note("chains of host ports".into(), gone, removed, left),
    }
    for family in FAMILIES {
        let table = run("nft", &["list", "table", family, "nat"], None).await;
        // The plugin asks for it with each pod that ends.
        if table.is_ok_and(|text| is_empty(&text)) {
            let gone = run("nft", &["delete", "table", family, "nat"], None).await;
            note(format!("nftables {family} nat"), gone, removed, left);
        }
    }
}

async fn remove_chains() -> Result<bool> {
    // Where the kernel has no such table, the plugin made nothing in it.
    let saved = run("iptables-save", &["-t", "nat"], None).await.unwrap_or_default();
    let Some(commands) = removal(&saved) else { return Ok(false) };
    run("iptables-restore", &["--noflush", "--wait"], Some(&commands)).await?;
    Ok(true)
}

/// Returns what `iptables-restore` has to do with a table to remove the ports of our pods;
/// none where there are none. Chains that all networks share go with the last port.
fn removal(saved: &str) -> Option<String> {
    let comment = format!(r#"name: \"{NETWORK}\""#);
    let entries = || saved.lines().filter(|line| line.starts_with(&format!("-A {ENTRY} ")));
    let (ours, others): (Vec<&str>, Vec<&str>) =
        entries().partition(|line| line.contains(&comment));
    if ours.is_empty() && !saved.contains(&format!(":{ENTRY} ")) {
        return None;
    }
    let deleted = |line: &str| line.replacen("-A ", "-D ", 1);
    let mut commands: Vec<String> = ours.iter().map(|line| deleted(line)).collect();
    let mut chains: Vec<&str> =
        ours.iter().filter_map(|line| line.rsplit_once(" -j ").map(|(_, chain)| chain)).collect();
    if others.is_empty() {
        let jumps = saved.lines().filter(|line| {
            let target = line.rsplit_once(" -j ").map(|(_, target)| target);
            line.starts_with("-A ")
                && target.is_some_and(|target| SHARED.contains(&target))
                && !line.starts_with("-A CNI-")
        });
        commands.extend(jumps.map(deleted));
        let known = |chain: &&str| saved.contains(&format!(":{chain} "));
        chains.extend(SHARED.into_iter().filter(known));
    } else if ours.is_empty() {
        return None;
    }
    chains.sort_unstable();
    chains.dedup();
    commands.extend(chains.iter().map(|chain| format!("-F {chain}")));
    commands.extend(chains.iter().map(|chain| format!("-X {chain}")));
    Some(format!("*nat\n{}\nCOMMIT\n", commands.join("\n")))
}

/// Returns whether a table has no rule, and no chain but those that every table of its
/// kind has.
fn is_empty(table: &str) -> bool {
    const USUAL: [&str; 4] = ["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"];
    table.lines().map(str::trim).filter(|line| !line.is_empty()).all(|line| {
        match line.strip_prefix("chain ") {
            Some(chain) => USUAL.iter().any(|usual| chain == format!("{usual} {{")),
            None => {
                line == "}"
                    || line.starts_with("table ")
                    || line.starts_with("type nat hook ") && line.ends_with("policy accept;")
            }
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;

    const SAVED: &str = r#"*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-DN-aaa - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-DN-aaa -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.2:80
-A CNI-DN-aaa -s 127.0.0.1/32 -p tcp -j CNI-HOSTPORT-SETMARK
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"pods\" id: \"a\"" -j CNI-DN-aaa
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
COMMIT
"#;

    #[test]
    fn ports_of_our_pods_go_and_those_of_others_stay() {
        let all = removal(SAVED).unwrap();
        assert!(all.contains(r#"-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat"#), "{all}");
        assert!(all.contains("-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT"));
        assert!(all.contains("-D POSTROUTING") && all.contains("-X CNI-HOSTPORT-MASQ"), "{all}");
        assert!(!all.contains("-D CNI-DN"), "what is in a chain goes with it: {all}");

        let other = "-A CNI-HOSTPORT-DNAT -m comment --comment \"dnat name: \\\"bridge\\\" \
                     id: \\\"b\\\"\" -j CNI-DN-bbb\nCOMMIT\n";
        let both = removal(&SAVED.replace("COMMIT\n", other)).unwrap();
        assert!(both.contains("-X CNI-DN-aaa"), "{both}");
        assert!(!both.contains("bbb") && !both.contains("-X CNI-HOSTPORT"), "{both}");
        assert!(!both.contains("PREROUTING"), "{both}");

        assert_eq!(removal("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"), None);
        let foreign = SAVED.replace(r#"\"pods\""#, r#"\"bridge\""#);
        assert_eq!(removal(&foreign), None);
    }

    #[test]
    fn a_table_with_anything_in_it_stays() {
        let chain =
            "\tchain PREROUTING {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n";
        assert!(is_empty("table ip nat {\n}\n"));
        assert!(is_empty(&format!("table ip nat {{\n{chain}\t}}\n}}\n")));
        assert!(!is_empty(&format!("table ip nat {{\n{chain}\t\ttcp dport 80 accept\n\t}}\n}}\n")));
        assert!(!is_empty("table ip nat {\n\tchain DOCKER {\n\t}\n}\n"));
    }

    #[test]
    fn the_plugin_uses_what_it_can() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(plugin(folder.path()), None, "it is not installed");
        let program = folder.path().join(PLUGIN);
        fs::write(&program, "\0\u{1}table cni_hostport\0").unwrap();
        assert_eq!(plugin(folder.path()).unwrap()["backend"], "nftables");
        let older = folder.path().join("older");
        fs::write(&older, "iptables only").unwrap();
        fs::rename(&older, &program).unwrap();
        fs::File::open(&program).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(knows_nftables(&program), Some(false));
    }

    /// A network of its own for a test.
    struct Namespace(String);

    impl Namespace {
        fn open() -> Option<Self> {
            let plugin = artifact::installed("cni", PLUGIN);
            let tools = artifact::installed("", "iptables-save").and(plugin);
            if !rustix::process::geteuid().is_root() || tools.is_none() {
                selvage_testkit::skip(
                    "ports of the machine",
                    "they need root, iptables and portmap",
                );
                return None;
            }
            let namespace = Self(format!("slv-ports-{}", std::process::id()));
            let made = Command::new("ip").args(["netns", "add", &namespace.0]).status();
            assert!(made.unwrap().success());
            Some(namespace)
        }

        /// Runs a program in it; returns what it prints.
        fn run(&self, program: &[&str], environment: &[(&str, &str)], input: &str) -> String {
            let mut child = Command::new("ip")
                .args(["netns", "exec", &self.0])
                .args(program)
                .envs(environment.iter().copied())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{program:?}: {text}");
            text
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
        }
    }

    #[test]
    fn what_the_installed_plugin_leaves_is_removed() {
        let Some(namespace) = Namespace::open() else { return };
        let link = ["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"];
        namespace.run(&link, &[], "");
        namespace.run(&["ip", "address", "add", "10.88.0.1/24", "dev", "v0"], &[], "");
        for end in ["v0", "v1"] {
            namespace.run(&["ip", "link", "set", end, "up"], &[], "");
        }
        let program = artifact::installed("cni", PLUGIN).unwrap();
        let mut asked = plugin(program.parent().unwrap()).unwrap();
        asked["cniVersion"] = json!("0.4.0");
        asked["name"] = json!(NETWORK);
        let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        asked["runtimeConfig"] = json!({ "portMappings": ports });
        asked["prevResult"] = json!({
            "cniVersion": "0.4.0",
            "interfaces": [{ "name": "eth0", "sandbox": "/proc/self/ns/net" }],
            "ips": [{ "version": "4", "interface": 0, "address": "10.88.0.2/24" }],
        });
        let environment = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_NETNS", "/proc/self/ns/net"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/usr/lib/cni"),
        ];
        namespace.run(&[program.to_str().unwrap()], &environment, &asked.to_string());
        let saved = namespace.run(&["iptables-save", "-t", "nat"], &[], "");
        let rules = namespace.run(&["nft", "list", "ruleset"], &[], "");
        assert!(rules.contains("8080"), "{rules}");
        if let Some(commands) = removal(&saved) {
            namespace.run(&["iptables-restore", "--noflush", "--wait"], &[], &commands);
            let left = namespace.run(&["nft", "list", "table", "ip", "nat"], &[], "");
            assert!(is_empty(&left), "{left}");
        } else {
            assert!(rules.contains(NFT_TABLE), "{rules}");
        }
    }
}
