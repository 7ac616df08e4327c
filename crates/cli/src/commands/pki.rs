//! Certificate authorities: which there are, and how one takes over from another.

use jiff::Timestamp;
use selvage_api::selvage::pki::{
    FinishRotationRequest, Pki as Answer, ShowRequest, StartRotationRequest,
    pki_service_client::PkiServiceClient,
};

use super::node::sheet::Sheet;
use crate::{Error, config::Files, output, session::Session};

const ANSWER: &str = "selvage.pki.Pki";

/// `selvage pki`
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  selvage pki show
  selvage pki rotate start
  selvage pki rotate status
  selvage pki trust
  selvage pki rotate finish")]
pub enum Pki {
    /// Show the authorities, and whose certificates they signed
    Show,
    /// Make the current context believe the authorities that there are now
    Trust,
    /// Replace the authority, without a call that fails
    #[command(subcommand)]
    Rotate(Rotate),
}

/// `selvage pki rotate`
#[derive(clap::Subcommand, Debug)]
pub enum Rotate {
    /// Make a new authority, which soon signs everything anew
    Start,
    /// Show the stage of the rotation and what it waits for
    Status,
    /// Drop the old authority
    Finish(Finish),
}

/// `selvage pki rotate finish`
#[derive(clap::Args, Debug)]
pub struct Finish {
    /// Also while machines use it still: they have to join again
    #[arg(long)]
    pub force: bool,
}

pub(crate) async fn run(command: Pki, session: &mut Session<'_>) -> Result<(), Error> {
    match command {
        Pki::Show => {
            let answer = show(session).await?;
            print(&answer, session)
        }
        Pki::Trust => trust(session).await,
        Pki::Rotate(Rotate::Start) => {
            let client = session.client().await?;
            let started = client.call(StartRotationRequest {}, |channel, request| async move {
                PkiServiceClient::new(channel).start_rotation(request).await
            });
            status(&started.await?, session)
        }
        Pki::Rotate(Rotate::Status) => {
            let answer = show(session).await?;
            status(&answer, session)
        }
        Pki::Rotate(Rotate::Finish(Finish { force })) => {
            let client = session.client().await?;
            let request = FinishRotationRequest { force };
            let finished = client.call(request, |channel, request| async move {
                PkiServiceClient::new(channel).finish_rotation(request).await
            });
            status(&finished.await?, session)
        }
    }
}

async fn show(session: &mut Session<'_>) -> Result<Answer, Error> {
    let client = session.client().await?;
    let shown = client.call(ShowRequest {}, |channel, request| async move {
        PkiServiceClient::new(channel).show(request).await
    });
    shown.await
}

/// Keeps the authorities in the context that leads to the server, if it names
/// any: one that trusts the system's goes on doing so.
async fn trust(session: &mut Session<'_>) -> Result<(), Error> {
    let answer = show(session).await?;
    let pem: String = answer.authorities.iter().map(|one| one.certificate.as_str()).collect();
    let Some(name) = session.target()?.context else {
        return Err(Error::invalid("there is no context for this server: log in first"));
    };
    let kept = Files::locate(session.io)?.update(|contexts, _| {
        let context = contexts.contexts.get_mut(&name).filter(|context| context.ca.is_some());
        let known = context.is_some();
        if let Some(context) = context {
            context.ca = Some(pem.clone());
        }
        Ok::<_, Error>(known)
    })?;
    let count = answer.authorities.len();
    session.io.say(&match (kept, count) {
        (false, _) => format!("Context {name} trusts the authorities of this system, as before."),
        (true, 1) => format!("Context {name} believes 1 authority."),
        (true, _) => format!("Context {name} believes {count} authorities."),
    })
}

fn status(answer: &Answer, session: &mut Session<'_>) -> Result<(), Error> {
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(ANSWER, answer)?);
    }
    session.io.say(&summary(answer))
}

