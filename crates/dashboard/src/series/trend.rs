//! Growth of something by its past, and how sure that is.

/// Parts into which the past is cut, each of which grew or did not.
const BLOCKS: usize = 24;
/// With fewer growths nothing is said about how they differ.
const FEWEST: usize = 6;

/// Growth in a second, with bounds that the true one is within nine times of ten.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Trend {
    pub(crate) rate: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Seconds of the past that it is told by.
    pub(crate) span: f64,
}

impl Trend {
    fn width(&self) -> f64 {
        self.high - self.low
    }

    /// True if it grows for sure.
    pub(crate) fn grows(&self) -> bool {
        self.low > 0.0
    }
}

/// Returns the growth of points, in time and value and in their order.
///
/// The past is cut into blocks. Growths from one block to the next are taken for
/// independent, as in a random walk with a drift: what is written in a burst, as
/// disks are, then gives wide bounds, and what grows evenly gives narrow ones. A
/// fitted line would be far too sure of bursts: it takes one large file for growth.
pub(crate) fn trend(points: &[(f64, f64)]) -> Option<Trend> {
    let blocks = blocks(points)?;
    let growths = || blocks.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1));
    let count = blocks.len() - 1;
    if count < FEWEST {
        return None;
    }
    let span: f64 = growths().map(|(time, _)| time).sum();
    let rate = growths().map(|(_, growth)| growth).sum::<f64>() / span;
    let spread: f64 = growths().map(|(time, growth)| (growth - rate * time).powi(2) / time).sum();
    let freedom = (count - 1) as f64;
    let error = (spread / freedom / span).sqrt();
    // Student's t for nine of ten, to two digits from five degrees of freedom on.
    let wide = (1.645 + 1.8 / freedom) * error;
    Some(Trend { rate, low: rate - wide, high: rate + wide, span })
}

/// Returns the trend that tells most: the one with the narrowest bounds, unless it
/// stands still while a longer past grows for sure, as at the end of a week.
pub(crate) fn surest(longest_first: impl IntoIterator<Item = Trend>) -> Option<Trend> {
    longest_first.into_iter().reduce(|longer, shorter| {
        let sure = longer.grows() && !shorter.grows();
        if shorter.width() < longer.width() && !sure { shorter } else { longer }
    })
}

