//! Sine, cosine and arc tangent by the approximations of the Cephes library, as
//! Go computes them where the processor has none of its own. The system's
//! library differs from them in the last digit now and then, and distances are
//! compared digit for digit.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// π/4 in three parts, so that multiples of it are taken away exactly.
const QUARTER: [f64; 3] =
    [7.853_981_256_484_985e-1, 3.774_894_707_930_798e-8, 2.695_151_429_079_059_5e-15];

const SINE: [f64; 6] = [
    1.589_623_015_765_465_7e-10,
    -2.505_074_776_285_780_7e-8,
    2.755_731_362_138_572_2e-6,
    -1.984_126_982_958_954e-4,
    8.333_333_333_322_118e-3,
    -1.666_666_666_666_663e-1,
];

const COSINE: [f64; 6] = [
    -1.135_853_652_138_768_2e-11,
    2.087_570_084_197_473e-9,
    -2.755_731_417_929_674e-7,
    2.480_158_728_885_170_5e-5,
    -1.388_888_888_887_305_6e-3,
    4.166_666_666_666_659_5e-2,
];

const ABOVE: [f64; 5] = [
    -8.750_608_600_031_904e-1,
    -1.615_753_718_733_365_2e1,
    -7.500_855_792_314_705e1,
    -1.228_866_684_490_136_1e2,
    -6.485_021_904_942_025e1,
];

const BELOW: [f64; 6] = [
    1.0,
    2.485_846_490_142_306_3e1,
    1.650_270_098_316_988_5e2,
    4.328_810_604_912_902_7e2,
    4.853_903_996_359_137e2,
    1.945_506_571_482_614e2,
];

/// π/2 beyond what a double holds of it.
const MORE_BITS: f64 = 6.123_233_995_736_766e-17;
const TAN_3_PI_8: f64 = 2.414_213_562_373_095;

/// Sine of an angle between two places, a few turns at most.
pub(crate) fn sin(angle: f64) -> f64 {
    let (octant, rest) = reduce(angle.abs());
    let (octant, flipped) = if octant > 3 { (octant - 4, true) } else { (octant, false) };
    let value = if matches!(octant, 1 | 2) { cosine(rest) } else { sine(rest) };
    if flipped == (angle < 0.0) { value } else { -value }
}

/// Cosine of such an angle.
pub(crate) fn cos(angle: f64) -> f64 {
    let (octant, rest) = reduce(angle.abs());
    let (octant, flipped) = if octant > 3 { (octant - 4, true) } else { (octant, false) };
    let value = if matches!(octant, 1 | 2) { sine(rest) } else { cosine(rest) };
    if flipped == (octant > 1) { value } else { -value }
}

/// Angle whose tangent is `y / x`, neither of them below zero.
pub(crate) fn atan2(y: f64, x: f64) -> f64 {
    if y == 0.0 {
        return 0.0;
    }
    if x == 0.0 {
        return FRAC_PI_2;
    }
    let ratio = y / x;
    if ratio <= 0.66 {
        arc(ratio)
    } else if ratio > TAN_3_PI_8 {
        FRAC_PI_2 - arc(1.0 / ratio) + MORE_BITS
    } else {
        FRAC_PI_4 + arc((ratio - 1.0) / (ratio + 1.0)) + 0.5 * MORE_BITS
    }
}

/// The octant of an angle, rounded up to an even one, and what is left of it.
fn reduce(angle: f64) -> (u64, f64) {
    // Angles of places are small: the conversion is exact.
    let whole = (angle * (4.0 / PI)) as u64;
    let whole = whole + (whole & 1);
    let turns = whole as f64;
    let rest = ((angle - turns * QUARTER[0]) - turns * QUARTER[1]) - turns * QUARTER[2];
    (whole & 7, rest)
}

fn sine(x: f64) -> f64 {
    let square = x * x;
    x + x * square * polynomial(&SINE, square)
}

fn cosine(x: f64) -> f64 {
    let square = x * x;
    1.0 - 0.5 * square + square * square * polynomial(&COSINE, square)
}

fn arc(x: f64) -> f64 {
    let square = x * x;
    let part = square * polynomial(&ABOVE, square) / polynomial(&BELOW, square);
    x * part + x
}

/// Evaluates a polynomial by Horner's rule, with every product rounded: a fused
/// one would give other digits.
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
}
