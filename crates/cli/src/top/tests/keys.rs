//! Effects of keys, mouse and news.

use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::*;
use crate::top::{
    layout::areas,
    model::{Pane, Sort, State},
    rows::rows,
};

fn pids(model: &Model) -> Vec<i32> {
    rows(model, &model.machines[0]).iter().map(|row| row.process.info.pid).collect()
}

fn branches(model: &Model) -> Vec<String> {
    let machine = &model.machines[0];
    rows(model, machine)
        .iter()
        .map(|row| format!("{}{}", row.branch, row.process.info.command))
        .collect()
}

#[test]
fn cpu_is_what_was_used_between_two_looks() {
    let model = model(100, 40);
    let cpu = |pid: i32| model.machines[0].processes[&pid].cpu;
    assert!((cpu(30) - 75.0).abs() < 1e-6 && (cpu(21) - 25.0).abs() < 1e-6);
    assert_eq!((cpu(1), cpu(20)), (0.0, 0.0));
    let cores = &model.machines[0].cores;
    assert!((cores[0] - 0.25).abs() < 1e-6 && (cores[1] - 1.0).abs() < 1e-6);
}

#[test]
fn a_process_that_rests_is_no_longer_busy_and_one_that_ended_is_gone() {
    let mut model = model(100, 40);
    let news = processes(3, false, vec![process(30, 1, "registry", 9.85, 64)], vec![21]);
    update(&mut model, Event::Report(0, Box::new(news)));
    assert_eq!(pids(&model), [30, 1, 20]);
    // A pid in use again begins anew.
    let news = processes(4, false, vec![process(30, 1, "other", 0.1, 1)], vec![]);
    update(&mut model, Event::Report(0, Box::new(news)));
    assert_eq!(model.machines[0].processes[&30].cpu, 0.0);
}

#[test]
fn a_stream_that_begins_again_forgets_what_is_gone() {
    let mut model = model(100, 40);
    let news = processes(4, true, vec![process(30, 1, "registry", 10.75, 64)], vec![]);
    update(&mut model, Event::Report(0, Box::new(news)));
    assert_eq!(pids(&model), [30]);
    assert!((model.machines[0].processes[&30].cpu - 50.0).abs() < 1e-6);
}

#[test]
fn processes_in_every_order() {
    let mut model = model(100, 40);
    assert_eq!(pids(&model), [30, 21, 1, 20]);
    press(&mut model, "m");
    assert_eq!(pids(&model), [30, 1, 20, 21]);
    press(&mut model, "p");
    assert_eq!(pids(&model), [1, 20, 21, 30]);
    press(&mut model, "n");
    assert_eq!((model.sort, pids(&model)), (Sort::Name, vec![21, 1, 30, 20]));
}

#[test]
fn the_tree_has_parents_before_children_and_ancestors_of_what_is_sought() {
    let mut model = model(100, 40);
    press(&mut model, "tp");
    assert_eq!(branches(&model), ["init", "├─ sshd", "│  └─ bash", "└─ registry"]);
    press(&mut model, "/bash");
    assert_eq!(branches(&model), ["init", "└─ sshd", "   └─ bash"]);
    key(&mut model, KeyCode::Enter);
    press(&mut model, "t");
    assert_eq!(branches(&model), ["bash"]);
    key(&mut model, KeyCode::Esc);
    assert_eq!(branches(&model).len(), 4);
}

#[test]
fn circles_of_parents_are_survived() {
    let mut model = model(100, 40);
    let circle = vec![
        process(50, 51, "a", 0.0, 1),
        process(51, 50, "b", 0.0, 1),
        process(7, 7, "c", 0.0, 1),
    ];
    update(&mut model, Event::Report(0, Box::new(processes(9, true, circle, vec![]))));
    press(&mut model, "tp");
    assert_eq!(pids(&model), [7, 50, 51]);
    press(&mut model, "/b");
    assert_eq!(pids(&model).len(), 3);
}

#[test]
fn letters_go_into_the_filter_while_it_is_typed() {
    let mut model = model(100, 40);
    press(&mut model, "/qt");
    key(&mut model, KeyCode::Backspace);
    assert!(!model.over && !model.tree && model.filter == "q");
    key(&mut model, KeyCode::Esc);
    assert!(!model.typing && model.filter.is_empty());
    press(&mut model, "/21");
    assert_eq!(pids(&model), [21]);
}

#[test]
fn a_restart_is_asked_for_and_confirmed() {
    let mut model = model(100, 40);
    press(&mut model, "r");
    assert!(model.question.is_none() && model.notice.is_some(), "not in this pane");
    key(&mut model, KeyCode::Tab);
    key(&mut model, KeyCode::Down);
    press(&mut model, "r");
    assert_eq!(model.question.as_ref().unwrap().text, "Restart web/pod:nginx on rack1?");
    // Meanwhile the list changes: what was asked for stays what it was.
    update(&mut model, Event::Report(0, Box::new(Report::Containers(vec![]))));
    assert_eq!(key(&mut model, KeyCode::Char('n')), None);
    assert!(model.question.is_none());

    update(
        &mut model,
        Event::Report(0, Box::new(Report::Containers(vec![container("x", "x", "RUNNING", None)]))),
    );
    press(&mut model, "r");
    let wish = key(&mut model, KeyCode::Char('y'));
    let Some(Effect::Restart { node: 0, id, .. }) = wish else { panic!("{wish:?}") };
    assert_eq!(id, "x");
    let result = Report::Restarted { id, result: Err("not found".into()) };
    update(&mut model, Event::Report(0, Box::new(result)));
    let notice = model.notice.as_ref().unwrap();
    assert_eq!((notice.text.as_str(), notice.bad), ("rack1: x is not restarted: not found", true));
}

