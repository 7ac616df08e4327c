//! One person at one terminal, with a configuration directory of their own.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use clap::{CommandFactory, Parser};
use selvage_cli::{Command, Error, Global, Io, Prompt, execute};
use selvage_kit::identity::Secret;

#[derive(Parser, Debug)]
#[command(name = "selvage")]
struct Whole {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) result: Result<(), Error>,
}

impl Outcome {
    /// Output, when all went well.
    #[track_caller]
    pub(crate) fn good(self) -> String {
        if let Err(error) = &self.result {
            panic!("{error:?}\n{}", self.err);
        }
        self.out
    }

    /// The exit code and everything on stderr, when it did not.
    #[track_caller]
    pub(crate) fn bad(self) -> (u8, String) {
        let error = self.result.expect_err("the command succeeded");
        let mut text = self.err.into_bytes();
        error.report(&mut text, false).unwrap();
        (error.exit_code(), String::from_utf8(text).unwrap())
    }
}

pub(crate) struct Person {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) env: Vec<(String, String)>,
    answers: Option<Vec<String>>,
    input: String,
    timeout: Option<std::time::Duration>,
    /// Server to talk to, instead of what the contexts say.
    pub(crate) endpoint: Option<String>,
    /// Reads what is printed from a terminal.
    pub(crate) at_terminal: bool,
    /// Columns of that terminal.
    pub(crate) columns: Option<usize>,
}

impl Person {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            env: Vec::new(),
            answers: None,
            input: String::new(),
            timeout: None,
            endpoint: None,
            at_terminal: false,
            columns: None,
        }
    }

    /// Sits at a terminal and will answer this at the next command.
    pub(crate) fn answering(&mut self, answers: &[&str]) -> &mut Self {
        self.answers = Some(answers.iter().map(|&answer| answer.to_owned()).collect());
        self
    }

    /// Pipes this into the next command.
    pub(crate) fn piping(&mut self, input: &str) -> &mut Self {
        self.input = input.to_owned();
        self
    }

    /// Gives the next command this long.
    pub(crate) fn within(&mut self, timeout: std::time::Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.dir.path().join("config/config.toml")
    }

    /// Answer to a line that cannot be read.
    #[allow(dead_code)] // one of the two suites that share this file uses it
    #[track_caller]
    pub(crate) fn misspelt(&self, line: &[&str]) -> String {
        Whole::try_parse_from([&["selvage"], line].concat()).unwrap_err().to_string()
    }

    pub(crate) async fn run(&mut self, line: &[&str]) -> Outcome {
        let whole = Whole::try_parse_from([&["selvage"], line].concat()).unwrap();
        let global = Global {
            timeout: self.timeout.take().or(whole.global.timeout),
            endpoint: whole.global.endpoint.or(self.endpoint.clone()),
            ..whole.global
        };
        let (out, err) = (Shared::default(), Shared::default());
        let config = self.config_file().display().to_string();
        let prompt = self.answers.take().map(|answers| {
            Box::new(Script { answers: answers.into(), err: err.clone() }) as Box<dyn Prompt>
        });
        let mut io = Io {
            input: Some(
                Box::new(io::Cursor::new(std::mem::take(&mut self.input))) as Box<dyn Read + Send>
            ),
            out: Box::new(out.clone()),
            err: Box::new(err.clone()),
            prompt,
            env: self.env.iter().cloned().chain([("SELVAGE_CONFIG".into(), config)]).collect(),
            out_is_terminal: self.at_terminal,
            err_is_terminal: self.at_terminal,
            columns: self.columns,
        };
        let result = Box::pin(execute(whole.command, &global, Whole::command(), &mut io)).await;
        Outcome { out: out.text(), err: err.text(), result }
    }
}

struct Script {
    answers: VecDeque<String>,
    err: Shared,
}

impl Prompt for Script {
    fn line(&mut self, question: &str) -> io::Result<String> {
        write!(self.err, "{question}")?;
        Ok(self.answers.pop_front().unwrap_or_else(|| panic!("asked {question:?}")))
    }

    fn secret(&mut self, question: &str) -> io::Result<Secret> {
        self.line(question).map(Secret::new)
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
