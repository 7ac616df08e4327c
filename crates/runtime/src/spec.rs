//! A container as the OCI runtime specification writes it down.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{ContainerSpec, Error, ExecSpec, Mount, Network, Result};

mod host;
mod own_users;

pub(crate) use own_users::{STAGE, USERS, staged_mount, staged_root, staged_sys};

/// Configuration of an image: how to run it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ImageConfig {
    #[serde(deserialize_with = "null_is_empty")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub cmd: Vec<String>,
    pub working_dir: String,
    pub user: String,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(from)?.unwrap_or_default())
}

/// An image's configuration, of which we need little.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ImageDocument {
    #[serde(default)]
    pub config: ImageConfig,
    pub rootfs: RootFs,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RootFs {
    pub diff_ids: Vec<String>,
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Capabilities of root in a container; nothing that reaches out of it.
const CAPABILITIES: [&str; 13] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
];

/// Paths that tell of the machine, or of what others do on it.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// In a network of its own a container may serve on any port and ask who is
/// there, whoever it runs as: there is nobody else whom that could harm.
const NETWORK_SETTINGS: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), (PING_GROUPS, "0 2147483647")];
const PING_GROUPS: &str = "net.ipv4.ping_group_range";

/// Paths that the specification names.
pub(crate) struct SpecPaths<'a> {
    pub rootfs: &'a Path,
    pub cgroup: &'a str,
    pub user: (u32, u32),
    pub unified: bool,
    /// Filter of system calls, see [`crate::seccomp`].
    pub seccomp: Option<&'static Value>,
    /// First of the container's own users; none where it has the machine's.
    pub users: Option<u32>,
}

/// The whole document.
pub(crate) fn document(
    spec: &ContainerSpec,
    image: &ImageConfig,
    place: &SpecPaths<'_>,
) -> Result<Value> {
    let hostname = spec.hostname.as_deref().unwrap_or(&spec.id);
    let mut document = json!({
        "ociVersion": "1.0.2",
        "process": process(spec, image, place.user)?,
        "root": { "path": place.rootfs, "readonly": spec.read_only_root },
        "mounts": mounts(spec),
        "annotations": spec.labels,
        "linux": {
            "cgroupsPath": place.cgroup,
            "namespaces": namespaces(spec, place.unified),
            "resources": resources(spec),
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "sysctl": settings(&spec.network),
        },
    });
    if spec.host {
        host::open(&mut document, spec);
        return Ok(document);
    }
    document["hostname"] = json!(hostname);
    if let Some(seccomp) = place.seccomp {
        document["linux"]["seccomp"] = seccomp.clone();
    }
    if let Some(first) = place.users {
        own_users::give(&mut document, spec, first);
    }
    Ok(document)
}

fn process(spec: &ContainerSpec, image: &ImageConfig, user: (u32, u32)) -> Result<Value> {
    let args: Vec<&String> = if spec.command.is_empty() {
        image.entrypoint.iter().chain(&image.cmd).collect()
    } else {
        spec.command.iter().collect()
    };
    if args.is_empty() {
        return Err(Error::invalid("command", "is empty, and the image names no program"));
    }
    let cwd = spec.cwd.as_deref().unwrap_or(&image.working_dir);
    let cwd = if cwd.is_empty() { "/" } else { cwd };
    if !cwd.starts_with('/') {
        return Err(Error::invalid("cwd", "must be an absolute path"));
    }
    Ok(json!({
        "terminal": false,
        "user": { "uid": user.0, "gid": user.1 },
        "args": args,
        "env": environment(&image.env, &spec.env),
        "cwd": cwd,
        "capabilities": {
            "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
        },
        "noNewPrivileges": true,
    }))
}

/// The image's variables, then ours, which win.
fn environment(image: &[String], ours: &BTreeMap<String, String>) -> Vec<String> {
    let name = |entry: &String| entry.split('=').next().unwrap_or_default().to_owned();
    let mut all: Vec<String> =
        image.iter().filter(|entry| !ours.contains_key(&name(entry))).cloned().collect();
    all.extend(ours.iter().map(|(name, value)| format!("{name}={value}")));
    if !all.iter().any(|entry| entry.starts_with("PATH=")) {
        all.push(PATH.to_owned());
    }
    all
}

fn mounts(spec: &ContainerSpec) -> Value {
    let own = spec.mounts.iter().map(|mount| bind(mount, &mount.source));
    Value::Array(mounts_of_kernel().into_iter().chain(own).collect())
}

