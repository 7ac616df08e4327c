//! Locations, and the distances between them.

use crate::cephes;
use selvage_api::distributed_match_engine::Loc;

/// Radius of the earth as the original takes it, so that its distances and ours
/// agree to the last digit.
pub const EARTH_RADIUS_KM: f64 = 6371.0;

/// A place on the earth with what distances are computed from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// Degrees, as all who were given them have them: differences are made of
    /// these.
    latitude: f64,
    longitude: f64,
    cos_latitude: f64,
    /// Point on a sphere of radius 1.
    unit: [f64; 3],
}

impl Position {
    /// Creates a position from degrees.
    pub fn new(latitude: f64, longitude: f64) -> Self {
        let (sin_latitude, cos_latitude) = radians(latitude).sin_cos();
        let (sin_longitude, cos_longitude) = radians(longitude).sin_cos();
        let unit = [cos_latitude * cos_longitude, cos_latitude * sin_longitude, sin_latitude];
        Self { latitude, longitude, cos_latitude: cephes::cos(radians(latitude)), unit }
    }

    pub(crate) fn of(loc: &Loc) -> Self {
        Self::new(loc.latitude, loc.longitude)
    }

    pub(crate) fn unit(&self) -> [f64; 3] {
        self.unit
    }

    /// The way along the surface, in km. The order of operations is part of
    /// the contract, and so are the functions: others give other last digits.
    pub fn distance(&self, other: &Self) -> f64 {
        let half_latitude = cephes::sin(radians(other.latitude - self.latitude) / 2.0);
        let half_longitude = cephes::sin(radians(other.longitude - self.longitude) / 2.0);
        let a = half_latitude * half_latitude
            + half_longitude * half_longitude * self.cos_latitude * other.cos_latitude;
        // At opposite ends of the earth rounding makes more than 1 of it.
        let rest = (1.0 - a).max(0.0);
        EARTH_RADIUS_KM * (2.0 * cephes::atan2(a.sqrt(), rest.sqrt()))
    }
}

fn radians(degrees: f64) -> f64 {
    degrees * std::f64::consts::PI / 180.0
}

/// Returns true if these are degrees of a location on earth.
pub(crate) fn is_on_earth(loc: &Loc) -> bool {
    // NaN is not within.
    loc.latitude.abs() <= 90.0 && loc.longitude.abs() <= 180.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_originals_digit_for_digit() {
        for (latitude, longitude, other_latitude, other_longitude, expected) in [
            (36.0, -96.0, 1.0, 9.0, 11284.535631750952),
            (36.0, -96.0, 1.0, 1.0, 10570.971178689932),
            (36.0, -96.0, 1.0, 10.0, 11373.10678046936),
            (36.0, -96.0, 31.0, -91.0, 723.6665596962978),
            (36.0, -96.0, 35.0, -95.0, 143.38265213187304),
            (31.0, -91.0, 51.2, -0.1, 7434.679306751769),
            (50.73, 7.1, 52.52, 13.4, 478.0599467865183),
            (50.65, 6.34, 50.73, 7.1, 54.27100114507048),
            (-33.87, 151.21, 40.71, -74.01, 15988.393844977569),
            (37.338, -121.886, 37.774, -122.419, 67.51218820039554),
            (89.9, 10.0, -89.9, -170.0, 20015.086796020572),
            (0.1, 0.2, 0.3, 0.4, 31.450570877566253),
            (13.0827, 80.2707, -22.9068, -43.1729, 13969.69356414234),
            (60.1699, 24.9384, 59.3293, 18.0686, 395.81955912781433),
        ] {
            let other = Position::new(other_latitude, other_longitude);
            assert_eq!(Position::new(latitude, longitude).distance(&other), expected);
        }
    }

    /// All digits of 20,000 distances, drawn and summed up by a program in Go.
    #[test]
    fn distances_are_those_of_go_everywhere() {
        let (mut state, mut sum) = (1_u64, 0_u64);
        let mut draw = |scale: f64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            state = state.wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 / (1_u64 << 53) as f64 * 2.0 - 1.0) * scale
        };
        for _ in 0..20_000 {
            let here = Position::new(draw(90.0), draw(180.0));
            let there = Position::new(draw(90.0), draw(180.0));
            sum = sum.wrapping_mul(31).wrapping_add(here.distance(&there).to_bits());
        }
        assert_eq!(sum, 3_378_192_847_934_168_574);
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
