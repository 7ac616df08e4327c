//! Location of a repository, and the credentials for it: the environment or a file, never
//! an argument.

use selvage_api::selvage::volumes::{Repository, Retention};

use super::args::{Keep, Store};
use crate::{Error, session::Session};

impl Store {
    /// The repository at a path, with what opens it.
    pub(super) fn repository(
        &self,
        path: &str,
        session: &mut Session<'_>,
    ) -> Result<Repository, Error> {
        let mut repository = self.bare(path);
        if !self.credentials.is_empty() {
            return Ok(repository);
        }
        let text = match &self.credentials_file {
            Some(file) => {
                Some(std::fs::read_to_string(file).map_err(|source| Error::read(file, source))?)
            }
            None => None,
        };
        let value = |name: &str| match &text {
            Some(text) => in_lines(text, name),
            None => session.io.var(name).map(str::to_owned).unwrap_or_default(),
        };
        if self.store.starts_with("rest:") {
            repository.access_key_id = value("RESTIC_REST_USERNAME");
            repository.secret_access_key = value("RESTIC_REST_PASSWORD");
        } else {
            repository.access_key_id = value("AWS_ACCESS_KEY_ID");
            repository.secret_access_key = value("AWS_SECRET_ACCESS_KEY");
            repository.session_token = value("AWS_SESSION_TOKEN");
        }
        repository.encryption_key = value("RESTIC_PASSWORD");
        // The server may have one for requests without: an empty answer leaves it
        // to that.
        if repository.encryption_key.is_empty() && session.io.prompt.is_some() {
            let question = format!("Passphrase of {path}: ");
            let answer = session.ask_secret(&question, "set RESTIC_PASSWORD")?;
            repository.encryption_key = answer.expose().to_owned();
        }
        Ok(repository)
    }

    /// The repository without what opens it.
    pub(super) fn bare(&self, path: &str) -> Repository {
        Repository {
            path: path.to_owned(),
            endpoint: self.store.clone(),
            skip_tls_verify: self.any_certificate,
            http_proxy: self.http_proxy.clone(),
            https_proxy: self.https_proxy.clone(),
            credentials: self.credentials.clone(),
            ..Repository::default()
        }
    }
}

/// The value of a line `NAME=VALUE`; empty if there is none.
fn in_lines(text: &str, name: &str) -> String {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("export "));
    let found = lines.filter_map(|line| line.split_once('=')).find(|(key, _)| *key == name);
    found.map(|(_, value)| value.trim_matches(['"', '\'']).to_owned()).unwrap_or_default()
}

impl Keep {
    /// None if no rule was given.
    pub(super) fn rules(self) -> Option<Retention> {
        let rules = Retention {
            last: self.keep_last.unwrap_or_default(),
            hourly: self.keep_hourly.unwrap_or_default(),
            daily: self.keep_daily.unwrap_or_default(),
            weekly: self.keep_weekly.unwrap_or_default(),
            monthly: self.keep_monthly.unwrap_or_default(),
            yearly: self.keep_yearly.unwrap_or_default(),
        };
        (rules != Retention::default()).then_some(rules)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use super::*;

    #[test]
    fn lines_are_as_other_programs_write_them() {
        let text = "# keys\nexport AWS_ACCESS_KEY_ID=me\nRESTIC_PASSWORD=\"a=b\"\n";
        assert_eq!(in_lines(text, "AWS_ACCESS_KEY_ID"), "me");
        assert_eq!(in_lines(text, "RESTIC_PASSWORD"), "a=b");
        assert_eq!(in_lines(text, "AWS_SESSION_TOKEN"), "");
    }

    #[test]
    fn no_rule_is_not_a_rule_that_keeps_nothing() {
        assert_eq!(Keep::default().rules(), None);
        let keep = Keep { keep_daily: Some(7), ..Keep::default() };
        assert_eq!(keep.rules(), Some(Retention { daily: 7, ..Retention::default() }));
    }

    #[test]
    fn a_keep_rule_of_nought_is_refused_with_its_flag() {
        #[derive(clap::Parser, Debug)]
        struct Line {
            #[command(flatten)]
            keep: Keep,
        }
        for rule in ["last", "hourly", "daily", "weekly", "monthly", "yearly"] {
            let flag = format!("--keep-{rule}");
            let given = |number: &str| Line::try_parse_from(["prune", flag.as_str(), number]);
            assert!(given("1").unwrap().keep.rules().is_some());
            let refused = given("0").unwrap_err().to_string();
            let said = format!("'0' for '{flag} <N>': a rule has to keep at least 1");
            assert!(refused.contains(&said), "{refused}");
        }
    }
}
