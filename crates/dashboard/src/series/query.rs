//! Lines as a caller asks for them.

use jiff::Timestamp;
use selvage_api::selvage::dashboard::{GetSeriesRequest, Series};
use tonic::Status;

use super::{
    COARSE, FINE, FINE_POINTS, Key, METRICS,
    line::{Line, Summary},
    object, seconds,
};
use crate::unstamp;

/// Most lines of one answer.
pub(super) const MOST_LINES: usize = 500;
/// Points that a caller gets who does not say.
const USUAL_POINTS: u64 = 240;
const MOST_POINTS: u64 = 11_000;
const DEFAULT_RANGE: u64 = 3600;
const LONGEST_RANGE: u64 = 31 * 86_400;

/// The begin of a step, and what was measured in it.
pub(crate) type Point = (u64, Summary);

/// A checked question.
#[derive(Debug)]
pub(crate) struct Query {
    names: Vec<String>,
    kind: String,
    name: String,
    from: u64,
    to: u64,
    step: u64,
    coarse: bool,
}

impl Query {
    pub(crate) fn new(request: GetSeriesRequest, now: Timestamp) -> Result<Self, Status> {
        if request.names.is_empty() {
            return Err(Status::invalid_argument("names: name at least one series"));
        }
        for name in &request.names {
            if !METRICS.iter().any(|metric| metric.name == name) {
                let known = "ListSeries tells which there are";
                let shown: String = name.chars().take(64).collect();
                return Err(Status::invalid_argument(format!(
                    "names: no series {shown:?}; {known}"
                )));
            }
        }
        let length = |field: &str, given: Option<prost_types::Duration>, usual| match given {
            None => Ok(usual),
            Some(given) if given.seconds > 0 => Ok(given.seconds.unsigned_abs()),
            Some(_) => Err(Status::invalid_argument(format!("{field}: must be a second or more"))),
        };
        let range = length("range", request.range, DEFAULT_RANGE)?.min(LONGEST_RANGE);
        let to = match request.end {
            None => seconds(now),
            Some(end) => {
                let end = unstamp(end).ok_or_else(|| Status::invalid_argument("end: no time"))?;
                seconds(end).min(seconds(now))
            }
        };
        let from = to.saturating_sub(range);
        let oldest = seconds(now).saturating_sub(FINE * FINE_POINTS as u64);
        let coarse = from < oldest;
        let base = if coarse { COARSE } else { FINE };
        let step = length("step", request.step, range.div_ceil(USUAL_POINTS))?;
        let step = step.max(range.div_ceil(MOST_POINTS)).div_ceil(base) * base;
        let GetSeriesRequest { names, kind, name, .. } = request;
        Ok(Self { names, kind, name, from, to, step, coarse })
    }

    pub(super) fn asks_for(&self, key: &Key) -> bool {
        self.names.contains(&key.metric)
            && (self.kind.is_empty() || self.kind == key.kind)
            && (self.name.is_empty() || self.name == key.object)
    }

    pub(super) fn points(&self, line: &Line) -> Vec<Point> {
        if self.coarse { self.gather(line.coarse()) } else { self.gather(line.fine()) }
    }

    fn gather(&self, all: impl Iterator<Item = Point>) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        let mut count = 0.0_f32;
        for (at, found) in all.filter(|(at, _)| (self.from..=self.to).contains(at)) {
            let begin = at / self.step * self.step;
            match points.last_mut() {
                Some((last, summary)) if *last == begin => {
                    count += 1.0;
                    summary.mean += (found.mean - summary.mean) / count;
                    summary.low = summary.low.min(found.low);
                    summary.high = summary.high.max(found.high);
                }
                _ => {
                    count = 1.0;
                    points.push((begin, found));
                }
            }
        }
        points
    }
}

/// A line as it is told.
pub(crate) fn to_series(key: &Key, points: Vec<Point>) -> Series {
    let unit = METRICS.iter().find(|metric| metric.name == key.metric).map_or("", |m| m.unit);
    let mut series = Series {
        name: key.metric.clone(),
        unit: unit.into(),
        object: Some(object(key)),
        ..Series::default()
    };
    for (at, summary) in points {
        series.times.push(i64::try_from(at * 1000).unwrap_or(i64::MAX));
        series.values.push(summary.mean.into());
        series.lows.push(summary.low.into());
        series.highs.push(summary.high.into());
    }
    series
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn request(range: i64, step: i64) -> GetSeriesRequest {
        let length = |seconds| prost_types::Duration { seconds, nanos: 0 };
        GetSeriesRequest {
            names: vec!["cpu_percent".into()],
            range: Some(length(range)),
            step: (step > 0).then(|| length(step)),
            ..GetSeriesRequest::default()
        }
    }

    #[test]
    fn steps_are_averaged_with_their_extremes() {
        let mut line = Line::default();
        let start = 1_800_000_000 - 3600;
        for step in 0..240 {
            line.add(start + step * 15, step as f64);
        }
        let points = Query::new(request(3600, 60), now()).unwrap().points(&line);
        assert_eq!(points.len(), 60);
        let (at, summary) = points[1];
        assert_eq!(at % 60, 0);
        assert_eq!(summary, Summary { mean: 5.5, low: 4.0, high: 7.0 });
    }

    #[test]
    fn bad_questions_are_refused_by_the_name_of_the_field() {
        let refused = |request| Query::new(request, now()).unwrap_err().message().to_owned();
        assert!(refused(GetSeriesRequest::default()).starts_with("names: "));
        let unknown =
            GetSeriesRequest { names: vec!["<img>".into()], ..GetSeriesRequest::default() };
        assert!(refused(unknown).contains("no series \"<img>\""));
        assert!(refused(request(-1, 0)).starts_with("range: "));
        let zero = prost_types::Duration::default();
        let zero = GetSeriesRequest { step: Some(zero), ..request(60, 0) };
        assert!(refused(zero).starts_with("step: "));
    }

    #[test]
    fn the_answer_is_bounded_whatever_is_asked() {
        let query = Query::new(request(i64::MAX, 1), now()).unwrap();
        assert!((query.to - query.from) / query.step <= MOST_POINTS);
        let query = Query::new(request(86_000, 1), now()).unwrap();
        assert_eq!(query.step, FINE);
    }
}
