//! Changes that take their time: told line by line while they are made.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use prost_reflect::DynamicMessage;
use selvage_api::{Code, Method};

use super::operation;
use crate::{
    Error,
    client::Client,
    edge::{
        Kind,
        rpc::{self, Failure},
    },
    error::printable,
    io::Io,
    output::{Format, Printer},
    session::Session,
};

/// Interval at which the clock on the screen moves.
const TICK: Duration = Duration::from_millis(100);
/// Delay before the next attempt to connect.
const AGAIN: Duration = Duration::from_secs(1);
/// Timeout of the cancellation after Ctrl-C.
const LAST_WORD: Duration = Duration::from_secs(3);
const FRAMES: [char; 4] = ['|', '/', '-', '\\'];

/// One change of one object.
pub(crate) struct Job {
    pub(crate) kind: &'static Kind,
    pub(crate) method: &'static Method,
    pub(crate) message: DynamicMessage,
    /// Come back when the connection breaks.
    pub(crate) watch: bool,
    pub(crate) dry_run: bool,
}

/// Destination of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// They are what the command prints.
    Lines(Format),
    /// They are kept for whoever prints the object they are about.
    Plan,
    /// They are only worth a look while they last.
    Aside,
}

/// Tells what is said, and on a terminal that time passes.
pub(crate) struct ProgressPrinter {
    style: Style,
    spins: bool,
    started: Instant,
    last: String,
    drawn: usize,
    /// Number of lines printed.
    pub(crate) lines: usize,
    /// Those that were not printed.
    pub(crate) kept: Vec<String>,
}

impl ProgressPrinter {
    fn new(session: &Session<'_>, style: Style) -> Self {
        Self {
            style,
            spins: session.io.err_is_terminal,
            started: Instant::now(),
            last: String::new(),
            drawn: 0,
            lines: 0,
            kept: Vec::new(),
        }
    }

    /// For commands whose output the lines are.
    pub(crate) fn lines(session: &Session<'_>) -> Self {
        let format = session.global.output.unwrap_or(Format::Table);
        Self::new(session, Style::Lines(format))
    }

    /// For lists of objects: the lines of a plan are kept to stand under the
    /// object, those of work are shown on a terminal only.
    pub(crate) fn in_a_list(session: &Session<'_>, dry_run: bool) -> Self {
        Self::new(session, if dry_run { Style::Plan } else { Style::Aside })
    }

    pub(crate) fn line(&mut self, io: &mut Io, text: &str) -> Result<(), Error> {
        self.clear(io)?;
        self.lines += 1;
        self.last = printable(text);
        match self.style {
            Style::Lines(Format::Table | Format::Wide) => writeln!(io.out, "{}", self.last),
            Style::Lines(format) => {
                if format == Format::Yaml && self.lines > 1 {
                    writeln!(io.out, "---").map_err(Error::Output)?;
                }
                let message = serde_json::json!({ "message": text });
                return Printer::new(&mut io.out, format, false).record(&message);
            }
            Style::Plan => {
                self.kept.push(self.last.clone());
                return Ok(());
            }
            Style::Aside => return self.draw(io),
        }
        .and_then(|()| io.out.flush())
        .map_err(Error::Output)
    }

    /// Waits for something while the clock moves.
    pub(crate) async fn waiting<F: Future>(
        &mut self,
        io: &mut Io,
        work: F,
    ) -> Result<F::Output, Error> {
        let mut work = std::pin::pin!(work);
        loop {
            if !self.spins {
                return Ok(work.await);
            }
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(TICK) => self.draw(io)?,
            }
        }
    }

    fn draw(&mut self, io: &mut Io) -> Result<(), Error> {
        if !self.spins {
            return Ok(());
        }
        let frame = FRAMES[self.drawn % FRAMES.len()];
        self.drawn += 1;
        let seconds = self.started.elapsed().as_secs();
        write!(io.err, "\r\x1b[2K{frame} {seconds} s  {}", self.last)
            .and_then(|()| io.err.flush())
            .map_err(Error::Output)
    }

    /// Takes the clock off the screen.
    pub(crate) fn clear(&mut self, io: &mut Io) -> Result<(), Error> {
        if self.drawn == 0 {
            return Ok(());
        }
        self.drawn = 0;
        clear_line(io)
    }
}

