//! The program that makes containers. It is always given an array of
//! arguments, and never a secret among them.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde::Deserialize;
use tokio::process::{Child, Command};

use super::step::{self, Stage};
use crate::{Error, Result, error::During};

/// In order of how fast they start a container.
const PROGRAMS: [&str; 3] = ["crun", "runc", "youki"];
const DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// No step takes longer, or something is badly wrong. Whoever waits for one
/// waits 30 s, and is to hear why.
pub(super) const LONGEST: Duration = Duration::from_secs(20);
/// So much of what a program complained of is told.
const MOST_WORDS: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Driver {
    program: PathBuf,
    root: PathBuf,
}

/// Standard streams of a step.
pub(super) struct Streams {
    pub(super) stdin: Stdio,
    pub(super) stdout: Stdio,
    pub(super) stderr: Stdio,
}

impl Streams {
    pub(super) fn null() -> Self {
        Self { stdin: Stdio::null(), stdout: Stdio::null(), stderr: Stdio::null() }
    }
}

/// Standard error of a program, at the end of a file that may
/// hold more.
pub(super) struct OutputTail {
    file: PathBuf,
    from: u64,
}

impl OutputTail {
    /// Everything that will be written to a file from now on.
    pub(super) fn from_now(file: &Path) -> Self {
        let from = fs::metadata(file).map_or(0, |metadata| metadata.len());
        Self { file: file.to_owned(), from }
    }

    /// A file of its own beside a log, and where to write to.
    pub(super) fn beside(log: &Path) -> (Self, Stdio) {
        let file = log.with_extension("stderr");
        let _ = fs::remove_file(&file);
        let made = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&file);
        (Self { file, from: 0 }, made.map_or_else(|_| Stdio::null(), Stdio::from))
    }

    /// In one line.
    pub(super) fn read(&self) -> String {
        let mut bytes = vec![0; MOST_WORDS];
        let read = fs::File::open(&self.file).and_then(|file| {
            let end = file.metadata()?.len();
            let from = end.saturating_sub(MOST_WORDS as u64).max(self.from);
            file.read_at(&mut bytes, from)
        });
        bytes.truncate(read.unwrap_or(0));
        one_line(&bytes)
    }
}

/// Output of a program, for a message.
pub(super) fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("; ");
    text.chars().filter(|letter| !letter.is_control()).collect()
}

