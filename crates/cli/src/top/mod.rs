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
    commands::node::{Nodes, args::Top},
    session::Session,
};
use live::Live;
use model::Model;
use source::Source;
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
    let (source, names) = Live::start(nodes, args.interval, session).await?;
    let model = Model::new(names, colour);
    let (mut screen, input) = Screen::open().map_err(Error::Output)?;
    let result = run_on(&mut screen.terminal, model, source, input).await;
    drop(screen);
    result
}

/// Shows and does until somebody quits, or the keyboard is gone.
async fn run_on<B: Backend>(
    terminal: &mut Terminal<B>,
    mut model: Model,
    mut source: impl Source,
    mut input: mpsc::Receiver<Event>,
) -> Result<(), Error>
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
                if let Some(effect) = update(&mut model, event) {
                    source.act(effect);
                }
                stale = false;
                terminal.draw(|frame| view::draw(frame, &model)).map_err(broken)?;
            }
            _ = clock.tick(), if stale => {
                stale = false;
                terminal.draw(|frame| view::draw(frame, &model)).map_err(broken)?;
            }
            Some((node, report)) = source.next() => {
                update(&mut model, Event::Report(node, Box::new(report)));
                stale = true;
            }
        }
    }
    Ok(())
}
