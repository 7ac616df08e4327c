//! One suite for every backend. On loop files it runs here; on LVM it runs
//! under a user-mode kernel, which has a device mapper, by `lvm::under_uml`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod changes;
mod conformance;
mod failing_disks;
mod jobs;
mod loop_files;
mod lvm;
mod namespaces;
mod points_in_time;
mod requests;
mod reverts;
mod room;
mod served;
mod site;
