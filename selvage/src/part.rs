//! The parts of Selvage, and which of them this build can run.

/// A part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Controller,
    Crm,
    Dme,
    Kaas,
    Node,
    Lvmd,
    Dashboard,
}

impl Part {
    /// All parts, as `selvage up` runs them.
    pub(crate) const ALL: [Self; 7] = [
        Self::Controller,
        Self::Crm,
        Self::Dme,
        Self::Kaas,
        Self::Node,
        Self::Lvmd,
        Self::Dashboard,
    ];

    /// Its name, as its contract's methods carry it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Crm => "crm",
            Self::Dme => "dme",
            Self::Kaas => "kaas",
            Self::Node => "node",
            Self::Lvmd => "lvmd",
            Self::Dashboard => "dashboard",
        }
    }

    /// Whether this build has more of the part than its contract.
    pub(crate) fn is_built(self) -> bool {
        match self {
            Self::Controller | Self::Crm | Self::Dme | Self::Node | Self::Lvmd => true,
            Self::Kaas | Self::Dashboard => false,
        }
    }
}

/// Full names of the services of the part of that name, each once.
pub(crate) fn services_of(part: &str) -> Vec<String> {
    let mut names: Vec<String> = selvage_api::methods()
        .iter()
        .filter(|method| method.part == part)
        .map(|method| method.service.clone())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_belongs_to_one_part_or_to_the_ground_floor() {
        let of_parts: usize = Part::ALL.iter().map(|part| services_of(part.name()).len()).sum();
        let of_floor = services_of("auth").len() + services_of("system").len();
        let mut all: Vec<&str> =
            selvage_api::methods().iter().map(|method| method.service.as_str()).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(of_parts + of_floor, all.len());
    }
}
