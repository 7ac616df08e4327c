//! The overview on the whole screen, as it changes.

use std::{io, time::Duration};

use ratatui::{
    Frame, Terminal,
    backend::Backend,
    crossterm::event::{KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::Paragraph,
};
use selvage_api::selvage::dashboard::Overview;
use tokio::sync::mpsc;

use super::{
    apply,
    follow::{self, News, follow},
    text::{self, Tone},
};
use crate::{
    Error,
    error::printable,
    session::Session,
    top::{Event, Screen},
};

/// The ages on the screen are of so long ago at most.
const TICK: Duration = Duration::from_secs(1);
const PAGE: u16 = 10;

/// Content of the screen.
#[derive(Debug, Default)]
pub(super) struct Model {
    overview: Overview,
    scroll: u16,
    colour: bool,
    /// Why there is nothing new.
    broken: Option<String>,
    over: bool,
}

pub(super) async fn watch(session: &mut Session<'_>) -> Result<(), Error> {
    if !session.io.out_is_terminal || session.io.prompt.is_none() {
        return Err(Error::Invalid {
            message: "--watch needs a terminal".into(),
            hints: vec!["`selvage dashboard` prints it once, `selvage health` one line".into()],
        });
    }
    let colour = session.io.colour_on_out(session.global.color);
    let (target, timeout) = (session.target()?, session.global.timeout);
    let open = async || follow::open(&target, timeout).await;
    let stream = open().await?;
    let (sender, news) = mpsc::channel(64);
    let (mut screen, input) = Screen::open().map_err(Error::Output)?;
    let model = Model { colour, ..Model::default() };
    let ended = tokio::select! {
        ended = run_on(&mut screen.terminal, model, news, input) => ended,
        () = follow(stream, follow::RETRY_INTERVAL, open, sender) => Ok(()),
    };
    drop(screen);
    ended
}

/// Takes over what the server says; what it said last stays while it is away.
fn hear(model: &mut Model, news: News) {
    let update = match news {
        News::Broken(why) => {
            model.broken = Some(why);
            return;
        }
        News::Whole(update) => {
            model.overview = Overview::default();
            update
        }
        News::Change(update) => update,
    };
    model.broken = None;
    apply(&mut model.overview, update);
}

async fn run_on<B: Backend>(
    terminal: &mut Terminal<B>,
    mut model: Model,
    mut news: mpsc::Receiver<News>,
    mut input: mpsc::Receiver<Event>,
) -> Result<(), Error>
where
    B::Error: std::fmt::Display,
{
    let broken = |error: B::Error| Error::Output(io::Error::other(error.to_string()));
    let mut clock = tokio::time::interval(TICK);
    while !model.over {
        let now = jiff::Timestamp::now();
        terminal.draw(|frame| draw(frame, &model, now)).map_err(broken)?;
        tokio::select! {
            event = input.recv() => match event {
                Some(event) => press(&mut model, &event),
                None => break,
            },
            Some(news) = news.recv() => hear(&mut model, news),
            _ = clock.tick() => {}
        }
    }
    Ok(())
}

fn press(model: &mut Model, event: &Event) {
    let key = match event {
        Event::End => {
            model.over = true;
            return;
        }
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return,
    };
    match (key.code, key.modifiers) {
        (KeyCode::Char('c'), KeyModifiers::CONTROL) | (KeyCode::Char('q') | KeyCode::Esc, _) => {
            model.over = true;
        }
        (KeyCode::Down | KeyCode::Char('j'), _) => model.scroll = model.scroll.saturating_add(1),
        (KeyCode::Up | KeyCode::Char('k'), _) => model.scroll = model.scroll.saturating_sub(1),
        (KeyCode::PageDown, _) => model.scroll = model.scroll.saturating_add(PAGE),
        (KeyCode::PageUp, _) => model.scroll = model.scroll.saturating_sub(PAGE),
        (KeyCode::Home, _) => model.scroll = 0,
        _ => {}
    }
}

fn style(tone: Tone, colour: bool) -> Style {
    let plain = Style::default();
    match (tone, colour) {
        (Tone::Heading, _) => plain.add_modifier(Modifier::BOLD),
        (Tone::Plain, _) | (_, false) => plain,
        (Tone::Good, true) => plain.fg(Color::Green),
        (Tone::Warning, true) => plain.fg(Color::Yellow),
        (Tone::Bad, true) => plain.fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

fn draw(frame: &mut Frame<'_>, model: &Model, now: jiff::Timestamp) {
    let [body, footer] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let lines: Vec<Line<'_>> = text::lines(&model.overview, now)
        .into_iter()
        .map(|line| Line::styled(printable(&line.text), style(line.tone, model.colour)))
        .collect();
    let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(body.height);
    frame.render_widget(Paragraph::new(lines).scroll((model.scroll.min(most), 0)), body);
    let keys = match &model.broken {
        Some(why) => {
            format!("{}: what is shown is old; trying again   q quit", printable(why))
        }
        None => "q quit   arrows scroll".to_owned(),
    };
    let tone = if model.broken.is_some() { Tone::Warning } else { Tone::Plain };
    frame.render_widget(Paragraph::new(keys).style(style(tone, model.colour)), footer);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ratatui::{backend::TestBackend, crossterm::event::KeyEvent};
    use selvage_api::selvage::dashboard::{OverviewUpdate, Verdict};

    use super::*;

    fn shown(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model, jiff::Timestamp::UNIX_EPOCH)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_says_how_it_is_and_how_to_leave() {
        let sentence = "All is well\x1b[2J.".to_owned();
        let verdict = Some(Verdict { sentence, ..Verdict::default() });
        let overview = Overview { verdict, ..Overview::default() };
        let mut model = Model { overview, ..Model::default() };
        let screen = shown(&model, 40, 4);
        assert!(screen.contains("OK  All is well\u{fffd}[2J."), "{screen}");
        assert!(screen.contains("q quit"), "{screen}");
        hear(&mut model, News::Broken("the server has ended".into()));
        let screen = shown(&model, 80, 4);
        assert!(screen.contains("what is shown is old") && screen.contains("All is well"));
        // It is back, and what it says replaces all that was known.
        hear(&mut model, News::Whole(OverviewUpdate::default()));
        let screen = shown(&model, 80, 4);
        assert!(!screen.contains("is old") && !screen.contains("All is well"), "{screen}");
        for (width, height) in [(1, 1), (20, 1), (300, 2)] {
            shown(&model, width, height);
        }
        press(&mut model, &Event::Key(KeyEvent::from(KeyCode::Down)));
        assert_eq!((model.scroll, model.over), (1, false));
        press(&mut model, &Event::Key(KeyEvent::from(KeyCode::Char('q'))));
        assert!(model.over);
    }
}
