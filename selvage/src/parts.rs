//! The parts of Selvage: one row each. A row gives a part its command, its
//! section of the configuration and its place in `selvage up`. See
//! docs/adding-a-part.md.

use std::path::PathBuf;

use clap::Subcommand;
use selvage_kit::telemetry::LogOptions;
use selvage_part::{Configured, ConfiguredPart, Kind, Part};
use serde::{Deserialize, Serialize};

use crate::{
    args::{Dashboard, Dme, Dns, Joining, Kaas, LVMD_EXAMPLES, Node, PartTask, Serve},
    config::{Auth, Join, Listen, Store, Tls, default_data_dir},
};

/// Facts about a part that do not depend on its options.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) name: &'static str,
    /// Kind that it joins a controller as when it runs alone.
    pub(crate) joins: Option<Kind>,
    pub(crate) frugal: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) built: bool,
}

impl Info {
    const fn of<P: Part>() -> Self {
        Self {
            name: P::NAME,
            joins: P::JOINS,
            frugal: P::FRUGAL,
            threads: P::THREADS,
            built: P::BUILT,
        }
    }

    /// Returns the part of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|info| info.name == name)
    }
}

macro_rules! parts {
    ($($(#[$attribute:meta])* $section:ident: $part:ty => $command:ident($args:ty),)*) => {
        /// All parts, in the order in which `selvage up` opens and starts them.
        pub(crate) const ALL: &[Info] = &[$(Info::of::<$part>()),*];

        /// The whole configuration. `selvage up --dump-config` prints it with
        /// the values in force.
        #[derive(Debug, Clone, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct Config {
            /// Data directory: state, keys and sockets.
            pub(crate) data: PathBuf,
            /// Plaintext, everybody is admin, loopback only. For laboratories.
            pub(crate) insecure: bool,
            pub(crate) listen: Listen,
            pub(crate) tls: Tls,
            pub(crate) store: Store,
            pub(crate) auth: Auth,
            pub(crate) join: Join,
            $(pub(crate) $section: <$part as Part>::Options,)*
            pub(crate) log: LogOptions,
            /// Deprecations: settings in a form that will not be understood for long.
            #[serde(skip)]
            pub(crate) warnings: Vec<String>,
        }

        impl Default for Config {
            fn default() -> Self {
                Self {
                    data: default_data_dir(),
                    insecure: false,
                    listen: Listen::default(),
                    tls: Tls::default(),
                    store: Store::default(),
                    auth: Auth::default(),
                    join: Join::default(),
                    $($section: <$part as Part>::Options::default(),)*
                    log: LogOptions::default(),
                    warnings: Vec::new(),
                }
            }
        }

        impl Config {
            /// Parts with their options, in the order of the table.
            pub(crate) fn parts(&self) -> Vec<Box<dyn ConfiguredPart>> {
                vec![$(Box::new(Configured::<$part>(self.$section.clone())),)*]
            }

            /// Finds what no single key of a part shows to be wrong.
            pub(crate) fn validate_parts(&self) -> anyhow::Result<()> {
                $(<$part as Part>::validate(&self.$section)?;)*
                Ok(())
            }
        }

        /// Commands that run one part, or that are asked of one.
        #[derive(Subcommand)]
        #[allow(clippy::large_enum_variant, reason = "there is one, for the life of the process")]
        pub(crate) enum PartCommand {
            $($(#[$attribute])* $command($args),)*
        }

        impl PartCommand {
            pub(crate) fn asked(self) -> PartTask {
                match self {
                    $(Self::$command(args) => PartTask::of(<$part as Part>::NAME, args),)*
                }
            }
        }

        #[cfg(test)]
        const SECTIONS: &[&str] = &[$(stringify!($section)),*];
    };
}

parts! {
    /// Run the controller alone: cloudlets, apps and their instances
    controller: selvage_controller::ControllerPart => Controller(Serve),
    /// Run the agent of one cloudlet alone
    crm: selvage_crm::CrmPart => Crm(Joining),
    /// Run the match engine alone; or, with a command, query one as a device does
    dme: selvage_dme::DmePart => Dme(Dme),
    /// Query the name server for the names of apps
    dns: selvage_dns::DnsPart => Dns(Dns),
    /// Run the Kubernetes cluster service alone; or, with a command, make and change clusters
    kaas: selvage_kaas::KaasPart => Kaas(Kaas),
    /// Run this machine's agent alone; or, with a command, inspect and control machines
    node: selvage_node::NodePart => Node(Node),
    /// Run the volume service alone; with a lvmd.yaml, in place of lvmd
    #[command(after_help = LVMD_EXAMPLES)]
    lvmd: selvage_lvmd::LvmdPart => Lvmd(Serve),
    /// Show the state of the system, its problems and their fixes; or run the dashboard alone
    dashboard: selvage_dashboard::DashboardPart => Dashboard(Dashboard),
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
    fn a_part_has_one_name_for_its_section_and_its_command() {
        let names: Vec<&str> = ALL.iter().map(|info| info.name).collect();
        assert_eq!(SECTIONS, names);
        let command = PartCommand::augment_subcommands(clap::Command::new(""));
        let commands: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(commands, names);
    }

    #[test]
    fn every_service_belongs_to_one_part_or_to_every_process() {
        let of_parts: usize = ALL.iter().map(|info| services_of(info.name).len()).sum();
        let of_all = services_of("auth").len() + services_of("system").len();
        let mut all: Vec<&str> =
            selvage_api::methods().iter().map(|method| method.service.as_str()).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(of_parts + of_all, all.len());
    }
}
