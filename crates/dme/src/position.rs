//! Locations, and the distances between them.

use selvage_api::distributed_match_engine::Loc;

/// Radius of the earth as the original takes it, so that its distances and ours
/// agree to the last digit.
pub const EARTH_RADIUS_KM: f64 = 6371.0;

/// A place on the earth with what distances are computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    latitude: f64,
    longitude: f64,
    cos_latitude: f64,
    /// On a sphere of radius 1.
    unit: [f64; 3],
}

impl Position {
    /// From degrees.
    pub fn new(latitude: f64, longitude: f64) -> Self {
        let latitude = radians(latitude);
        let longitude = radians(longitude);
        let (sin_latitude, cos_latitude) = latitude.sin_cos();
        let (sin_longitude, cos_longitude) = longitude.sin_cos();
        let unit = [cos_latitude * cos_longitude, cos_latitude * sin_longitude, sin_latitude];
        // Of an angle alone, as the formula wants it.
        Self { latitude, longitude, cos_latitude: latitude.cos(), unit }
    }

    pub(crate) fn of(loc: &Loc) -> Self {
        Self::new(loc.latitude, loc.longitude)
    }

    pub(crate) fn unit(&self) -> [f64; 3] {
        self.unit
    }

    /// The way along the surface, in km. The order of operations is part of
    /// the contract: another one gives other last digits.
    pub fn distance(&self, other: &Self) -> f64 {
        let half_latitude = ((other.latitude - self.latitude) / 2.0).sin();
        let half_longitude = ((other.longitude - self.longitude) / 2.0).sin();
        let a = half_latitude * half_latitude
            + half_longitude * half_longitude * self.cos_latitude * other.cos_latitude;
        // At opposite ends of the earth rounding makes more than 1 of it.
        let rest = (1.0 - a).max(0.0);
        EARTH_RADIUS_KM * (2.0 * a.sqrt().atan2(rest.sqrt()))
    }
}

fn radians(degrees: f64) -> f64 {
    degrees * std::f64::consts::PI / 180.0
}

/// Returns true if these are degrees of a location on earth.
pub(crate) fn is_on_earth(loc: &Loc) -> bool {
    // What is not a number is not within.
    loc.latitude.abs() <= 90.0 && loc.longitude.abs() <= 180.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_originals_digit_for_digit() {
        let here = Position::new(36.0, -96.0);
        for (latitude, longitude, expected) in [
            (1.0, 9.0, 11284.535631750952),
            (1.0, 1.0, 10570.971178689932),
            (1.0, 10.0, 11373.10678046936),
        ] {
            assert_eq!(here.distance(&Position::new(latitude, longitude)), expected);
        }
    }

    #[test]
    fn opposite_ends_of_the_earth_have_a_distance() {
        let half = std::f64::consts::PI * EARTH_RADIUS_KM;
        let far = Position::new(0.0, 0.0).distance(&Position::new(0.0, 180.0));
        assert!((far - half).abs() < 1e-6, "{far}");
        for latitude in -90..=90 {
            for longitude in 0..=180 {
                let (latitude, longitude) = (f64::from(latitude), f64::from(longitude));
                let here = Position::new(latitude, longitude);
                let far = here.distance(&Position::new(-latitude, longitude - 180.0));
                assert!((far - half).abs() < 1.0, "{latitude} {longitude}: {far}");
            }
        }
        assert_eq!(Position::new(50.0, 7.0).distance(&Position::new(50.0, 7.0)), 0.0);
    }

    #[test]
    fn only_degrees_are_places() {
        let on = |latitude, longitude| is_on_earth(&Loc { latitude, longitude, ..Loc::default() });
        assert!(on(90.0, -180.0) && on(-90.0, 180.0) && on(0.0, 0.0));
        for (latitude, longitude) in
            [(90.1, 0.0), (0.0, -180.5), (f64::NAN, 0.0), (0.0, f64::INFINITY)]
        {
            assert!(!on(latitude, longitude), "{latitude} {longitude}");
        }
    }
}
