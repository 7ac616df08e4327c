//! Direct conversation: two peers, one offer, one answer.
//!
//! The offer and the answer are what the original's ends exchange: JSON with a
//! session description that has all addresses in it. One data channel, `data`,
//! carries the bytes. Two peers of ours recognise each other by the session's
//! name and have two more channels: `errors` for what a command writes there,
//! and `ctl` for the rest. The original's peers would take any second channel
//! for a second command, so the one that answers opens them, and only when the
//! offer bears the name.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use str0m::{
    Candidate, Rtc, RtcConfig,
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    channel::{ChannelConfig, ChannelId},
};

use crate::{Conversation, Error, Result, addresses, dtls, run::Runner, sockets::Sockets};

/// Channel of input and output.
pub(crate) const DATA: &str = "data";
/// Channel of a command's error output.
pub(crate) const ERRORS: &str = "errors";
/// Channel of sizes, ends and exits.
pub(crate) const CONTROL: &str = "ctl";

/// Number of checks without an answer after which a peer counts as gone, and the
/// interval between them.
const MAX_CHECKS: usize = 6;
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Session name by which our peers recognise each other.
const OWN_SESSION: &str = "s=selvage";
const DEFAULT_SESSION: &str = "s=-";

/// Options of a peer.
#[derive(Debug, Clone)]
pub struct Options {
    /// Timeout of the other end's arrival.
    pub arrival_timeout: Duration,
    /// Addresses to be reached at; empty: all that this machine has.
    pub addresses: Vec<IpAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Self { arrival_timeout: Duration::from_secs(30), addresses: Vec::new() }
    }
}

/// Session description as it is on the wire.
#[derive(Serialize, Deserialize)]
struct Description {
    r#type: String,
    sdp: String,
}

/// An offer that waits for its answer.
pub struct Offer {
    rtc: Box<Rtc>,
    sockets: Sockets,
    pending: SdpPendingOffer,
    data: ChannelId,
    text: String,
    arrival_timeout: Duration,
}

impl Offer {
    /// Offers a conversation.
    pub async fn make(options: Options) -> Result<Self> {
        let (mut rtc, sockets) = prepare(&options, Rtc::builder(), &[]).await?;
        let mut change = rtc.sdp_api();
        let data = change.add_channel(DATA.to_owned());
        let (offer, pending) = change
            .apply()
            .ok_or_else(|| Error::description("offer", "there is nothing to offer"))?;
        let text = describe("offer", &named(&offer.to_sdp_string()))?;
        Ok(Self { rtc, sockets, pending, data, text, arrival_timeout: options.arrival_timeout })
    }

    /// Text to send to the other end.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Begins, with what the other end answered.
    pub fn accept(mut self, answer: &str) -> Result<Conversation> {
        let sdp = read("answer", answer)?;
        let understood = is_ours(&sdp);
        let answer = SdpAnswer::from_sdp_string(&sdp)
            .map_err(|error| Error::description("answer", error))?;
        self.rtc.sdp_api().accept_answer(self.pending, answer)?;
        let runner = Runner::new(self.rtc, self.sockets, Some(self.data), understood);
        Ok(runner.spawn(self.arrival_timeout))
    }
}

/// Answers an offer: what to send back, and the conversation that will be.
pub async fn answer(offer: &str, options: Options) -> Result<(String, Conversation)> {
    let sdp = normalized(&read("offer", offer)?);
    let understood = is_ours(&sdp);
    let parsed =
        SdpOffer::from_sdp_string(&sdp).map_err(|error| Error::description("offer", error))?;
    let config = match understood {
        true => Rtc::builder(),
        false => Rtc::builder().set_crypto_provider(dtls::provider()),
    };
    let (mut rtc, sockets) = prepare(&options, config, &candidates(&sdp)).await?;
    let answer = rtc.sdp_api().accept_offer(parsed);
    let answer = answer.map_err(|error| Error::description("offer", error))?;
    if understood {
        for label in [ERRORS, CONTROL] {
            let config = ChannelConfig { label: label.to_owned(), ..ChannelConfig::default() };
            rtc.direct_api().create_data_channel(config);
        }
    }
    let text = describe("answer", &named(&answer.to_sdp_string()))?;
    let runner = Runner::new(rtc, sockets, None, understood);
    Ok((text, runner.spawn(options.arrival_timeout)))
}

/// Reads an offer as far as that is ours to do.
pub(crate) fn fuzz(text: &str) -> String {
    let sdp = read("offer", text).unwrap_or_else(|_| text.to_owned());
    let sdp = normalized(&sdp);
    let _ = (is_ours(&sdp), candidates(&sdp));
    assert_eq!(normalized(&sdp), sdp, "once is enough");
    sdp
}