/// Mean time and value of each part of the past that has any.
fn blocks(points: &[(f64, f64)]) -> Option<Vec<(f64, f64)>> {
    let (first, last) = (points.first()?.0, points.last()?.0);
    let length = (last - first) / BLOCKS as f64;
    if length <= 0.0 {
        return None;
    }
    let mut sums = [(0.0, 0.0, 0.0); BLOCKS];
    for (time, value) in points {
        let at = (((time - first) / length) as usize).min(BLOCKS - 1);
        let (times, values, count) = &mut sums[at];
        *times += time;
        *values += value;
        *count += 1.0;
    }
    let filled = sums.into_iter().filter(|(_, _, count)| *count > 0.0);
    Some(filled.map(|(time, value, count)| (time / count, value / count)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DAY: f64 = 86_400.0;
    const GIB: f64 = (1_u64 << 30) as f64;

    /// Points every 15 minutes for so many days.
    fn series(days: f64, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let count = (days * 96.0) as u32;
        (0..=count).map(|at| f64::from(at) * 900.0).map(|at| (at, value(at / DAY))).collect()
    }

    fn week_and_day(value: impl Fn(f64) -> f64) -> Trend {
        let week = series(7.0, value);
        let day = week.partition_point(|(at, _)| *at < 6.0 * DAY);
        let both = [trend(&week), trend(&week[day..])];
        surest(both.into_iter().flatten()).unwrap()
    }

    fn per_day(rate: f64) -> f64 {
        rate * DAY / GIB
    }

    /// Numbers that look random and are the same in every run, from -1 to 1.
    fn noise(at: f64) -> f64 {
        let mixed = (at * 1e4) as u64 ^ 0x9e37_79b9;
        let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 40) as f64 / f64::from(1 << 24)).mul_add(2.0, -1.0)
    }

    #[test]
    fn an_even_fill_is_forecast_within_a_tenth() {
        let found = week_and_day(|day| GIB * (50.0 + 3.0 * day + 0.1 * noise(day)));
        assert!((per_day(found.rate) / 3.0 - 1.0).abs() < 0.1, "{}", per_day(found.rate));
        assert!(found.grows());
        assert!(per_day(found.low) < 3.0 && per_day(found.high) > 3.0, "{found:?}");
        assert!(per_day(found.width()) < 2.0, "{found:?}");
    }

    #[test]
    fn what_only_wobbles_does_not_grow_for_sure() {
        let found = week_and_day(|day| GIB * (50.0 + noise(day)));
        assert!(!found.grows(), "{found:?}");
        let cycle =
            week_and_day(|day| GIB * 5.0f64.mul_add((day * std::f64::consts::TAU).sin(), 50.0));
        assert!(!cycle.grows(), "{cycle:?}");
        let still = week_and_day(|_| GIB * 50.0);
        assert!(!still.grows() && still.rate.abs() < 1e-9, "{still:?}");
    }

    #[test]
    fn one_large_file_is_no_growth() {
        let found = week_and_day(|day| if day < 3.0 { GIB } else { 100.0 * GIB });
        assert!(!found.grows(), "{found:?}");
    }

    #[test]
    fn a_nightly_write_is_growth_with_wide_bounds() {
        let found = week_and_day(|day| GIB * 10.0f64.mul_add((day + 0.9).floor(), 50.0));
        assert!(found.grows(), "{found:?}");
        assert!(per_day(found.low) < 10.0 && per_day(found.high) > 10.0, "{found:?}");
        assert!(per_day(found.width()) > 2.0, "{found:?}");
    }

    #[test]
    fn a_disk_that_began_to_fill_yesterday_is_forecast_from_yesterday() {
        let found = week_and_day(|day| GIB * 100.0f64.mul_add((day - 6.0).max(0.0), 50.0));
        assert!((per_day(found.rate) / 100.0 - 1.0).abs() < 0.1, "{}", per_day(found.rate));
        assert!(found.grows());
    }

    #[test]
    fn what_was_deleted_does_not_hide_that_it_grows() {
        let found =
            week_and_day(|day| GIB * 10.0f64.mul_add(day, if day < 5.0 { 900.0 } else { 100.0 }));
        assert!((per_day(found.rate) / 10.0 - 1.0).abs() < 0.1, "{}", per_day(found.rate));
        assert!(found.grows());
    }

    #[test]
    fn an_idle_sunday_does_not_hide_a_week_that_grew() {
        let found = week_and_day(|day| GIB * 10.0f64.mul_add(day.min(6.0), 50.0));
        assert!(found.grows(), "{found:?}");
        assert!(found.span > 6.0 * DAY);
    }

    #[test]
    fn bounds_hold_nine_times_of_ten_for_a_random_walk() {
        let (mut held, tries) = (0, 200);
        for seed in 0..tries {
            let mut value = 0.0;
            let walk: Vec<(f64, f64)> = (0..672)
                .map(|at| {
                    // Two uniform numbers added: near enough to what disks do.
                    let step = f64::from(seed * 1000 + at);
                    value += 1.0 + 20.0 * (noise(step / 7.0) + noise(step / 11.0 + 5e5));
                    (f64::from(at) * 900.0, value)
                })
                .collect();
            let found = trend(&walk).unwrap();
            let truth = 1.0 / 900.0;
            held += i32::from(found.low <= truth && truth <= found.high);
        }
        assert!((165..=199).contains(&held), "{held} of {tries}");
    }

    #[test]
    fn too_little_of_the_past_is_no_trend() {
        assert_eq!(trend(&[]), None);
        assert_eq!(trend(&[(0.0, 1.0); 100]), None);
        assert_eq!(trend(&[(0.0, 1.0), (1e6, 2.0), (2e6, 3.0)]), None);
    }
}
