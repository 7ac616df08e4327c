//! The commands of the edge controller against one in this process that keeps
//! what it is told in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apply;
mod changes;
mod controller;
mod first_hour;
mod flags;
mod operations;
mod shows;

// Each suite uses what it needs of the one harness.
#[allow(dead_code)]
#[path = "../client/harness.rs"]
mod harness;

use harness::Person;

/// A person whose context leads to the controller.
async fn person(server: &controller::Running) -> Person {
    let mut person = Person::new();
    person.env.push(("HOME".into(), "/nowhere".into()));
    person.endpoint = Some(server.endpoint.clone());
    person
}
