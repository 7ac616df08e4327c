//! `selvage node top`: machines on the whole screen.
//!
//! State is in [`model`], what happens to it in [`update`], how it
//! looks in [`view`]; none of them does I/O. [`source`] says where news comes
//! from: [`live`] asks the agents, tests bring their own.

mod bar;
mod layout;
mod live;
mod model;
mod rows;
mod screen;
mod source;
mod update;
mod view;

#[cfg(test)]
mod tests;

use std::{io, time::Duration};

use ratatui::{Terminal, backend::Backend};
use tokio::sync::mpsc;

use crate::{
    Error,
    commands::{
        exec,
        node::{Nodes, args::Top},
    },
    error::printable,
    session::Session,
};
use live::Live;
use model::{Model, Notice};
use source::{Effect, Source};
use update::update;

pub(crate) use self::{screen::Screen, update::Event};

/// News is drawn this often at most; keys at once.
const FRAME: Duration = Duration::from_millis(100);

pub(crate) async fn run(nodes: Nodes, args: &Top, session: &mut Session<'_>) -> Result<(), Error> {
    if !session.io.out_is_terminal || session.io.prompt.is_none() {
        return Err(Error::Invalid {
            message: "top needs a terminal".into(),
            hints: vec!["`selvage node stats --watch` prints what changes".into()],
        });
    }
    let colour = session.io.colour_on_out(session.global.color);
    let (mut source, names) = Live::start(nodes, args.interval, session).await?;
    let mut model = Model::new(names, colour);
    loop {
        let (mut screen, input) = Screen::open().map_err(Error::Output)?;
        let left = run_on(&mut screen.terminal, &mut model, &mut source, input).await;
        drop(screen);
        let Some(container) = left? else { return Ok(()) };
        model.notice = shell(&container, session).await;
    }
}

/// Runs a shell in the instance that a container is of. Returns what is to be said
/// afterwards.
async fn shell(container: &str, session: &mut Session<'_>) -> Option<Notice> {
    match exec::shell_in(container, session).await {
        // How the shell ended, it has said itself.
        Ok(()) | Err(Error::Exited(_)) => None,
        Err(error) => Some(Notice { text: printable(&error.to_string()), bad: true }),
    }
}

/// Shows and does until somebody quits, or the keyboard is gone; returns the container
/// that somebody wants a shell in, if that is why the screen is left.
async fn run_on<B: Backend>(
    terminal: &mut Terminal<B>,
    model: &mut Model,
    source: &mut impl Source,
    mut input: mpsc::Receiver<Event>,
) -> Result<Option<String>, Error>
where
    B::Error: std::fmt::Display,
{
    let broken = |error: B::Error| Error::Output(io::Error::other(error.to_string()));
    let size = terminal.size().map_err(broken)?;
    model.size = size;
    let mut clock = tokio::time::interval(FRAME);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut stale = true;
    while !model.over {
        tokio::select! {
            biased;
            event = input.recv() => {
                let Some(event) = event else { break };
                match update(model, event) {
                    Some(Effect::Shell { id }) => return Ok(Some(id)),
                    Some(effect) => source.act(effect),
                    None => {}
                }
                stale = false;
                terminal.draw(|frame| view::draw(frame, model)).map_err(broken)?;
            }
            _ = clock.tick(), if stale => {
                stale = false;
                terminal.draw(|frame| view::draw(frame, model)).map_err(broken)?;
            }
            Some((node, report)) = source.next() => {
                update(model, Event::Report(node, Box::new(report)));
                stale = true;
            }
        }
    }
    Ok(None)
}
