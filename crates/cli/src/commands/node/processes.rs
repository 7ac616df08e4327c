//! Processes: their order, and what stands for their command.

use selvage_api::os::ProcessInfo;

use super::args::SortBy;

/// The most first; those with as much by pid.
pub(crate) fn sorted(processes: &[ProcessInfo], by: SortBy) -> Vec<&ProcessInfo> {
    let mut all: Vec<&ProcessInfo> = processes.iter().collect();
    match by {
        SortBy::Rss => all.sort_by_key(|process| std::cmp::Reverse(process.resident_memory)),
        SortBy::Cpu => all.sort_by(|a, b| b.cpu_time.total_cmp(&a.cpu_time)),
    }
    all
}

/// The command line with the path of the program, as far as they are known.
pub(crate) fn command(process: &ProcessInfo) -> String {
    let ProcessInfo { command, executable, args, .. } = process;
    if executable.is_empty() {
        return command.clone();
    }
    let base = executable.rsplit('/').next().unwrap_or(executable);
    match args.split_once(char::is_whitespace).unwrap_or((args, "")) {
        ("", "") => executable.clone(),
        (first, "") if first == base => executable.clone(),
        (first, rest) if first == base => format!("{executable} {rest}"),
        _ => args.clone(),
    }
}
