//! Access: the table of who may call what, and the decision for one call.

pub mod page;
mod path;
mod table;

use std::collections::HashMap;

use selvage_api::{Code, Method};

use self::path::StringPath;
use crate::identity::{Identity, Kind, Machine, Role};

/// Methods by which agents learn about the caller whose token they were shown.
/// Their answers are limited as the token is.
const ABOUT_THE_CALLER: [&str; 2] = [WHO_AM_I, "/selvage.identity.IdentityService/IssueAssertions"];

/// Method by which a page finds out if its browser has a session.
const WHO_AM_I: &str = "/selvage.identity.IdentityService/WhoAmI";

/// Effect of calling a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Looks at something that is no secret. Viewers may.
    Read,
    /// Looks at a secret. Viewers may not.
    ReadSecret,
    /// Changes something. Leaves an audit line.
    Write,
}

/// The kinds of machine that rows speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineKind {
    /// A controller.
    Controller,
    /// The crm of any cloudlet; which one is for the handler to check.
    Cloudlet,
    /// Any machine's agent.
    Node,
    /// Any match engine.
    Dme,
}

impl MachineKind {
    /// All kinds, in the order in which documentation lists them.
    pub const ALL: [Self; 4] = [Self::Controller, Self::Cloudlet, Self::Node, Self::Dme];

    /// The first word of the names of such machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Cloudlet => "cloudlet",
            Self::Node => "node",
            Self::Dme => "dme",
        }
    }

    /// The kind of a machine.
    pub fn of(machine: &Machine) -> Self {
        match machine {
            Machine::Controller => Self::Controller,
            Machine::Cloudlet { .. } => Self::Cloudlet,
            Machine::Node { .. } => Self::Node,
            Machine::Dme { .. } => Self::Dme,
        }
    }
}

/// Those whom a row lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Everybody, known or not.
    Anyone,
    /// Every person who is known. Machines are named by their kind.
    Person,
    /// Whoever holds the role in any organisation.
    Holder(Role),
    /// Whoever holds the role in the organisation that this field names.
    Member(Role, &'static str),
    /// Machines of that kind.
    Machine(MachineKind),
}

/// A table or a descriptor that cannot be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The contract has a method that the table forgot.
    #[error("no access row for {0}")]
    NoRow(String),
    /// The table has a method that no contract has.
    #[error("access row for {0}, which no contract has")]
    NoMethod(String),
    /// The field of a row does not lead to a string.
    #[error("access row of {method}: {field} is not a string field of the request")]
    NoField {
        /// The row's method.
        method: String,
        /// The row's field.
        field: &'static str,
    },
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Denied {
    /// UNAUTHENTICATED, PERMISSION_DENIED or INVALID_ARGUMENT.
    pub code: Code,
    /// Text for the caller.
    pub message: String,
}

/// Decision on a call that is not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Hand it on.
    Allow,
    /// Hand it on with these bytes appended to the request message. They set
    /// the field that names the organisation, so that somebody who asks for
    /// everything is shown the caller's own.
    Narrow(Vec<u8>),
}

/// Rule of one method.
#[derive(Debug)]
pub struct Rule {
    /// `/package.Service/Method`.
    pub path: String,
    /// The method in its contract.
    pub method: &'static Method,
    /// Effect of calling it.
    pub effect: Effect,
    who: &'static [Who],
    owners: Vec<Owner>,
    delegates: Delegates,
}

/// Reach of tokens and certificates that people handed to programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegates {
    /// As far as their grants and their list of methods.
    Welcome,
    /// Only those whose list names the method letter for letter: what it makes
    /// outlives them.
    IfNamed,
    /// Not at all: one that was stolen must not leave another behind.
    Never,
}

#[derive(Debug)]
struct Owner {
    role: Role,
    field: &'static str,
    path: StringPath,
}

/// The whole table, ready for use.
#[derive(Debug)]
pub struct Access {
    rules: HashMap<String, Rule>,
}

impl Access {
    /// The table, checked against the contracts.
    pub fn load() -> Result<Self, TableError> {
        let mut rules = HashMap::new();
        for (service, rows) in table::TABLE {
            for (method, effect, who) in *rows {
                let rule = Rule::new(format!("/{service}/{method}"), *effect, who)?;
                rules.insert(rule.path.clone(), rule);
            }
        }
        match selvage_api::methods().iter().find(|method| !rules.contains_key(&method.path)) {
            Some(forgotten) => Err(TableError::NoRow(forgotten.path.clone())),
            None => Ok(Self { rules }),
        }
    }

    /// The rule of `/package.Service/Method`.
    pub fn rule(&self, path: &str) -> Option<&Rule> {
        self.rules.get(path)
    }

    /// All rules.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.values()
    }
}

impl Rule {
    fn new(path: String, effect: Effect, who: &'static [Who]) -> Result<Self, TableError> {
        let method =
            selvage_api::method(&path).ok_or_else(|| TableError::NoMethod(path.clone()))?;
        let mut owners = Vec::new();
        for entry in who {
            if let Who::Member(role, field) = entry {
                let resolved = StringPath::resolve(&method.input, field)
                    .ok_or_else(|| TableError::NoField { method: path.clone(), field })?;
                owners.push(Owner { role: *role, field, path: resolved });
            }
        }
        let listed = table::DELEGATES.iter().find(|(listed, _)| *listed == path);
        let delegates = listed.map_or(Delegates::Welcome, |(_, delegates)| *delegates);
        Ok(Self { path, method, effect, who, owners, delegates })
    }

    /// Returns whether callers need no credentials.
    pub fn open_to_anyone(&self) -> bool {
        self.who.contains(&Who::Anyone)
    }