async fn prepare(
    options: &Options,
    config: RtcConfig,
    others: &[IpAddr],
) -> Result<(Box<Rtc>, Sockets)> {
    let addresses = match options.addresses.as_slice() {
        [] => addresses::usable(others).await,
        given => given.to_vec(),
    };
    let sockets = Sockets::open(&addresses).await?;
    let mut config = config.clear_codecs();
    config.set_max_stun_rto(CHECK_INTERVAL);
    config.set_max_stun_retransmits(MAX_CHECKS);
    // Large, and handed on several times.
    let mut rtc = Box::new(config.build(Instant::now()));
    for address in sockets.addresses() {
        if let Ok(candidate) = Candidate::host(address, "udp") {
            rtc.add_local_candidate(candidate);
        }
    }
    Ok((rtc, sockets))
}

fn read(what: &'static str, json: &str) -> Result<String> {
    let description: Description =
        serde_json::from_str(json).map_err(|error| Error::description(what, error))?;
    if description.r#type != what {
        let reason = format!("type is {:?}", description.r#type);
        return Err(Error::description(what, reason));
    }
    Ok(description.sdp)
}

fn describe(kind: &'static str, sdp: &str) -> Result<String> {
    let description = Description { r#type: kind.to_owned(), sdp: sdp.to_owned() };
    serde_json::to_string(&description).map_err(|error| Error::description(kind, error))
}

fn named(sdp: &str) -> String {
    sdp.replacen(DEFAULT_SESSION, OWN_SESSION, 1)
}

fn is_ours(sdp: &str) -> bool {
    sdp.lines().any(|line| line.trim_end() == OWN_SESSION)
}

/// The original's client says twice who begins the handshake, and means the
/// second; and has candidates for a second component that there is not. Who
/// leaves it to the other end to begin is begun with: the original waits.
fn normalized(sdp: &str) -> String {
    const SETUP: &str = "a=setup:";
    let lines: Vec<&str> = sdp.lines().map(str::trim_end).collect();
    let said_again = |at: usize| {
        let later = lines.iter().skip(at + 1).take_while(|line| !line.starts_with("m="));
        later.into_iter().any(|line| line.starts_with(SETUP))
    };
    let second = |line: &str| {
        let candidate = line.strip_prefix("a=candidate:");
        candidate.is_some_and(|it| it.split(' ').nth(1).is_some_and(|component| component != "1"))
    };
    let kept = lines
        .iter()
        .enumerate()
        .filter(|(at, line)| !(second(line) || line.starts_with(SETUP) && said_again(*at)));
    let begun = kept.map(|(_, line)| match *line {
        "a=setup:actpass" => "a=setup:passive\r\n".to_owned(),
        line => format!("{line}\r\n"),
    });
    begun.collect()
}

/// The addresses at which the other end says it can be reached.
fn candidates(sdp: &str) -> Vec<IpAddr> {
    let lines = sdp.lines().filter_map(|line| line.trim_end().strip_prefix("a=candidate:"));
    lines.filter_map(|line| line.split(' ').nth(4)?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_are_found_in_a_description() {
        let sdp = "v=0\r\na=candidate:1 1 udp 2130706431 192.0.2.7 5000 typ host\r\n\
                   a=candidate:2 1 udp 1 secret.local 5001 typ host\r\n\
                   a=candidate:3 1 udp 1 2001:db8::7 5002 typ host\r\n";
        let expected: Vec<IpAddr> =
            vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        assert_eq!(candidates(sdp), expected);
    }

    #[test]
    fn what_the_original_says_twice_is_taken_once() {
        let said = "m=application 9 DTLS/SCTP 5000\r\na=setup:active\r\na=mid:0\r\n\
                    a=candidate:foundation 1 udp 3776 192.0.2.2 36314 typ host\r\n\
                    a=candidate:foundation 2 udp 3776 192.0.2.2 36314 typ host\r\n\
                    a=setup:actpass\r\n";
        let meant = "m=application 9 DTLS/SCTP 5000\r\na=mid:0\r\n\
                     a=candidate:foundation 1 udp 3776 192.0.2.2 36314 typ host\r\n\
                     a=setup:passive\r\n";
        assert_eq!(normalized(said), meant);
        assert_eq!(normalized(meant), meant);
    }

    #[tokio::test]
    async fn what_is_no_offer_is_refused_with_a_sentence() {
        for (offer, why) in [
            ("", "offer: EOF"),
            ("{}", "offer: missing field `type`"),
            (r#"{"type":"answer","sdp":""}"#, "offer: type is \"answer\""),
            (r#"{"type":"offer","sdp":"v=0"}"#, "offer: "),
        ] {
            let error = answer(offer, Options::default()).await.unwrap_err();
            assert!(error.to_string().starts_with(why), "{offer}: {error}");
            assert_eq!(error.code(), selvage_api::Code::InvalidArgument);
        }
    }
}
