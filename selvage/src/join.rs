//! Joining of a process to a controller: flags, token, trust.

use std::{io::Read, path::Path, sync::Arc};

use anyhow::{Context, bail};
use selvage_kit::{
    clock::SystemClock,
    identity::Secret,
    pki::{self, Anchor},
};
use selvage_membership::{self as membership, Invitation, Kind, Member};

use crate::{args::Join, config::Config};

/// Holds the join token, where no file does.
pub(crate) const TOKEN_VARIABLE: &str = "SELVAGE_JOIN_TOKEN";

/// No token is longer.
const LONGEST_TOKEN: u64 = 4096;

/// Puts the flags into the configuration.
pub(crate) fn apply(join: &Join, ca: Option<&Path>, config: &mut Config) -> anyhow::Result<()> {
    let section = &mut config.join;
    if let Some(controller) = &join.controller {
        section.controller.clone_from(controller);
    }
    if let Some(sha256) = &join.ca_sha256 {
        section.ca_sha256.clone_from(sha256);
    }
    if let Some(ca) = ca {
        section.ca = Some(ca.to_owned());
    }
    for label in &join.labels {
        let (key, value) = label
            .split_once('=')
            .with_context(|| format!("--label {label:?}: not of the form KEY=VALUE"))?;
        section.labels.insert(key.to_owned(), value.to_owned());
    }
    selvage_kit::labels::check(&section.labels).context("--label")
}

/// Returns whether the process is to belong to a controller, or does.
pub(crate) fn is_requested(config: &Config, kind: Kind) -> bool {
    let kept = || Member::has_joined(&config.data.join(kind.directory()));
    !config.insecure && (!config.join.controller.is_empty() || kept())
}

/// The token, from wherever it was given.
fn token(config: &Config, join: &Join) -> anyhow::Result<Option<Secret>> {
    if let Some(path) = &join.join_file {
        let mut text = String::new();
        let read = if path == Path::new("-") {
            std::io::stdin().take(LONGEST_TOKEN).read_to_string(&mut text)
        } else {
            let file = std::fs::File::open(path);
            file.and_then(|file| file.take(LONGEST_TOKEN).read_to_string(&mut text))
        };
        read.with_context(|| format!("--join-file {}", path.display()))?;
        return Ok(Some(Secret::new(text.trim())));
    }
    if let Some(file) = &config.join.token_file {
        let read = file.read().context("join.token_file")?;
        return Ok(Some(Secret::new(read.expose().trim())));
    }
    let given = std::env::var(TOKEN_VARIABLE).ok().filter(|text| !text.trim().is_empty());
    Ok(given.map(|text| Secret::new(text.trim())))
}

/// Returns whether there is a token; it is not read.
fn token_is_given(config: &Config, join: &Join) -> bool {
    join.join_file.is_some()
        || config.join.token_file.is_some()
        || std::env::var(TOKEN_VARIABLE).is_ok_and(|text| !text.trim().is_empty())
}

/// Refuses a token for another kind of machine, before it is spent.
fn check_kind(token: &Secret, kind: Kind) -> anyhow::Result<()> {
    let mut parts = token.expose().split('.');
    let (_, word, pin) = (parts.next(), parts.next(), parts.next());
    match word.filter(|_| pin.is_some()) {
        Some(word) if word != kind.to_string() => bail!(
            "the join token is for a {word}, and this is a {kind}: it was not used. \
             `selvage join-token create {}` makes one for this machine",
            kind.pattern()
        ),
        _ => Ok(()),
    }
}

/// Returns what identifies the controller that a machine joins.
fn anchor(config: &Config, token: &Secret) -> anyhow::Result<Anchor> {
    if let Some(path) = &config.join.ca {
        let pem = std::fs::read_to_string(path);
        return Ok(Anchor::Certificate(pem.with_context(|| path.display().to_string())?));
    }
    if !config.join.ca_sha256.is_empty() {
        return Ok(Anchor::Digest(config.join.ca_sha256.clone()));
    }
    match pki::pin_in_token(token.expose()) {
        Some(pin) => Ok(Anchor::Digest(pin.to_owned())),
        None => bail!(
            "nothing says which CA to trust: use the whole token, which ends with its \
             fingerprint, or give --ca-sha256 or --ca"
        ),
    }
}

/// Opens the membership of an earlier start, or joins with the token.
pub(crate) async fn open(config: &Config, join: &Join, kind: Kind) -> anyhow::Result<Member> {
    let (directory, clock) = (config.data.join(kind.directory()), Arc::new(SystemClock));
    let kept = match Member::open(&directory, kind, clock.clone()) {
        Ok(kept) => kept,
        // Too late to renew it: only a new token helps, if there is one.
        Err(error @ membership::Error::Pki(pki::Error::Expired { .. })) => {
            match token(config, join)? {
                Some(_) => None,
                None => return Err(error).context("join again with a new token"),
            }
        }
        Err(error) => return Err(error).context("what is kept of joining the controller"),
    };
    if let Some(member) = kept {
        if !config.join.controller.is_empty() {
            member.move_to(&config.join.controller)?;
        }
        if token_is_given(config, join) {
            let machine = format!("{kind}/{}", member.name());
            tracing::warn!(
                machine,
                directory = %directory.display(),
                "joined already: the join token is not used"
            );
        }
        tracing::info!(name = member.name(), controller = member.controller(), "joined already");
        return Ok(member);
    }
    let controller = &config.join.controller;
    if controller.is_empty() {
        bail!("this machine has not joined yet: say --controller HOST:PORT");
    }
    let Some(token) = token(config, join)? else {
        bail!(
            "this machine has not joined {controller} yet: give the token that \
             `selvage join-token create {}` prints with --join-file, or in {TOKEN_VARIABLE}",
            kind.pattern()
        );
    };
    check_kind(&token, kind)?;
    let anchor = anchor(config, &token)?;
    let invitation = Invitation { kind, controller, token: &token, anchor };
    let member = Member::join(&directory, &invitation, clock).await?;
    tracing::info!(name = member.name(), controller, "this machine has joined the controller");
    Ok(member)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_for_another_kind_of_machine_is_refused_before_it_is_spent() {
        let pin = "ab".repeat(32);
        let token = |text: &str| Secret::new(format!("slvj_secret{text}"));
        let refused = check_kind(&token(&format!(".cloudlet.{pin}")), Kind::Node).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("for a cloudlet, and this is a node: it was not used"), "{text}");
        assert!(!text.contains("slvj_"), "{text}");
        assert!(check_kind(&token(&format!(".node.{pin}")), Kind::Node).is_ok());
        // Tokens of an earlier release do not say.
        assert!(check_kind(&token(&format!(".{pin}")), Kind::Node).is_ok());
        assert!(check_kind(&token(""), Kind::Dme).is_ok());
    }
}
