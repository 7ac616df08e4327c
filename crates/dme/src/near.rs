//! Search for the nearest of many places.
//!
//! Places are put into boxes in space, and boxes into larger ones. A lookup
//! computes how far a box is at least, which is cheap, opens the nearer one
//! first, and computes distances only for the few places that may be the
//! nearest. The result is the same as if all distances were computed.

use crate::position::Position;

/// Places in a box that is not divided further.
const BOX: usize = 16;

/// Largest difference between squares of chords of equal distances, with room
/// to spare. Within it the distances decide.
const SLACK: f64 = 1e-12;

/// Places, in an order of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpatialIndex {
    positions: Vec<Position>,
    /// Coordinates of the places one after the other, apart from the rest:
    /// they are all that most of a lookup reads.
    x: Vec<f64>,
    y: Vec<f64>,
    z: Vec<f64>,
    /// The first one holds all places. After a box comes its first half.
    boxes: Vec<Cell>,
}

#[derive(Debug, Clone)]
struct Cell {
    low: [f64; 3],
    high: [f64; 3],
    from: usize,
    to: usize,
    /// Index of its second half, if it is divided.
    second: Option<usize>,
}

/// Result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Nearest {
    /// Index in the order that [`Near::new`] gave.
    pub(crate) index: usize,
    /// Distance in km.
    pub(crate) distance: f64,
}

impl SpatialIndex {
    /// Arranges places. Tells by old indices what the order is now.
    pub(crate) fn new(places: &[Position]) -> (Self, Vec<usize>) {
        let mut order: Vec<usize> = (0..places.len()).collect();
        let mut near = Self::default();
        near.split(places, &mut order, 0);
        for place in order.iter().map(|index| places[*index]) {
            let [x, y, z] = place.unit();
            near.positions.push(place);
            near.x.push(x);
            near.y.push(y);
            near.z.push(z);
        }
        (near, order)
    }

    /// Halves along the longest side until the boxes are small.
    fn split(&mut self, places: &[Position], order: &mut [usize], from: usize) {
        if order.is_empty() {
            return;
        }
        let (mut low, mut high) = ([f64::MAX; 3], [f64::MIN; 3]);
        for unit in order.iter().map(|index| places[*index].unit()) {
            for (axis, at) in unit.into_iter().enumerate() {
                low[axis] = low[axis].min(at);
                high[axis] = high[axis].max(at);
            }
        }
        let own = self.boxes.len();
        self.boxes.push(Cell { low, high, from, to: from + order.len(), second: None });
        if order.len() <= BOX {
            return;
        }
        let side = |axis: usize| high[axis] - low[axis];
        let longest =
            (1..3).fold(0, |best, axis| if side(axis) > side(best) { axis } else { best });
        let half = order.len() / 2;
        let along = |index: &usize| places[*index].unit()[longest];
        order.select_nth_unstable_by(half, |a, b| along(a).total_cmp(&along(b)));
        let (first, second) = order.split_at_mut(half);
        self.split(places, first, from);
        self.boxes[own].second = Some(self.boxes.len());
        self.split(places, second, from + half);
    }

    /// The nearest; of several that are equally near the one that `before`
    /// puts first.
    pub(crate) fn nearest(
        &self,
        here: &Position,
        before: impl Fn(usize, usize) -> bool,
    ) -> Option<Nearest> {
        let mut best = Best { chord: f64::MAX, found: None };
        if !self.boxes.is_empty() {
            self.open(0, here, &mut best, &before);
        }
        best.found
    }

    /// Looks into a box, its nearer half first.
    fn open(
        &self,
        index: usize,
        here: &Position,
        best: &mut Best,
        before: &impl Fn(usize, usize) -> bool,
    ) {
        let cell = &self.boxes[index];
        let Some(second) = cell.second else { return self.look(cell, here, best, before) };
        let least = |half: usize| (self.boxes[half].least(here.unit()), half);
        let (mut near, mut far) = (least(index + 1), least(second));
        if far.0 < near.0 {
            std::mem::swap(&mut near, &mut far);
        }
        for (chord, half) in [near, far] {
            if chord <= best.chord + SLACK {
                self.open(half, here, best, before);
            }
        }
    }

