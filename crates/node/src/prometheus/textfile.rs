//! Metrics that scripts leave in files `*.prom` of a folder, as node_exporter
//! takes them. A file that cannot be read or is not in the format is left out
//! as a whole and named.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::text::{Kind, Page, labelled};

/// Maximum size of a file; longer ones are left out.
const MAX_FILE: u64 = 1 << 20;

pub(super) fn write(page: &mut Page, folder: &Path) {
    let files = match files(folder) {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "text files of metrics not read");
            page.single(
                "node_textfile_scrape_error",
                Kind::Gauge,
                "1 when a file was left out.",
                1_u64,
            );
            return;
        }
    };
    let mut wrong = 0_u64;
    let mut times = Vec::new();
    for file in files {
        match read(&file).and_then(|(text, time)| check(&text, page).map(|()| (text, time))) {
            Ok((text, time)) => {
                page.verbatim(&text);
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                times.push((name, time));
            }
            Err(reason) => {
                wrong = 1;
                tracing::warn!(file = %file.display(), reason, "text file of metrics left out");
            }
        }
    }
    page.metric("node_textfile_mtime_seconds", Kind::Gauge, "When a file was written.");
    for (name, time) in times {
        page.line("node_textfile_mtime_seconds", &labelled("file", &name), time);
    }
    page.single("node_textfile_scrape_error", Kind::Gauge, "1 when a file was left out.", wrong);
}

/// Files of metrics in the order of their names.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "prom") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<(String, f64), String> {
    let state = fs::metadata(file).map_err(|error| error.to_string())?;
    if !state.is_file() || state.len() > MAX_FILE {
        return Err(format!("not a regular file of at most {MAX_FILE} bytes"));
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let time =
        state.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    Ok((text, time.unwrap_or_default().as_secs_f64()))
}

/// Returns what is wrong with a text: Prometheus refuses the whole page for
/// one bad line.
fn check(text: &str, page: &Page) -> Result<(), String> {
    for (at, line) in text.lines().enumerate() {
        let wrong = |what: &str| Err(format!("line {}: {what}", at + 1));
        if let Some(comment) = line.strip_prefix("# TYPE ") {
            let name = comment.split(' ').next().unwrap_or_default();
            if page.has(name) {
                return wrong("the metric is on the page already");
            }
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if !is_sample(line) {
            return wrong("not `name{labels} value`");
        }
    }
    Ok(())
}

fn is_sample(line: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let end = line.find(|c| !letter(c)).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let rest = match rest.strip_prefix('{') {
        Some(labels) => match labels.rfind('}') {
            Some(end) => &labels[end + 1..],
            None => return false,
        },
        None => rest,
    };
    let mut words = rest.split_ascii_whitespace();
    let number = words.next().is_some_and(|word| word.parse::<f64>().is_ok());
    let time = words.next().is_none_or(|word| word.parse::<i64>().is_ok());
    let begins = name.chars().next().is_some_and(|c| !c.is_ascii_digit());
    begins && rest.starts_with(' ') && number && time && words.next().is_none()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_of_scripts_are_part_of_the_page() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        put("a.prom", "# TYPE backup_age_seconds gauge\nbackup_age_seconds{disk=\"a b\"} 12.5\n");
        put("bad.prom", "backup ok\n");
        put("twice.prom", "# TYPE node_load1 gauge\nnode_load1 1\n");
        put("notes.txt", "nothing");
        let mut page = Page::default();
        page.single("node_load1", Kind::Gauge, "Load.", 0.5);
        write(&mut page, folder.path());
        let page = String::from_utf8(page.finish().to_vec()).unwrap();
        assert!(page.contains("\nbackup_age_seconds{disk=\"a b\"} 12.5\n"), "{page}");
        assert!(!page.contains("backup ok") && !page.contains("node_load1 1\n"), "{page}");
        assert!(page.contains("node_textfile_mtime_seconds{file=\"a.prom\"} "), "{page}");
        assert!(page.ends_with("node_textfile_scrape_error 1\n"), "{page}");
    }

    #[test]
    fn a_line_is_a_sample_or_it_is_not() {
        for good in ["a 1", "a_b:c{x=\"} y\"} -1e9", "up{} NaN", "a +Inf 1700000000000"] {
            assert!(is_sample(good), "{good}");
        }
        for bad in ["", "1a 1", "a", "a b", "a{x 1", "a 1 x", "a 1 2 3", "a{}1"] {
            assert!(!is_sample(bad), "{bad}");
        }
    }
}
