//! Backups: a real process, loop devices, real object stores, and stock
//! restic, which has to agree.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod between;
mod beyond;
mod command_line;
mod crashes;
mod link;
mod lvmds_clients;
mod on_lvm;
mod secrets;
mod site;
