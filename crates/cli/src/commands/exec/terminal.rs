//! The terminal this process runs on.

use std::io::{self, IsTerminal};

use rustix::termios::{self, OptionalActions, Termios};

use crate::Error;

/// Returns whether stdin and stdout are terminals.
pub(crate) fn both() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Columns and rows; zero where there are none.
pub(crate) fn size() -> (u16, u16) {
    termios::tcgetwinsize(io::stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row))
}

/// The terminal as a mere wire: every key goes to the command. However this
/// ends, the terminal is as it was.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn new() -> Result<Self, Error> {
        let no_terminal =
            |error: rustix::io::Errno| Error::Unexpected(format!("the terminal: {error}"));
        let before = termios::tcgetattr(io::stdin()).map_err(no_terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        let guard = Self { before };
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw).map_err(no_terminal)?;
        Ok(guard)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nobody is left to hear of a terminal that is gone.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
