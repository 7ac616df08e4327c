//! Two peers in one process, with everything between them that networks do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use selvage_shell::{
    Conversation, Frame, MAX_DATA,
    peer::{self, Offer, Options},
};
use tokio::net::UdpSocket;

const DEADLINE: Duration = Duration::from_secs(60);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("in time")
}

fn loopback() -> Options {
    Options { addresses: vec![Ipv4Addr::LOCALHOST.into()], ..Options::default() }
}

/// A caller and a crm; `passed` sees the offer and the answer on their way.
async fn pair(passed: impl AsyncFn(String) -> String) -> (Conversation, Conversation) {
    let offer = Offer::make(loopback()).await.unwrap();
    let text = passed(offer.text().to_owned()).await;
    let (answer, crm) = peer::answer(&text, loopback()).await.unwrap();
    let caller = offer.accept(&passed(answer).await).unwrap();
    (caller, crm)
}

async fn as_it_is(text: String) -> String {
    text
}

/// As the original's ends would have written it.
async fn nameless(text: String) -> String {
    text.replace("s=selvage", "s=-")
}

/// All bytes, and how it ended.
async fn everything(conversation: &mut Conversation) -> (Vec<u8>, Vec<u8>, Option<Frame>) {
    let (mut data, mut errors) = (Vec::new(), Vec::new());
    loop {
        match within(conversation.incoming.recv()).await {
            Some(Frame::Data(bytes)) => {
                assert!(bytes.len() <= MAX_DATA);
                data.extend_from_slice(&bytes);
            }
            Some(Frame::Errors(bytes)) => errors.extend_from_slice(&bytes),
            Some(last @ (Frame::Exit { .. } | Frame::End)) => return (data, errors, Some(last)),
            Some(Frame::Size { .. }) => {}
            None => return (data, errors, None),
        }
    }
}

fn noise(length: usize) -> Bytes {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(next).collect::<Vec<u8>>().into()
}

async fn say(conversation: &Conversation, frame: Frame) {
    within(conversation.outgoing.send(frame)).await.unwrap();
}

#[tokio::test]
async fn words_of_every_kind_go_both_ways_and_the_end_ends_both() {
    let (mut caller, mut crm) = pair(as_it_is).await;
    assert!(caller.understood && crm.understood);
    assert!(within(caller.opened()).await && within(crm.opened()).await);
    say(&caller, Frame::Size { columns: 100, rows: 40 }).await;
    let size = within(crm.incoming.recv()).await.unwrap();
    assert_eq!(size, Frame::Size { columns: 100, rows: 40 });
    let question = Bytes::from_static(b"what?");
    say(&caller, Frame::Data(question.clone())).await;
    say(&caller, Frame::End).await;
    let (heard, _, last) = everything(&mut crm).await;
    assert_eq!((heard, last), (question.to_vec(), Some(Frame::End)));

    let (output, errors) = (noise(300_000), noise(70_000));
    let exit = Frame::Exit { code: 7, reason: "so".into() };
    let writing = async {
        say(&crm, Frame::Data(output.clone())).await;
        say(&crm, Frame::Errors(errors.clone())).await;
        say(&crm, exit.clone()).await;
    };
    let ((), heard) = tokio::join!(writing, everything(&mut caller));
    assert!(heard == (output.to_vec(), errors.to_vec(), Some(exit)), "all of it, in order");
    crm.close().await;
    assert_eq!(within(caller.incoming.recv()).await, None);
    caller.close().await;
}

#[tokio::test]
async fn the_originals_peers_get_bytes_and_a_closed_channel() {
    let (mut caller, crm) = pair(nameless).await;
    assert!(!caller.understood && !crm.understood);
    let (output, errors) = (noise(64 * 1024), Bytes::from_static(b" and errors"));
    say(&crm, Frame::Data(output.clone())).await;
    say(&crm, Frame::Errors(errors.clone())).await;
    say(&crm, Frame::Exit { code: 1, reason: String::new() }).await;
    drop(crm);
    let (data, apart, last) = everything(&mut caller).await;
    assert!(data == [output, errors].concat() && apart.is_empty() && last.is_none());

    let (caller, mut crm) = pair(nameless).await;
    say(&caller, Frame::Data(Bytes::from_static(b"exit\n"))).await;
    say(&caller, Frame::End).await;
    assert_eq!(everything(&mut crm).await, (b"exit\n".to_vec(), Vec::new(), None));
}

/// With the certificate of somebody else.
fn forged(text: &str) -> String {
    let (before, after) = text.split_once("a=fingerprint:sha-256 ").unwrap();
    let (digits, rest) = after.split_at(2);
    let other = if digits == "00" { "01" } else { "00" };
    format!("{before}a=fingerprint:sha-256 {other}{rest}")
}

#[tokio::test]
async fn whoever_shows_another_certificate_than_was_said_is_hung_up_on() {
    for ours in [true, false] {
        let offer = Offer::make(loopback()).await.unwrap();
        let text = forged(offer.text());
        let text = if ours { text } else { nameless(text).await };
        let (answer, mut crm) = peer::answer(&text, loopback()).await.unwrap();
        let answer = if ours { answer } else { nameless(answer).await };
        let caller = offer.accept(&answer).unwrap();
        say(&caller, Frame::Data(Bytes::from_static(b"rm -r /\n"))).await;
        assert!(!within(crm.opened()).await, "ours: {ours}");
        assert_eq!(within(crm.incoming.recv()).await, None);
    }
}

