//! lvmd: keeps volumes of pods in image files of this machine.
//!
//! It is this very program. As a container of its own it outlives the agent, and
//! volumes can be had while that is replaced.

use serde_json::{Value, json};

use super::Component;
use crate::{
    Error, Result,
    member::{File, Lvmd, Member},
    probe::Probe,
};

pub(super) const NAME: &str = "lvmd";

/// Volume group, and its thin pool.
const GROUP: &str = "selvage";
const THIN: &str = "thin";
/// Thin volumes may hold together so many times what their pool holds.
const OVERPROVISION: f64 = 4.0;
const CONFIG: &str = "lvmd.yaml";

pub(super) fn component(member: &Member<'_>) -> Result<Component> {
    let Some(Lvmd::Own { program, size_gb }) = &member.paths.lvmd else {
        return Err(Error::Invalid(vec!["lvmd: is not for this agent to run".into()]));
    };
    Ok(Component {
        name: NAME,
        version: env!("CARGO_PKG_VERSION").into(),
        program: program.clone(),
        arguments: ["lvmd".into(), "--config".into(), member.path(NAME, CONFIG)].into(),
        // What is JSON is YAML too.
        files: vec![File::json(CONFIG, &config(member, *size_gb))],
        mounts: Vec::new(),
        host: true,
        gate: None,
        health: Probe::Socket(member.paths.lvmd_socket().unwrap_or_default()),
    })
}

fn config(member: &Member<'_>, size_gb: u64) -> Value {
    // The name of the node tells loop devices of machines on one host apart.
    let folder = member.paths.data(NAME).join(&member.spec.node);
    json!({
        "socket-name": member.paths.lvmd_socket(),
        "socket-mode": "0600",
        "backend": "loop",
        "loop": {
            "directory": folder,
            "groups": [{
                "name": GROUP,
                "size-gb": size_gb,
                "thin-pools": [{ "name": THIN, "size-gb": 0 }],
            }],
        },
        "device-classes": [
            { "name": "thick", "volume-group": GROUP, "default": true, "spare-gb": 0 },
            {
                "name": THIN,
                "volume-group": GROUP,
                "spare-gb": 0,
                "type": "thin",
                "thin-pool": { "name": THIN, "overprovision-ratio": OVERPROVISION },
            },
        ],
    })
}
