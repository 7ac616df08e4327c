//! The screen, character for character.

use super::*;
use crate::top::model::Pane;

#[test]
fn a_usual_terminal() {
    assert_eq!(shown(&model(80, 24)), include_str!("usual.txt"));
}

#[test]
fn a_large_terminal_has_room_for_all() {
    assert_eq!(shown(&model(160, 40)), include_str!("large.txt"));
}

#[test]
fn the_tree_and_the_question() {
    let mut model = model(100, 40);
    press(&mut model, "tp");
    key(&mut model, KeyCode::Tab);
    press(&mut model, "r");
    assert_eq!(shown(&model), include_str!("question.txt"));
}

#[test]
fn the_help_is_over_everything() {
    let mut model = model(100, 30);
    press(&mut model, "?");
    assert_eq!(shown(&model), include_str!("help.txt"));
}

#[test]
fn one_pane_alone() {
    let mut model = model(80, 12);
    model.focus = Pane::Kernel;
    press(&mut model, "z");
    let screen = shown(&model);
    assert!(screen.contains("disk\u{fffd}[2J broke"), "{screen}");
    assert!(!screen.contains("Processes"), "{screen}");
}

#[test]
fn no_size_is_too_small() {
    for (width, height) in [(0, 0), (1, 1), (10, 3), (20, 5), (40, 10), (300, 90), (1000, 4)] {
        for keys in ["", "?", "z", "t"] {
            let mut model = model(width, height);
            press(&mut model, keys);
            shown(&model);
            let mut empty = Model::new(vec![], true);
            empty.size = model.size;
            press(&mut empty, keys);
            shown(&empty);
        }
    }
}
