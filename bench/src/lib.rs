//! Helpers of the benchmarks: a table of figures with ratios, what processes
//! cost, a real etcd and a server that does nothing to compare with, and a
//! controller that serves.
//!
//! Every figure is meant to be read beside another one of the same run: on a
//! shared machine the absolute numbers move by a factor of ten, the ratios do
//! not.

pub mod cost;
pub mod echo;
pub mod edge;
pub mod etcd;
pub mod report;
