//! The filter between containers and the kernel: what is not in [`table`] is
//! refused, to root as well.

mod table;

use std::{path::Path, sync::LazyLock, time::Duration};

use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};
use tracing::warn;

const PERMISSION: u32 = 1;
const NO_SUCH_CALL: u32 = 38;

/// File in which a kernel that has filters says which.
const KERNEL: &str = "/proc/sys/kernel/seccomp/actions_avail";
/// Time a program may take to say what it is.
const SAYING: Duration = Duration::from_secs(10);

/// A call that is allowed by what its first argument is.
struct Call {
    name: &'static str,
    allowed: &'static [Test],
    /// Of what is not allowed, that which is told "not permitted".
    forbidden: &'static [Test],
}

enum Test {
    Is(u64),
    Below(u64),
    Above(u64),
    /// Has this bit.
    With(u64),
    /// Has none of these bits.
    Without(u64),
}

impl Test {
    fn document(&self) -> Value {
        let (operator, value, second) = match self {
            Self::Is(value) => ("SCMP_CMP_EQ", value, 0),
            Self::Below(value) => ("SCMP_CMP_LT", value, 0),
            Self::Above(value) => ("SCMP_CMP_GT", value, 0),
            Self::With(bit) => ("SCMP_CMP_MASKED_EQ", bit, *bit),
            Self::Without(bits) => ("SCMP_CMP_MASKED_EQ", bits, 0),
        };
        json!({ "index": 0, "op": operator, "value": value, "valueTwo": second })
    }
}

/// Made once: every container gets the same.
static PROFILE: LazyLock<Option<Value>> = LazyLock::new(|| profile(std::env::consts::ARCH));

/// The profile for containers that this program makes; none, and a word about
/// it, where the program or the machine has no filters. A program that nobody
/// could find is taken for one that has.
pub(crate) async fn profile_of(program: Option<&Path>) -> Option<&'static Value> {
    let missing = if !Path::new(KERNEL).exists() {
        "this kernel has no filters for calls"
    } else if let Some(program) = program
        && !is_built_into(program).await
    {
        "the runtime was built without seccomp"
    } else if let Some(profile) = &*PROFILE {
        return Some(profile);
    } else {
        "there is no profile for processors of this kind"
    };
    let program = program.map(|program| program.display().to_string());
    warn!(program, "containers call the kernel without a filter: {missing}");
    None
}

async fn is_built_into(program: &Path) -> bool {
    is_in_version(&said(program, "--version").await)
        || is_in_features(&said(program, "features").await)
}

/// `runc` names the library's version after its own, `crun` its features.
fn is_in_version(version: &str) -> bool {
    version.contains("libseccomp") || version.contains("+SECCOMP")
}

/// Answer of the runtime specification to the question; older ones have no
/// answer.
fn is_in_features(features: &str) -> bool {
    let features: Value = serde_json::from_str(features).unwrap_or_default();
    features["linux"]["seccomp"]["enabled"] == true
}

async fn said(program: &Path, argument: &str) -> String {
    let asking = Command::new(program).arg(argument).kill_on_drop(true).output();
    let output = timeout(SAYING, asking).await.ok().and_then(Result::ok);
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// As the runtime specification writes it.
fn profile(processor: &str) -> Option<Value> {
    let architectures = architectures(processor)?;
    let mut calls = vec![
        json!({ "names": table::ALLOWED.concat(), "action": "SCMP_ACT_ALLOW" }),
        refused(&table::FORBIDDEN.concat(), None),
    ];
    for call in [table::CLONE, table::PERSONALITY, table::SOCKET] {
        calls.extend(call.allowed.iter().map(|test| {
            json!({ "names": [call.name], "action": "SCMP_ACT_ALLOW", "args": [test.document()] })
        }));
        calls.extend(call.forbidden.iter().map(|test| refused(&[call.name], Some(test))));
    }
    Some(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": NO_SUCH_CALL,
        "architectures": architectures,
        "syscalls": calls,
    }))
}

fn refused(names: &[&str], test: Option<&Test>) -> Value {
    let tests: Vec<Value> = test.iter().map(|test| test.document()).collect();
    json!({
        "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": PERMISSION, "args": tests,
    })
}

/// The processor's own programs and those of 32 bits that it runs. What is
/// not here is killed when it calls the kernel.
fn architectures(processor: &str) -> Option<&'static [&'static str]> {
    Some(match processor {
        "x86_64" => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
        "aarch64" => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        "riscv64" => &["SCMP_ARCH_RISCV64"],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_call_is_named_twice() {
        let special = [table::CLONE.name, table::PERSONALITY.name, table::SOCKET.name, "clone3"];
        let all: Vec<&str> =
            [table::ALLOWED.concat(), table::FORBIDDEN.concat(), special.to_vec()].concat();
        let different: BTreeSet<&str> = all.iter().copied().collect();
        let mut twice = all.clone();
        for name in &different {
            twice.remove(twice.iter().position(|other| other == name).unwrap());
        }
        assert!(twice.is_empty(), "{twice:?}");
        assert!(all.iter().all(|name| !name.is_empty() && !name.contains(' ')));
    }

    #[test]
    fn a_profile_for_processors_that_are_known() {
        for processor in ["x86_64", "aarch64", "riscv64"] {
            let profile = profile(processor).unwrap();
            assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
            assert_eq!(profile["defaultErrnoRet"], 38);
            assert!(!profile["architectures"].as_array().unwrap().is_empty());
        }
        assert_eq!(profile("abacus"), None);
    }

    #[test]
    fn programs_say_whether_they_have_filters() {
        assert!(is_in_version("runc version 1.1.5\ncommit: x\nlibseccomp: 2.5.4\n"));
        assert!(is_in_version("crun version 1.8.1\n+SYSTEMD +CAP +SECCOMP +EBPF\n"));
        assert!(!is_in_version("crun version 1.8.1\n+SYSTEMD +CAP -SECCOMP +EBPF\n"));
        assert!(is_in_features(r#"{"linux":{"seccomp":{"enabled":true}}}"#));
        assert!(!is_in_features(r#"{"linux":{"seccomp":{"enabled":false}}}"#));
        assert!(!is_in_features("unknown command features"));
    }

    #[tokio::test]
    async fn a_program_that_says_nothing_gets_no_profile() {
        for program in ["/bin/true", "/no/such/program"] {
            assert_eq!(profile_of(Some(Path::new(program))).await, None);
        }
    }
}
