//! The streams, the terminal and the environment a command works with. Tests
//! bring their own.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Read, Write},
};

use selvage_kit::identity::Secret;

use crate::{Colour, Error, Global};

/// Somebody who can be asked.
pub trait Prompt: Send {
    /// Asks for a line.
    fn line(&mut self, question: &str) -> io::Result<String>;
    /// Asks for something that must not show on the screen.
    fn secret(&mut self, question: &str) -> io::Result<Secret>;
}

/// Input and output of a command.
pub struct Io {
    /// Data for the command; taken once by whoever reads it.
    pub input: Option<Box<dyn Read + Send>>,
    /// Data, and nothing else.
    pub out: Box<dyn Write + Send>,
    /// Everything else.
    pub err: Box<dyn Write + Send>,
    /// Nobody, when there is no terminal or nothing may be asked.
    pub prompt: Option<Box<dyn Prompt>>,
    /// The environment variables.
    pub env: BTreeMap<String, String>,
    /// True if a person reads `out` directly.
    pub out_is_terminal: bool,
    /// True if a person reads `err` directly.
    pub err_is_terminal: bool,
    /// Columns of the terminal that shows `out`.
    pub columns: Option<usize>,
}

impl Io {
    /// Those of this process.
    pub fn process(global: &Global) -> Self {
        let interactive = io::stdin().is_terminal() && !global.no_input;
        Self {
            input: Some(Box::new(io::stdin())),
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
            prompt: interactive.then(|| Box::new(Terminal) as Box<dyn Prompt>),
            env: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            columns: columns(),
        }
    }

    /// An environment variable that is set and not empty.
    pub(crate) fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A line for the person, not for the pipe.
    pub(crate) fn say(&mut self, text: &str) -> Result<(), Error> {
        writeln!(self.err, "{text}").map_err(Error::Output)
    }

    pub(crate) fn colour_on_out(&self, wish: Colour) -> bool {
        self.colour(wish, self.out_is_terminal)
    }

    pub(crate) fn colour_on_err(&self, wish: Colour) -> bool {
        self.colour(wish, self.err_is_terminal)
    }

    fn colour(&self, wish: Colour, terminal: bool) -> bool {
        match wish {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                terminal && self.var("NO_COLOR").is_none() && self.var("TERM") != Some("dumb")
            }
        }
    }

    /// All of stdin; what for is said in the error when it was read before.
    pub(crate) fn read_input(&mut self, what: &str) -> Result<String, Error> {
        let mut input = self.take_input(what)?;
        let mut text = String::new();
        input.read_to_string(&mut text).map_err(|source| Error::File {
            action: "read",
            path: "stdin".into(),
            source,
        })?;
        Ok(text)
    }

    pub(crate) fn take_input(&mut self, what: &str) -> Result<Box<dyn Read + Send>, Error> {
        self.input.take().ok_or_else(|| {
            Error::invalid(format!("stdin can be read once only, and {what} is the second to ask"))
        })
    }
}

/// Columns of the terminal behind stdout, if there is one.
fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

struct Terminal;

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim().to_owned())
}

impl Prompt for Terminal {
    fn line(&mut self, question: &str) -> io::Result<String> {
        let mut err = io::stderr();
        write!(err, "{question}")?;
        err.flush()?;
        // A thread of its own, for a read of the terminal cannot be ended: who
        // listens for Ctrl-C has taken from it what it does by itself.
        let (answer, answered) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || answer.send(read_line()));
        let waiting = async {
            tokio::select! {
                answer = answered => answer.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())),
                Ok(()) = tokio::signal::ctrl_c() => Err(io::ErrorKind::Interrupted.into()),
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(waiting))
    }

    fn secret(&mut self, question: &str) -> io::Result<Secret> {
        rpassword::prompt_password(question).map(Secret::new)
    }
}