#[tokio::test]
async fn what_is_typed_before_anybody_listens_is_kept() {
    let offer = Offer::make(loopback()).await.unwrap();
    let (answer, mut crm) = peer::answer(offer.text(), loopback()).await.unwrap();
    let caller = offer.accept(&answer).unwrap();
    for letter in "early".bytes() {
        say(&caller, Frame::Data(Bytes::copy_from_slice(&[letter]))).await;
    }
    assert!(within(crm.opened()).await);
    say(&caller, Frame::End).await;
    let (heard, _, _) = everything(&mut crm).await;
    assert_eq!(heard, b"early");
}

#[tokio::test]
async fn who_does_not_read_is_not_flooded() {
    let (mut caller, crm) = pair(as_it_is).await;
    assert!(within(caller.opened()).await);
    let much = noise(MAX_DATA);
    let messages = tokio::spawn(async move {
        for _ in 0..256 {
            crm.outgoing.send(Frame::Data(much.clone())).await.unwrap();
        }
        crm.outgoing.send(Frame::Exit { code: 0, reason: String::new() }).await.unwrap();
        crm
    });
    // While nobody receives, the sender is held back.
    let first = within(caller.incoming.recv()).await.unwrap();
    let Frame::Data(first) = first else { panic!("{first:?}") };
    assert!(!messages.is_finished());
    let (rest, _, last) = everything(&mut caller).await;
    assert_eq!(first.len() + rest.len(), 256 * MAX_DATA);
    assert!(matches!(last, Some(Frame::Exit { code: 0, .. })));
    within(messages).await.unwrap();
}

/// Stands between two peers. Each thinks the other is here.
struct Between {
    faces: [Arc<UdpSocket>; 2],
    cut: Arc<AtomicBool>,
}

impl Between {
    async fn new() -> Self {
        let open = || async { Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap()) };
        Self { faces: [open().await, open().await], cut: Arc::new(AtomicBool::new(false)) }
    }

    /// A description in which its writer is said to be at `face`, and where
    /// it really is.
    fn disguise(&self, text: &str, face: usize) -> (String, SocketAddr) {
        let line = text.split("a=candidate:").nth(1).unwrap();
        let port: u16 = line.split(' ').nth(5).unwrap().parse().unwrap();
        let shown = self.faces[face].local_addr().unwrap().port();
        let text = text.replace(&format!(" {port} typ"), &format!(" {shown} typ"));
        (text, SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// Passes packets on from one peer to the other, all but every `nth`.
    fn pass(&self, from: usize, to: SocketAddr, nth: usize) -> tokio::task::JoinHandle<()> {
        let (ear, mouth) = (Arc::clone(&self.faces[from]), Arc::clone(&self.faces[1 - from]));
        let cut = Arc::clone(&self.cut);
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            for count in 1_usize.. {
                let Ok(length) = ear.recv(&mut buffer).await else { continue };
                if count % nth != 0 && !cut.load(Ordering::SeqCst) {
                    let _ = mouth.send_to(&buffer[..length], to).await;
                }
            }
        })
    }
}

/// Two peers that lose every `nth` packet in either direction.
async fn lossy(nth: usize) -> (Conversation, Conversation, Between) {
    let between = Between::new().await;
    let offer = Offer::make(loopback()).await.unwrap();
    let (text, caller_at) = between.disguise(offer.text(), 1);
    let (answer, crm) = peer::answer(&text, loopback()).await.unwrap();
    let (text, crm_at) = between.disguise(&answer, 0);
    between.pass(0, crm_at, nth);
    between.pass(1, caller_at, nth);
    (offer.accept(&text).unwrap(), crm, between)
}

#[tokio::test]
async fn lost_packets_are_sent_again() {
    let (mut caller, mut crm, _between) = lossy(10).await;
    let (input, output) = (noise(40_000), noise(150_000));
    let talking = async {
        say(&caller, Frame::Data(input.clone())).await;
        say(&caller, Frame::End).await;
        say(&crm, Frame::Data(output.clone())).await;
        say(&crm, Frame::Exit { code: 0, reason: String::new() }).await;
    };
    within(talking).await;
    let (heard, _, last) = everything(&mut crm).await;
    assert!(heard == input && last == Some(Frame::End));
    let (heard, _, last) = everything(&mut caller).await;
    assert!(heard == output && matches!(last, Some(Frame::Exit { code: 0, .. })));
}

#[tokio::test]
async fn a_network_that_is_cut_ends_it_for_both() {
    let (mut caller, mut crm, between) = lossy(usize::MAX).await;
    assert!(within(caller.opened()).await && within(crm.opened()).await);
    between.cut.store(true, Ordering::SeqCst);
    let (first, second) = tokio::join!(everything(&mut caller), everything(&mut crm));
    assert_eq!((first.2, second.2), (None, None));
}

#[tokio::test]
async fn a_peer_that_never_comes_is_not_waited_for() {
    let short = Options { arrival_timeout: Duration::from_millis(300), ..loopback() };
    let offer = Offer::make(loopback()).await.unwrap();
    let (_, mut crm) = peer::answer(offer.text(), short).await.unwrap();
    assert!(!within(crm.opened()).await);
    assert_eq!(within(crm.incoming.recv()).await, None);
    drop(offer);

    // A peer that is dropped is gone at once, sockets included.
    let offer = Offer::make(loopback()).await.unwrap();
    let (_, crm) = peer::answer(offer.text(), Options::default()).await.unwrap();
    let (incoming, outgoing, carrier) = crm.split();
    drop((incoming, outgoing));
    within(carrier.finish()).await;
}
