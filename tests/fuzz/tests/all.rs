//! Every target on its seeds, and on seeds that were changed at random.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::{fs, panic, path::PathBuf};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use selvage_fuzz_targets::{TARGETS, Target};

/// Changed inputs of one target; `SELVAGE_FUZZ_RUNS` says otherwise.
const RUNS: usize = 3000;
/// Those of targets that write files or make keys for each.
const FEW_RUNS: usize = 150;
const SLOW: [&str; 4] = ["dtls", "layer", "sdp", "store_file"];
/// Longest input.
const LONGEST: usize = 64 * 1024;

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Numbers at which programs err.
const NUMBERS: [u64; 9] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// An input with one to eight changes.
fn changed(random: &mut StdRng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds.choose(random).cloned().unwrap_or_default();
    for _ in 0..random.random_range(1..=8) {
        let place = random.random_range(0..=input.len());
        let end = (place + random.random_range(1..=32)).min(input.len());
        match random.random_range(0..8) {
            0 => input.truncate(place),
            1 => input.insert(place, random.random()),
            2 => drop(input.drain(place..end)),
            3 => {
                let piece = input[place..end].to_vec();
                input.splice(place..place, piece);
            }
            4 => {
                let number = NUMBERS.choose(random).unwrap();
                let width = *[1_usize, 2, 4, 8].choose(random).unwrap();
                let bytes = match random.random() {
                    true => number.to_le_bytes()[..width].to_vec(),
                    false => number.to_be_bytes()[8 - width..].to_vec(),
                };
                let until = (place + width).min(input.len());
                input.splice(place..until, bytes);
            }
            5 => {
                let other = seeds.choose(random).unwrap();
                let from = random.random_range(0..=other.len());
                let until = (from + random.random_range(1..=64)).min(other.len());
                input.splice(place..end, other[from..until].iter().copied());
            }
            6 => {
                let number = NUMBERS.choose(random).unwrap().to_string();
                input.splice(place..end, number.into_bytes());
            }
            _ if place < input.len() => input[place] ^= 1 << random.random_range(0..8),
            _ => {}
        }
    }
    input.truncate(LONGEST);
    input
}

fn runs(name: &str) -> usize {
    let asked = std::env::var("SELVAGE_FUZZ_RUNS").ok().and_then(|runs| runs.parse().ok());
    asked.unwrap_or(if SLOW.contains(&name) { FEW_RUNS } else { RUNS })
}

/// Runs a target; an input on which it fails is kept and named.
fn survives((name, target): &Target, input: &[u8]) {
    if panic::catch_unwind(|| target(input)).is_err() {
        let kept = std::env::temp_dir().join(format!("selvage-fuzz-{name}"));
        fs::write(&kept, input).unwrap();
        panic!("{name} fails on {}: put it into fuzz/seeds/{name}", kept.display());
    }
}

fn fuzz(target: &Target, seed: u64) {
    let seeds = seeds(target.0);
    assert!(!seeds.is_empty(), "{} has no seeds", target.0);
    for input in seeds.iter().map(Vec::as_slice).chain([&[][..], &[0; 64], &[0xff; 64]]) {
        survives(target, input);
    }
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..runs(target.0) {
        survives(target, &changed(&mut random, &seeds));
    }
}

#[test]
fn no_input_breaks_a_target() {
    // The same inputs in each run of the tests, others where it is asked for.
    let seed = std::env::var("SELVAGE_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let only = std::env::var("SELVAGE_FUZZ_TARGET").ok();
    for target in TARGETS.iter().filter(|(name, _)| only.as_deref().is_none_or(|it| it == *name)) {
        fuzz(target, seed.unwrap_or(1));
        println!("{}: {} inputs", target.0, runs(target.0));
    }
}

#[test]
fn every_target_runs_under_the_fuzzer_too() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<_> =
        files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    files.sort();
    let mut names: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    assert_eq!(files, names);
}
