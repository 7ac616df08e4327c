//! The sink against a real InfluxDB.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use wire::metric_val::Value;

use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// An InfluxDB of our own. All of it goes when it is dropped.
struct Database {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn start(address: SocketAddr, password: bool) -> Option<Database> {
    let program = ["/usr/bin/influxd", "/usr/local/bin/influxd"].into_iter();
    let Some(program) = program.map(Path::new).find(|path| path.is_file()) else {
        selvage_testkit::skip("influxd", "it is not installed: run ./dev test");
        return None;
    };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let child = Command::new(program)
        .arg("run")
        .args(["-config", "/dev/null"])
        .env("INFLUXDB_REPORTING_DISABLED", "true")
        .env("INFLUXDB_META_DIR", at("meta"))
        .env("INFLUXDB_DATA_DIR", at("data"))
        .env("INFLUXDB_DATA_WAL_DIR", at("wal"))
        .env("INFLUXDB_BIND_ADDRESS", free().to_string())
        .env("INFLUXDB_HTTP_BIND_ADDRESS", address.to_string())
        .env("INFLUXDB_HTTP_AUTH_ENABLED", password.to_string())
        .env("INFLUXDB_MONITOR_STORE_ENABLED", "false")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Some(Database { child, address, _directory: directory })
}

fn settings(address: SocketAddr, login: InfluxLogin) -> Influx {
    Influx { url: format!("http://{address}"), database: "metrics".into(), login }
}

async fn ask(
    database: &Database,
    user: Option<&str>,
    statement: &str,
) -> Option<serde_json::Value> {
    let client = reqwest::Client::new();
    let url = format!("http://{}/query", database.address);
    let mut request = client.post(url).form(&[("db", "metrics"), ("q", statement)]);
    if let Some(user) = user {
        request = request.basic_auth(user, Some("geheim"));
    }
    let answer = request.send().await.ok()?;
    let text = answer.text().await.ok()?;
    serde_json::from_str(&text).ok()
}

async fn wait_for<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < until, "gave up waiting for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn sample(number: i64, tag: &str) -> Arc<wire::Metric> {
    let value = |name: &str, value| wire::MetricVal { name: name.into(), value: Some(value) };
    Arc::new(wire::Metric {
        name: "test-metric".into(),
        timestamp: Some(prost_types::Timestamp { seconds: 1_600_000_000 + number, nanos: 1000 }),
        tags: vec![wire::MetricTag { name: "tag1".into(), val: tag.into() }],
        vals: vec![
            value("val1", Value::Ival(u64::try_from(number).unwrap())),
            value("val2", Value::Dval(number as f64 / 2.0)),
        ],
    })
}

fn count(sink: &Sink, outcome: &str) -> u64 {
    sink.counts().into_iter().find(|(name, _)| *name == outcome).unwrap().1
}

#[tokio::test]
async fn samples_arrive_whole_whatever_they_are_called() {
    let Some(database) = start(free(), false) else { return };
    let sink = Sink::new(settings(database.address, InfluxLogin::Nobody)).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&sink).run(stop.clone()));
    for ten in 0..10 {
        for one in 0..10 {
            sink.put(sample(ten * 10 + one, "plain"));
        }
    }
    wait_for("all of them", async || (count(&sink, "written") == 100).then_some(())).await;
    let outcomes = ["dropped", "refused", "invalid"].map(|name| count(&sink, name));
    assert_eq!(outcomes, [0, 0, 0]);
    let counted = ask(&database, None, "SELECT count(val1) FROM \"test-metric\"").await.unwrap();
    assert_eq!(counted["results"][0]["series"][0]["values"][0][1], 100, "{counted}");
    let series = ask(&database, None, "SHOW SERIES").await.unwrap();
    let series = series["results"][0]["series"][0]["values"].as_array().unwrap().len();
    assert_eq!(series, 1);

    let odd = [
        "a b", "a,b", "a=b", "a\"b", "a'b", "日本", "a\\b", "{a}", "a#b", "\\a", "a/b", "a;b",
        "a b ",
    ];
    for (number, tag) in (1000..).zip(odd) {
        sink.put(sample(number, tag));
    }
    // These cannot be told apart from others by the protocol; the line is whole.
    for (number, tag) in (2000..).zip(["a\\", "a\\ b", "a\\,b", "a\nb", "a\\\\"]) {
        sink.put(sample(number, tag));
    }
    wait_for("the odd ones", async || (count(&sink, "written") == 118).then_some(())).await;
    assert_eq!(count(&sink, "refused"), 0);
    let values = ask(&database, None, "SHOW TAG VALUES WITH KEY = tag1").await.unwrap();
    let values = values["results"][0]["series"][0]["values"].as_array().unwrap().clone();
    for tag in odd {
        assert!(values.iter().any(|value| value[1] == tag), "{tag:?} is not among {values:?}");
    }
    // On the way out, what waits is sent.
    sink.put(sample(3000, "last"));
    stop.cancel();
    running.await.unwrap();
    assert_eq!(count(&sink, "written"), 119);
}

#[tokio::test]
async fn a_database_that_is_away_costs_what_it_missed_and_no_more() {
    let address = free();
    let sink = Sink::new(settings(address, InfluxLogin::Nobody)).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&sink).run(stop.clone()));
    for number in 0..5_010 {
        sink.put(sample(number, "away"));
    }
    assert_eq!(count(&sink, "dropped"), 10);
    let Some(database) = start(address, false) else {
        stop.cancel();
        return;
    };
    wait_for("what was kept", async || (count(&sink, "written") == 5_000).then_some(())).await;
    drop(database);
    for number in 0..51 {
        sink.put(sample(number, "lost"));
    }
    wait_for("the loss", async || (count(&sink, "refused") == 51).then_some(())).await;
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_database_that_wants_a_password_gets_it() {
    let Some(database) = start(free(), true) else { return };
    let make = "CREATE USER joe WITH PASSWORD 'geheim' WITH ALL PRIVILEGES";
    wait_for("a user", async || {
        ask(&database, None, make).await.filter(|answer| answer.get("error").is_none())
    })
    .await;
    let login = InfluxLogin::Password { user: "joe".into(), password: Secret::new("geheim") };
    let sink = Sink::new(settings(database.address, login)).unwrap();
    assert!(!format!("{sink:?}").contains("geheim"));
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&sink).run(stop.clone()));
    sink.put(sample(1, "mine"));
    wait_for("the sample", async || (count(&sink, "written") == 1).then_some(())).await;
    stop.cancel();
    running.await.unwrap();
    let counted = ask(&database, Some("joe"), "SELECT count(val1) FROM \"test-metric\"").await;
    assert_eq!(counted.unwrap()["results"][0]["series"][0]["values"][0][1], 1);

    let stranger = Sink::new(settings(database.address, InfluxLogin::Nobody)).unwrap();
    assert!(!stranger.make_database().await);
}

#[test]
fn addresses_are_checked() {
    let told = |url: &str| {
        let mut settings = settings(free(), InfluxLogin::Nobody);
        settings.url = url.into();
        Sink::new(settings).map(|sink| sink.write.to_string())
    };
    assert_eq!(told("http://a:1/base").unwrap(), "http://a:1/base/write?db=metrics&precision=u");
    for bad in ["a:8086", "ftp://a", "http://u:geheim@a"] {
        let error = told(bad).unwrap_err().to_string();
        assert!(error.contains("influx url: ") && !error.contains("geheim"), "{bad}: {error}");
    }
}
