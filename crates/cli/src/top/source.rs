//! Source of news of machines, and destination of commands.

use std::future::Future;

use selvage_api::{
    os::{ContainerInfo, Stat},
    selvage::node::{Host, ProcessesUpdate},
};

/// News of one machine.
#[derive(Debug, Clone)]
pub(crate) enum Report {
    /// The machine's own numbers.
    Host(Box<Host>),
    /// Processes: all of them when `first`, else what is different.
    Processes { first: bool, update: ProcessesUpdate },
    /// Containers of all places that were looked at.
    Containers(Vec<Container>),
    /// Containers are not known, though the machine answers.
    NoContainers(String),
    /// Lines of the log that is followed.
    Log { id: String, lines: Vec<String> },
    /// A record of the kernel's log.
    Kernel(String),
    /// It does not answer.
    Failed(String),
    /// Result of a restart.
    Restarted { id: String, result: Result<String, String> },
}

/// A container and what it uses.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Container {
    pub(crate) info: ContainerInfo,
    pub(crate) driver: i32,
    pub(crate) stat: Option<Stat>,
}

/// A wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Restart {
        node: usize,
        namespace: String,
        id: String,
        driver: i32,
    },
    /// Send SIGTERM to a container.
    End {
        node: usize,
        namespace: String,
        id: String,
        driver: i32,
    },
    /// Follow the log of a container, and no other.
    FollowLog {
        node: usize,
        namespace: String,
        id: String,
        driver: i32,
    },
    /// Follow no log any more.
    CloseLog,
    /// Leave the screen for a shell in a container, and come back.
    Shell {
        id: String,
    },
}

/// Brings news and takes wishes. Machines go by the order they were named in.
pub(crate) trait Source {
    /// The next news; never, when there is none left.
    fn next(&mut self) -> impl Future<Output = Option<(usize, Report)>>;
    fn act(&mut self, effect: Effect);
}
