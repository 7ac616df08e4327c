//! InfluxDB's line protocol: `measurement,tag=value field=1i,other=0.5 time`.

use std::fmt::Write;

use selvage_api::edgeproto as wire;
use wire::metric_val::Value;

/// Appends a sample, with its time in microseconds. False, and nothing
/// appended, when it has no value or no time that can be written.
pub(super) fn append(out: &mut String, sample: &wire::Metric) -> bool {
    let Some(time) = microseconds(sample) else { return false };
    let before = out.len();
    escape(out, &sample.name, &[',', ' ']);
    let mut tags: Vec<_> = sample.tags.iter().collect();
    tags.sort_by(|one, other| one.name.cmp(&other.name));
    for tag in tags.iter().filter(|tag| !tag.name.is_empty() && !tag.val.is_empty()) {
        out.push(',');
        escape(out, &tag.name, &[',', '=', ' ']);
        out.push('=');
        escape(out, &tag.val, &[',', '=', ' ']);
    }
    let mut first = true;
    for value in sample.vals.iter().filter(|value| !value.name.is_empty()) {
        let text = match value.value {
            Some(Value::Dval(number)) if number.is_finite() => number.to_string(),
            // The database's integers have a sign.
            Some(Value::Ival(number)) => format!("{}i", i64::try_from(number).unwrap_or(i64::MAX)),
            _ => continue,
        };
        out.push(if first { ' ' } else { ',' });
        first = false;
        escape(out, &value.name, &[',', '=', ' ']);
        let _ = write!(out, "={text}");
    }
    if first {
        out.truncate(before);
        return false;
    }
    let _ = writeln!(out, " {time}");
    true
}

fn microseconds(sample: &wire::Metric) -> Option<i64> {
    let time = sample.timestamp?;
    if !(0..1_000_000_000).contains(&time.nanos) {
        return None;
    }
    time.seconds.checked_mul(1_000_000)?.checked_add(i64::from(time.nanos) / 1000)
}

/// A backslash is itself, and yet takes the meaning off what follows it: one
/// before something special, or at the end, cannot be written. A slash stands
/// for it there. Nor can a line have the end of one in it.
fn escape(out: &mut String, text: &str, special: &[char]) {
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => {
                let next = letters.peek();
                let plain = next.is_some_and(|next| {
                    !special.contains(next) && *next != '\\' && !next.is_control()
                });
                out.push(if plain { '\\' } else { '/' });
            }
            control if control.is_control() => {
                if special.contains(&' ') {
                    out.push('\\');
                }
                out.push(' ');
            }
            letter => {
                if special.contains(&letter) {
                    out.push('\\');
                }
                out.push(letter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sample(tags: &[(&str, &str)], vals: &[(&str, Value)]) -> wire::Metric {
        let tag = |(name, val): &(&str, &str)| wire::MetricTag {
            name: (*name).into(),
            val: (*val).into(),
        };
        let value = |(name, value): &(&str, Value)| wire::MetricVal {
            name: (*name).into(),
            value: Some(*value),
        };
        wire::Metric {
            name: "crm-appinst".into(),
            timestamp: Some(prost_types::Timestamp { seconds: 3, nanos: 4_999 }),
            tags: tags.iter().map(tag).collect(),
            vals: vals.iter().map(value).collect(),
        }
    }

    #[test]
    fn a_sample_is_one_line() {
        let mut out = String::new();
        let odd = [("b", "x y,z=1"), ("a", "c:\\d\\"), ("empty", ""), ("n", "1\n2")];
        let vals = [("cpu", Value::Dval(0.5)), ("mem", Value::Ival(u64::MAX))];
        assert!(append(&mut out, &sample(&odd, &vals)));
        let time = 3_000_004;
        assert_eq!(
            out,
            format!(
                "crm-appinst,a=c:\\d/,b=x\\ y\\,z\\=1,n=1\\ 2 \
                 cpu=0.5,mem=9223372036854775807i {time}\n"
            )
        );
    }

    #[test]
    fn what_cannot_be_written_is_left_out() {
        let mut out = "before\n".to_owned();
        assert!(!append(&mut out, &sample(&[], &[])));
        assert!(!append(&mut out, &sample(&[], &[("cpu", Value::Dval(f64::NAN))])));
        let mut late = sample(&[], &[("n", Value::Ival(1))]);
        late.timestamp = Some(prost_types::Timestamp { seconds: i64::MAX, nanos: 0 });
        assert!(!append(&mut out, &late));
        late.timestamp = Some(prost_types::Timestamp { seconds: 0, nanos: -1 });
        assert!(!append(&mut out, &late));
        assert_eq!(out, "before\n");
    }
}