impl Driver {
    pub(super) fn find(program: Option<PathBuf>, root: PathBuf) -> Result<Self> {
        let program = match program {
            Some(program) if program.is_file() => program,
            Some(program) => {
                return Err(Error::invalid("program", format!("{} is no file", program.display())));
            }
            None => search(&PROGRAMS).ok_or(Error::Unreachable {
                runtime: "oci",
                reason: "none of crun, runc and youki is installed".into(),
            })?,
        };
        Ok(Self { program, root })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// One that uses the program that started a container: none of them knows
    /// what another has written down.
    pub(super) fn by(&self, program: Option<&Path>) -> Self {
        let program = program.filter(|program| program.is_file()).unwrap_or(&self.program);
        Self { program: program.to_owned(), root: self.root.clone() }
    }

    pub(super) async fn version(&self) -> Result<String> {
        let output = Command::new(&self.program)
            .arg("--version")
            .kill_on_drop(true)
            .output()
            .await
            .during("asking the runtime for its version")?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// Makes and starts a container; its first process's id.
    pub(super) async fn run(
        &self,
        name: &str,
        bundle: &Path,
        streams: Streams,
        words: &OutputTail,
        stage: Option<Stage>,
    ) -> Result<u32> {
        let pid_file = bundle.join("pid");
        let arguments: [&OsStr; 7] = [
            "run".as_ref(),
            "--detach".as_ref(),
            "--bundle".as_ref(),
            bundle.as_ref(),
            "--pid-file".as_ref(),
            pid_file.as_ref(),
            name.as_ref(),
        ];
        let log = bundle.join("runtime.log");
        let _ = fs::remove_file(&log);
        let child = self.spawn(&arguments, &log, streams, stage).await?;
        self.finish(child, &log, words).await?;
        read_pid(&pid_file)
    }

    /// Begins to start a program in a container that runs: the step, and the
    /// files of the program's pid and of what went wrong.
    pub(super) async fn exec(
        &self,
        name: &str,
        directory: &Path,
        console: Option<&Path>,
        streams: Streams,
    ) -> Result<(Child, PathBuf, PathBuf)> {
        let (process, pid_file) = (directory.join("process.json"), directory.join("pid"));
        let log = directory.join("runtime.log");
        let mut arguments: Vec<OsString> = vec!["exec".into(), "--detach".into()];
        if let Some(console) = console {
            arguments.extend(["--console-socket".into(), console.into()]);
        }
        arguments.extend([
            "--process".into(),
            process.into(),
            "--pid-file".into(),
            pid_file.clone().into(),
            name.into(),
        ]);
        let child = self.spawn(&arguments, &log, streams, None).await?;
        Ok((child, pid_file, log))
    }

    /// Removes what the program keeps of a container, with its control group.
    pub(super) async fn delete(&self, name: &str, log: &Path) -> Result<()> {
        if !self.root.join(name).exists() {
            return Ok(());
        }
        let (words, stderr) = OutputTail::beside(log);
        let streams = Streams { stderr, ..Streams::null() };
        let _ = fs::remove_file(log);
        let child = self.spawn(&["delete", "--force", name], log, streams, None).await?;
        self.finish(child, log, &words).await
    }

    /// Our copies of the streams do not outlive this.
    async fn spawn<A: AsRef<OsStr>>(
        &self,
        arguments: &[A],
        log: &Path,
        to: Streams,
        stage: Option<Stage>,
    ) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.root).arg("--log").arg(log).args(["--log-format", "json"]);
        command.args(arguments).stdin(to.stdin).stdout(to.stdout).stderr(to.stderr);
        step::spawn(command, stage).await.during("starting the runtime")
    }

    /// Waits for the end of a step.
    async fn finish(&self, mut child: Child, log: &Path, words: &OutputTail) -> Result<()> {
        let status = match tokio::time::timeout(LONGEST, child.wait()).await {
            Ok(status) => status.during("waiting for the runtime")?,
            Err(_) => {
                let _ = child.kill().await;
                return Err(Error::Timeout { what: "the runtime", after: LONGEST });
            }
        };
        if status.success() { Ok(()) } else { Err(self.failed(log, &words.read())) }
    }

    /// Error of the program, as it wrote it down, or else complained of it.
    pub(super) fn failed(&self, log: &Path, words: &str) -> Error {
        #[derive(Deserialize)]
        struct Line {
            msg: String,
        }
        let text = fs::read_to_string(log).unwrap_or_default();
        let mut messages = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let written = messages.next_back().map(|line| line.msg).filter(|text| !text.is_empty());
        let text = written.unwrap_or_else(|| match words {
            "" => "no reason given".into(),
            words => words.into(),
        });
        let name = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if ["not found", "no such file", "permission denied", "is a directory"]
            .iter()
            .any(|common| text.to_lowercase().contains(common))
        {
            // What was asked for cannot run: not a defect of ours.
            return Error::State { reason: format!("{name}: {text}") };
        }
        Error::Program { program: name, text }
    }
}

/// The first of these programs that is installed.
pub(crate) fn search(programs: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> =
        std::env::split_paths(&path).chain(DIRECTORIES.iter().map(PathBuf::from)).collect();
    programs
        .iter()
        .find_map(|name| directories.iter().map(|d| d.join(name)).find(|path| path.is_file()))
}

pub(super) fn read_pid(path: &Path) -> Result<u32> {
    let text = fs::read_to_string(path).during("reading the pid")?;
    text.trim().parse().map_err(|_| Error::Damaged {
        what: path.display().to_string(),
        reason: format!("{text:?} is no pid"),
    })
}
