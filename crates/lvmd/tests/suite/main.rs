//! One suite for every backend. On loop files it runs here; on LVM it runs
//! under a user-mode kernel, which has a device mapper, by `lvm::under_uml`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod loop_files;
mod lvm;
mod site;
