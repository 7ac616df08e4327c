//! The page `docs/access.md`, written from the table.

use std::fmt::Write;

use super::{Access, Delegates, Effect, MachineKind, Rule, TableError, Who};
use crate::identity::Role;

const HEAD: &str = "\
# Who may call what

Written from the access table by
`cargo run -q -p selvage-kit --example access-page > docs/access.md`; a test
compares the two. A method that is not here cannot be called.

Admins may call every method. Whoever opens a unix socket of this machine is an
admin. A certificate of a machine opens what is listed for its kind, and there
only what is the machine's own.

";

/// The text of the page.
pub fn page() -> Result<String, TableError> {
    let access = Access::load()?;
    let mut rules: Vec<&Rule> = access.rules().collect();
    rules.sort_by(|a, b| a.path.cmp(&b.path));
    let mut text = HEAD.to_owned();
    machines(&mut text, &rules);
    people(&mut text, &rules);
    delegates(&mut text, &rules);
    Ok(text)
}

/// Methods by kind of machine.
fn machines(text: &mut String, rules: &[&Rule]) {
    for kind in MachineKind::ALL {
        let _ = writeln!(text, "## Certificates of a {}\n", kind.name());
        let open = rules.iter().filter(|rule| rule.who.contains(&Who::Machine(kind)));
        if kind == MachineKind::Controller {
            text.push_str(
                "A controller may call these, and every method of a node on behalf of a caller \
                 whom it\nnames; the node then decides by that caller's rights.\n\n",
            );
            for rule in open {
                let _ = writeln!(text, "- `{}`", name(rule));
            }
        } else {
            text.push_str("| method | reaches |\n|---|---|\n");
            for rule in open {
                let limit = rule.limit_of_machines().unwrap_or_default();
                let _ = writeln!(text, "| `{}` | {limit} |", name(rule));
            }
        }
        text.push('\n');
    }
}

/// Methods by role of people.
fn people(text: &mut String, rules: &[&Rule]) {
    text.push_str(
        "## People\n\n\
         *own*: what belongs to the organisation in which the caller has the role; *yes*:\n\
         the method is open, and the service shows each caller what is theirs where it\n\
         has owners.\n\n\
         | method | effect | viewer | developer | operator | without login |\n\
         |---|---|---|---|---|---|\n",
    );
    for rule in rules {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} | {} |",
            name(rule),
            effect(rule.effect),
            cell(rule, Role::Viewer),
            cell(rule, Role::Developer),
            cell(rule, Role::Operator),
            if rule.open_to_anyone() { "yes" } else { "" },
        );
    }
}

/// Methods that tokens and certificates of people do not open.
fn delegates(text: &mut String, rules: &[&Rule]) {
    text.push_str(
        "\n## Tokens and certificates of people\n\n\
         They open what their grants open to a person, as far as their owner holds those\n\
         grants at that moment and their list of methods goes; of these methods less:\n\n\
         | method | opened |\n\
         |---|---|\n",
    );
    for rule in rules {
        let opened = match rule.delegates {
            Delegates::Welcome => continue,
            Delegates::IfNamed => "only by a list of methods that has this very name",
            Delegates::Never => "never",
        };
        let _ = writeln!(text, "| `{}` | {opened} |", name(rule));
    }
}

fn name(rule: &Rule) -> &str {
    rule.path.trim_start_matches('/')
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Read => "read",
        Effect::ReadSecret => "read secrets",
        Effect::Write => "write",
    }
}

fn cell(rule: &Rule, role: Role) -> &'static str {
    let open = |who: &Who| match who {
        Who::Anyone | Who::Person => true,
        Who::Holder(held) => *held == role,
        Who::Member(..) | Who::Machine(_) => false,
    };
    let member = |who: &Who| matches!(who, Who::Member(held, _) if *held == role);
    if rule.who.iter().any(open) || (role == Role::Viewer && rule.effect == Effect::Read) {
        "yes"
    } else if rule.who.iter().any(member) {
        "own"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_page_is_what_the_table_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/access.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == page().unwrap(),
            "docs/access.md is not current: \
             cargo run -q -p selvage-kit --example access-page > docs/access.md"
        );
    }
}
