//! Input of strangers for the fuzzer. Not for anything else.

use std::time::{Duration, Instant};

use str0m::{
    Rtc,
    change::{SdpAnswer, SdpOffer},
    crypto::dtls::{DtlsInstance, DtlsOutput, DtlsVersion},
};

use crate::{Frame, dtls, peer};

/// Reads an offer or an answer, and accepts what can be accepted.
pub fn description(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Frame::from_json(text);
    let sdp = peer::fuzz(text);
    if let Ok(offer) = SdpOffer::from_sdp_string(&sdp) {
        let _ = Rtc::builder().clear_codecs().build(Instant::now()).sdp_api().accept_offer(offer);
    }
    let mut rtc = Rtc::builder().clear_codecs().build(Instant::now());
    let mut change = rtc.sdp_api();
    change.add_channel("data".to_owned());
    if let (Some((_, pending)), Ok(answer)) = (change.apply(), SdpAnswer::from_sdp_string(&sdp)) {
        let _ = rtc.sdp_api().accept_answer(pending, answer);
    }
}

/// Takes packets of a handshake, as client and as server. Each begins with its
/// length.
pub fn handshake(bytes: &[u8]) {
    for active in [true, false] {
        let provider = dtls::provider();
        let Some(certificate) = provider.dtls_provider.generate_certificate() else { return };
        let now = Instant::now();
        let made = provider.dtls_provider.new_dtls(&certificate, now, DtlsVersion::Dtls12, None);
        let Ok(mut dtls) = made else { return };
        dtls.set_active(active);
        let _ = dtls.handle_timeout(now);
        let mut rest = bytes;
        while let Some((length, more)) = rest.split_first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length)).min(more.len());
            let (packet, more) = more.split_at(length);
            if dtls.handle_packet(packet).is_err() {
                break;
            }
            drain(dtls.as_mut());
            rest = more;
        }
        let _ = dtls.handle_timeout(now + Duration::from_secs(2));
        drain(dtls.as_mut());
    }
}

fn drain(dtls: &mut dyn DtlsInstance) {
    let mut buffer = vec![0; 4096];
    // A packet makes a few outputs, and not for ever.
    for _ in 0..10_000 {
        if let DtlsOutput::Timeout(_) = dtls.poll_output(&mut buffer) {
            return;
        }
    }
    unreachable!("outputs without an end")
}
