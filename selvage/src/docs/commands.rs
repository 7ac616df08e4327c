//! Commands of the pages, as far as they are ours: each must be one that the
//! program takes.

use clap::CommandFactory as _;

use crate::args::Cli;

/// A command line of a page.
struct Line {
    page: String,
    number: usize,
    words: Vec<String>,
}

#[test]
fn every_command_of_every_page_is_one_that_there_is() {
    let lines = lines();
    assert!(lines.len() > 100, "only {} commands were found", lines.len());
    let mut wrong = Vec::new();
    for Line { page, number, words } in lines {
        let words = selvage_cli::meaning_objects(words.iter().map(Into::into));
        let parsed = Cli::command().try_get_matches_from(&words);
        let error = parsed.err().filter(|error| {
            use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
            !matches!(error.kind(), DisplayHelp | DisplayVersion)
        });
        if let Some(error) = error {
            let text = error.to_string();
            wrong.push(format!(
                "{page}:{number}: {words:?}\n  {}",
                text.lines().next().unwrap_or("")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_line_of_a_shell_is_split_as_a_shell_does() {
    let split =
        |line: &str| ours(line).into_iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(split("$ selvage app show -o yaml   # all of them"), ["selvage|app|show|-o|yaml"]);
    assert_eq!(split("A=b sudo ./selvage up > x.log &"), ["selvage|up"]);
    assert_eq!(
        split("pass edge | selvage login --password-file -"),
        ["selvage|login|--password-file|-"]
    );
    assert_eq!(
        split("selvage call X '{\"a\": \"b c\"}' | jq . && selvage status"),
        ["selvage|call|X|{\"a\": \"b c\"}", "selvage|status"]
    );
    assert!(split("curl http://x/selvage").is_empty());
}

/// All commands of ours in blocks of code. A block under `<!-- not checked: … -->`
/// shows something else.
fn lines() -> Vec<Line> {
    super::pages().iter().flat_map(|(page, text)| of_page(page, text)).collect()
}

fn of_page(page: &str, text: &str) -> Vec<Line> {
    let (mut lines, mut block, mut unchecked) = (Vec::new(), None, false);
    let mut begun: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        if let Some(kind) = line.strip_prefix("```") {
            block = match block {
                None => Some((matches!(kind, "sh" | "console" | "bash"), unchecked)),
                Some(_) => None,
            };
            unchecked &= block.is_some();
            continue;
        }
        unchecked |= line.starts_with("<!-- not checked:");
        let Some((is_shell, false)) = block else { continue };
        // Elsewhere what was typed stands behind a prompt, between its output.
        if !is_shell && begun.is_none() && !line.starts_with("$ ") {
            continue;
        }
        let (start, whole) = match begun.take() {
            Some((start, before)) => (start, format!("{before} {line}")),
            None => (number, line.to_owned()),
        };
        match whole.strip_suffix('\\') {
            Some(rest) => begun = Some((start, rest.trim_end().to_owned())),
            None => {
                let all = ours(&whole).into_iter();
                lines.extend(all.map(|words| Line { page: page.to_owned(), number: start, words }));
            }
        }
    }
    lines
}

/// The commands of ours in a line of a shell.
fn ours(line: &str) -> Vec<Vec<String>> {
    let line = line.strip_prefix("$ ").or(line.strip_prefix("# ")).unwrap_or(line);
    let mut found = Vec::new();
    for command in split(line) {
        let is_ours = |word: &String| word == "selvage" || word.ends_with("/selvage");
        let prefix = |word: &String| {
            word == "sudo"
                || word == "time"
                || word == "exec"
                || word == "-E"
                || word.split_once('=').is_some_and(|(name, _)| !name.contains('-'))
        };
        let at = command.iter().position(|word| !prefix(word));
        let Some(at) = at.filter(|at| is_ours(&command[*at])) else { continue };
        let mut words = vec!["selvage".to_owned()];
        words.extend(command[at + 1..].iter().cloned());
        // A line of a usage, not one to type.
        if !words.iter().any(|word| word.contains('…') || word.starts_with('[')) {
            found.push(words);
        }
    }
    found
}

/// Words of the commands of a line: quotes are taken off, comments and
/// redirections left out.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut letters = line.chars().peekable();
    let mut target = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                for inner in letters.by_ref().take_while(|inner| *inner != letter) {
                    word.push(inner);
                }
            }
            '#' if word.is_none() => break,
            ' ' | '\t' => end(&mut word, &mut words, &mut target),
            '|' | '&' | ';' | ')' => {
                end(&mut word, &mut words, &mut target);
                commands.push(std::mem::take(&mut words));
            }
            '>' | '<' => {
                // The number of a stream belongs to the redirection.
                word = word.filter(|word| !word.bytes().all(|byte| byte.is_ascii_digit()));
                end(&mut word, &mut words, &mut target);
                target = letters.peek() != Some(&'(');
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    end(&mut word, &mut words, &mut target);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// Ends a word; that of a redirection is not one of the command.
fn end(word: &mut Option<String>, words: &mut Vec<String>, target: &mut bool) {
    if let Some(word) = word.take()
        && !std::mem::take(target)
    {
        words.push(word);
    }
}
