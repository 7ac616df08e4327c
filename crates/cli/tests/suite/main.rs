//! Client commands against servers of the contracts in this process, over TLS,
//! plain TCP and unix sockets: sessions and people, the edge controller, machines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apply;
mod call;
mod changes;
mod contexts;
mod controller;
mod credentials;
mod failures;
mod fake;
mod first_hour;
mod flags;
mod harness;
mod join;
mod login;
mod node;
mod operations;
mod people;
mod shows;

use harness::Person;

/// A person whose context leads to the edge controller.
async fn person(server: &controller::Running) -> Person {
    let mut person = Person::new();
    person.env.push(("HOME".into(), "/nowhere".into()));
    person.endpoint = Some(server.endpoint.clone());
    person
}
