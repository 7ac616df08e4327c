//! "Did you mean": the names closest to one that does not exist.

use std::collections::HashSet;

const MOST: usize = 3;
// Found by trying typos on the names of the contracts: below it, strangers
// appear; above it, two swapped letters in a short name are lost.
const ENOUGH: f64 = 0.8;
// With one name almost right, those further off are only in the way.
const NEAR_THE_BEST: f64 = 0.08;

/// Up to three of the candidates, closest first.
pub(crate) fn closest<'a>(
    wanted: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    let wanted = wanted.to_lowercase();
    let mut seen = HashSet::new();
    let mut scored: Vec<(f64, &str)> = candidates
        .into_iter()
        .filter(|candidate| seen.insert(*candidate))
        .map(|candidate| (likeness(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(score, _)| *score >= ENOUGH)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let best = scored.first().map_or(0.0, |(score, _)| *score);
    scored.retain(|(score, _)| *score >= best - NEAR_THE_BEST);
    scored.into_iter().take(MOST).map(|(_, name)| name.to_owned()).collect()
}

/// Full names share long prefixes, which make strangers look alike; their last
/// parts decide where both have one.
fn likeness(wanted: &str, candidate: &str) -> f64 {
    let (wanted_head, wanted_tail) = split(wanted);
    let (head, tail) = split(candidate);
    let tails = alike(wanted_tail, tail);
    if wanted_head.is_empty() {
        return tails;
    }
    (2.0 * tails + alike(wanted_head, head)) / 3.0
}

/// One slip of the finger counts for little, also in a short word.
fn alike(wanted: &str, candidate: &str) -> f64 {
    let slip = wanted.len() >= 3 && strsim::osa_distance(wanted, candidate) == 1;
    strsim::jaro_winkler(wanted, candidate).max(if slip { 0.92 } else { 0.0 })
}

fn split(name: &str) -> (&str, &str) {
    match name.rfind(['/', '.']) {
        Some(at) => (&name[..at], &name[at + 1..]),
        None => ("", name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_get_a_suggestion_and_other_words_do_not() {
        let fields = ["username", "grants", "disabled", "source"];
        assert_eq!(closest("usernme", fields), ["username"]);
        assert_eq!(closest("Grant", fields), ["grants"]);
        assert_eq!(closest("kye", ["key", "ram", "disk"]), ["key"]);
        assert!(closest("zzz", fields).is_empty());
        assert!(closest("", fields).is_empty());
    }

    #[test]
    fn at_most_three_and_the_best_first() {
        let names = ["a.B/ShowApp", "a.B/ShowApps", "a.B/ShowAppInst", "a.B/ShowApq", "x.Y/Delete"];
        let found = closest("a.B/ShowAp", names);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], "a.B/ShowApp");
    }
}
