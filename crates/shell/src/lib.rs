//! The conversation with a command in an instance: the two ends of a WebRTC
//! data channel, and the pieces that a relay passes on.
//!
//! Which command runs and where is the crm's to say; who may is the
//! controller's.