fn bind(mount: &Mount, source: &Path) -> Value {
    let access = if mount.read_only { "ro" } else { "rw" };
    json!({ "destination": mount.target, "type": "bind", "source": source,
            "options": ["rbind", "rprivate", access] })
}

/// File systems that the kernel makes for each container.
fn mounts_of_kernel() -> Vec<Value> {
    vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc",
                "options": ["nosuid", "noexec", "nodev"] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] }),
        json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts",
                "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"] }),
        json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
                "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] }),
        json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs",
                "options": ["nosuid", "noexec", "nodev", "ro"] }),
    ]
}

fn namespaces(spec: &ContainerSpec, unified: bool) -> Value {
    let mut kinds = vec!["pid", "ipc", "uts", "mount"];
    if unified {
        kinds.push("cgroup");
    }
    let mut namespaces: Vec<Value> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
    match &spec.network {
        Network::None => namespaces.push(json!({ "type": "network" })),
        Network::Path(path) => namespaces.push(json!({ "type": "network", "path": path })),
        Network::Host => {}
    }
    Value::Array(namespaces)
}

/// A kernel that is older has no such setting, and would not start at all.
pub(crate) fn settings(network: &Network) -> BTreeMap<&'static str, &'static str> {
    let known = |name: &str| Path::new("/proc/sys").join(name.replace('.', "/")).exists();
    let own = *network != Network::Host;
    NETWORK_SETTINGS.into_iter().filter(|(name, _)| own && known(name)).collect()
}

fn resources(spec: &ContainerSpec) -> Value {
    const PERIOD: u64 = 100_000;
    let mut resources = json!({ "devices": [{ "allow": false, "access": "rwm" }] });
    if let Some(bytes) = spec.limits.memory_bytes {
        resources["memory"] = json!({ "limit": bytes });
    }
    if let Some(millis) = spec.limits.cpu_millis {
        let shares = (millis * 1024 / 1000).clamp(2, 262_144);
        resources["cpu"] =
            json!({ "quota": millis * PERIOD / 1000, "period": PERIOD, "shares": shares });
    }
    if let Some(pids) = spec.limits.pids {
        resources["pids"] = json!({ "limit": pids });
    }
    resources
}

/// The process of an exec, made from that of the container.
pub(crate) fn exec_process(container: &Value, exec: &ExecSpec) -> Result<Value> {
    check_argv(&exec.argv)?;
    let mut process = container.clone();
    let old: Vec<String> = container["env"]
        .as_array()
        .map(|entries| entries.iter().filter_map(|e| e.as_str().map(str::to_owned)).collect())
        .unwrap_or_default();
    process["args"] = json!(exec.argv);
    process["env"] = json!(environment(&old, &exec.env));
    process["terminal"] = json!(exec.tty.is_some());
    if let Some(cwd) = &exec.cwd {
        process["cwd"] = json!(cwd);
    }
    if let Some(size) = exec.tty {
        process["consoleSize"] = json!({ "width": size.width, "height": size.height });
    }
    Ok(process)
}

pub(crate) fn check_argv(argv: &[String]) -> Result<()> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(Error::invalid("argv", "the program may not be empty"));
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(Error::invalid("argv", "may not contain a zero byte"));
    }
    Ok(())
}

