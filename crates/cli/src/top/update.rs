//! Changes of the model: keys, the mouse, news.

use std::collections::VecDeque;

use ratatui::{
    crossterm::event::{
        KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
    },
    layout::Size,
};

use super::{
    layout::areas,
    model::{LogView, Model, Notice, Pane, Question, Sort, State},
    rows::rows,
    source::{Effect, Report},
};

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Event {
    Key(KeyEvent),
    Mouse(MouseEvent),
    Resize(u16, u16),
    /// The process was told to end.
    End,
    Report(usize, Box<Report>),
}

/// Number of lines that the wheel scrolls.
const WHEEL: isize = 3;

/// Takes it in, and says what has to be done about it.
pub(crate) fn update(model: &mut Model, event: Event) -> Option<Effect> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => return press(model, key),
        Event::Key(_) => {}
        Event::Mouse(mouse) => point(model, mouse),
        Event::Resize(width, height) => model.size = Size::new(width, height),
        Event::End => model.over = true,
        Event::Report(node, report) => learn(model, node, *report),
    }
    None
}

fn learn(model: &mut Model, node: usize, report: Report) {
    let Some(machine) = model.machines.get_mut(node) else { return };
    match report {
        Report::Failed(why) => {
            machine.state = State::Dead(why);
            return;
        }
        Report::Restarted { id, result } => {
            let name = &machine.name;
            let (text, bad) = match result {
                Ok(words) => (format!("{name}: {id} {words}"), false),
                Err(why) => (format!("{name}: {id} is not restarted: {why}"), true),
            };
            model.notice = Some(Notice { text, bad });
            return;
        }
        Report::Host(host) => machine.set_host(host),
        Report::Processes { first, update } => machine.set_processes(first, update),
        Report::Containers(containers) => {
            machine.containers = containers;
            machine.containers_problem = None;
        }
        // The machine's own numbers say whether it lives.
        Report::NoContainers(problem) => {
            machine.containers.clear();
            machine.containers_problem = Some(problem);
            return;
        }
        Report::Log { id, lines } => {
            if let Some(log) = model.log.as_mut().filter(|log| log.node == node && log.id == id) {
                lines.iter().for_each(|line| log.add(line));
            }
            return;
        }
        Report::Kernel(record) => machine.add_kernel(&record),
    }
    machine.state = State::Alive;
}

fn press(model: &mut Model, key: KeyEvent) -> Option<Effect> {
    model.notice = None;
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        model.over = true;
        return None;
    }
    if let Some(question) = model.question.take() {
        return match key.code {
            KeyCode::Char('y' | 'Y') => Some(question.effect),
            _ => {
                model.notice = Some(Notice { text: "nothing was done".into(), bad: false });
                None
            }
        };
    }
    if model.log.is_some() {
        let closes = matches!(key.code, KeyCode::Esc | KeyCode::Char('q' | 'l'));
        return closes.then(|| {
            model.log = None;
            Effect::CloseLog
        });
    }
    if !model.help && !model.typing {
        match key.code {
            KeyCode::Char('l') => return follow_log(model),
            KeyCode::Char('s') => {
                return chosen_container(model).map(|(_, _, id, _)| Effect::Shell { id });
            }
            _ => {}
        }
    }
    if model.help {
        model.help = false;
    } else if model.typing {
        type_in(model, key.code);
    } else if !look(model, key.code) {
        turn(model, key.code);
    }
    None
}

fn type_in(model: &mut Model, code: KeyCode) {
    match code {
        KeyCode::Enter => model.typing = false,
        KeyCode::Esc => {
            model.typing = false;
            model.filter.clear();
        }
        KeyCode::Backspace => {
            model.filter.pop();
        }
        KeyCode::Char(letter) => model.filter.push(letter),
        _ => {}
    }
    model.process_at = 0;
}

/// Keys that change what is looked at, and how; false for all others.
fn look(model: &mut Model, code: KeyCode) -> bool {
    match code {
        KeyCode::Char('q') => model.over = true,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => model.help = true,
        KeyCode::Char('/') => {
            model.typing = true;
            model.focus = Pane::Processes;
        }
        KeyCode::Esc if model.zoomed => model.zoomed = false,
        KeyCode::Esc => model.filter.clear(),
        KeyCode::Char('t') => model.tree = !model.tree,
        KeyCode::Char('c') => model.sort = Sort::Cpu,
        KeyCode::Char('m') => model.sort = Sort::Memory,
        KeyCode::Char('p') => model.sort = Sort::Pid,
        KeyCode::Char('n') => model.sort = Sort::Name,
        KeyCode::Char('z') | KeyCode::Enter => model.zoomed = !model.zoomed,
        KeyCode::Char('r') => ask(model, "Restart", |node, namespace, id, driver| {
            Effect::Restart { node, namespace, id, driver }
        }),
        KeyCode::Char('x') => ask(model, "End", |node, namespace, id, driver| Effect::End {
            node,
            namespace,
            id,
            driver,
        }),
        KeyCode::Tab => model.focus = model.focus.step(1),
        KeyCode::BackTab => model.focus = model.focus.step(Pane::ALL.len() - 1),
        KeyCode::Left => choose(model, model.at.saturating_sub(1)),
        KeyCode::Right => choose(model, model.at + 1),
        KeyCode::Char(digit @ '1'..='9') => choose(model, digit as usize - '1' as usize),
        _ => return false,
    }
    true
}

