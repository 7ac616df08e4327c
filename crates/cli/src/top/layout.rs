//! Layout of the screen. Keys and mouse go by the same answer as
//! drawing.

use ratatui::layout::{Constraint, Layout, Position, Rect};

use super::model::{Model, Pane};

/// So wide that processes and containers can stand side by side.
const WIDE: u16 = 150;
/// So high that both can stand one above the other.
const HIGH: u16 = 14;
/// Room for one processor's gauge.
pub(crate) const CORE: u16 = 26;

/// The parts of the screen; those that are not shown are empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Areas {
    pub(crate) header: Rect,
    pub(crate) machines: Rect,
    pub(crate) machine: Rect,
    pub(crate) processes: Rect,
    pub(crate) containers: Rect,
    pub(crate) kernel: Rect,
    pub(crate) footer: Rect,
}

impl Areas {
    pub(crate) fn of(&self, pane: Pane) -> Rect {
        match pane {
            Pane::Machines => self.machines,
            Pane::Processes => self.processes,
            Pane::Containers => self.containers,
            Pane::Kernel => self.kernel,
        }
    }

    /// The pane at a place.
    pub(crate) fn at(&self, column: u16, row: u16) -> Option<Pane> {
        Pane::ALL.into_iter().find(|pane| self.of(*pane).contains(Position::new(column, row)))
    }

    /// Number of lines of a pane's content that are shown.
    pub(crate) fn lines(&self, pane: Pane) -> usize {
        let titles = if pane == Pane::Kernel { 2 } else { 3 };
        usize::from(self.of(pane).height.saturating_sub(titles))
    }
}

pub(crate) fn areas(model: &Model) -> Areas {
    let whole = Rect::new(0, 0, model.size.width, model.size.height);
    let [header, body, footer] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(whole);
    let mut areas = Areas { header, footer, ..Areas::default() };
    if model.zoomed {
        match model.focus {
            Pane::Machines => areas.machines = body,
            Pane::Processes => areas.processes = body,
            Pane::Containers => areas.containers = body,
            Pane::Kernel => areas.kernel = body,
        }
        return areas;
    }
    let machines = u16::try_from(model.machines.len()).unwrap_or(u16::MAX).saturating_add(3);
    let machine = cores_height(model, body.width) + 2;
    let kernel = match body.height {
        0..18 => 0,
        18..28 => 5,
        _ => 8,
    };
    let [machines, machine, rest, kernel] = Layout::vertical([
        Constraint::Length(machines.min((body.height / 4).max(4))),
        Constraint::Length(if body.height < 14 { 0 } else { machine }),
        Constraint::Min(4),
        Constraint::Length(kernel),
    ])
    .areas(body);
    (areas.machines, areas.machine, areas.kernel) = (machines, machine, kernel);
    split(&mut areas, rest, model.focus);
    areas
}

fn split(areas: &mut Areas, rest: Rect, focus: Pane) {
    let shares = [Constraint::Fill(3), Constraint::Fill(2)];
    if rest.width >= WIDE {
        [areas.processes, areas.containers] = Layout::horizontal(shares).areas(rest);
    } else if rest.height >= HIGH {
        [areas.processes, areas.containers] = Layout::vertical(shares).areas(rest);
    } else if focus == Pane::Containers {
        areas.containers = rest;
    } else {
        areas.processes = rest;
    }
}

/// Gauges of processors that stand side by side in half of the screen.
pub(crate) fn cores_across(width: u16) -> u16 {
    (width.saturating_sub(2) / 2 / CORE).max(1)
}

/// Lines that the gauges of all processors need, and no more than are fair.
fn cores_height(model: &Model, width: u16) -> u16 {
    let cores = model.machine().map_or(0, |machine| machine.cores.len());
    let lines = cores.div_ceil(usize::from(cores_across(width)));
    u16::try_from(lines).unwrap_or(u16::MAX).clamp(4, 10)
}
