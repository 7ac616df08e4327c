//! A `selvage` process under test.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

pub use selvage_testkit::{TIMEOUT, blocking::wait_for};
use serde_json::Value;

/// The binary that was built with the tests.
pub fn binary() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("selvage");
    assert!(path.exists(), "{} is missing: run `cargo build --workspace --bins`", path.display());
    path
}

/// A command without this process's `SELVAGE_` variables.
pub fn command() -> Command {
    clean(Command::new(binary()))
}

fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SELVAGE_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// A running daemon. Killed when dropped.
pub struct Selvage {
    child: Child,
    data: PathBuf,
    ready: Value,
    log: PathBuf,
    // Kept for its directory, where it is this process's own.
    _own: Option<tempfile::TempDir>,
}

impl Selvage {
    /// `selvage up` with a new data directory and a free port.
    pub fn up(flags: &[&str]) -> Self {
        Self::part("up", flags)
    }

    /// One part alone with a new data directory and a free port.
    pub fn part(part: &str, flags: &[&str]) -> Self {
        let own = tempfile::tempdir().unwrap();
        let mut started = Self::start(part, own.path(), flags);
        started._own = Some(own);
        started
    }

    /// `selvage up` in a directory that outlives it.
    pub fn up_in(directory: &Path, flags: &[&str]) -> Self {
        Self::start("up", directory, flags)
    }

    /// Any daemon, in a directory that outlives it.
    pub fn start(subcommand: &str, directory: &Path, flags: &[&str]) -> Self {
        Self::launch(command(), subcommand, directory, flags)
    }

    /// The same in a network namespace that has a name.
    pub fn start_in(namespace: &str, subcommand: &str, directory: &Path, flags: &[&str]) -> Self {
        let mut enter = Command::new("nsenter");
        enter.arg(format!("--net=/run/netns/{namespace}")).arg(binary());
        Self::launch(clean(enter), subcommand, directory, flags)
    }

    fn launch(mut command: Command, subcommand: &str, directory: &Path, flags: &[&str]) -> Self {
        let data = directory.join("data");
        let ready_file = directory.join("ready.json");
        let log = directory.join("log");
        let _ = fs::remove_file(&ready_file);
        let append = File::options().create(true).append(true).open(&log).unwrap();
        let port = if flags.contains(&"--port") { &[][..] } else { &["--port", "0"] };
        let mut child = command
            .arg(subcommand)
            .args(port)
            .arg("--data")
            .arg(&data)
            .arg("--ready-file")
            .arg(&ready_file)
            .args(flags)
            .stdout(append.try_clone().unwrap())
            .stderr(append)
            .spawn()
            .unwrap();
        let ready = wait_for("the ready file", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("ended with {status} before it was ready:\n{}", read(&log));
            }
            fs::read(&ready_file).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap())
        });
        Self { child, data, ready, log, _own: None }
    }

    /// Content of the ready file.
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    /// `https://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> &str {
        self.ready["endpoint"].as_str().unwrap()
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        self.endpoint().split_once("://").unwrap().1
    }

    /// The CA's certificate, PEM.
    pub fn ca(&self) -> Option<String> {
        self.ready["ca"].as_str().map(|path| fs::read_to_string(path).unwrap())
    }

    /// The first administrator's password.
    pub fn password(&self) -> String {
        let path = self.ready["admin"]["password_file"].as_str().unwrap();
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Everything it has printed and logged so far.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in bytes.
    pub fn resident_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Sends a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the process to end", || self.child.try_wait().unwrap())
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Selvage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of selvage ---\n{}", read(&self.log));
        }
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The command line client with a home of its own.
pub struct Cli {
    home: tempfile::TempDir,
}

/// Output of a command, and its exit status.
#[derive(Debug)]
pub struct Printed {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Cli {
    /// A user who has never used the command.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    /// A user who is logged in as admin.
    pub fn admin_of(selvage: &Selvage) -> Self {
        let cli = Self::new();
        let ready = cli.home.path().join("ready.json");
        fs::write(&ready, serde_json::to_vec(selvage.ready()).unwrap()).unwrap();
        cli.ok(&["login", "--ready-file", ready.to_str().unwrap()]);
        cli
    }

    /// The user's home.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Runs a command.
    pub fn run(&self, args: &[&str]) -> Printed {
        self.run_with(args, &[], None)
    }

    /// Runs a command with variables and standard input.
    pub fn run_with(
        &self,
        args: &[&str],
        variables: &[(&str, &str)],
        input: Option<&str>,
    ) -> Printed {
        let mut command = command();
        command
            .args(args)
            .env("HOME", self.home.path())
            .env_remove("XDG_CONFIG_HOME")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        if let Some(input) = input {
            std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        Printed {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that has to succeed; gives what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let printed = self.run(args);
        assert_eq!(printed.code, 0, "selvage {args:?}: {printed:?}");
        printed.stdout
    }

    /// Runs a command that has to succeed and print JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}
