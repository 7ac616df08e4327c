//! Ring of samples: bounds and queries.

#![allow(clippy::unwrap_used)]

use super::*;

fn sample(name: &str, tag: &str, second: i64) -> wire::Metric {
    wire::Metric {
        name: name.into(),
        timestamp: Some(prost_types::Timestamp { seconds: second, nanos: 0 }),
        tags: vec![wire::MetricTag { name: tag.into(), val: "one".into() }],
        vals: Vec::new(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn samples(count: usize, bytes: usize, seconds: u64) -> Samples {
    Samples::new(Limits { count, bytes, age: Duration::from_secs(seconds) })
}

fn seconds(samples: &Samples, request: &ListSamplesRequest) -> Vec<i64> {
    let found = samples.list(request, &Scope::Everything);
    found.iter().map(|sample| time_of(sample).0).collect()
}

#[test]
fn the_ring_is_bounded_in_number_and_age_and_counts_what_it_holds() {
    let samples = samples(3, usize::MAX, 100);
    for second in 0..5 {
        samples.add(sample("cpu", "app", second), at(second));
    }
    let counts = |samples: &Samples| samples.counts(&Scope::Everything);
    assert_eq!(counts(&samples), Counts { app_insts: 3, cloudlets: 0 });
    samples.add(sample("disk", "cloudlet", 200), at(200));
    assert_eq!(counts(&samples), Counts { app_insts: 0, cloudlets: 1 });
    assert_eq!(samples.span(), (5, 6));
}

#[test]
fn the_ring_is_bounded_in_bytes() {
    let mut large = sample("cpu", "app", 1);
    large.tags[0].val = "x".repeat(1000);
    let size = large.encoded_len() + OVERHEAD;
    let samples = samples(1_000_000, 10 * size, 1000);
    for _ in 0..100 {
        samples.add(large.clone(), at(1));
    }
    let ring = samples.ring.read();
    assert_eq!((ring.entries.len(), ring.bytes), (10, 10 * size));
}

/// One agent with a clock that is days ahead kept everything behind its
/// sample from ever being too old.
#[test]
fn what_claims_to_be_of_the_future_is_of_now() {
    let samples = samples(100, usize::MAX, 100);
    let days = 3 * 86_400;
    let kept = samples.add(sample("cpu", "app", 10 + days), at(10));
    assert_eq!(time_of(&kept), (10, 0));
    let kept = samples.add(sample("cpu", "app", 10 + AHEAD_LIMIT), at(10));
    assert_eq!(time_of(&kept), (10 + AHEAD_LIMIT, 0), "clocks differ a little");
    let late = 20 + AHEAD_LIMIT + 100;
    samples.add(sample("cpu", "app", late), at(late));
    assert_eq!(seconds(&samples, &ListSamplesRequest::default()), [late]);
}

#[test]
fn the_newest_are_listed_the_oldest_first() {
    let samples = samples(10_000, usize::MAX, 100_000);
    let all = ListSamplesRequest::default();
    assert_eq!(seconds(&samples, &all), [0_i64; 0]);
    // More than are looked at in one go.
    let count = 3 * CHUNK as i64 + 7;
    for second in 0..count {
        let name = if second % 2 == 0 { "cpu" } else { "cpu2" };
        samples.add(sample(name, "app", second), at(second));
    }
    let times = |request: ListSamplesRequest| seconds(&samples, &request);
    assert_eq!(times(all.clone()), (count - 1000..count).collect::<Vec<_>>());
    let whole = ListSamplesRequest { limit: u32::MAX, ..all.clone() };
    assert_eq!(times(whole), (0..count).collect::<Vec<_>>());
    assert_eq!(times(ListSamplesRequest { limit: 2, ..all.clone() }), [count - 2, count - 1]);
    let cpu = ListSamplesRequest { name: "cpu".into(), limit: 2, ..all.clone() };
    let even = (count - 1) / 2 * 2;
    assert_eq!(times(cpu), [even - 2, even]);
    let since = Some(prost_types::Timestamp { seconds: count - 3, nanos: 0 });
    assert_eq!(times(ListSamplesRequest { since, ..all.clone() }).len(), 3);
    let tags = BTreeMap::from([("app".to_owned(), "two".to_owned())]);
    assert_eq!(times(ListSamplesRequest { tags, ..all }), [0_i64; 0]);
}

#[test]
fn a_sample_without_a_time_is_of_now() {
    let samples = samples(10, usize::MAX, 10);
    samples.add(wire::Metric { name: "cpu".into(), ..Default::default() }, at(7));
    assert_eq!(seconds(&samples, &ListSamplesRequest::default()), [7]);
}

#[test]
fn who_may_see_some_is_shown_and_counted_those() {
    let samples = samples(10, usize::MAX, 10);
    for developer in ["demo", "other", "demo"] {
        let mut of_app = sample("cpu", "app", 1);
        of_app.tags.push(wire::MetricTag { name: "dev".into(), val: developer.into() });
        samples.add(of_app, at(1));
    }
    samples.add(sample("disk", "cloudlet", 1), at(1));
    let demo = Scope::Of { developers: vec!["demo".into()], operators: Vec::new() };
    assert_eq!(samples.list(&ListSamplesRequest::default(), &demo).len(), 2);
    assert_eq!(samples.counts(&demo), Counts { app_insts: 2, cloudlets: 0 });
    assert_eq!(samples.counts(&Scope::Everything), Counts { app_insts: 3, cloudlets: 1 });
}
