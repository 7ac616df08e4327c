//! One run of one command: its options, its streams, and the ways to ask, to
//! connect and to print.

use std::{io, path::Path};

use selvage_kit::identity::Secret;

use crate::{
    Error, Global,
    client::Client,
    io::Io,
    output::{Format, Notice, Printer},
    target::{self, Target},
};

/// Context of every command.
pub(crate) struct Session<'a> {
    pub(crate) global: &'a Global,
    pub(crate) io: &'a mut Io,
    /// The person knows that tables lost columns.
    narrowness_told: bool,
}

impl<'a> Session<'a> {
    pub(crate) fn new(global: &'a Global, io: &'a mut Io) -> Self {
        Self { global, io, narrowness_told: false }
    }

    pub(crate) fn target(&mut self) -> Result<Target, Error> {
        Target::resolve(self.global, self.io)
    }

    pub(crate) async fn client(&mut self) -> Result<Client, Error> {
        let target = self.target()?;
        self.connect(&target).await
    }

    pub(crate) async fn connect(&self, target: &Target) -> Result<Client, Error> {
        Client::connect(target, self.global.timeout).await
    }

    /// Prints in the format asked for, a table if none was.
    pub(crate) fn printer(&mut self) -> Printer<'_> {
        let format = self.global.output.unwrap_or(Format::Table);
        let colour = self.io.colour_on_out(self.global.color);
        let notice = self
            .io
            .err_is_terminal
            .then_some(Notice { err: &mut self.io.err, told: &mut self.narrowness_told });
        Printer::new(&mut self.io.out, format, colour).columns(self.io.columns).notice(notice)
    }

    pub(crate) fn ask(&mut self, question: &str, hint: &str) -> Result<String, Error> {
        match &mut self.io.prompt {
            Some(prompt) => prompt.line(question).map_err(unanswered),
            None => Err(needs_input(question, hint)),
        }
    }

    pub(crate) fn ask_secret(&mut self, question: &str, hint: &str) -> Result<Secret, Error> {
        match &mut self.io.prompt {
            Some(prompt) => prompt.secret(question).map_err(unanswered),
            None => Err(needs_input(question, hint)),
        }
    }

    /// Asks the person and returns the answer.
    pub(crate) fn confirm(&mut self, question: &str, hint: &str) -> Result<bool, Error> {
        let answer = self.ask(&format!("{question} [y/N] "), hint)?;
        Ok(matches!(answer.to_lowercase().as_str(), "y" | "yes"))
    }

    /// A password that is there already: from the file, or asked for once.
    pub(crate) fn password(
        &mut self,
        file: Option<&Path>,
        question: &str,
        hint: &str,
    ) -> Result<Secret, Error> {
        match file {
            Some(path) => target::secret_file(path, "password", self.io),
            None => self.ask_secret(question, hint),
        }
    }

    /// A new password: from the file, or asked for twice.
    pub(crate) fn new_password(
        &mut self,
        file: Option<&Path>,
        hint: &str,
    ) -> Result<Secret, Error> {
        let first = self.password(file, "New password: ", hint)?;
        if file.is_none() && self.ask_secret("The same again: ", hint)? != first {
            return Err(Error::invalid("the two passwords differ"));
        }
        Ok(first)
    }
}

fn unanswered(source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::Interrupted {
        return Error::Interrupted;
    }
    Error::File { action: "read", path: "the terminal".into(), source }
}

fn needs_input(question: &str, hint: &str) -> Error {
    let what = question.trim_end_matches([' ', ':']).trim_end_matches("[y/N]").trim_end();
    Error::NeedsInput { what: format!("an answer to {what:?}"), hint: hint.into() }
}
