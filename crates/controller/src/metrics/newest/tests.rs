//! The page of the newest samples.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use prometheus_client::{collector::Collector, encoding::text::encode, registry::Registry};

use super::*;

#[derive(Debug)]
struct Page(Arc<Newest>);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode(&mut encoder)
    }
}

fn sample(name: &str, tags: &[(&str, &str)], value: (&str, Value)) -> wire::Metric {
    let tag =
        |(name, val): &(&str, &str)| wire::MetricTag { name: (*name).into(), val: (*val).into() };
    wire::Metric {
        name: name.into(),
        timestamp: None,
        tags: tags.iter().map(tag).collect(),
        vals: vec![wire::MetricVal { name: value.0.into(), value: Some(value.1) }],
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn page(newest: &Arc<Newest>) -> Vec<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(Arc::clone(newest))));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

const CLOUDLET: [(&str, &str); 2] = [("operator", "tele"), ("cloudlet", "edge")];

fn of_app<'a>(app: &'a str, dev: &'a str) -> [(&'a str, &'a str); 6] {
    let [operator, cloudlet] = CLOUDLET;
    [operator, cloudlet, ("cluster", "c"), ("dev", dev), ("app", app), ("ver", "1")]
}

#[test]
fn the_newest_is_shown_until_its_thing_is_gone() {
    let newest = Arc::new(Newest::default());
    let put = |sample| newest.put(&Arc::new(sample), at(110));
    put(sample("crm-appinst", &of_app("hello", "acme"), ("cpu", Value::Dval(1.5))));
    put(sample("crm-appinst", &of_app("hello", "acme"), ("cpu", Value::Dval(2.5))));
    put(sample("crm-appinst", &of_app("hello", "other"), ("sendBytes", Value::Ival(7))));
    put(sample("cloudlet-utilization", &CLOUDLET, ("memMax", Value::Ival(64))));
    put(sample("dme-api", &of_app("hello", "acme"), ("reqs", Value::Ival(1))));
    let place = r#"operator="tele",cloudlet="edge",cluster="c""#;
    assert_eq!(
        page(&newest),
        [
            format!(
                "selvage_app_inst_cpu_percent{{{place},developer=\"acme\",app=\"hello\",\
                 version=\"1\"}} 2.5"
            ),
            format!(
                "selvage_app_inst_sent_bytes_total{{{place},developer=\"other\",app=\"hello\",\
                 version=\"1\"}} 7"
            ),
            "selvage_cloudlet_memory_megabytes{operator=\"tele\",cloudlet=\"edge\"} 64".into(),
            "selvage_samples_not_shown_total 0".into(),
        ]
    );
    newest.forget(at(111), |of| !matches!(of, Of::Instance(_)));
    assert_eq!(page(&newest).len(), 2);
    newest.forget(at(111 + SILENT), |_| true);
    assert_eq!(page(&newest).len(), 1);
}

#[test]
fn what_a_sample_is_of_is_read_from_its_tags() {
    let of = |tags: &[(&str, &str)]| Of::read(&sample("n", tags, ("v", Value::Ival(0))));
    let Of::Instance(key) = of(&of_app("hello", "acme")) else { panic!("no instance") };
    let cluster = key.cluster_inst_key.unwrap();
    assert_eq!(cluster.developer, "acme");
    assert_eq!(cluster.cluster_key.unwrap().name, "c");
    let mut tags = of_app("hello", "acme").to_vec();
    tags.push(("clusterdev", "host"));
    let Of::Instance(key) = of(&tags) else { panic!("no instance") };
    assert_eq!(key.cluster_inst_key.unwrap().developer, "host");
    assert!(matches!(of(&CLOUDLET), Of::Cloudlet(key) if key.name == "edge"));
    assert!(matches!(of(&of_app("", "")[..4]), Of::Cluster(_)));
}

#[test]
fn names_cannot_break_the_page_and_their_number_is_bounded() {
    let newest = Arc::new(Newest::default());
    let odd = "a\"b\\c\nd";
    let of =
        |app: &str| Arc::new(sample("crm-appinst", &of_app(app, "acme"), ("mem", Value::Ival(1))));
    newest.put(&of(odd), at(1));
    let page_lines = page(&newest);
    assert_eq!(page_lines.len(), 2, "{page_lines:?}");
    assert!(page_lines[0].contains(r#"app="a\"b\\c\nd""#), "{page_lines:?}");
    for number in 0..SHOWN {
        newest.put(&of(&number.to_string()), at(1));
    }
    assert_eq!(newest.series.read().len(), SHOWN);
    assert_eq!(newest.not_shown.load(Ordering::Relaxed), 1);
}