    fn look(
        &self,
        cell: &Cell,
        here: &Position,
        best: &mut Best,
        before: &impl Fn(usize, usize) -> bool,
    ) {
        let [x, y, z] = here.unit();
        let range = cell.from..cell.to;
        let coordinates = self.x[range.clone()]
            .iter()
            .zip(&self.y[range.clone()])
            .zip(&self.z[range.clone()])
            .zip(range);
        for (((px, py), pz), index) in coordinates {
            let (dx, dy, dz) = (px - x, py - y, pz - z);
            let chord = dx * dx + dy * dy + dz * dz;
            if chord > best.chord + SLACK {
                continue;
            }
            best.chord = best.chord.min(chord);
            let distance = here.distance(&self.positions[index]);
            let nearer = best.found.is_none_or(|found| {
                distance < found.distance
                    || (distance == found.distance && before(index, found.index))
            });
            if nearer {
                best.found = Some(Nearest { index, distance });
            }
        }
    }

    /// Distance to the location with this index, in km.
    pub(crate) fn distance(&self, here: &Position, index: usize) -> f64 {
        self.positions.get(index).map_or(f64::MAX, |place| here.distance(place))
    }
}

struct Best {
    /// Square of the shortest chord so far.
    chord: f64,
    found: Option<Nearest>,
}

impl Cell {
    /// Square of the shortest chord to anything in here.
    fn least(&self, at: [f64; 3]) -> f64 {
        let away = |axis: usize| {
            let (below, above) = (self.low[axis] - at[axis], at[axis] - self.high[axis]);
            let away = if below > above { below } else { above };
            if away > 0.0 { away } else { 0.0 }
        };
        let (x, y, z) = (away(0), away(1), away(2));
        x * x + y * y + z * z
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn by_all(places: &[Position], here: &Position) -> Option<(usize, f64)> {
        let all = places.iter().map(|place| here.distance(place)).enumerate();
        all.min_by(|(i, a), (j, b)| a.total_cmp(b).then(i.cmp(j)))
    }

    fn agrees(places: &[Position], here: &Position) {
        let (near, order) = SpatialIndex::new(places);
        let found = near.nearest(here, |a, b| order[a] < order[b]);
        let found = found.map(|found| (order[found.index], found.distance));
        assert_eq!(found, by_all(places, here));
    }

    proptest! {
        #[test]
        fn the_answer_is_that_of_computing_all_distances(
            places in prop::collection::vec((-90.0..=90.0_f64, -180.0..=180.0_f64), 0..300),
            here in (-90.0..=90.0_f64, -180.0..=180.0_f64),
        ) {
            let places: Vec<_> = places.into_iter().map(|(a, b)| Position::new(a, b)).collect();
            agrees(&places, &Position::new(here.0, here.1));
        }

        /// Whole degrees make many that are equally far.
        #[test]
        fn of_equally_near_ones_the_first_is_taken(
            places in prop::collection::vec((-3..=3_i8, -3..=3_i8), 1..300),
            here in (-4..=4_i8, -4..=4_i8),
        ) {
            let at = |(a, b): (i8, i8)| Position::new(f64::from(a), f64::from(b));
            let places: Vec<_> = places.into_iter().map(at).collect();
            agrees(&places, &at(here));
            let (a, b) = here;
            agrees(&places, &Position::new(-f64::from(a), 180.0 - f64::from(b).abs()));
        }
    }

    #[test]
    fn ten_thousand_in_one_place_are_searched_correctly() {
        let places = vec![Position::new(50.0, 7.0); 10_000];
        agrees(&places, &Position::new(-30.0, 150.0));
        assert!(SpatialIndex::new(&[]).0.nearest(&places[0], |_, _| false).is_none());
    }
}
