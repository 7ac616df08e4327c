//! Containers that are a part of the machine: nothing keeps them in.

use serde_json::{Value, json};

use crate::{ContainerSpec, Network};

/// All that the kernel knows, from 0 on.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Takes away from a document what keeps a container to itself.
pub(super) fn open(document: &mut Value, spec: &ContainerSpec) {
    let capabilities = own_capabilities();
    let process = &mut document["process"];
    process["capabilities"] = json!({
        "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
    });
    process["noNewPrivileges"] = json!(false);
    document["mounts"] = mounts(spec);
    let linux = &mut document["linux"];
    let mut namespaces = vec![json!({ "type": "mount" })];
    match &spec.network {
        Network::None => namespaces.push(json!({ "type": "network" })),
        Network::Path(path) => namespaces.push(json!({ "type": "network", "path": path })),
        Network::Host => {}
    }
    linux["namespaces"] = json!(namespaces);
    linux["maskedPaths"] = json!([]);
    linux["readonlyPaths"] = json!([]);
    linux["sysctl"] = json!({});
    linux["rootfsPropagation"] = json!("rshared");
    linux["resources"]["devices"] = json!([{ "allow": true, "access": "rwm" }]);
}

/// Nobody can give more than the machine gave us.
fn own_capabilities() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bits = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let has = |bit: usize| bits.is_none_or(|bits| bits >> bit & 1 == 1);
    let named = CAPABILITIES.iter().enumerate().filter(|(bit, _)| has(*bit));
    named.map(|(_, name)| format!("CAP_{name}")).collect()
}

fn mounts(spec: &ContainerSpec) -> Value {
    let mounts = spec.mounts.iter().map(|mount| {
        let access = if mount.read_only { "ro" } else { "rw" };
        json!({ "destination": mount.target, "type": "bind", "source": mount.source,
                "options": ["rbind", "rshared", access] })
    });
    Value::Array(mounts.collect())
}
