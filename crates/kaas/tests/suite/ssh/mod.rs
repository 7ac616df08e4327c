//! Machines by SSH, with a real sshd.

mod crash;
mod lab;
mod rules;
