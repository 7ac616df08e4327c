//! Time of records. The kernel counts from boot.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Largest difference between two readings of two clocks, one after the other, while
/// nobody has set them.
const NOT_SET: u64 = 10_000_000;

/// The moment of boot, in nanoseconds since 1970. Asked for once and then kept,
/// so that a record has the same time whenever it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot(i64);

impl Boot {
    pub const fn new(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// Reads the clocks.
    pub fn now() -> Self {
        let nanoseconds = |time: Timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
        let real = nanoseconds(clock_gettime(ClockId::Realtime));
        Self(real - nanoseconds(clock_gettime(ClockId::Monotonic)))
    }

    /// This one, unless the clock was set since: then what it tells now.
    pub fn kept(&mut self, now: Self) -> Self {
        if self.0.abs_diff(now.0) > NOT_SET {
            *self = now;
        }
        *self
    }

    /// Returns the time of that many microseconds after boot, in nanoseconds
    /// since 1970.
    pub fn at(self, micros: u64) -> i64 {
        let later = i64::try_from(micros).unwrap_or(i64::MAX).saturating_mul(1000);
        self.0.saturating_add(later)
    }
}

/// UTC with as many digits of the second as it takes, none for a whole one.
pub(super) fn rfc3339(nanoseconds: i64) -> String {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let fraction = nanoseconds.rem_euclid(1_000_000_000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if fraction != 0 {
        let digits = format!(".{fraction:09}");
        text.push_str(digits.trim_end_matches('0'));
    }
    text.push('Z');
    text
}

/// Year, month and day of so many days since 1970. Years begin with March in
/// between, so that the day of leap years comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_the_calendar_has_it(nanoseconds in any::<i64>()) {
            let timestamp = jiff::Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap();
            prop_assert_eq!(rfc3339(nanoseconds), timestamp.to_string());
        }
    }

    #[test]
    fn zeros_at_the_end_are_left_out() {
        assert_eq!(rfc3339(1_700_000_000_000_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(rfc3339(1_700_000_000_500_000_000), "2023-11-14T22:13:20.5Z");
    }

    #[test]
    fn boot_stays_where_it_was_until_the_clock_is_set() {
        let mut boot = Boot::new(1_700_000_000_000_000_000);
        let (later, set) = (Boot::new(boot.0 + 900), Boot::new(boot.0 - 3_600_000_000_000));
        assert_eq!(boot.kept(later), Boot::new(1_700_000_000_000_000_000));
        assert_eq!(boot.kept(set), set);
        assert_eq!(boot.kept(later), later);
    }

    #[test]
    fn boot_plus_the_time_since_is_now() {
        let nanoseconds = |time: Timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
        let before = nanoseconds(clock_gettime(ClockId::Realtime));
        let boot = Boot::now();
        let since = nanoseconds(clock_gettime(ClockId::Monotonic));
        let now = boot.at(since.unsigned_abs() / 1000);
        let after = nanoseconds(clock_gettime(ClockId::Realtime));
        assert!((before - 1000..=after).contains(&now), "{before} {now} {after}");
    }
}