/// Keys that move within the pane in focus.
fn turn(model: &mut Model, code: KeyCode) {
    let page = areas(model).lines(model.focus).max(1).cast_signed();
    match code {
        KeyCode::Up | KeyCode::Char('k') => shift(model, -1),
        KeyCode::Down | KeyCode::Char('j') => shift(model, 1),
        KeyCode::PageUp => shift(model, -page),
        KeyCode::PageDown => shift(model, page),
        KeyCode::Home | KeyCode::Char('g') => shift(model, isize::MIN),
        KeyCode::End | KeyCode::Char('G') => shift(model, isize::MAX),
        _ => {}
    }
}

/// Looks at another machine.
fn choose(model: &mut Model, at: usize) {
    let at = at.min(model.machines.len().saturating_sub(1));
    if at != model.at {
        model.at = at;
        (model.process_at, model.container_at, model.kernel_back) = (0, 0, 0);
    }
}

/// Number of lines of a pane in all.
fn length(model: &Model, pane: Pane) -> usize {
    let Some(machine) = model.machine() else { return 0 };
    match pane {
        Pane::Machines => model.machines.len(),
        Pane::Processes => rows(model, machine).len(),
        Pane::Containers => machine.containers.len(),
        Pane::Kernel => machine.kernel.len(),
    }
}

fn shift(model: &mut Model, by: isize) {
    let last = length(model, model.focus).saturating_sub(1);
    let moved = |at: usize| at.min(last).saturating_add_signed(by).min(last);
    match model.focus {
        Pane::Machines => choose(model, moved(model.at)),
        Pane::Processes => model.process_at = moved(model.process_at),
        Pane::Containers => model.container_at = moved(model.container_at),
        // Its end is where one begins to look.
        Pane::Kernel => {
            let most = length(model, Pane::Kernel).saturating_sub(areas(model).lines(Pane::Kernel));
            let back = model.kernel_back.min(most);
            model.kernel_back = back.saturating_add_signed(by.saturating_neg()).min(most);
        }
    }
}

/// Machine, namespace, id and driver of the container that is chosen.
type ContainerChoice = (usize, String, String, i32);

fn chosen_container(model: &mut Model) -> Option<ContainerChoice> {
    let machine = model.machine()?;
    let at = model.container_at.min(machine.containers.len().saturating_sub(1));
    let chosen = machine.containers.get(at).filter(|_| model.focus == Pane::Containers);
    let found =
        chosen.map(|one| (model.at, one.info.namespace.clone(), one.info.id.clone(), one.driver));
    if found.is_none() {
        let text = "choose a container first: Tab leads to them".into();
        model.notice = Some(Notice { text, bad: false });
    }
    found
}

/// Asks before something is done to the chosen container.
fn ask(model: &mut Model, action: &str, effect: fn(usize, String, String, i32) -> Effect) {
    let Some((node, namespace, id, driver)) = chosen_container(model) else { return };
    let machine = model.machine().map(|machine| machine.name.clone()).unwrap_or_default();
    let text = format!("{action} {id} on {machine}?");
    model.question = Some(Question { text, effect: effect(node, namespace, id, driver) });
}

fn follow_log(model: &mut Model) -> Option<Effect> {
    let (node, namespace, id, driver) = chosen_container(model)?;
    model.log = Some(LogView { node, id: id.clone(), lines: VecDeque::new() });
    Some(Effect::FollowLog { node, namespace, id, driver })
}

fn point(model: &mut Model, mouse: MouseEvent) {
    if model.help || model.question.is_some() {
        return;
    }
    let areas = areas(model);
    let Some(pane) = areas.at(mouse.column, mouse.row) else { return };
    match mouse.kind {
        MouseEventKind::ScrollUp | MouseEventKind::ScrollDown => {
            let by = if mouse.kind == MouseEventKind::ScrollUp { -WHEEL } else { WHEEL };
            let focus = std::mem::replace(&mut model.focus, pane);
            shift(model, by);
            model.focus = focus;
        }
        MouseEventKind::Down(MouseButton::Left) => {
            model.focus = pane;
            let line = usize::from(mouse.row.saturating_sub(areas.of(pane).y + 2));
            pick(model, pane, line, areas.lines(pane));
        }
        _ => {}
    }
}

/// The line of a pane that was clicked on.
fn pick(model: &mut Model, pane: Pane, line: usize, shown: usize) {
    let last = length(model, pane).saturating_sub(1);
    let chosen = |at: usize| (offset(at.min(last), shown) + line).min(last);
    match pane {
        Pane::Machines => choose(model, chosen(model.at)),
        Pane::Processes => model.process_at = chosen(model.process_at),
        Pane::Containers => model.container_at = chosen(model.container_at),
        Pane::Kernel => {}
    }
}

/// The first line that is shown, for the chosen one to be seen.
pub(crate) fn offset(at: usize, shown: usize) -> usize {
    (at + 1).saturating_sub(shown.max(1))
}
