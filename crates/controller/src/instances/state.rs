//! Transitions of instances from state to state: one table, used for everything
//! that a crm reports and for everything that is refused as busy.

use selvage_api::edgeproto::{CrmOverride, TrackedState};
use selvage_api::object::camel_name;
pub use selvage_edge::Verb;

use TrackedState::{
    CreateError, CreateRequested, Creating, DeleteError, DeletePrepare, DeleteRequested, Deleting,
    NotPresent, Ready, UpdateError, UpdateRequested, Updating,
};

/// Report of a crm about an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// It is in this state.
    Is(TrackedState),
    /// The crm holds it no longer.
    Gone,
}

/// Every move that a crm may make: from, what it reports, what that makes of
/// the instance. Whatever is not listed is ignored.
pub const MOVES: &[(TrackedState, Report, TrackedState)] = &[
    (CreateRequested, Report::Is(Creating), Creating),
    (CreateRequested, Report::Is(Ready), Ready),
    (CreateRequested, Report::Is(CreateError), CreateError),
    (Creating, Report::Is(Ready), Ready),
    (Creating, Report::Is(CreateError), CreateError),
    (UpdateRequested, Report::Is(Updating), Updating),
    (UpdateRequested, Report::Is(Ready), Ready),
    (UpdateRequested, Report::Is(UpdateError), UpdateError),
    (Updating, Report::Is(Ready), Ready),
    (Updating, Report::Is(UpdateError), UpdateError),
    // Crms of the original report a failed update with the wrong error.
    (UpdateRequested, Report::Is(DeleteError), UpdateError),
    (Updating, Report::Is(DeleteError), UpdateError),
    (DeleteRequested, Report::Is(Deleting), Deleting),
    (DeleteRequested, Report::Is(DeleteError), DeleteError),
    (DeleteRequested, Report::Gone, NotPresent),
    (Deleting, Report::Is(DeleteError), DeleteError),
    (Deleting, Report::Gone, NotPresent),
];

/// Returns the state that a report leads to, if it leads anywhere.
/// [`NotPresent`] means that the instance is to be removed.
pub fn moved(from: TrackedState, report: Report) -> Option<TrackedState> {
    let found = MOVES.iter().find(|(at, said, _)| *at == from && *said == report);
    found.map(|(_, _, to)| *to)
}

/// The state of a stored value; numbers that mean nothing count as unknown.
pub fn state_of(value: i32) -> TrackedState {
    TrackedState::try_from(value).unwrap_or(TrackedState::Unknown)
}

/// The state as progress messages spell it.
pub fn state_name(state: TrackedState) -> String {
    camel_name(state.as_str_name())
}

/// Returns true if somebody, controller or crm, still has to make a move.
pub fn is_transient(state: TrackedState) -> bool {
    matches!(
        state,
        CreateRequested
            | Creating
            | UpdateRequested
            | Updating
            | DeleteRequested
            | Deleting
            | DeletePrepare
    )
}

pub fn is_error(state: TrackedState) -> bool {
    matches!(state, CreateError | UpdateError | DeleteError)
}

/// Treatment of the crm by one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Override(CrmOverride);

impl Override {
    /// Of a checked request; numbers that mean nothing count as none.
    pub fn of(value: i32) -> Self {
        Self(CrmOverride::try_from(value).unwrap_or_default())
    }

    pub fn value(self) -> i32 {
        self.0.into()
    }

    /// The crm is neither asked nor required.
    pub fn ignores_crm(self) -> bool {
        matches!(self.0, CrmOverride::IgnoreCrm | CrmOverride::IgnoreCrmAndTransientState)
    }

    /// Whatever the crm says counts as success.
    pub fn ignores_errors(self) -> bool {
        self.0 == CrmOverride::IgnoreCrmErrors
    }

    /// An instance in the middle of something else is taken over.
    pub fn takes_over(self, state: TrackedState) -> bool {
        let asked = matches!(
            self.0,
            CrmOverride::IgnoreTransientState | CrmOverride::IgnoreCrmAndTransientState
        );
        asked && is_transient(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TrackedState; 13] = [
        TrackedState::Unknown,
        NotPresent,
        CreateRequested,
        Creating,
        CreateError,
        Ready,
        UpdateRequested,
        Updating,
        UpdateError,
        DeleteRequested,
        Deleting,
        DeleteError,
        DeletePrepare,
    ];

    /// The rules once more, in the words of the specification.
    fn expected(from: TrackedState, report: Report) -> Option<TrackedState> {
        let ends = |verb: Verb| match report {
            Report::Is(state) if state == verb.reached() || state == verb.failed() => Some(state),
            _ => None,
        };
        match from {
            CreateRequested if report == Report::Is(Creating) => Some(Creating),
            CreateRequested | Creating => ends(Verb::Create),
            UpdateRequested if report == Report::Is(Updating) => Some(Updating),
            UpdateRequested | Updating if report == Report::Is(DeleteError) => Some(UpdateError),
            UpdateRequested | Updating => ends(Verb::Update),
            DeleteRequested if report == Report::Is(Deleting) => Some(Deleting),
            DeleteRequested | Deleting => match report {
                Report::Is(DeleteError) => Some(DeleteError),
                Report::Gone => Some(NotPresent),
                Report::Is(_) => None,
            },
            _ => None,
        }
    }

    #[test]
    fn every_state_meets_every_report() {
        let reports = ALL.into_iter().map(Report::Is).chain([Report::Gone]);
        let mut legal = 0;
        for report in reports {
            for from in ALL {
                assert_eq!(moved(from, report), expected(from, report), "{from:?} {report:?}");
                legal += usize::from(moved(from, report).is_some());
            }
        }
        assert_eq!(legal, MOVES.len(), "a move is listed twice");
    }

    #[test]
    fn states_are_spelt_as_the_original_does() {
        let names: Vec<_> = ALL.into_iter().map(state_name).collect();
        assert_eq!(
            names,
            [
                "TrackedStateUnknown",
                "NotPresent",
                "CreateRequested",
                "Creating",
                "CreateError",
                "Ready",
                "UpdateRequested",
                "Updating",
                "UpdateError",
                "DeleteRequested",
                "Deleting",
                "DeleteError",
                "DeletePrepare",
            ]
        );
    }

    #[test]
    fn overrides_mean_what_their_comments_say() {
        // ready check and crm skipped, errors ignored, transient taken over
        let table = [
            (0, false, false, false),
            (1, false, true, false),
            (2, true, false, false),
            (3, false, false, true),
            (4, true, false, true),
        ];
        for (value, crm, errors, transient) in table {
            let over = Override::of(value);
            assert_eq!(over.value(), value);
            assert_eq!(over.ignores_crm(), crm, "{value}");
            assert_eq!(over.ignores_errors(), errors, "{value}");
            for state in ALL {
                assert_eq!(over.takes_over(state), transient && is_transient(state));
                assert!(!(is_transient(state) && is_error(state)));
                assert_eq!(is_transient(state), Verb::of(state).is_some());
            }
        }
    }
}