/// Takes a clock off the screen whose narrator is gone.
pub(crate) fn clear_line(io: &mut Io) -> Result<(), Error> {
    if !io.err_is_terminal {
        return Ok(());
    }
    write!(io.err, "\r\x1b[2K").and_then(|()| io.err.flush()).map_err(Error::Output)
}

/// Makes the change and tells of it until it is made.
pub(crate) async fn perform(
    session: &mut Session<'_>,
    client: &Client,
    job: &Job,
    narrator: &mut ProgressPrinter,
) -> Result<(), Error> {
    if !job.method.server_streaming {
        let result = carry_out(client, job, narrator, session.io).await;
        narrator.clear(session.io)?;
        return result.map_err(|failure| failure.error);
    }
    let work = async {
        match carry_out(client, job, narrator, session.io).await {
            Err(failure) if job.watch && !job.dry_run && may_go_on(&failure, narrator) => {
                come_back(session, job, narrator, failure).await
            }
            other => other.map_err(|failure| failure.error),
        }
    };
    let result = tokio::select! {
        result = Box::pin(work) => Some(result),
        Ok(()) = tokio::signal::ctrl_c() => None,
    };
    narrator.clear(session.io)?;
    match result {
        Some(result) => result,
        None => {
            if !job.dry_run {
                leave(client, job, session.io).await?;
            }
            Err(Error::Interrupted)
        }
    }
}

async fn carry_out(
    client: &Client,
    job: &Job,
    narrator: &mut ProgressPrinter,
    io: &mut Io,
) -> Result<(), Failure> {
    let sound = |error| Failure { error, broke: false };
    let begin = rpc::open(client, job.method, job.message.clone(), job.dry_run);
    let mut answers = narrator.waiting(io, begin).await.map_err(sound)??;
    if job.dry_run && !answers.dry {
        return Err(sound(Error::NotDry(job.method.name.clone())));
    }
    loop {
        let next = narrator.waiting(io, answers.next(client)).await.map_err(sound)??;
        let Some(answer) = next else { return Ok(()) };
        let text = answer.get_field_by_name("message");
        if let Some(text) = text.as_deref().and_then(|text| text.as_str())
            && !text.is_empty()
        {
            narrator.line(io, text).map_err(sound)?;
        }
    }
}

/// Returns whether the server may still be at work: the connection broke, or it took
/// its leave after it had begun.
fn may_go_on(failure: &Failure, narrator: &ProgressPrinter) -> bool {
    failure.broke || (failure.error.code() == Code::Unavailable && narrator.lines > 0)
}

/// Finds the work again and follows it, however often the connection breaks.
async fn come_back(
    session: &mut Session<'_>,
    job: &Job,
    narrator: &mut ProgressPrinter,
    mut lost: Failure,
) -> Result<(), Error> {
    narrator.clear(session.io)?;
    session.io.say("The connection is lost; coming back to the work.")?;
    loop {
        match follow(session, job, narrator).await {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(lost.error),
            Err(failure) if failure.broke || failure.error.code() == Code::Unavailable => {
                lost = failure;
            }
            Err(failure) => return Err(failure.error),
        }
        narrator.waiting(session.io, tokio::time::sleep(AGAIN)).await?;
    }
}

/// Follows the work to its end; false when the server knows of none.
async fn follow(
    session: &mut Session<'_>,
    job: &Job,
    narrator: &mut ProgressPrinter,
) -> Result<bool, Failure> {
    let lost = |error: Error| Failure { broke: error.code() == Code::Unavailable, error };
    let client = session.client().await.map_err(lost)?;
    let found = operation::find(&client, &job.method.name, job.kind, &job.message).await;
    let Some(work) = found.map_err(lost)? else { return Ok(false) };
    let printed = narrator.lines;
    operation::follow(&client, &work.id, printed, narrator, session.io).await?;
    Ok(true)
}

/// Says how to come back to what is left behind.
async fn leave(client: &Client, job: &Job, io: &mut Io) -> Result<(), Error> {
    let find = operation::find(client, &job.method.name, job.kind, &job.message);
    let found = tokio::time::timeout(LAST_WORD, find).await;
    let hint = match found {
        Ok(Ok(Some(work))) => format!("follow it with `selvage operation follow {}`", work.id),
        _ => "`selvage operation list --active` shows it".to_owned(),
    };
    io.say(&format!("The operation goes on at the server; {hint}."))
}
