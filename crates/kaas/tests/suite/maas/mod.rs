//! Machines of a MaaS, which is simulated.

mod faults;
mod lab;
mod random;
mod rules;
mod sim;

pub(crate) use lab::open_auth;
