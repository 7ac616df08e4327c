//! What the benchmarks share: a table of figures with ratios, and a real etcd
//! to compare with.
//!
//! Every figure is meant to be read beside another one of the same run: on a
//! shared machine the absolute numbers move by a factor of ten, the ratios do
//! not.

pub mod etcd;
pub mod report;
