//! The commands of the pages, typed one after the other as a reader would. That
//! each is one that the program has, `selvage/src/docs` checks; here they run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use selvage_tests::{
    Selvage,
    process::{Cli, binary},
};

/// Rows of the table that say to do this, each with what and with what.
fn rows(wanted: &str) -> Vec<(String, String)> {
    let table = fs::read_to_string(repository().join("tests/pages.tsv")).unwrap();
    let rows = table.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns.len(), 3, "{line:?}");
        (columns[0], (columns[1].to_owned(), columns[2].to_owned()))
    });
    rows.filter(|(to_do, _)| *to_do == wanted).map(|(_, row)| row).collect()
}

struct Line {
    page: String,
    number: usize,
    text: String,
    /// Error that the page shows below it.
    error: Option<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Lines of blocks of shell, and what stands behind a prompt elsewhere. Those
/// with an ellipsis are patterns.
fn lines(page: &str, text: &str) -> Vec<Line> {
    let (mut lines, mut block) = (Vec::<Line>::new(), None);
    let mut open: Option<String> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(kind) = line.trim_start().strip_prefix("```") {
            block = if block.is_none() { Some(kind == "sh") } else { None };
            continue;
        }
        let Some(is_shell) = block else { continue };
        let typed = line.strip_prefix("$ ");
        if let Some(error) = line.trim_start_matches("# ").strip_prefix("error: ") {
            if let Some(line) = lines.last_mut() {
                line.error = Some(error.to_owned());
            }
            continue;
        }
        if open.is_none() && !is_shell && typed.is_none() {
            continue;
        }
        let whole = open.take().unwrap_or_default() + typed.unwrap_or(line).trim();
        match whole.strip_suffix('\\') {
            Some(begun) => open = Some(begun.to_owned()),
            None => lines.push(Line { page: page.to_owned(), number, text: whole, error: None }),
        }
    }
    lines.retain(|line| is_ours(&line.text) && !line.text.contains('…'));
    lines
}

/// Returns whether a line runs this program.
fn is_ours(line: &str) -> bool {
    let code = line.split(" #").next().unwrap_or_default();
    code.split([' ', ';', '|', '(']).any(|word| word == "selvage") && !code.starts_with('#')
}

/// Returns whether a line has words that stand for others, such as `ID`.
fn has_placeholders(line: &str) -> bool {
    let code = line.split(" #").next().unwrap_or_default();
    code.split([' ', '=', '/']).any(|word| ["ID", "MACHINE", "HOST", "FILE", "DIR"].contains(&word))
}

/// A reader at a shell, logged in at a server.
struct Reader {
    selvage: Selvage,
    cli: Cli,
}

impl Reader {
    fn new(flags: &[&str], text: &str) -> Self {
        let selvage = Selvage::up(flags);
        let cli = Cli::admin_of(&selvage);
        // Files that the page shows by name.
        for block in text.split("```yaml\n# ").skip(1) {
            let (name, rest) = block.split_once('\n').unwrap();
            let content = rest.split("```").next().unwrap();
            fs::write(cli.home().join(name), content).unwrap();
        }
        Self { selvage, cli }
    }

    /// Runs a line, with addresses and paths as they are here.
    fn run(&self, line: &str) -> (bool, String) {
        let data = self.selvage.data().display().to_string();
        let line = line
            .replace("https://127.0.0.1:8443", self.selvage.endpoint())
            .replace("https://edge.example:8443", self.selvage.endpoint())
            .replace("127.0.0.1:9", "127.0.0.1:1")
            .replace("/var/lib/selvage", &data);
        let path = format!(
            "{}:{}",
            binary().parent().unwrap().display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-ec", &line]).current_dir(self.cli.home());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SELVAGE_")) {
            shell.env_remove(name);
        }
        shell.env("HOME", self.cli.home()).env("PATH", path).env_remove("XDG_CONFIG_HOME");
        let output = shell.stdin(Stdio::null()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Types a line as its page has it; returns what is wrong with what happens.
    fn follow(&self, line: &Line) -> Option<String> {
        for (_, before) in rows("before").iter().filter(|(begin, _)| line.text.starts_with(begin)) {
            let (fine, said) = self.run(before);
            assert!(fine, "{before}: {said}");
        }
        let (fine, said) = self.run(&line.text);
        let as_shown = match &line.error {
            None => fine,
            Some(error) => !fine && said.contains(error.as_str()),
        };
        let Line { page, number, text, .. } = line;
        (!as_shown).then(|| format!("{page}:{number}: {text}\n{said}"))
    }
}

#[test]
fn commands_of_pages_do_what_the_pages_say() {
    let (mut wrong, mut ran, mut used) = (Vec::new(), 0, BTreeSet::new());
    let left_out = rows("leave");
    for (page, flags) in rows("run") {
        let text = fs::read_to_string(repository().join(&page)).unwrap();
        let reader = Reader::new(&flags.split_whitespace().collect::<Vec<_>>(), &text);
        for line in lines(&page, &text) {
            let left_out = left_out.iter().find(|(begin, _)| line.text.starts_with(begin));
            used.extend(left_out.map(|(begin, _)| begin));
            if left_out.is_none() && !has_placeholders(&line.text) {
                ran += 1;
                wrong.extend(reader.follow(&line));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {ran} commands:\n{}", wrong.len(), wrong.join("\n"));
    assert!(ran > 80, "only {ran} commands were found");
    let unused: Vec<_> = left_out.iter().filter(|(begin, _)| !used.contains(begin)).collect();
    assert!(unused.is_empty(), "no page has {unused:?} any more");
}

#[test]
fn every_page_with_commands_is_run_by_some_test() {
    let mut pages = vec!["README.md".to_owned()];
    for entry in fs::read_dir(repository().join("docs")).unwrap().flatten() {
        let name = format!("docs/{}", entry.file_name().to_string_lossy());
        pages.extend(name.ends_with(".md").then_some(name));
    }
    let (here, elsewhere) = (rows("run"), rows("elsewhere"));
    for (page, test) in &elsewhere {
        assert!(repository().join(test).exists(), "{page}: there is no {test}");
    }
    for page in pages {
        let text = fs::read_to_string(repository().join(&page)).unwrap();
        let run = here.iter().chain(&elsewhere).any(|(name, _)| *name == page);
        assert!(run || lines("", &text).is_empty(), "no test runs the commands of {page}");
    }
}

#[test]
fn commands_and_their_errors_are_found() {
    let page = "```sh\n# selvage is nice\nselvage app show \\\n    -o yaml   # all\ncurl x\n\
                selvage app delete x\n# error: in use\nfor x in a; do selvage flavor show; done\n\
                selvage app create …\n```\n```text\n$ selvage status\nselvage status\n```\n";
    let found: Vec<_> = lines("p", page).into_iter().map(|line| (line.text, line.error)).collect();
    let plain = |text: &str| (text.to_owned(), None);
    assert_eq!(
        found,
        [
            plain("selvage app show -o yaml   # all"),
            ("selvage app delete x".to_owned(), Some("in use".to_owned())),
            plain("for x in a; do selvage flavor show; done"),
            plain("selvage status"),
        ]
    );
    assert!(has_placeholders("selvage operation follow ID   # it"));
    assert!(!has_placeholders("selvage status # ID"));
}
