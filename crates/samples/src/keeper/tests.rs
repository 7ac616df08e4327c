//! Samples outlive the process.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use selvage_api::selvage::metrics::ListSamplesRequest;

use super::*;
use crate::{Limits, Scope};

fn samples(count: usize) -> Samples {
    Samples::new(Limits { count, bytes: usize::MAX, age: Duration::from_secs(1000) })
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn add(samples: &Samples, second: i64, size: usize) {
    let tag = wire::MetricTag { name: "app".into(), val: "x".repeat(size) };
    let timestamp = Some(prost_types::Timestamp { seconds: second, nanos: 0 });
    let sample = wire::Metric { name: "n".into(), timestamp, tags: vec![tag], vals: Vec::new() };
    samples.add(sample, at(second));
}

fn seconds(samples: &Samples) -> Vec<i64> {
    let request = ListSamplesRequest { limit: u32::MAX, ..Default::default() };
    let found = samples.list(&request, &Scope::Everything);
    found.iter().map(|sample| sample.timestamp.unwrap().seconds).collect()
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_restart_loses_no_sample_and_what_is_too_old_goes() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("samples");
    let first = samples(100);
    let mut keeper = Keeper::open(&folder, &first, at(1)).unwrap();
    add(&first, 1, 1);
    keeper.write(&first).unwrap();
    add(&first, 2, 1);
    keeper.write(&first).unwrap();
    assert_eq!(files(&folder), ["000000000000.samples"]);
    drop((first, keeper));

    let second = samples(100);
    let mut keeper = Keeper::open(&folder, &second, at(3)).unwrap();
    assert_eq!(seconds(&second), [1, 2]);
    add(&second, 3, 1);
    keeper.write(&second).unwrap();
    assert_eq!(files(&folder).len(), 2, "what was read is not written again");
    drop((second, keeper));

    let third = samples(100);
    let mut keeper = Keeper::open(&folder, &third, at(1003)).unwrap();
    assert_eq!(seconds(&third), [3]);
    keeper.write(&third).unwrap();
    assert_eq!(files(&folder), ["000000000001.samples"]);
}

#[test]
fn the_disk_holds_no_more_than_the_memory() {
    let place = tempfile::tempdir().unwrap();
    let samples = samples(2000);
    let mut keeper = Keeper::open(place.path(), &samples, at(1)).unwrap();
    for round in 0..30 {
        for _ in 0..600 {
            add(&samples, round, 1000);
        }
        keeper.write(&samples).unwrap();
    }
    let size: u64 = files(place.path())
        .iter()
        .map(|name| fs::metadata(place.path().join(name)).unwrap().len())
        .sum();
    // Room for the samples in memory, and two files that are only partly read.
    assert!(size < 2000 * 1100 + 4 * FILE_LIMIT as u64, "{size}");
    let again = self::samples(2000);
    Keeper::open(place.path(), &again, at(30)).unwrap();
    assert_eq!(seconds(&again), seconds(&samples));
}

#[test]
fn a_damaged_file_is_put_aside_and_the_others_are_read() {
    let place = tempfile::tempdir().unwrap();
    let first = samples(100);
    let mut keeper = Keeper::open(place.path(), &first, at(1)).unwrap();
    add(&first, 1, 1);
    keeper.write(&first).unwrap();
    let good = fs::read(place.path().join("000000000000.samples")).unwrap();
    let rotten: Vec<_> = good.iter().map(|byte| byte ^ 1).collect();
    let names = ["000000000001", "000000000002", "000000000003"];
    for (name, content) in names.iter().zip([&rotten[..], &good[..good.len() - 1], b""]) {
        fs::write(place.path().join(format!("{name}.samples")), content).unwrap();
    }
    fs::write(place.path().join("000000000004.new"), b"half").unwrap();
    let again = samples(100);
    let mut keeper = Keeper::open(place.path(), &again, at(2)).unwrap();
    assert_eq!(seconds(&again), [1]);
    add(&again, 2, 1);
    keeper.write(&again).unwrap();
    let [one, two, three] = names.map(|name| format!("{name}.damaged"));
    let expected = ["000000000000.samples".to_owned(), one, two, three];
    assert_eq!(files(place.path()), [&expected[..], &["000000000004.samples".into()]].concat());
}

#[test]
fn samples_of_the_future_do_not_stay_for_ever() {
    let place = tempfile::tempdir().unwrap();
    let first = samples(100);
    let mut keeper = Keeper::open(place.path(), &first, at(900_000)).unwrap();
    add(&first, 900_000, 1);
    keeper.write(&first).unwrap();
    // The clock of this machine was put back meanwhile.
    let again = samples(100);
    Keeper::open(place.path(), &again, at(500)).unwrap();
    assert_eq!(seconds(&again), [500]);
}
