#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
use std::{io::Write, time::Duration};

use selvage_api::os::DmesgRequest;
use tokio_stream::StreamExt;

use super::*;

/// The real log, if it may be written. Tests write few records: more than ten
/// in five seconds are dropped by the kernel.
fn kmsg() -> Option<Kmsg> {
    let writable = std::fs::OpenOptions::new().write(true).open("/dev/kmsg").is_ok();
    if !writable || Device::open(Path::new("/dev/kmsg")).is_err() {
        selvage_testkit::say_skipped("/dev/kmsg", "it cannot be read and written here");
        return None;
    }
    Some(Kmsg::new("/dev/kmsg"))
}

fn inject(record: &str) {
    let mut log = std::fs::OpenOptions::new().write(true).open("/dev/kmsg").unwrap();
    log.write_all(record.as_bytes()).unwrap();
}

fn mark(what: &str) -> String {
    format!("selvage-test {what} {}", std::process::id())
}

fn query(request: DmesgRequest) -> Query {
    Query::of(&request).unwrap()
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

fn text(data: &Data) -> String {
    assert!(data.metadata.is_none(), "{data:?}");
    String::from_utf8(data.bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn what_was_written_comes_out_with_its_facility_and_whole() {
    let Some(kmsg) = kmsg() else { return };
    let mark = mark("facilities");
    inject(&format!("<190>{mark} local7.info\n"));
    inject(&format!("<1000>{mark} far\ttab back\\slash caf\u{e9}\n"));
    let request = DmesgRequest { contains: mark.clone(), ..Default::default() };
    let stream = kmsg.stream(query(request)).unwrap();
    let lines: Vec<String> =
        within("the ring's end", stream.map(|data| text(&data)).collect()).await;
    let [local7, far] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(
        local7.starts_with("local7:    info: [") && local7.ends_with("local7.info\n"),
        "{local7}"
    );
    assert!(far.starts_with("125:   emerg: ["), "{far}");
    assert!(far.ends_with("far\ttab back\\slash caf\u{e9}\n"), "{far}");
}

#[tokio::test]
async fn two_streams_tell_the_same_records_and_times_to_the_end() {
    let Some(kmsg) = kmsg() else { return };
    let mark = mark("times");
    inject(&format!("<30>{mark}\n"));
    let whole = |request: DmesgRequest| {
        let stream = kmsg.stream(query(request)).unwrap();
        async { stream.map(|data| text(&data)).collect::<Vec<String>>().await }
    };
    let json = DmesgRequest { contains: mark.clone(), json: true, ..Default::default() };
    let object: serde_json::Value = serde_json::from_str(&whole(json).await[0]).unwrap();
    assert_eq!((&object["facility"], &object["level"]), (&"daemon".into(), &"info".into()));
    let all = whole(DmesgRequest::default()).await;
    assert!(all.iter().any(|line| line.contains(&mark)));
    let newest = DmesgRequest { contains: mark, last: 1, ..Default::default() };
    assert_eq!(whole(newest).await.len(), 1);
    let nothing = DmesgRequest { tail: true, ..Default::default() };
    assert_eq!(whole(nothing).await, Vec::<String>::new());
}

#[tokio::test]
async fn followers_share_one_reader_and_each_gets_each_record_once() {
    let Some(kmsg) = kmsg() else { return };
    let mark = mark("follow");
    inject(&format!("<30>{mark} before\n"));
    let request =
        |tail| DmesgRequest { follow: true, tail, contains: mark.clone(), ..Default::default() };
    let mut from_start = kmsg.stream(query(request(false))).unwrap();
    let mut only_new: Vec<_> = (0..5).map(|_| kmsg.stream(query(request(true))).unwrap()).collect();
    assert_eq!(kmsg.readers(), 1);
    let first = text(&within("the old record", from_start.next()).await.unwrap());
    assert!(first.ends_with("before\n"), "{first}");
    inject(&format!("<30>{mark} one\n"));
    inject(&format!("<30>{mark} two\n"));
    for stream in only_new.iter_mut().chain([&mut from_start]) {
        for expected in ["one\n", "two\n"] {
            let line = text(&within(expected, stream.next()).await.unwrap());
            assert!(line.ends_with(expected), "{line}");
        }
    }
    drop((from_start, only_new));
    within("the reader's end", async {
        while kmsg.readers() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut again = kmsg.stream(query(request(true))).unwrap();
    inject(&format!("<30>{mark} three\n"));
    assert!(text(&within("three", again.next()).await.unwrap()).ends_with("three\n"));
}

#[tokio::test]
async fn a_log_that_is_not_there_is_said_so() {
    let error = Kmsg::new("/nonexistent/kmsg").stream(Query::default()).unwrap_err();
    assert!(error.to_string().starts_with("error opening /dev/kmsg reader: "), "{error}");
    assert_eq!(error.code(), Code::Unimplemented);
}
