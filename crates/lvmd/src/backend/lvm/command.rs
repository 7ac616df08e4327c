//! Running LVM: arguments as a list, messages in English, nothing on stdin.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    Error, Result,
    backend::{command, program},
};

/// Runner of LVM. Counts how often it ran.
#[derive(Debug)]
pub(super) struct Runner {
    prefix: Vec<String>,
    runs: AtomicU64,
}

impl Runner {
    pub(super) fn new(prefix: &[String]) -> Self {
        Self { prefix: prefix.to_vec(), runs: AtomicU64::new(0) }
    }

    /// Returns the number of programs that were run so far, but for looks at pools.
    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Runs an LVM command; gives what it wrote.
    pub(super) fn lvm(&self, arguments: &[&str]) -> Result<String> {
        match self.prefix.split_first() {
            None => self.run(program("lvm"), &[], arguments),
            Some((first, rest)) => self.run(first.into(), rest, arguments),
        }
    }

    /// Runs another program of the system.
    pub(super) fn tool(&self, name: &str, arguments: &[&str]) -> Result<String> {
        self.run(program(name), &[], arguments)
    }

    /// Runs another program of the system that only looks. It is not counted.
    pub(super) fn look(&self, name: &str, arguments: &[&str]) -> Result<String> {
        self.output(program(name), &[], arguments)
    }

    fn run(&self, path: PathBuf, before: &[String], arguments: &[&str]) -> Result<String> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.output(path, before, arguments)
    }

    fn output(&self, path: PathBuf, before: &[String], arguments: &[&str]) -> Result<String> {
        let mut command = command(&path);
        command.args(before).args(arguments);
        // Descriptors of ours are closed on exec; LVM would warn of those of
        // whoever started us.
        command.env("LVM_SUPPRESS_FD_WARNINGS", "1");
        let output = command
            .output()
            .map_err(|source| Error::Program { program: path.display().to_string(), source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let refusal = classify(&said, output.status.code());
        tracing::debug!(?arguments, status = ?output.status, %said, "refused");
        Err(refusal)
    }
}

/// Returns the meaning of a failure, by its text. The exit code alone does not tell:
/// "in use" and "not found" have the same.
fn classify(said: &str, status: Option<i32>) -> Error {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("WARNING:")).collect();
    let between = |line: &str, before: &str, after: &str| {
        let rest = line.strip_prefix(before)?;
        rest.split_once(after).map(|(name, _)| name.to_owned())
    };
    for line in &lines {
        if let Some(name) = between(line, "Volume group \"", "\" not found") {
            return Error::GroupNotFound(name);
        }
        if let Some(name) = between(line, "Failed to find logical volume \"", "\"") {
            let name = name.rsplit('/').next().unwrap_or_default().to_owned();
            return Error::VolumeNotFound(name);
        }
        let in_use = line.ends_with("contains a filesystem in use.")
            || line.starts_with("Logical volume") && line.ends_with("in use.")
            || line.starts_with("Snapshot origin volumes can be resized only while inactive")
            || line.ends_with("is used by another device.")
            || line.starts_with("Cannot change VG") && line.contains("PVs are missing");
        if in_use {
            return Error::Precondition((*line).to_owned());
        }
    }
    match lines.is_empty() {
        true => Error::Refused(format!("exit status {}", status.unwrap_or(-1))),
        false => Error::Refused(lines.join("; ")),
    }
}

/// Returns whether LVM said that there is no room.
pub(super) fn is_no_space(error: &Error) -> bool {
    let Error::Refused(said) = error else { return false };
    said.contains("insufficient free space") || said.contains("Insufficient suitable")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn failures_are_distinguished_by_the_output() {
        let code = |said: &str| classify(said, Some(5)).code();
        use selvage_api::Code::*;
        assert_eq!(code("  Volume group \"novg\" not found\n  Cannot process\n"), NotFound);
        assert_eq!(code("  Failed to find logical volume \"vg0/nope\"\n"), NotFound);
        assert_eq!(
            code("  Logical volume vg0/a contains a filesystem in use.\n"),
            FailedPrecondition
        );
        assert_eq!(code("  Logical volume vg0/a in use.\n"), FailedPrecondition);
        let partial = "  Cannot change VG vg0 while PVs are missing.\n  Cannot process\n";
        assert_eq!(code(partial), FailedPrecondition);
        assert_eq!(code("  No command with matching syntax recognised.\n"), Internal);
        let message = classify("  WARNING: x\n", Some(5)).to_string();
        assert_eq!(message, "exit status 5");
        let full = "  Volume group \"t0\" has insufficient free space (1 extents): 2 required.\n";
        assert!(is_no_space(&classify(full, Some(5))));
    }

    /// The original waited for ever for a program that had more to say.
    #[test]
    fn much_that_is_said_is_read_to_its_end() {
        let script = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2";
        let runner = Runner::new(&["/bin/sh".into(), "-c".into(), script.into()]);
        assert_eq!(runner.lvm(&["sh", "lvs"]).unwrap().len(), 3_000_000);
    }

    /// The environment of a daemon may hold what opens its repositories.
    #[test]
    fn programs_get_nothing_that_opens_a_repository() {
        let runner = Runner::new(&["/usr/bin/env".to_owned()]);
        let said = runner.lvm(&[]).unwrap();
        let names: Vec<&str> =
            said.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        assert!(names.contains(&"PATH") && names.contains(&"LC_ALL"), "{names:?}");
        // Cargo sets some more for this test.
        let passed = ["HOME", "LC_ALL", "LVM_SUPPRESS_FD_WARNINGS", "PATH", "TMPDIR"];
        assert!(names.iter().all(|name| passed.contains(name)), "{names:?}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let runner = Runner::new(&["/nowhere/lvm".to_owned()]);
        let error = runner.lvm(&["lvs"]).unwrap_err();
        assert_eq!(error.to_string(), "/nowhere/lvm cannot be run");
        assert_eq!(runner.runs(), 1);
        let runner = Runner::new(&["/bin/sh".into(), "-c".into(), "echo $LC_ALL:$1".into()]);
        assert_eq!(runner.lvm(&["sh", "lvs"]).unwrap(), "C:lvs\n");
    }
}
