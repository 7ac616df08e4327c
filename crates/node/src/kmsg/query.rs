//! Selection and form of records that a caller asks for.

use selvage_api::os::DmesgRequest;

use super::{
    record::{self, Record},
    time::Boot,
};

/// A filter that nothing could match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    #[error("level: {0:?} is none of emerg, alert, crit, err, warning, notice, info, debug")]
    Level(String),
    #[error("facility: {0:?} is neither the name of a facility, such as kern, nor a number")]
    Facility(String),
}

/// Selection of records, and their form.
#[derive(Debug, Clone, Default)]
pub struct Query {
    pub follow: bool,
    /// True to skip the records that are in the buffer already.
    pub only_new: bool,
    pub since: u64,
    pub last: Option<usize>,
    level: Option<u8>,
    facility: Option<u32>,
    contains: Vec<u8>,
    json: bool,
}

impl Query {
    pub fn of(request: &DmesgRequest) -> Result<Self, BadQuery> {
        let level = match request.level.as_str() {
            "" => None,
            name => Some(record::level(name).ok_or_else(|| BadQuery::Level(name.to_owned()))?),
        };
        let facility = match request.facility.as_str() {
            "" => None,
            name => {
                Some(record::facility(name).ok_or_else(|| BadQuery::Facility(name.to_owned()))?)
            }
        };
        Ok(Self {
            follow: request.follow,
            only_new: request.tail,
            since: request.since_sequence,
            last: (request.last > 0).then_some(request.last as usize),
            level,
            facility,
            contains: request.contains.clone().into_bytes(),
            json: request.json,
        })
    }

    fn wants(&self, record: &Record) -> bool {
        record.sequence >= self.since
            && self.level.is_none_or(|level| record.level <= level)
            && self.facility.is_none_or(|facility| record.facility == facility)
            && contains(&record.text, &self.contains)
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

/// One reader's way through the log: which record was the last, and what is
/// to be said of the next.
#[derive(Debug)]
pub(super) struct View {
    query: Query,
    boot: Boot,
    next: Option<u64>,
}

impl View {
    pub(super) fn new(query: Query, boot: Boot) -> Self {
        let next = (query.since > 0).then_some(query.since);
        Self { query, boot, next }
    }

    /// Returns the lines for a record: one for records lost before it, and its own.
    /// Nothing of one that was told before.
    pub(super) fn lines(&mut self, record: &Record) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let next = self.next.unwrap_or(record.sequence);
        if record.sequence < next {
            return (None, None);
        }
        self.next = Some(record.sequence + 1);
        let lost = record.sequence - next;
        let gap = (lost > 0).then(|| record::gap(lost, record, self.boot, self.query.json));
        let line = self.query.wants(record).then(|| match self.query.json {
            true => record.to_json(self.boot),
            false => record.to_text(self.boot),
        });
        (gap, line)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kmsg::parse;

    fn record(sequence: u64, priority: u32, text: &str) -> Record {
        parse(format!("{priority},{sequence},0,-;{text}\n").as_bytes()).unwrap()
    }

    fn view(request: DmesgRequest) -> View {
        View::new(Query::of(&request).unwrap(), Boot::new(0))
    }

    fn lines(view: &mut View, record: &Record) -> Vec<String> {
        let (gap, line) = view.lines(record);
        gap.into_iter().chain(line).map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn lost_records_are_counted_and_none_is_sent_twice() {
        let mut view = view(DmesgRequest::default());
        assert_eq!(lines(&mut view, &record(7, 6, "a")).len(), 1);
        assert_eq!(lines(&mut view, &record(7, 6, "a")).len(), 0);
        let after = lines(&mut view, &record(11, 6, "b"));
        assert_eq!(
            after,
            [
                "syslog: warning: [1970-01-01T00:00:00Z]: 3 messages were overwritten before being read\n",
                "kern:    info: [1970-01-01T00:00:00Z]: b\n"
            ]
        );
    }

    #[test]
    fn a_gap_is_reported_whatever_the_filter() {
        let request = DmesgRequest { level: "err".into(), json: true, ..Default::default() };
        let mut view = view(request);
        assert_eq!(lines(&mut view, &record(1, 6, "x")).len(), 0);
        let after = lines(&mut view, &record(3, 6, "x"));
        assert_eq!(after, ["{\"time\":\"1970-01-01T00:00:00Z\",\"lost\":1}\n"]);
    }

    #[test]
    fn records_overwritten_since_the_one_asked_for_are_a_gap_too() {
        let mut view = view(DmesgRequest { since_sequence: 5, ..Default::default() });
        assert_eq!(lines(&mut view, &record(4, 6, "x")).len(), 0);
        assert_eq!(lines(&mut view, &record(8, 6, "x")).len(), 2);
    }

    #[test]
    fn filters_take_what_matches() {
        let cases = [
            (DmesgRequest { level: "warning".into(), ..Default::default() }, vec![1, 3]),
            (DmesgRequest { facility: "kern".into(), ..Default::default() }, vec![1, 2]),
            (DmesgRequest { facility: "23".into(), ..Default::default() }, vec![3]),
            (DmesgRequest { contains: "disk".into(), ..Default::default() }, vec![2]),
            (DmesgRequest { since_sequence: 2, ..Default::default() }, vec![2, 3]),
        ];
        for (request, expected) in cases {
            let mut view = view(request.clone());
            let records =
                [record(1, 4, "cpu"), record(2, 6, "a disk"), record(3, 187, "local7.err")];
            let taken: Vec<u64> = records
                .iter()
                .filter(|record| !lines(&mut view, record).is_empty())
                .map(|record| record.sequence)
                .collect();
            assert_eq!(taken, expected, "{request:?}");
        }
    }

    #[test]
    fn what_could_match_nothing_is_refused() {
        let level = DmesgRequest { level: "loud".into(), ..Default::default() };
        assert!(Query::of(&level).unwrap_err().to_string().starts_with("level: \"loud\""));
        let facility = DmesgRequest { facility: "loca9".into(), ..Default::default() };
        assert!(Query::of(&facility).unwrap_err().to_string().starts_with("facility: "));
    }
}