#[test]
fn a_machine_without_a_runtime_is_not_down() {
    let mut model = model(100, 40);
    let report = Report::NoContainers("containerd does not answer".into());
    update(&mut model, Event::Report(0, Box::new(report)));
    assert_eq!(model.machines[0].state, State::Alive);
    let screen = shown(&model);
    assert!(screen.contains("Containers: containerd does not answer"), "{screen}");
    assert!(screen.contains("2 machines, 1 down"), "{screen}");
}

#[test]
fn a_container_is_ended_and_its_log_followed() {
    let mut model = model(100, 40);
    assert_eq!(key(&mut model, KeyCode::Char('l')), None, "not in this pane");
    key(&mut model, KeyCode::Tab);
    press(&mut model, "x");
    assert!(model.question.as_ref().unwrap().text.starts_with("End "), "{:?}", model.question);
    let wish = key(&mut model, KeyCode::Char('y'));
    let Some(Effect::End { node: 0, id, .. }) = wish else { panic!("{wish:?}") };
    let wish = key(&mut model, KeyCode::Char('l'));
    let Some(Effect::FollowLog { node: 0, id: followed, .. }) = wish else { panic!("{wish:?}") };
    assert_eq!(followed, id);
    let other = Report::Log { id: "other".into(), lines: vec!["not this".into()] };
    update(&mut model, Event::Report(0, Box::new(other)));
    let lines = vec!["first line".into(), "second\u{1b}[2J line".into()];
    update(&mut model, Event::Report(0, Box::new(Report::Log { id, lines })));
    let screen = shown(&model);
    assert!(screen.contains("first line") && screen.contains("second\u{fffd}[2J line"), "{screen}");
    assert!(!screen.contains("not this"), "{screen}");
    assert_eq!(key(&mut model, KeyCode::Esc), Some(Effect::CloseLog));
    assert!(model.log.is_none() && !model.over);
}

#[test]
fn a_dead_machine_comes_back_and_does_not_disturb_the_others() {
    let mut model = model(100, 40);
    assert_eq!(model.machines[1].state, State::Dead("nobody answers at rack2".into()));
    assert_eq!(model.machines[0].state, State::Alive);
    update(&mut model, Event::Report(1, Box::new(host(1, 1.0))));
    assert_eq!(model.machines[1].state, State::Alive);
    // News of a machine that nobody asked for is nothing.
    update(&mut model, Event::Report(7, Box::new(host(1, 1.0))));
}

#[test]
fn moving_stays_within_what_there_is() {
    let mut model = model(100, 40);
    for code in [KeyCode::End, KeyCode::Down, KeyCode::PageDown] {
        key(&mut model, code);
        assert_eq!(model.process_at, 3);
    }
    key(&mut model, KeyCode::Home);
    key(&mut model, KeyCode::Up);
    assert_eq!(model.process_at, 0);
    key(&mut model, KeyCode::Right);
    key(&mut model, KeyCode::Right);
    assert_eq!(model.at, 1);
    press(&mut model, "1");
    assert_eq!(model.at, 0);
    press(&mut model, "9");
    assert_eq!(model.at, 1);
}

#[test]
fn the_kernels_log_is_scrolled_from_its_end() {
    let mut model = model(100, 40);
    for number in 0..50 {
        let record = format!("kern:    info: [t]: line {number}\n");
        update(&mut model, Event::Report(0, Box::new(Report::Kernel(record))));
    }
    model.focus = Pane::Kernel;
    key(&mut model, KeyCode::Up);
    assert_eq!(model.kernel_back, 1);
    key(&mut model, KeyCode::Home);
    assert_eq!(model.kernel_back, 53 - areas(&model).lines(Pane::Kernel));
    key(&mut model, KeyCode::End);
    assert_eq!(model.kernel_back, 0);
}

#[test]
fn the_mouse_chooses_and_its_wheel_turns() {
    let mut model = model(100, 40);
    let at = areas(&model);
    let mouse = |kind, row| {
        Event::Mouse(MouseEvent { kind, column: 5, row, modifiers: KeyModifiers::NONE })
    };
    update(&mut model, mouse(MouseEventKind::ScrollDown, at.processes.y + 1));
    assert_eq!((model.process_at, model.focus), (3, Pane::Processes));
    update(&mut model, mouse(MouseEventKind::ScrollUp, at.processes.y + 1));
    assert_eq!(model.process_at, 0);
    update(&mut model, mouse(MouseEventKind::Down(MouseButton::Left), at.containers.y + 3));
    assert_eq!((model.container_at, model.focus), (1, Pane::Containers));
    update(&mut model, mouse(MouseEventKind::Down(MouseButton::Left), at.machines.y + 3));
    assert_eq!((model.at, model.focus), (1, Pane::Machines));
}

#[test]
fn q_and_control_c_end_it_whatever_is_open() {
    let control = || Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    for keys in ["", "/ab", "?"] {
        let mut model = model(100, 40);
        press(&mut model, keys);
        update(&mut model, control());
        assert!(model.over, "{keys:?}");
    }
    let mut model = model(100, 40);
    press(&mut model, "?q");
    assert!(!model.help && !model.over, "any key closes the help");
    press(&mut model, "q");
    assert!(model.over);
}
