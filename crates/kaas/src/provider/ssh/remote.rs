//! Commands on a machine, for one operation.

use std::{collections::HashMap, time::Duration};

use selvage_kit::identity::Secret;
use tokio::io::AsyncRead;

use super::{
    options::Target,
    session::{Failure, Session},
};

const SCRIPT: &str = include_str!("machine.sh");
/// Exit code of a command for an operation that the machine is not set aside for.
const NOT_OURS: u32 = 4;
/// Exit code of a claim on a machine that is set aside for another operation.
const TAKEN: u32 = 5;
/// Exit code of a machine on which the program does not run.
pub(super) const UNUSABLE_PROGRAM: u32 = 7;
/// Timeout of copying the program over a slow line.
const COPY_TIMEOUT: Duration = Duration::from_secs(1800);

/// File of a machine's agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum File {
    JoinToken,
    Config,
    Supervisor,
    Unit,
}

impl File {
    fn name(self) -> &'static str {
        match self {
            Self::JoinToken => "join-token",
            Self::Config => "node.toml",
            Self::Supervisor => "supervise",
            Self::Unit => "unit",
        }
    }
}

/// State of a machine's agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) architecture: String,
    /// SHA-256 of the program, empty if there is none.
    pub(super) sha256: String,
    /// The agent has a certificate of the controller.
    pub(super) joined: bool,
    /// There is a member of a cluster on it, or what was left of one.
    pub(super) member: bool,
    pub(super) running: bool,
}

impl Probe {
    fn parse(text: &str) -> Self {
        let facts: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.split_once(' ')).collect();
        let text = |key: &str| facts.get(key).copied().unwrap_or_default().to_owned();
        let is = |key: &str| facts.get(key) == Some(&"yes");
        Self {
            architecture: text("architecture"),
            sha256: text("sha256"),
            joined: is("joined"),
            member: is("member"),
            running: is("running"),
        }
    }
}

/// A machine that is connected, and the operation that it is spoken to for.
pub(super) struct Remote {
    session: Session,
    prefix: String,
    directory: String,
    /// Names the store that the operation is in.
    controller: String,
    operation: String,
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Remote {
    pub(super) async fn connect(
        target: &Target,
        controller: &str,
        operation: &str,
    ) -> Result<Self, Failure> {
        let sudo = if target.user == "root" { "" } else { "sudo -n " };
        Ok(Self {
            session: Session::connect(target).await?,
            prefix: format!("{sudo}sh -c {} selvage-kaas", quoted(SCRIPT)),
            directory: target.directory.clone(),
            controller: controller.to_owned(),
            operation: operation.to_owned(),
        })
    }

    /// No argument is a secret: everybody on a machine sees command lines.
    fn command(&self, name: &str, argument: &str) -> String {
        let words = [&self.directory, name, &self.controller, &self.operation, argument];
        let words = words.map(quoted).join(" ");
        format!("{} {words}", self.prefix)
    }

    async fn run(&self, name: &str, argument: &str) -> Result<String, Failure> {
        self.session.run(&self.command(name, argument)).await
    }

    /// Controller, operation and cluster that the machine is set aside for.
    pub(super) async fn status(&self) -> Result<Option<[String; 3]>, Failure> {
        let text = self.run("status", "").await?;
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Ok(words.try_into().ok())
    }

    /// Sets the machine aside; false if it is for another operation.
    pub(super) async fn claim(&self, cluster: &str) -> Result<bool, Failure> {
        match self.run("claim", cluster).await {
            Ok(_) => Ok(true),
            Err(Failure::Exit { code: TAKEN, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// State of the agent; `None` if the machine is not set aside for this
    /// operation.
    pub(super) async fn probe(&self) -> Result<Option<Probe>, Failure> {
        match self.run("probe", "").await {
            Ok(text) => Ok(Some(Probe::parse(&text))),
            Err(Failure::Exit { code: NOT_OURS, .. }) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Copies the program; the machine checks that it is whole and runs.
    pub(super) async fn put_program(
        &self,
        sha256: &str,
        program: impl AsyncRead + Unpin + Send,
    ) -> Result<(), Failure> {
        let command = self.command("program", sha256);
        self.session.run_with(&command, program, COPY_TIMEOUT).await.map(drop)
    }

    pub(super) async fn put(&self, file: File, content: &Secret) -> Result<(), Failure> {
        let content = content.expose().as_bytes();
        let command = self.command("file", &format!("{}:{}", file.name(), content.len()));
        self.session.run_with(&command, content, COPY_TIMEOUT).await.map(drop)
    }

    /// Starts the agent if it does not run.
    pub(super) async fn start(&self) -> Result<(), Failure> {
        self.run("start", "").await.map(drop)
    }

    pub(super) async fn restart(&self) -> Result<(), Failure> {
        self.run("restart", "").await.map(drop)
    }

    /// Removes the agent with all that there is of it, and then the claim. A
    /// machine that is not set aside for this operation is left as it is.
    pub(super) async fn release(&self, cgroup: &str) -> Result<(), Failure> {
        self.run("release", cgroup).await.map(drop)
    }

    pub(super) async fn close(self) {
        self.session.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(quoted("a b; reboot"), "'a b; reboot'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_probe_is_read_by_its_keys() {
        let read = Probe::parse("architecture x86_64\njoined yes\nrunning no\nother thing\n");
        let expected = Probe { architecture: "x86_64".into(), joined: true, ..Probe::default() };
        assert_eq!(read, expected);
    }
}
