//! Lines for the audit log: who did what to identities. Never a secret.

use std::fmt;

use selvage_kit::identity::Peer;

use crate::caller::Caller;

/// Names longer than this are cut: they come from outside.
const LONGEST: usize = 64;

/// Text from outside in a form that cannot fake or flood log lines.
pub(crate) struct Clean<'a>(pub(crate) &'a str);

impl fmt::Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(LONGEST) {
            let shown = if c.is_control() { '\u{fffd}' } else { c };
            write!(f, "{shown}")?;
        }
        if self.0.chars().nth(LONGEST).is_some() {
            f.write_str("…")?;
        }
        Ok(())
    }
}

fn peer_text(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "unknown".into(), ToString::to_string)
}

pub(crate) fn login(username: &str, peer: Option<&Peer>, session: &str, via: &str) {
    tracing::info!(
        target: "audit",
        action = "login", username = %Clean(username), peer = peer_text(peer), session, via,
        "logged in"
    );
}

pub(crate) fn login_refused(username: &str, peer: Option<&Peer>, reason: &str, via: &str) {
    tracing::info!(
        target: "audit",
        action = "login", username = %Clean(username), peer = peer_text(peer), reason, via,
        "login refused"
    );
}

/// Something was done to `subject`.
pub(crate) fn done(action: &'static str, caller: &Caller, subject: &str) {
    tracing::info!(
        target: "audit",
        action, by = %Clean(&caller.identity.name), peer = peer_text(caller.peer.as_ref()),
        subject = %Clean(subject),
        "done"
    );
}

/// Something was asked for and not done.
pub(crate) fn refused(action: &'static str, caller: &Caller, subject: &str, reason: &str) {
    tracing::info!(
        target: "audit",
        action, by = %Clean(&caller.identity.name), peer = peer_text(caller.peer.as_ref()),
        subject = %Clean(subject), reason,
        "refused"
    );
}

/// Two processes report under one machine's name.
pub(crate) fn two_agents(machine: &str, rivals: &[String]) {
    let from = rivals.join(" and ");
    tracing::warn!(
        target: "audit",
        action = "machine.report", subject = %Clean(machine), from = %Clean(&from),
        "two agents report under one name, and calls reach now one and now the other: stop one, \
         or let it join under another name"
    );
}

/// A certificate that its machine had replaced was renewed.
pub(crate) fn copy_suspected(caller: &Caller, machine: &str) {
    tracing::warn!(
        target: "audit",
        action = "machine.renew", peer = peer_text(caller.peer.as_ref()),
        subject = %Clean(machine),
        "a certificate was renewed that its machine had replaced already: somebody may have a copy \
         of its key. Block the machine and let it join again under another name"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_can_neither_break_nor_flood_a_line() {
        let shown = Clean("a\nb\x1b[31m").to_string();
        assert_eq!(shown, "a\u{fffd}b\u{fffd}[31m");
        assert_eq!(Clean(&"x".repeat(10_000)).to_string().chars().count(), LONGEST + 1);
        assert_eq!(Clean(&"x".repeat(64)).to_string(), "x".repeat(64));
    }
}