fn summary(answer: &Answer) -> String {
    let short = |sha256: &str| sha256.get(..16).unwrap_or(sha256).to_owned();
    let signer = answer.authorities.iter().find(|one| one.signs);
    let signer = signer.map_or_else(|| "-".to_owned(), |one| short(&one.sha256));
    let waits = |done: &str| match answer.waits_for.as_slice() {
        [] => done.to_owned(),
        waits => format!("It waits for:\n  {}", waits.join("\n  ")),
    };
    match answer.stage % 3 {
        0 => format!("Stage {}: one authority, {signer}.", answer.stage),
        1 => format!(
            "Stage {}: the new authority is believed, {signer} signs still.\n{}",
            answer.stage,
            waits("The new one signs in a moment.")
        ),
        _ => format!(
            "Stage {}: the new authority {signer} signs, the old one is believed still.\n{}",
            answer.stage,
            waits(
                "Nobody uses the old one any more. `selvage pki trust` makes your own context \
                 ready, `selvage pki rotate finish` drops it."
            )
        ),
    }
}

fn print(answer: &Answer, session: &mut Session<'_>) -> Result<(), Error> {
    if !session.printer().is_table() {
        return session.printer().message(&output::dynamic(ANSWER, answer)?);
    }
    authorities(answer).print(session)?;
    if !answer.certificates.is_empty() {
        session.io.say("")?;
        certificates(answer).print(session)?;
    }
    session.io.say("")?;
    session.io.say(&summary(answer))
}

fn day(at: Option<&prost_types::Timestamp>) -> String {
    let at = at.and_then(|at| Timestamp::from_second(at.seconds).ok());
    at.map_or_else(|| "-".to_owned(), |at| at.strftime("%Y-%m-%d").to_string())
}

fn authorities(answer: &Answer) -> Sheet {
    let mut sheet = Sheet::new(&["AUTHORITY", "NAME", "BEGINS", "ENDS", "STATE"]);
    for one in &answer.authorities {
        let state = match (one.signs, answer.stage % 3) {
            (true, _) => "signs",
            (false, 1) => "new, believed",
            (false, _) => "old, believed",
        };
        sheet.push([
            one.sha256.clone(),
            one.name.clone(),
            day(one.begins.as_ref()),
            day(one.ends.as_ref()),
            state.to_owned(),
        ]);
    }
    sheet
}

fn certificates(answer: &Answer) -> Sheet {
    let mut sheet = Sheet::new(&["MACHINE", "AUTHORITY", "ENDS", "STATE"]);
    for one in &answer.certificates {
        let mut states = Vec::new();
        if !one.waits.is_empty() {
            states.push(one.waits.clone());
        }
        if one.copy_suspected_at.is_some() {
            let at = day(one.copy_suspected_at.as_ref());
            states.push(format!("a copy of its key was used on {at}"));
        }
        let state = if states.is_empty() { "-".to_owned() } else { states.join("; ") };
        let authority = one.authority.get(..16).unwrap_or("-").to_owned();
        sheet.push([one.machine.clone(), authority, day(one.ends.as_ref()), state]);
    }
    sheet
}

#[cfg(test)]
mod tests {
    use selvage_api::selvage::pki::{Authority, Certificate};

    use super::*;

    fn answer() -> Answer {
        let authority = |digit: &str, signs| Authority {
            sha256: digit.repeat(64),
            name: format!("CN={digit}"),
            signs,
            ..Authority::default()
        };
        Answer {
            stage: 2,
            authorities: vec![authority("b", true), authority("a", false)],
            certificates: vec![Certificate {
                machine: "node/a".into(),
                authority: "a".repeat(64),
                waits: "shows a certificate of the old authority".into(),
                copy_suspected_at: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
                ..Certificate::default()
            }],
            waits_for: vec!["node/a: shows a certificate of the old authority".into()],
            ..Answer::default()
        }
    }

    #[test]
    fn a_rotation_says_what_it_waits_for() {
        assert_eq!(
            summary(&answer()),
            "Stage 2: the new authority bbbbbbbbbbbbbbbb signs, the old one is believed still.\n\
             It waits for:\n  node/a: shows a certificate of the old authority"
        );
        let ready = Answer { waits_for: Vec::new(), ..answer() };
        assert!(summary(&ready).contains("`selvage pki rotate finish` drops it"));
    }

    #[test]
    fn machines_with_old_certificates_are_seen() {
        let text = certificates(&answer()).text(crate::Format::Table);
        assert!(text.contains("shows a certificate of the old authority"), "{text}");
        assert!(text.contains("a copy of its key was used on 1970-01-01"), "{text}");
        let text = authorities(&answer()).text(crate::Format::Table);
        assert!(text.contains("old, believed") && text.contains("signs"), "{text}");
    }
}
