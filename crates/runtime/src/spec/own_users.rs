//! Containers whose users are nobody else's on the machine.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{PING_GROUPS, bind, mounts_of_kernel};
use crate::{ContainerSpec, Network};

/// Number of users of a container.
pub(crate) const USERS: u32 = 65536;
/// Folder that the runtime's program finds root and mounts of a container in,
/// while it starts it.
pub(crate) const STAGE: &str = "/run/selvage-stage";

/// Root of a container on the stage.
pub(crate) fn staged_root() -> PathBuf {
    Path::new(STAGE).join("rootfs")
}

/// Mount of a container on the stage.
pub(crate) fn staged_mount(number: usize) -> PathBuf {
    Path::new(STAGE).join(number.to_string())
}

/// `/sys` of a container on the stage.
pub(crate) fn staged_sys() -> PathBuf {
    Path::new(STAGE).join("sys")
}

/// Gives a container users from `first` on.
pub(super) fn give(document: &mut Value, spec: &ContainerSpec, first: u32) {
    let mapping = json!([{ "containerID": 0, "hostID": first, "size": USERS }]);
    document["root"]["path"] = json!(staged_root());
    let linux = &mut document["linux"];
    linux["uidMappings"] = mapping.clone();
    linux["gidMappings"] = mapping;
    if let Some(namespaces) = linux["namespaces"].as_array_mut() {
        namespaces.push(json!({ "type": "user" }));
    }
    if linux["sysctl"][PING_GROUPS].is_string() {
        linux["sysctl"][PING_GROUPS] = json!(format!("0 {}", USERS - 1));
    }
    let mut mounts = mounts_of_kernel();
    if matches!(spec.network, Network::Path(_)) {
        // A network that it joins is not its own to set up and to look into.
        linux["sysctl"] = json!({});
        for mount in mounts.iter_mut().filter(|mount| mount["destination"] == "/sys") {
            *mount = json!({ "destination": "/sys", "type": "bind", "source": staged_sys(),
                             "options": ["rbind", "rprivate", "nosuid", "noexec", "nodev", "ro"] });
        }
    }
    let staged = spec.mounts.iter().enumerate();
    mounts.extend(staged.map(|(number, mount)| bind(mount, &staged_mount(number))));
    document["mounts"] = Value::Array(mounts);
}
