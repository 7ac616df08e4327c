//! Which processes are shown, in which order, and as what in the tree.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Machine, Model, Process, Sort};
use crate::commands::node::command_line;

/// One line of the table of processes.
#[derive(Debug, Clone)]
pub(crate) struct Row<'a> {
    pub(crate) process: &'a Process,
    /// The tree's branches in front of the command.
    pub(crate) branch: String,
    pub(crate) command: String,
}

pub(crate) fn rows<'a>(model: &Model, machine: &'a Machine) -> Vec<Row<'a>> {
    let shown = matching(model, machine);
    if model.tree {
        return tree(model.sort, shown);
    }
    let mut rows: Vec<Row<'a>> = shown.into_values().collect();
    rows.sort_by(|a, b| compare(model.sort, a, b));
    rows
}

fn compare(sort: Sort, a: &Row<'_>, b: &Row<'_>) -> std::cmp::Ordering {
    let (one, other) = (&a.process.info, &b.process.info);
    let order = match sort {
        Sort::Cpu => b.process.cpu.total_cmp(&a.process.cpu),
        Sort::Memory => other.resident_memory.cmp(&one.resident_memory),
        Sort::Pid => std::cmp::Ordering::Equal,
        Sort::Name => one.command.to_lowercase().cmp(&other.command.to_lowercase()),
    };
    order.then(one.pid.cmp(&other.pid))
}

/// Those that the filter lets through, in the tree with their ancestors.
fn matching<'a>(model: &Model, machine: &'a Machine) -> BTreeMap<i32, Row<'a>> {
    let row = |process: &'a Process| Row {
        process,
        branch: String::new(),
        command: command_line(&process.info),
    };
    let all = machine.processes.iter().map(|(pid, process)| (*pid, row(process)));
    if model.filter.is_empty() {
        return all.collect();
    }
    let wanted = model.filter.to_lowercase();
    let hit = |row: &Row<'_>| {
        row.command.to_lowercase().contains(&wanted)
            || row.process.info.command.to_lowercase().contains(&wanted)
            || row.process.info.pid.to_string() == wanted
    };
    let mut all: BTreeMap<i32, Row<'a>> = all.collect();
    let mut kept: BTreeSet<i32> =
        all.iter().filter(|(_, row)| hit(row)).map(|(pid, _)| *pid).collect();
    if model.tree {
        for pid in kept.clone() {
            let mut parent = all.get(&pid).map(|row| row.process.info.ppid);
            while let Some(above) = parent.filter(|above| all.contains_key(above)) {
                if !kept.insert(above) {
                    break;
                }
                parent = all.get(&above).map(|row| row.process.info.ppid);
            }
        }
    }
    all.retain(|pid, _| kept.contains(pid));
    all
}

/// Parents before their children. A stack, not recursion: chains of processes
/// can be long. Readings of different moments can make circles; whoever is in
/// one comes last, flat.
fn tree<'a>(sort: Sort, mut all: BTreeMap<i32, Row<'a>>) -> Vec<Row<'a>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut roots = Vec::new();
    for (pid, row) in &all {
        let parent = row.process.info.ppid;
        if parent != *pid && all.contains_key(&parent) {
            children.entry(parent).or_default().push(*pid);
        } else {
            roots.push(*pid);
        }
    }
    for list in children.values_mut().chain([&mut roots]) {
        // The last is taken from the stack first.
        list.sort_by(|a, b| compare(sort, &all[b], &all[a]));
    }
    let mut rows = Vec::with_capacity(all.len());
    let mut stack: Vec<(i32, String, String)> =
        roots.into_iter().map(|pid| (pid, String::new(), String::new())).collect();
    while let Some((pid, branch, under)) = stack.pop() {
        let Some(mut row) = all.remove(&pid) else { continue };
        row.branch = branch;
        rows.push(row);
        for (at, child) in children.remove(&pid).unwrap_or_default().into_iter().enumerate() {
            let (branch, below) = if at == 0 { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            stack.push((child, format!("{under}{branch}"), format!("{under}{below}")));
        }
    }
    rows.extend(all.into_values());
    rows
}
