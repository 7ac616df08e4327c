//! A process that writes is killed a hundred times at random points.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;
use selvage_store::embedded::{Embedded, Options};
use selvage_store::{Op, RangeRequest, Revision, SharedStore, StoreExt, Txn};

const KILLS: u32 = 100;
const WRITERS: usize = 4;
const FILE: &str = "SELVAGE_TEST_CRASH_FILE";

/// Every writer counts up. Each count is one transaction: three keys that must
/// always agree, and one key that must never go away again.
async fn count(store: SharedStore, writer: usize) {
    let mut number = counted(&store, writer, "a").await;
    loop {
        number += 1;
        let mut txn = Txn::new().then(Op::put(format!("done/{writer}/{number:08}"), ""));
        for part in ["a", "b", "c"] {
            txn = txn.then(Op::put(format!("count/{writer}/{part}"), number.to_string()));
        }
        let revision = store.txn(txn).await.unwrap().revision;
        let line = format!("ACK {writer} {number} {revision}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    }
}

async fn counted(store: &SharedStore, writer: usize, part: &str) -> u64 {
    let found = store.get(&format!("count/{writer}/{part}")).await.unwrap();
    found.map_or(0, |kv| String::from_utf8_lossy(&kv.value).parse().unwrap())
}

/// Runs only as a process of its own, started by the test below.
#[test]
fn child() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(async {
        let store: SharedStore = Embedded::open(file, options()).await.unwrap();
        let writers = (0..WRITERS).map(|writer| tokio::spawn(count(store.clone(), writer)));
        futures::future::join_all(writers).await;
    });
}

/// A short log and short delays, so that it is compacted and rows are moved
/// all the time.
fn options() -> Options {
    Options { log_revisions: 200, pending_keys: 50, ..Options::default() }
}

fn start(file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture", "--test-threads=1"])
        .env(FILE, file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

#[derive(Default)]
struct Acknowledged {
    numbers: [u64; WRITERS],
    revision: Revision,
}

impl Acknowledged {
    fn note(&mut self, line: &str) -> bool {
        let Some(rest) = line.strip_suffix('\n').and_then(|line| line.strip_prefix("ACK ")) else {
            return false;
        };
        let words: Vec<u64> = rest.split(' ').map(|word| word.parse().unwrap()).collect();
        let writer = usize::try_from(words[0]).unwrap();
        assert_eq!(words[1], self.numbers[writer].max(words[1]), "counts go up");
        self.numbers[writer] = words[1];
        self.revision = self.revision.max(words[2]);
        true
    }
}

/// Lets a child run for a while after its first acknowledgement, kills it and
/// reads what it had acknowledged.
fn run_and_kill(file: &Path, acknowledged: &mut Acknowledged) {
    let mut child = start(file);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let limit = Duration::from_micros(rand::rng().random_range(0..60_000));
    let mut line = String::new();
    let mut first = None;
    loop {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the child ended by itself");
        if acknowledged.note(&line) {
            let begun = *first.get_or_insert_with(Instant::now);
            if begun.elapsed() >= limit {
                break;
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // A line that it wrote before it died counts as well.
    line.clear();
    while output.read_line(&mut line).unwrap() > 0 {
        acknowledged.note(&line);
        line.clear();
    }
}

async fn verify(file: &Path, acknowledged: &mut Acknowledged) {
    let store: SharedStore = Embedded::open(file, options()).await.unwrap();
    let revision = store.revision().await.unwrap();
    assert!(revision >= acknowledged.revision, "revisions go up");
    acknowledged.revision = revision;
    for writer in 0..WRITERS {
        let number = counted(&store, writer, "a").await;
        let acked = acknowledged.numbers[writer];
        assert!(number >= acked, "writer {writer}: {acked} was acknowledged, {number} is there");
        assert_eq!(counted(&store, writer, "b").await, number, "half a transaction");
        assert_eq!(counted(&store, writer, "c").await, number, "half a transaction");
        let done = RangeRequest::prefix(format!("done/{writer}/")).keys_only().limit(1);
        let done = store.range(done.descending()).await.unwrap();
        assert_eq!(done.count, number, "each count left its key");
        if let Some(last) = done.items.first() {
            assert_eq!(last.key, format!("done/{writer}/{number:08}"));
        }
        acknowledged.numbers[writer] = number;
    }
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_a_hundred_times() {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(folder.path().join("store"));
    let mut acknowledged = Acknowledged::default();
    for _ in 0..KILLS {
        let child_file = Arc::clone(&file);
        acknowledged = tokio::task::spawn_blocking(move || {
            run_and_kill(&child_file, &mut acknowledged);
            acknowledged
        })
        .await
        .unwrap();
        verify(&file, &mut acknowledged).await;
    }
    let report = selvage_store::transfer::check(&file).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.revision > u64::from(KILLS));
}
