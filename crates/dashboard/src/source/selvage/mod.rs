//! Our own parts, through their contracts: the controller's cloudlets,
//! clusters, instances and operations, the machines of the inventory and their
//! numbers, volumes and their backups. A part that is not there drops its
//! section.

mod edge;
mod kaas;
mod machines;
mod process;
mod volumes;

use std::time::Duration;

use jiff::Timestamp;
use tonic::{Code, Status, transport::Channel};

use super::{Failure, Probe, Source};

/// Reads the parts that answer on one channel.
pub struct Selvage {
    channel: Channel,
    every: Duration,
}

impl Selvage {
    /// A source that asks about once per `every` for what changes quickly.
    pub fn new(channel: Channel, every: Duration) -> Self {
        Self { channel, every }
    }
}

impl Source for Selvage {
    fn name(&self) -> &'static str {
        "selvage"
    }

    fn probes(self: Box<Self>) -> Vec<Box<dyn Probe>> {
        let (channel, every) = (self.channel, self.every);
        vec![
            Box::new(edge::Cloudlets::new(channel.clone(), every)),
            Box::new(edge::Instances::new(channel.clone(), every)),
            Box::new(edge::Clusters::new(channel.clone(), every)),
            Box::new(edge::Operations::new(channel.clone(), every)),
            Box::new(kaas::Kaas::new(channel.clone(), every)),
            Box::new(machines::Machines::new(channel.clone(), every)),
            Box::new(machines::Hosts::new(channel.clone(), every)),
            Box::new(volumes::Volumes::new(channel.clone(), every * 2)),
            Box::new(volumes::Backups::new(channel.clone(), every * 5)),
            Box::new(process::Process::new(channel, every * 2)),
        ]
    }
}

/// Failure for a refused call: a method that nobody serves here is no fault.
fn failure(status: &Status) -> Failure {
    match status.code() {
        Code::Unimplemented => Failure::Absent,
        _ => Failure::Failed(format!("{:?}: {}", status.code(), status.message())),
    }
}

fn time(stamp: Option<prost_types::Timestamp>) -> Option<Timestamp> {
    let stamp = stamp?;
    Timestamp::new(stamp.seconds, stamp.nanos).ok()
}
