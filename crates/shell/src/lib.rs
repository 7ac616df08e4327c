//! The conversation with a command in an instance, whichever way it goes:
//!
//! * [`peer`]: directly, over a WebRTC data channel. Both ends are here, the
//!   one that offers and the one that answers;
//! * [`attach`]: through a controller that passes on what each end says.
//!
//! Either way it is a [`Conversation`]: words go out, words come in, and there
//! is no more of either than the other end can take.
//!
//! Which command runs and where is the crm's to say; who may is the
//! controller's.

mod addresses;
mod attach;
mod control;
mod conversation;
mod dtls;
mod error;
pub mod peer;
mod run;
mod sockets;
mod word;

pub use attach::{attach, dial};
pub use conversation::{Carrier, Conversation};
pub use error::{Error, Result};
pub use word::{MAX_DATA, Word};
