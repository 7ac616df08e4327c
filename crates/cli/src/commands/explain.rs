//! A page for every error code.

use std::io::Write;

use selvage_api::{
    Code,
    code::{ALL, http_status},
};
use serde_json::{Value, json};

use crate::{
    Error,
    output::{Column, Format},
    session::Session,
    suggest,
};

/// `selvage explain`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage explain
  selvage explain NOT_FOUND
  selvage explain grpc:5     the number on gRPC
  selvage explain exit:6     the exit code of a command
  selvage explain 404        a number that means one thing alone")]
pub struct Explain {
    /// A code by name, or as grpc:N, exit:N or http:N [default: list all]
    pub code: Option<String>,
}

pub(crate) fn run(args: &Explain, session: &mut Session<'_>) -> Result<(), Error> {
    let format = session.global.output.unwrap_or(Format::Table);
    match &args.code {
        None => list(session),
        Some(name) => {
            let code = find(name)?;
            if matches!(format, Format::Json | Format::Yaml) {
                let mut row = row(code);
                row["page"] = page(code).into();
                return session.printer().record(&row);
            }
            write!(
                session.io.out,
                "{code} (exit code {}, gRPC {}, HTTP {})\n\n{}",
                code.exit(),
                code.grpc() as i32,
                http_status(code.grpc()),
                page(code)
            )
            .map_err(Error::Output)
        }
    }
}

fn list(session: &mut Session<'_>) -> Result<(), Error> {
    let columns = [
        Column::new("CODE", "code"),
        Column::new("EXIT", "exit"),
        Column::new("GRPC", "grpc"),
        Column::new("HTTP", "http"),
        Column::new("MEANING", "meaning"),
    ];
    session.printer().values(&columns, &ALL.map(row))
}

fn row(code: Code) -> Value {
    json!({
        "code": code.name(),
        "exit": code.exit(),
        "grpc": code.grpc() as i32,
        "http": http_status(code.grpc()),
        "meaning": page(code).lines().next().unwrap_or_default(),
    })
}

/// The code of a name in any case and spelling, or of a number.
fn find(text: &str) -> Result<Code, Error> {
    let lower = text.trim().to_lowercase();
    if let Some((space, number)) = lower.split_once(':') {
        return numbered(text, space, number.trim().parse().ok());
    }
    if let Ok(number) = lower.parse::<i32>() {
        return plain_number(text, number);
    }
    let letters = |name: &str| name.to_lowercase().replace(['_', '-', ' '], "");
    let wanted = match letters(&lower).as_str() {
        "canceled" => "cancelled".into(),
        "unknown" => "internal".into(),
        "outofrange" => "invalidargument".into(),
        other => other.to_owned(),
    };
    ALL.into_iter().find(|code| letters(code.name()) == wanted).ok_or_else(|| {
        unknown(text, suggest::closest(&lower.replace(['-', ' '], "_"), ALL.map(Code::name)))
    })
}

fn unknown(text: &str, suggestions: Vec<String>) -> Error {
    Error::Unknown {
        kind: "code",
        name: text.into(),
        suggestions,
        hint: "`selvage explain` lists them all".into(),
    }
}

/// The code of a number on gRPC, on HTTP, or of an exit.
fn numbered(text: &str, space: &str, number: Option<i32>) -> Result<Code, Error> {
    let wanted = number.ok_or_else(|| unknown(text, Vec::new()))?;
    let all = || ALL.into_iter();
    let found = match (space, wanted) {
        ("exit", 1) => {
            let text = "exit code 1 carries no error code; the message is all there is";
            return Err(Error::invalid(text));
        }
        ("exit", 2) => {
            let text = "exit code 2 means that the command line was wrong; see --help";
            return Err(Error::invalid(text));
        }
        ("grpc", 1..=16) => Code::from_grpc(wanted.into()),
        ("exit", _) => all().find(|code| i32::from(code.exit()) == wanted),
        ("http", _) => {
            let of_status = |code: &Code| i32::from(http_status(code.grpc())) == wanted;
            let codes: Vec<Code> = all().filter(of_status).collect();
            if let [_, _, ..] = codes.as_slice() {
                let names: Vec<&str> = codes.iter().map(|code| code.name()).collect();
                let text = format!("HTTP {wanted} stands for {}", names.join(", "));
                return Err(Error::Invalid { message: text, hints: vec!["say which".into()] });
            }
            codes.first().copied()
        }
        _ => None,
    };
    found.ok_or_else(|| unknown(text, Vec::new()))
}

