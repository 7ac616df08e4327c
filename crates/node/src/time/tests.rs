#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::net::UdpSocket;
use tonic::Code;

use super::*;

/// Answer of a server to a question.
type Reply = fn(&[u8]) -> Vec<Vec<u8>>;

/// A time server on this machine.
async fn server(reply: Reply) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let mut question = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut question).await {
            for answer in reply(&question[..length]) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    address
}

/// An answer as a server of this stratum gives it: an hour ahead.
fn answer(question: &[u8], first: u8, stratum: u8) -> Vec<u8> {
    let ahead = SystemTime::now() + Duration::from_secs(3600);
    let since = ahead.duration_since(UNIX_EPOCH).unwrap();
    let whole = u32::try_from((since.as_secs() + 2_208_988_800) % (1 << 32)).unwrap();
    let mut answer = vec![0; 48];
    (answer[0], answer[1]) = (first, stratum);
    answer[12..16].copy_from_slice(b"RATE");
    answer[24..32].copy_from_slice(&question[40..48]);
    answer[32..36].copy_from_slice(&whole.to_be_bytes());
    answer[40..44].copy_from_slice(&whole.to_be_bytes());
    answer
}

fn of(server: &str, role: Role) -> Request<TimeRequest> {
    let mut request = Request::new(TimeRequest { server: server.into() });
    let grants = vec![selvage_kit::identity::Grant { role, organisation: String::new() }];
    let kind = Kind::User { session: String::new(), expires: 0 };
    request.extensions_mut().insert(Identity { name: "ann".into(), kind, grants });
    request
}

async fn check(api: &TimeApi, server: &str) -> Result<Time, Status> {
    let request = of(server, Role::Admin);
    let reading = api.time_check(request).await?.into_inner();
    assert_eq!(reading.messages.len(), 1);
    Ok(reading.messages[0].clone())
}

#[tokio::test]
async fn both_clocks_are_returned() {
    let address = server(|question| vec![answer(question, 0x24, 2)]).await;
    let api = TimeApi::new(address.clone());
    let reading = check(&api, &address).await.unwrap();
    assert_eq!(reading.server, address);
    let (local, remote) = (reading.localtime.unwrap(), reading.remotetime.unwrap());
    let ahead = remote.seconds - local.seconds;
    assert!((3590..=3610).contains(&ahead), "{ahead}");
    let own = api.time(Request::new(())).await.unwrap().into_inner();
    assert_eq!(own.messages[0].server, address);
}

#[tokio::test]
async fn datagrams_that_are_no_answer_to_us_are_passed_over() {
    let address = server(|question| {
        let mut forged = answer(question, 0x24, 2);
        forged[24] ^= 1;
        vec![vec![1, 2, 3], forged, answer(question, 0x24, 2)]
    })
    .await;
    assert!(check(&TimeApi::new("localhost"), &address).await.is_ok());
}

#[tokio::test]
async fn servers_that_do_not_know_are_not_believed() {
    let api = TimeApi::new("localhost");
    for (reply, reason) in [
        ((|q| vec![answer(q, 0x24, 0)]) as Reply, "the server refuses: RATE"),
        (|q| vec![answer(q, 0xe4, 2)], "the server's own clock is not set"),
        (|q| vec![answer(q, 0x24, 16)], "the server's own clock is not set"),
        (|q| vec![answer(q, 0x23, 2)], "what answers is no time server"),
    ] {
        let address = server(reply).await;
        let refused = check(&api, &address).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{reason}");
        assert!(refused.message().ends_with(reason), "{refused}");
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_given_up() {
    let address = server(|_| Vec::new()).await;
    let api = TimeApi { timeout: Duration::from_millis(30), ..TimeApi::new("localhost") };
    let refused = check(&api, &address).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains(&address), "{refused}");
    for wrong in ["", "a b", "x:y"] {
        assert_eq!(check(&api, wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

/// Nobody looks through a machine for what answers elsewhere.
#[tokio::test]
async fn only_admins_name_another_server() {
    let address = server(|question| vec![answer(question, 0x24, 2)]).await;
    let api = TimeApi::new(address.clone());
    for role in [Role::Operator, Role::Viewer] {
        api.time_check(of(&address, role)).await.unwrap();
        let refused = api.time_check(of("127.0.0.1:22", role)).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    let nobody = Request::new(TimeRequest { server: "127.0.0.1:22".into() });
    assert_eq!(api.time_check(nobody).await.unwrap_err().code(), Code::PermissionDenied);
}
