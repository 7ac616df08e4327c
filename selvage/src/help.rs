//! `selvage --help`: commands by task, the most used first.

use std::fmt::Write as _;

use clap::Command;

/// Groups of commands. Objects of the contracts, and whatever is listed
/// nowhere, are in [`OBJECTS`].
const GROUPS: [(&str, &[&str]); 7] = [
    (
        "Run Selvage",
        &["up", "down", "status", "dashboard", "health", "controller", "crm", "dme", "dns"],
    ),
    (OBJECTS, &["run", "app", "appinst", "apply", "unapply", "export", "exec", "logs"]),
    ("Machines", &["node", "machine", "join-token", "join", "pki"]),
    ("Volumes and backups", &["volume", "backup", "lvmd"]),
    ("Clusters", &["kaas", "kubectl"]),
    ("People and keys", &["login", "logout", "whoami", "context", "user", "token"]),
    (
        "Maintenance",
        &["events", "operation", "api", "call", "explain", "store", "completion", "man"],
    ),
];

const OBJECTS: &str = "Apps and edge";

/// The command line with its help grouped by task.
pub(crate) fn grouped(command: Command) -> Command {
    let groups = groups(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\n\n{{after-help}}"
    ))
}

fn groups(command: &Command) -> String {
    let listed = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let shown: Vec<&Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).collect();
    let width = shown.iter().map(|one| one.get_name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for (title, names) in GROUPS {
        let mut members: Vec<&Command> = names
            .iter()
            .filter_map(|name| shown.iter().find(|one| one.get_name() == *name).copied())
            .collect();
        if title == OBJECTS {
            members.extend(shown.iter().filter(|one| !listed(one.get_name())));
        }
        if members.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{title}:");
        for member in members {
            let about = member.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:width$}  {about}", member.get_name());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_command_is_in_the_help_once() {
        let command = Cli::command();
        let help = grouped(Cli::command()).render_help().to_string();
        for one in command.get_subcommands() {
            let start = format!("  {} ", one.get_name());
            let lines = help.lines().filter(|line| line.starts_with(&start)).count();
            assert_eq!(lines, 1, "{} in:\n{help}", one.get_name());
        }
        assert!(help.contains("--output") && help.contains("selvage up"), "{help}");
    }

    #[test]
    fn a_group_names_only_commands_that_there_are() {
        let command = Cli::command();
        for name in GROUPS.iter().flat_map(|(_, names)| names.iter()) {
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
    }
}