/// The code of a number that does not say what it counts.
fn plain_number(text: &str, number: i32) -> Result<Code, Error> {
    if number == 0 {
        return Err(Error::invalid("0 is OK: nothing went wrong"));
    }
    let spaces = ["grpc", "exit", "http"];
    let mut found: Vec<(&str, Code)> = Vec::new();
    for space in spaces {
        found.extend(numbered(text, space, Some(number)).ok().map(|code| (space, code)));
    }
    match found.as_slice() {
        [] if number == 1 || number == 2 => numbered(text, "exit", Some(number)),
        [] => Err(unknown(text, Vec::new())),
        [(_, first), rest @ ..] if rest.iter().all(|(_, code)| code == first) => Ok(*first),
        several => {
            let meanings =
                several.iter().map(|(space, code)| format!("{space}:{number} is {code}"));
            Err(Error::Invalid {
                message: format!(
                    "which {number} is meant? {}",
                    meanings.collect::<Vec<_>>().join(", ")
                ),
                hints: vec![format!("say `selvage explain {}:{number}`", several[0].0)],
            })
        }
    }
}

fn page(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => include_str!("../../explain/invalid_argument.md"),
        Code::NotFound => include_str!("../../explain/not_found.md"),
        Code::AlreadyExists => include_str!("../../explain/already_exists.md"),
        Code::Unauthenticated => include_str!("../../explain/unauthenticated.md"),
        Code::PermissionDenied => include_str!("../../explain/permission_denied.md"),
        Code::FailedPrecondition => include_str!("../../explain/failed_precondition.md"),
        Code::Aborted => include_str!("../../explain/aborted.md"),
        Code::ResourceExhausted => include_str!("../../explain/resource_exhausted.md"),
        Code::DeadlineExceeded => include_str!("../../explain/deadline_exceeded.md"),
        Code::Cancelled => include_str!("../../explain/cancelled.md"),
        Code::Unavailable => include_str!("../../explain/unavailable.md"),
        Code::Unimplemented => include_str!("../../explain/unimplemented.md"),
        Code::DataLoss => include_str!("../../explain/data_loss.md"),
        Code::Internal => include_str!("../../explain/internal.md"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_code_has_a_page_with_a_cause_and_a_way_out() {
        for code in ALL {
            let page = page(code);
            let first = page.lines().next().unwrap();
            assert!(first.ends_with('.') && first.len() < 90, "{code}: {first}");
            assert!(page.contains("\n## Why it happens\n"), "{code}");
            assert!(page.contains("\n## What to do\n"), "{code}");
            assert!(page.ends_with('\n') && page.lines().all(|line| line.len() <= 80), "{code}");
        }
    }

    #[test]
    fn a_code_goes_by_all_its_names() {
        for text in
            ["NOT_FOUND", "not_found", "NotFound", "not-found", "not found", "grpc:5", "exit:4"]
        {
            assert_eq!(find(text).unwrap(), Code::NotFound, "{text}");
        }
        for code in ALL {
            assert_eq!(find(&format!("grpc:{}", code.grpc() as i32)).unwrap(), code);
            assert_eq!(find(&format!("exit:{}", code.exit())).unwrap(), code);
        }
        assert_eq!(find("canceled").unwrap(), Code::Cancelled);
        assert_eq!(find("404").unwrap(), Code::NotFound);
        for wrong in
            ["0", "99", "-1", "grpc:17", "http:200", "exit:1", "exit:2", "exit:99", "exit:", ""]
        {
            assert!(find(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_of_two_meanings_is_asked_back() {
        let error = find("8").unwrap_err();
        let exit = ALL.into_iter().find(|code| code.exit() == 8).unwrap();
        let expected = format!("which 8 is meant? grpc:8 is RESOURCE_EXHAUSTED, exit:8 is {exit}");
        assert_eq!(error.to_string(), expected);
        assert_ne!(exit, Code::ResourceExhausted);
    }

    #[test]
    fn a_typo_is_answered_with_the_name() {
        assert_eq!(
            find("PERMISION_DENIED").unwrap_err().to_string(),
            r#"there is no code "PERMISION_DENIED"; did you mean PERMISSION_DENIED?"#
        );
    }
}