/// User that an image says to run as, by the user list of its root file system.
pub(crate) fn user(user: &str, passwd: &str, group: &str) -> Result<(u32, u32)> {
    let (name, group_name) = user.split_once(':').map_or((user, None), |(u, g)| (u, Some(g)));
    let entry = |text: &str, key: &str, field: usize| {
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let number = fields.get(field).and_then(|number| number.parse().ok())?;
            (fields.first() == Some(&key) || fields.get(2) == Some(&key)).then_some(number)
        })
    };
    let unknown = |what: &str| Error::invalid("image", format!("its user {what:?} is unknown"));
    let uid = match name {
        "" | "root" => 0,
        _ => match name.parse().ok().or_else(|| entry(passwd, name, 2)) {
            Some(uid) => uid,
            None => return Err(unknown(name)),
        },
    };
    let gid = match group_name {
        None => entry(passwd, if name.is_empty() { "root" } else { name }, 3).unwrap_or(0),
        Some(group_name) => group_name
            .parse()
            .ok()
            .or_else(|| entry(group, group_name, 2))
            .ok_or_else(|| unknown(group_name))?,
    };
    Ok((uid, gid))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::Limits;

    fn spec() -> ContainerSpec {
        ContainerSpec { id: "c1".into(), image: "x".into(), ..ContainerSpec::default() }
    }

    fn place(rootfs: &str, unified: bool) -> SpecPaths<'_> {
        let user = (0, 0);
        let rootfs = Path::new(rootfs);
        SpecPaths { rootfs, cgroup: "/g", user, unified, seccomp: None, users: None }
    }

    fn made(spec: &ContainerSpec, image: &ImageConfig) -> Value {
        document(spec, image, &place("/r", false)).unwrap()
    }

    #[test]
    fn the_command_replaces_entrypoint_and_arguments() {
        let image = ImageConfig {
            entrypoint: vec!["/entry".into()],
            cmd: vec!["a".into()],
            ..ImageConfig::default()
        };
        assert_eq!(made(&spec(), &image)["process"]["args"], json!(["/entry", "a"]));
        let own = ContainerSpec { command: vec!["/own".into()], ..spec() };
        assert_eq!(made(&own, &image)["process"]["args"], json!(["/own"]));
        let place = place("/", true);
        let error = document(&spec(), &ImageConfig::default(), &place).unwrap_err();
        assert_eq!(error.to_string(), "command: is empty, and the image names no program");
    }

    #[test]
    fn variables_of_the_container_win() {
        let image = ImageConfig {
            env: vec!["A=1".into(), "B=2".into()],
            cmd: vec!["x".into()],
            ..Default::default()
        };
        let own = ContainerSpec { env: [("A".to_owned(), "9".to_owned())].into(), ..spec() };
        assert_eq!(made(&own, &image)["process"]["env"], json!(["B=2", "A=9", PATH]));
    }

    #[test]
    fn limits_and_networks() {
        let image = ImageConfig { cmd: vec!["x".into()], ..Default::default() };
        let limits = Limits {
            cpu_millis: Some(250),
            memory_bytes: Some(64 << 20),
            pids: Some(50),
            disk_bytes: Some(1 << 30),
        };
        let own = ContainerSpec { limits, network: Network::Path("/n".into()), ..spec() };
        let linux = &made(&own, &image)["linux"];
        assert_eq!(linux["resources"]["cpu"]["quota"], 25_000);
        assert_eq!(linux["resources"]["memory"]["limit"], 64 << 20);
        assert_eq!(linux["resources"]["pids"]["limit"], 50);
        assert_eq!(linux["namespaces"][4], json!({ "type": "network", "path": "/n" }));
        let host = ContainerSpec { network: Network::Host, ..spec() };
        assert_eq!(made(&host, &image)["linux"]["namespaces"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn users_of_its_own_are_mapped_and_what_it_mounts_is_staged() {
        let image = ImageConfig { cmd: vec!["x".into()], ..Default::default() };
        let volume = Mount { source: "/v".into(), target: "/data".into(), read_only: false };
        let network = Network::Path("/n".into());
        let own = ContainerSpec { mounts: vec![volume], network, ..spec() };
        let place = SpecPaths { users: Some(0x7100_0000), ..place("/r", false) };
        let made = document(&own, &image, &place).unwrap();
        let mapping = json!([{ "containerID": 0, "hostID": 0x7100_0000, "size": 65536 }]);
        assert_eq!(made["linux"]["uidMappings"], mapping);
        assert_eq!(made["linux"]["gidMappings"], mapping);
        let namespaces = made["linux"]["namespaces"].as_array().unwrap();
        assert!(namespaces.contains(&json!({ "type": "user" })));
        let mounts = made["mounts"].as_array().unwrap();
        let source =
            |of: &str| mounts.iter().find(|m| m["destination"] == of).unwrap()["source"].clone();
        assert_eq!(source("/data"), json!(staged_mount(0)));
        assert_eq!(source("/sys"), json!(staged_sys()));
        assert_eq!(made["linux"]["sysctl"], json!({}));
        assert_eq!(made["root"]["path"], json!(staged_root()));
        assert!(
            document(&own, &image, &tests::place("/r", false)).unwrap()["linux"]["uidMappings"]
                .is_null()
        );
    }

    #[test]
    fn users_by_number_and_by_name() {
        let (passwd, group) = ("root:x:0:0::/:/sh\nweb:x:33:34::/:/sh\n", "root:x:0:\nlog:x:77:\n");
        for (text, expected) in [
            ("", (0, 0)),
            ("0", (0, 0)),
            ("web", (33, 34)),
            ("33", (33, 34)),
            ("1000", (1000, 0)),
            ("1000:5", (1000, 5)),
            ("web:log", (33, 77)),
        ] {
            assert_eq!(user(text, passwd, group).unwrap(), expected, "{text}");
        }
        assert!(user("nobody", passwd, group).is_err());
        assert!(user("web:none", passwd, group).is_err());
    }
}
