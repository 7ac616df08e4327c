//! Errors on this side of the wire, and their text.

use std::{
    error::Error as _,
    io::{self, Write},
    path::PathBuf,
};

use selvage_api::Code;

use crate::{config, connect};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something on the command line or in a body cannot be meant.
    #[error("{message}")]
    Invalid {
        /// Problem, with the name of the field or flag.
        message: String,
        /// Next steps, one sentence each.
        hints: Vec<String>,
    },
    /// A name that nothing goes by.
    #[error("there is no {kind} {name:?}{}", did_you_mean(.suggestions))]
    Unknown {
        /// Kind of the thing that was looked for, such as "context".
        kind: &'static str,
        /// The name as given.
        name: String,
        /// Names that are close.
        suggestions: Vec<String>,
        /// Command that lists all of them.
        hint: String,
    },
    /// A field of a request body is wrong.
    #[error("{path}: {message}{}", did_you_mean(.suggestions))]
    Field {
        /// Position in the body, such as `user.grants[0].role`.
        path: String,
        /// Fault in it.
        message: String,
        /// Names that are close.
        suggestions: Vec<String>,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// "read", "write" and the like.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The contexts or credentials.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The way to the server.
    #[error(transparent)]
    Connect(#[from] connect::Error),
    /// The server said no.
    #[error("{message}")]
    Status {
        /// Its code.
        code: Code,
        /// Its words.
        message: String,
        /// Next steps, one sentence each.
        hints: Vec<String>,
    },
    /// No answer in time.
    #[error("no complete answer within {0:?}")]
    Deadline(std::time::Duration),
    /// A command ran and ended like this; it has said why itself.
    #[error("the command ended with {0}")]
    Exited(u8),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// A dry run that may have been none.
    #[error("{0}: the server does not confirm that it only planned: look whether it was done")]
    NotDry(String),
    /// The person said no.
    #[error("{0}: nothing was changed")]
    Declined(String),
    /// Something must be asked and nobody can be.
    #[error("{what} is needed, and nobody can be asked")]
    NeedsInput {
        /// Thing that would be asked for.
        what: String,
        /// Other means to give it.
        hint: String,
    },
    /// Nothing says which server.
    #[error("no server was named, and there is no current context")]
    NoServer,
    /// Something that worked out otherwise than it must.
    #[error("{0}")]
    Unexpected(String),
    /// The output cannot be written.
    #[error("cannot write the output")]
    Output(#[source] io::Error),
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), hints: Vec::new() }
    }

    pub(crate) fn read(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { action: "read", path: path.into(), source }
    }

    pub(crate) fn write(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { action: "write", path: path.into(), source }
    }

    /// Returns whether whoever read our output has gone away: no failure, and nothing
    /// to say.
    fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The code in the vocabulary all parts share.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } | Self::Field { .. } => Code::InvalidArgument,
            Self::Unknown { .. } => Code::NotFound,
            Self::File { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => Code::NotFound,
                io::ErrorKind::PermissionDenied => Code::PermissionDenied,
                io::ErrorKind::AlreadyExists => Code::AlreadyExists,
                _ => Code::FailedPrecondition,
            },
            Self::Config(error) => error.code(),
            Self::Connect(error) => error.code(),
            Self::Status { code, .. } => *code,
            Self::Deadline(_) => Code::DeadlineExceeded,
            Self::Interrupted | Self::Declined(_) => Code::Cancelled,
            Self::NeedsInput { .. } | Self::NoServer => Code::FailedPrecondition,
            Self::NotDry(_) => Code::Unimplemented,
            Self::Exited(_) | Self::Unexpected(_) | Self::Output(_) => Code::Internal,
        }
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Exited(code) => *code,
            _ if self.is_closed_pipe() => 0,
            _ => self.code().exit(),
        }
    }

    /// Next steps, one sentence each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Invalid { hints, .. } | Self::Status { hints, .. } => hints.clone(),
            Self::Unknown { hint, .. } | Self::NeedsInput { hint, .. } => vec![hint.clone()],
            Self::Config(error) => error.hint().into_iter().collect(),
            Self::Connect(error) => error.hints(),
            Self::NoServer => vec![
                "run `selvage login https://HOST:PORT` to make a context, or name a server with --endpoint".into(),
            ],
            Self::Deadline(_) => vec!["allow more time with --timeout, such as --timeout 2m".into()],
            _ => Vec::new(),
        }
    }

    /// Writes the message, its causes and what to do.
    pub fn report(&self, out: &mut dyn Write, colour: bool) -> io::Result<()> {
        if self.is_closed_pipe() || matches!(self, Self::Exited(_)) {
            return Ok(());
        }
        let (red, cyan, plain) =
            if colour { ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") } else { ("", "", "") };
        writeln!(out, "{red}error:{plain} {}", printable(&self.to_string()))?;
        let mut cause = self.source();
        while let Some(error) = cause {
            writeln!(out, "  because: {}", printable(&error.to_string()))?;
            cause = error.source();
        }
        for hint in self.hints() {
            writeln!(out, "{cyan}hint:{plain} {}", printable(&hint))?;
        }
        if matches!(self, Self::Status { .. }) {
            let name = self.code().name();
            writeln!(out, "{cyan}hint:{plain} `selvage explain {name}` says more")?;
        }
        Ok(())
    }
}

fn did_you_mean(suggestions: &[String]) -> String {
    match suggestions {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [most @ .., last] => format!("; did you mean {} or {last}?", most.join(", ")),
    }
}

/// The text without characters that would steer the terminal: much of it comes
/// from the other side.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn printed(error: &Error, colour: bool) -> String {
        let mut out = Vec::new();
        error.report(&mut out, colour).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_error_names_its_causes_and_what_to_do() {
        let error = Error::read("/x/ca.pem", io::Error::new(io::ErrorKind::NotFound, "gone"));
        assert_eq!(printed(&error, false), "error: cannot read /x/ca.pem\n  because: gone\n");
        assert_eq!(error.exit_code(), 4);

        let error = Error::Status {
            code: Code::AlreadyExists,
            message: "user ada is there already".into(),
            hints: vec!["choose another name".into()],
        };
        assert_eq!(
            printed(&error, false),
            "error: user ada is there already\n\
             hint: choose another name\n\
             hint: `selvage explain ALREADY_EXISTS` says more\n"
        );
        assert_eq!(error.exit_code(), 5);
    }

    #[test]
    fn words_of_the_other_side_cannot_steer_the_terminal() {
        let error = Error::Unexpected("\x1b[2Jgone".into());
        assert_eq!(printed(&error, false), "error: \u{fffd}[2Jgone\n");
        assert!(printed(&error, true).starts_with("\x1b[1;31merror:"));
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let error = Error::Output(io::ErrorKind::BrokenPipe.into());
        assert_eq!((error.exit_code(), printed(&error, false).as_str()), (0, ""));
        assert_eq!(Error::Output(io::ErrorKind::StorageFull.into()).exit_code(), 16);
    }
}