    /// Limit on what a machine other than a controller reaches by the method,
    /// if it is open to one.
    pub fn limit_of_machines(&self) -> Option<&'static str> {
        table::OWN.iter().find(|(path, _)| *path == self.path).map(|(_, limit)| *limit)
    }

    /// Reach of tokens and certificates of people.
    pub fn delegates(&self) -> Delegates {
        self.delegates
    }

    /// Those whom the rule lets in besides admins.
    pub fn who(&self) -> &'static [Who] {
        self.who
    }

    /// Returns whether the audit log has a line of each refusal of this caller.
    /// Whoever opens the login page asks for a session without having shown any
    /// credentials: nobody was turned away.
    pub fn audits_refusal_of(&self, caller: &Identity) -> bool {
        self.path != WHO_AM_I || caller.kind != Kind::Anonymous
    }

    /// Refuses those whom no request message could let in, so that nobody has
    /// to wait for theirs.
    pub fn decide_early(&self, caller: &Identity) -> Result<(), Denied> {
        self.decide_delegation(caller)?;
        let is_owner = self.owners.iter().any(|owner| caller.has_role(owner.role));
        if is_owner { Ok(()) } else { self.decide(caller, &[]).map(drop) }
    }

    /// Decides a call whose request message has these bytes. For calls that
    /// stream their request the message is empty; no such rule has members.
    pub fn decide(&self, caller: &Identity, message: &[u8]) -> Result<Decision, Denied> {
        self.decide_delegation(caller)?;
        if self.open_to_anyone() || caller.has_role(Role::Admin) {
            return Ok(Decision::Allow);
        }
        if caller.kind == Kind::Anonymous {
            return Err(Denied {
                code: Code::Unauthenticated,
                message: "no token: log in first, or show a machine's certificate".into(),
            });
        }
        if self.lets_in_whatever_the_message(caller) {
            return Ok(Decision::Allow);
        }
        let mine: Vec<&Owner> =
            self.owners.iter().filter(|owner| caller.has_role(owner.role)).collect();
        match mine.as_slice() {
            [] => Err(self.denied_for_role(caller)),
            owners => self.decide_by_owner(caller, owners, message),
        }
    }

    /// Refuses a token or certificate what lies outside its own limits, whatever
    /// its owner may.
    fn decide_delegation(&self, caller: &Identity) -> Result<(), Denied> {
        let Kind::Delegate(limits) = &caller.kind else { return Ok(()) };
        if self.open_to_anyone() || ABOUT_THE_CALLER.contains(&self.path.as_str()) {
            return Ok(());
        }
        match self.delegates {
            Delegates::Never => Err(self.denied(caller, "must log in as a person to call")),
            Delegates::IfNamed if !limits.names(&self.path) => {
                Err(self.denied(caller, "must have in its list of methods, by name,"))
            }
            _ if !limits.opens(&self.path) => {
                Err(self.denied(caller, "is limited to other methods than"))
            }
            _ => Ok(()),
        }
    }

    fn lets_in_whatever_the_message(&self, caller: &Identity) -> bool {
        if self.effect == Effect::Read && caller.has_role(Role::Viewer) {
            return true;
        }
        self.who.iter().any(|who| match who {
            Who::Anyone => true,
            Who::Person => caller.is_person(),
            Who::Holder(role) => caller.has_role(*role),
            Who::Machine(kind) => {
                matches!(&caller.kind, Kind::Machine(machine) if MachineKind::of(machine) == *kind)
            }
            Who::Member(..) => false,
        })
    }

    fn decide_by_owner(
        &self,
        caller: &Identity,
        owners: &[&Owner],
        message: &[u8],
    ) -> Result<Decision, Denied> {
        let mut unnamed = None;
        for owner in owners {
            let named = owner.path.read(message).map_err(|error| Denied {
                code: Code::InvalidArgument,
                message: format!("request message cannot be read: {error}"),
            })?;
            if named.is_empty() {
                unnamed.get_or_insert(*owner);
            } else if caller.organisations(owner.role).any(|mine| mine == named) {
                return Ok(Decision::Allow);
            }
        }
        let Some(owner) = unnamed else {
            return Err(
                self.denied(caller, "does not belong to the organisation named in the call of")
            );
        };
        if self.effect == Effect::Write {
            let why = format!("must name an organisation of the caller in {} to call", owner.field);
            return Err(self.denied(caller, &why));
        }
        narrow(caller, owner)
    }

    /// Refuses a caller with none of the roles that could let them in, and names
    /// those.
    fn denied_for_role(&self, caller: &Identity) -> Denied {
        let mut roles = vec![Role::Admin.name()];
        roles.extend(self.who.iter().filter_map(|who| match who {
            Who::Holder(role) | Who::Member(role, _) => Some(role.name()),
            Who::Anyone | Who::Person | Who::Machine(_) => None,
        }));
        if self.effect == Effect::Read {
            roles.push(Role::Viewer.name());
        }
        let mut denied = self.denied(caller, "is not among those who may call");
        denied.message = format!("{}; that takes the role {}", denied.message, roles.join(" or "));
        denied
    }

    fn denied(&self, caller: &Identity, why: &str) -> Denied {
        let method = self.path.trim_start_matches('/');
        Denied {
            code: Code::PermissionDenied,
            message: format!("not authorized: {} {why} {method}", caller.name),
        }
    }
}

fn narrow(caller: &Identity, owner: &Owner) -> Result<Decision, Denied> {
    let mine: Vec<&str> = caller.organisations(owner.role).collect();
    match mine.as_slice() {
        [only] => Ok(Decision::Narrow(owner.path.write(only))),
        several => Err(Denied {
            code: Code::InvalidArgument,
            message: format!(
                "{} must name one of your organisations: {}",
                owner.field,
                several.join(", ")
            ),
        }),
    }
}

#[cfg(test)]
mod tests;
