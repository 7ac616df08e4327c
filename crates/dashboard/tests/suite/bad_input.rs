//! Ceph that answers nonsense, and names that are more than names.

use proptest::prelude::*;
use selvage_api::{
    edgeproto::CloudletState,
    selvage::dashboard::{GetOverviewRequest, GetSeriesRequest, ListAuditRequest},
};
use selvage_dashboard::{
    facts::{Cloudlet, Data},
    source::ceph::decode_health,
};
use tonic::Code;

use super::lab::{Lab, object};

const GOLDEN: &[u8] = include_bytes!("../answers/health-full-golden.json");

#[test]
fn what_is_no_answer_of_ceph_is_an_error() {
    let half = &GOLDEN[..GOLDEN.len() / 2];
    let large = vec![b'['; 10 << 20];
    let bodies: [&[u8]; 7] = [
        b"<!doctype html><html>no active mgr</html>",
        b"",
        b"null",
        b"{}",
        b"{\"health\":{\"status\":\"FINE\"}}",
        half,
        &large,
    ];
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert!(decode_health(body).is_err(), "{shown}");
    }
}

#[test]
fn sections_that_are_missing_or_of_another_shape_are_dropped() {
    let storage = decode_health(br#"{"health":{"status":"HEALTH_OK"}}"#).unwrap();
    assert!(storage.osd.is_none() && storage.usage.is_none() && storage.checks.is_empty());
    let mut answer: serde_json::Value = serde_json::from_slice(GOLDEN).unwrap();
    answer["osd_map"] = serde_json::json!("no osds here");
    answer["df"]["stats"]["total_bytes"] = serde_json::json!("many");
    answer["client_perf"] = serde_json::Value::Null;
    let storage = decode_health(answer.to_string().as_bytes()).unwrap();
    assert!(storage.osd.is_none() && storage.usage.is_none() && storage.io.is_none());
    assert_eq!(storage.mon.unwrap().quorum, ["a", "b", "c"]);
}

/// Replaces one value of a document.
fn change(document: &mut serde_json::Value, path: &[u16], by: &serde_json::Value) {
    let Some((first, rest)) = path.split_first() else {
        *document = by.clone();
        return;
    };
    match document {
        serde_json::Value::Object(map) if !map.is_empty() => {
            let at = usize::from(*first) % map.len();
            if let Some(inner) = map.values_mut().nth(at) {
                change(inner, rest, by);
            }
        }
        serde_json::Value::Array(list) if !list.is_empty() => {
            let at = usize::from(*first) % list.len();
            change(&mut list[at], rest, by);
        }
        other => *other = by.clone(),
    }
}

proptest! {
    #[test]
    fn no_answer_makes_us_panic(
        path in proptest::collection::vec(any::<u16>(), 1..6),
        by in prop_oneof![
            Just(serde_json::Value::Null),
            Just(serde_json::json!(-1)),
            Just(serde_json::json!(u64::MAX)),
            Just(serde_json::json!(1e308)),
            Just(serde_json::json!([])),
            Just(serde_json::json!({"a": {}})),
            ".{0,40}".prop_map(serde_json::Value::String),
        ],
    ) {
        let mut answer: serde_json::Value = serde_json::from_slice(GOLDEN).unwrap();
        change(&mut answer, &path, &by);
        let _ = decode_health(answer.to_string().as_bytes());
    }

    #[test]
    fn no_bytes_make_us_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_health(&bytes);
    }
}

#[tokio::test]
async fn names_with_markup_and_more_stay_names() {
    let lab = Lab::new().await;
    let names = [
        "<img src=x onerror=alert(1)>".to_owned(),
        "a\u{202e}txt.exe".to_owned(),
        "x".repeat(10_000),
        "'; rm -rf / #".to_owned(),
    ];
    let cloudlets: Vec<Cloudlet> = names
        .iter()
        .map(|name| Cloudlet {
            object: object("cloudlet", &format!("tmus/{name}"), "tmus"),
            location: None,
            state: CloudletState::Offline,
            errors: Vec::new(),
        })
        .collect();
    lab.tell(Data::Cloudlets(cloudlets.into()));
    let reply = lab.overview().get_overview(GetOverviewRequest {}).await.unwrap();
    let overview = reply.into_inner();
    assert_eq!(overview.problems.len(), names.len());
    for problem in &overview.problems {
        assert!(problem.summary.chars().count() < 300, "{}", problem.summary.len());
        assert!(!problem.summary.contains('\u{202e}') && !problem.command.contains('\u{202e}'));
        // Copied into a shell it is one command with its seven words.
        let script = format!("set -- {}; echo $#", problem.command);
        let shell = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&shell.stdout), "7\n", "{}", problem.command);
    }
    // The name itself is told as it is, for those who look it up.
    let kept = overview.problems.iter().any(|problem| {
        problem.object.as_ref().is_some_and(|object| object.name.contains("<img src=x"))
    });
    assert!(kept);
}

#[tokio::test]
async fn bad_questions_are_answered_by_the_field() {
    let lab = Lab::new().await;
    let refused = lab.overview().get_series(GetSeriesRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("names: "), "{}", refused.message());
    let bad = ListAuditRequest { page_token: "x".into(), ..ListAuditRequest::default() };
    let refused = lab.overview().list_audit(bad).await.unwrap_err();
    assert!(refused.message().starts_with("page_token: "), "{}", refused.message());
}
