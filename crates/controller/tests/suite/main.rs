//! The controller through the wire, on a store in memory, and on etcd where
//! several controllers share one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apps;
mod cloudlets;
mod defects;
mod dry_run;
mod exec;
mod harness;
mod infos;
mod late;
mod lifecycle;
mod plain;
mod races;
mod references;
mod resume;
mod several;
mod show;
mod visibility;
mod whole;
