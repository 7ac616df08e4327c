//! The edge controller: every object of `edgeproto`, its rules, and the
//! operations that take instances to READY and back.

mod derive;
mod instances;
mod objects;
