//! Drawing of the model.

mod panes;

use ratatui::{
    Frame,
    layout::{Constraint, Flex, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph},
};

use super::{
    layout::areas,
    model::{Model, Pane, State},
};

/// The keys, for the help.
const KEYS: [(&str, &str); 16] = [
    ("Tab  Shift-Tab", "go from pane to pane"),
    ("Up Down PgUp PgDn Home End", "move in a pane; so does the wheel"),
    ("Left Right  1-9", "look at another machine"),
    ("c  m  p  n", "sort processes by CPU, memory, pid, name"),
    ("t", "processes as a tree, or as a list"),
    ("/", "show only processes that contain a text; Esc shows all"),
    ("r", "restart the chosen container"),
    ("x", "end the chosen container (SIGTERM)"),
    ("l  s", "log of that container (Esc closes it); shell in it"),
    ("z  Enter", "give the pane the whole screen, or not"),
    ("?  h  F1", "this help"),
    ("q  Ctrl-C", "quit"),
    ("", ""),
    ("CPU%", "percent of one processor; of the machine: of all"),
    ("MEM", "what cannot be had, of all there is"),
    ("LOAD", "tasks that run or wait, over 1, 5 and 15 minutes"),
];

pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let areas = areas(model);
    let theme = Theme { colour: model.colour };
    header(frame, areas.header, model, theme);
    panes::machines(frame, areas.machines, model, theme);
    panes::machine(frame, areas.machine, model, theme);
    panes::processes(frame, areas.processes, model, theme);
    panes::containers(frame, areas.containers, model, theme);
    panes::kernel(frame, areas.kernel, model, theme);
    footer(frame, areas.footer, model, theme);
    if let Some(log) = &model.log {
        panes::log(frame, log, theme);
    }
    if model.help {
        help(frame, theme);
    }
    if let Some(question) = &model.question {
        let lines = vec![
            Line::raw(question.text.clone()),
            Line::raw(""),
            Line::raw("y: yes    any other key: no"),
        ];
        boxed(frame, "Sure?", lines, theme.warning());
    }
}

/// Colours, where there may be any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Theme {
    colour: bool,
}

impl Theme {
    fn of(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub(crate) fn bold() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn title(self) -> Style {
        self.of(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn dim(self) -> Style {
        self.of(Color::DarkGray)
    }

    pub(crate) fn warning(self) -> Style {
        self.of(Color::Yellow)
    }

    pub(crate) fn bad(self) -> Style {
        self.of(Color::Red)
    }

    pub(crate) fn good(self) -> Style {
        self.of(Color::Green)
    }

    pub(crate) fn graph(self) -> Style {
        self.of(Color::Blue)
    }

    /// Of something that is so full.
    pub(crate) fn share(self, share: f64) -> Style {
        match share {
            share if share >= 0.9 => self.bad(),
            share if share >= 0.7 => self.warning(),
            _ => self.good(),
        }
    }

    pub(crate) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// A pane with its title; the one in focus is seen to be.
    pub(crate) fn pane<'a>(self, title: String, focused: bool) -> Block<'a> {
        let border = if focused { self.title() } else { self.dim() };
        let block = Block::bordered().border_style(border);
        let block =
            if focused { block.border_type(ratatui::widgets::BorderType::Thick) } else { block };
        block.title(Span::styled(format!(" {title} "), Self::bold()))
    }
}

fn header(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let dead = model.machines.iter().filter(|one| matches!(one.state, State::Dead(_))).count();
    let count = match model.machines.len() {
        1 => "1 machine".to_owned(),
        several => format!("{several} machines"),
    };
    let mut spans = vec![Span::styled("selvage node top", theme.title()), Span::raw("  ")];
    spans.push(Span::raw(count));
    if dead > 0 {
        spans.push(Span::styled(format!(", {dead} down"), theme.bad()));
    }
    frame.render_widget(Line::from(spans), area);
    frame.render_widget(Line::raw("? help  q quit").right_aligned(), area);
}

fn footer(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let line = if model.typing {
        Line::styled(format!("show: {}_", model.filter), theme.warning())
    } else if let Some(notice) = &model.notice {
        Line::styled(notice.text.clone(), if notice.bad { theme.bad() } else { theme.good() })
    } else {
        let keys = match model.focus {
            Pane::Containers => "z zoom  r restart  x end  l log  s shell",
            _ => "t tree  c m p n sort  z zoom",
        };
        let text = format!("Tab pane  / filter  {keys}");
        Line::styled(text, theme.dim())
    };
    frame.render_widget(line, area);
}

fn help(frame: &mut Frame<'_>, theme: Theme) {
    let line = |(keys, words): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!("{keys:<27}"), Theme::bold()), Span::raw(*words)])
    };
    boxed(frame, "Keys", KEYS.iter().map(line).collect(), theme.title());
}

/// A box in the middle, over everything else.
fn boxed(frame: &mut Frame<'_>, title: &str, lines: Vec<Line<'_>>, border: Style) {
    let width = lines.iter().map(Line::width).max().unwrap_or(0).max(24) + 4;
    let height = lines.len() + 2;
    let length = |wanted: usize| Constraint::Length(u16::try_from(wanted).unwrap_or(u16::MAX));
    let [area] = Layout::horizontal([length(width)]).flex(Flex::Center).areas(frame.area());
    let [area] = Layout::vertical([length(height)]).flex(Flex::Center).areas(area);
    let block = Block::bordered()
        .title(format!(" {title} "))
        .border_style(border)
        .padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
