//! The panes.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Cell, Clear, Paragraph, Row, Sparkline, Table},
};

use super::Theme;
use crate::{
    commands::node::{binary, span},
    top::{
        bar,
        layout::{CORE, cores_across},
        model::{LogView, Machine, Model, Pane, State},
        rows::{self, rows},
        source::Container,
        update::offset,
    },
};

/// Rows of a table that can be seen, the chosen one marked.
fn seen<'a>(rows: Vec<Row<'a>>, at: usize, area: Rect, mark: Option<Style>) -> Vec<Row<'a>> {
    let shown = usize::from(area.height.saturating_sub(3));
    let at = at.min(rows.len().saturating_sub(1));
    let first = offset(at, shown);
    let row = |(number, row): (usize, Row<'a>)| match mark {
        Some(style) if number == at => row.style(style),
        _ => row,
    };
    rows.into_iter().enumerate().skip(first).take(shown).map(row).collect()
}

fn mark(model: &Model, pane: Pane, theme: Theme) -> Option<Style> {
    (model.focus == pane).then(|| theme.chosen())
}

fn number(text: String) -> Cell<'static> {
    Cell::new(Line::raw(text).right_aligned())
}

fn head(titles: &[(&'static str, bool)]) -> Row<'static> {
    let cell = |(title, right): &(&'static str, bool)| {
        let line = Line::raw(*title);
        Cell::new(if *right { line.right_aligned() } else { line })
    };
    Row::new(titles.iter().map(cell)).style(Theme::bold())
}

pub(super) fn machines(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    // Names, numbers and gaps first; gauges and graphs share the rest.
    let name = model.machines.iter().map(|one| one.name.chars().count()).max().unwrap_or(4);
    let name = name.clamp(4, 24);
    let rest = usize::from(area.width).saturating_sub(2 + name + 1 + 20 + 6 + 4);
    let gauge = (rest / 3).clamp(6, 30);
    let graph = rest.saturating_sub(2 * gauge).clamp(0, 60);
    let row = |machine: &Machine| machine_row(machine, gauge, graph, theme);
    let all = model.machines.iter().map(row).collect();
    // The machine that is looked at is marked whatever is in focus.
    let mark = mark(model, Pane::Machines, theme).unwrap_or(Theme::bold());
    let width = |wide: usize| Constraint::Length(u16::try_from(wide).unwrap_or(u16::MAX));
    let widths = [width(name), width(gauge), width(graph), width(gauge), width(20), width(6)];
    let table = Table::new(seen(all, model.at, area, Some(mark)), widths)
        .header(head(&[
            ("NODE", false),
            ("CPU", false),
            ("", false),
            ("MEM", false),
            ("LOAD", true),
            ("PROCS", true),
        ]))
        .block(theme.pane("Machines".into(), model.focus == Pane::Machines));
    frame.render_widget(table, area);
    reasons(frame, area, model, u16::try_from(name).unwrap_or(u16::MAX), theme);
}

/// Why machines are down, over all columns but the first.
fn reasons(frame: &mut Frame<'_>, area: Rect, model: &Model, name: u16, theme: Theme) {
    let shown = usize::from(area.height.saturating_sub(3));
    let first = offset(model.at, shown);
    let seen = model.machines.iter().skip(first).take(shown);
    for (line, machine) in (area.y + 2..).zip(seen) {
        let place = Rect::new(
            area.x.saturating_add(name + 2),
            line,
            area.width.saturating_sub(name + 3),
            1,
        );
        if let State::Dead(why) = &machine.state {
            let text = Line::styled(format!("down: {why}"), theme.bad());
            frame.render_widget(text, place.intersection(area));
        }
    }
}

fn machine_row(machine: &Machine, gauge: usize, graph: usize, theme: Theme) -> Row<'static> {
    let name = Cell::new(machine.name.clone());
    match &machine.state {
        State::Waiting => Row::new([name, Cell::new(Span::styled("...", theme.dim()))]),
        State::Dead(_) => Row::new([name]),
        State::Alive => {
            let (busy, used) = (machine.busy(), machine.memory_used());
            let loads = machine.host.as_ref().map_or(String::new(), |host| {
                format!("{:.2} {:.2} {:.2}", host.load1, host.load5, host.load15)
            });
            Row::new([
                name,
                Cell::new(Span::styled(bar::gauge(busy, gauge), theme.share(busy))),
                Cell::new(Span::styled(bar::sparkline(&machine.cpu, graph), theme.graph())),
                Cell::new(Span::styled(bar::gauge(used, gauge), theme.share(used))),
                number(loads),
                number(machine.processes.len().to_string()),
            ])
        }
    }
}

pub(super) fn machine(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let Some(machine) = model.machine().filter(|_| area.height > 2) else { return };
    let block = theme.pane(title(machine), false);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2).areas(inner);
    cores(frame, left, machine, area.width, theme);
    let [cpu, memory] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(right);
    graph(frame, cpu, "CPU ", &machine.cpu, theme.good());
    graph(frame, memory, "MEM ", &machine.memory, theme.graph());
}

fn title(machine: &Machine) -> String {
    let mut title = machine.name.clone();
    let Some(host) = &machine.host else { return title };
    if !host.name.is_empty() && host.name != machine.name {
        title.push_str(&format!(" ({})", host.name));
    }
    if let (Some(now), Some(started)) = (&host.time, &host.started) {
        title.push_str(&format!("  up {}", span(now.seconds - started.seconds)));
    }
    title.push_str(&format!("  {} cores", host.cpus.len()));
    if let Some(memory) = &host.memory {
        let used = memory.memtotal.saturating_sub(memory.memavailable);
        title.push_str(&format!(
            "  memory {} of {}",
            binary(used * 1024),
            binary(memory.memtotal * 1024)
        ));
        if memory.swaptotal > 0 {
            let used = memory.swaptotal.saturating_sub(memory.swapfree);
            title.push_str(&format!(
                "  swap {} of {}",
                binary(used * 1024),
                binary(memory.swaptotal * 1024)
            ));
        }
    }
    title
}

/// A gauge a processor, in columns from above to below.
fn cores(frame: &mut Frame<'_>, area: Rect, machine: &Machine, width: u16, theme: Theme) {
    let across = usize::from(cores_across(width));
    let lines = machine.cores.len().div_ceil(across);
    let gauge = usize::from((area.width / u16::try_from(across).unwrap_or(1)).max(CORE / 2));
    let all = (0..lines).map(|line| {
        let cells = (0..across).filter_map(|column| {
            let core = column * lines + line;
            let busy = *machine.cores.get(core)?;
            Some([
                Span::raw(format!("{core:>3} ")),
                Span::styled(bar::gauge(busy, gauge.saturating_sub(5)), theme.share(busy)),
                Span::raw(" "),
            ])
        });
        Line::from(cells.flatten().collect::<Vec<_>>())
    });
    frame.render_widget(Paragraph::new(all.collect::<Vec<_>>()), area);
}

fn graph(
    frame: &mut Frame<'_>,
    area: Rect,
    label: &'static str,
    points: &std::collections::VecDeque<u64>,
    style: Style,
) {
    let [left, right] =
        Layout::horizontal([Constraint::Length(4), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Span::raw(label), left);
    let room = usize::from(right.width);
    let newest: Vec<u64> = points.iter().skip(points.len().saturating_sub(room)).copied().collect();
    frame.render_widget(Sparkline::default().data(newest).max(100).style(style), right);
}

pub(super) fn processes(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let Some(machine) = model.machine().filter(|_| area.height > 0) else { return };
    let all = rows(model, machine);
    let mut title = format!("Processes {}  by {}", all.len(), model.sort.word());
    if model.tree {
        title.push_str("  tree");
    }
    if !model.filter.is_empty() {
        title.push_str(&format!("  with {:?}", model.filter));
    }
    let all = all.into_iter().map(|row| process_row(row, theme)).collect();
    let chosen = seen(all, model.process_at, area, mark(model, Pane::Processes, theme));
    let widths = [
        Constraint::Length(7),
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Fill(1),
    ];
    let table = Table::new(chosen, widths)
        .header(head(&[
            ("PID", true),
            ("S", false),
            ("THR", true),
            ("CPU%", true),
            ("CPU-TIME", true),
            ("RES", true),
            ("VIRT", true),
            ("COMMAND", false),
        ]))
        .block(theme.pane(title, model.focus == Pane::Processes));
    frame.render_widget(table, area);
}

fn process_row(row: rows::Row<'_>, theme: Theme) -> Row<'static> {
    let rows::Row { process, branch, command } = row;
    let info = &process.info;
    let busy = Line::styled(format!("{:.1}", process.cpu), theme.share(process.cpu / 100.0));
    let command = crate::error::printable(&command).replace(['\n', '\t'], " ");
    Row::new([
        number(info.pid.to_string()),
        Cell::new(info.state.clone()),
        number(info.threads.to_string()),
        Cell::new(busy.right_aligned()),
        number(format!("{:.2}", info.cpu_time)),
        number(binary(info.resident_memory)),
        number(binary(info.virtual_memory)),
        Cell::new(Line::from(vec![Span::styled(branch, theme.dim()), Span::raw(command)])),
    ])
}

pub(super) fn containers(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let Some(machine) = model.machine().filter(|_| area.height > 0) else { return };
    let all = machine.containers.iter().map(|container| container_row(container, theme)).collect();
    let chosen = seen(all, model.container_at, area, mark(model, Pane::Containers, theme));
    let widths = [
        Constraint::Length(9),
        Constraint::Fill(3),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(10),
        // Where there is little room, who it is counts more.
        if area.width < 90 { Constraint::Length(0) } else { Constraint::Fill(2) },
    ];
    let title = match &machine.containers_problem {
        Some(problem) => format!("Containers: {problem}"),
        None => format!("Containers {}", machine.containers.len()),
    };
    let table = Table::new(chosen, widths)
        .header(head(&[
            ("NAMESPACE", false),
            ("ID", false),
            ("CPU%", true),
            ("MEM", true),
            ("LIMIT", true),
            ("STATUS", false),
            ("IMAGE", false),
        ]))
        .block(theme.pane(title, model.focus == Pane::Containers));
    frame.render_widget(table, area);
}

fn container_row(container: &Container, theme: Theme) -> Row<'static> {
    let Container { info, stat, .. } = container;
    let branch = if info.id == info.pod_id { "" } else { "└─ " };
    let clean = |text: &str| crate::error::printable(text).replace(['\n', '\t'], " ");
    let usage = |text: fn(&selvage_api::os::Stat) -> String| {
        number(stat.as_ref().map_or_else(|| "-".to_owned(), text))
    };
    let running = info.status.ends_with("RUNNING") || info.status.ends_with("READY");
    let state = if running { theme.good() } else { theme.warning() };
    Row::new([
        Cell::new(clean(&info.namespace)),
        Cell::new(format!("{branch}{}", clean(&info.id))),
        usage(|stat| format!("{:.1}", stat.cpu_percent)),
        usage(|stat| binary(stat.memory_usage)),
        usage(|stat| if stat.memory_limit == 0 { "-".into() } else { binary(stat.memory_limit) }),
        Cell::new(Span::styled(clean(&info.status), state)),
        Cell::new(clean(&info.image)),
    ])
}

pub(super) fn kernel(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let Some(machine) = model.machine().filter(|_| area.height > 0) else { return };
    let shown = usize::from(area.height.saturating_sub(2));
    let most = machine.kernel.len().saturating_sub(shown);
    let back = model.kernel_back.min(most);
    let lines: Vec<Line<'_>> = machine
        .kernel
        .iter()
        .skip(most - back)
        .take(shown)
        .map(|line| Line::styled(line.as_str(), level(line, theme)))
        .collect();
    let title = if back > 0 { format!("Kernel  {back} lines back") } else { "Kernel".to_owned() };
    let block = theme.pane(title, model.focus == Pane::Kernel);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// The log of a container over the whole screen, its end always in sight.
pub(super) fn log(frame: &mut Frame<'_>, log: &LogView, theme: Theme) {
    let area = frame.area();
    let shown = usize::from(area.height.saturating_sub(2));
    let first = log.lines.len().saturating_sub(shown);
    let lines: Vec<Line<'_>> =
        log.lines.iter().skip(first).map(|line| Line::raw(&**line)).collect();
    let block = theme.pane(format!("Log of {}  Esc closes", log.id), true);
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A record says its level after the facility.
fn level(line: &str, theme: Theme) -> Style {
    match line.split(':').nth(1).map(str::trim) {
        Some("emerg" | "alert" | "crit" | "err") => theme.bad(),
        Some("warning") => theme.warning(),
        _ => Style::new(),
    }
}
