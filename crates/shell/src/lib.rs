//! Conversation with a command in an instance, over one of two transports:
//!
//! * [`peer`]: directly, over a WebRTC data channel. Both ends are here, the
//!   one that offers and the one that answers;
//! * [`attach`]: through a controller that passes on what each end says.
//!
//! Either way it is a [`Conversation`]: frames go out, frames come in, and there
//! are no more of either than the other end can take.
//!
//! The crm decides which command runs and where, the controller who may run it.

mod addresses;
mod attach;
mod control;
mod conversation;
mod dtls;
mod error;
mod frame;
#[doc(hidden)]
pub mod fuzz;
pub mod peer;
mod run;
mod sockets;

pub use attach::{attach, dial};
pub use conversation::{Carrier, Conversation};
pub use error::{Error, Result};
pub use frame::{Frame, MAX_DATA};
