//! Secrets that people put on command lines, blotted out for those who have
//! no business with them.

use std::borrow::Cow;

use selvage_auth::TOKEN_PREFIXES;

/// Text that replaces a secret.
const BLOT: &str = "***";

/// Parts of the names that secrets are given under, without `-` and `_`.
const TELLING: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "token",
    "credential",
    "apikey",
    "accesskey",
    "accountkey",
    "encryptionkey",
    "masterkey",
    "privatekey",
    "sharedkey",
    "signingkey",
    "auth",
    "bearer",
    "cookie",
    "session",
    "signature",
    "pwd",
];

/// Prefixes of tokens of well-known issuers.
const TOKENS: &[&str] = &[
    "eyJ",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "sk-",
    "sk_live_",
    "AKIA",
    "ASIA",
    "xoxb-",
    "xoxp-",
    "hvs.",
    "npm_",
];

/// Options of many programs that hold `user:password`.
const USERS: &[&str] = &["-u", "--user", "--proxy-user"];

/// Programs whose short option holds a password.
const SHORT_PASSWORD: &[(&str, &str)] = &[
    ("mysql", "-p"),
    ("mysqldump", "-p"),
    ("mysqladmin", "-p"),
    ("mariadb", "-p"),
    ("sshpass", "-p"),
    ("curl", "-u"),
    ("curl", "-U"),
    ("wget", "--user"),
    ("redis-cli", "-a"),
    ("ldapsearch", "-w"),
    ("smbclient", "-U"),
    ("ipmitool", "-P"),
    ("openssl", "-k"),
];

/// The words of a command line with everything in them that looks like a
/// secret blotted out: values of options with a telling name, whether after
/// `=` or as the next word, users in URLs, headers, fields of JSON, well-known
/// tokens.
pub fn redact<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<Cow<'a, str>> {
    let mut program = "";
    let mut next_is_secret = false;
    let mut redacted = Vec::new();
    let mut before = "";
    for (index, word) in words.into_iter().enumerate() {
        // A shell's line has several, and some run others.
        let name = word.rsplit('/').next().unwrap_or_default();
        if index == 0 || SHORT_PASSWORD.iter().any(|(known, _)| *known == name) {
            program = name;
        }
        let option = std::mem::replace(&mut before, word);
        if USERS.contains(&option) && holds_password(word) {
            next_is_secret = true;
        }
        // A path that is called secret is none: `--token-file /etc/token`.
        if std::mem::take(&mut next_is_secret) && !word.starts_with('-') && !is_path(word) {
            redacted.push(Cow::Borrowed(BLOT));
            continue;
        }
        next_is_secret = announces_secret(program, word);
        let shown = if index == 0 && !word.contains([' ', '=']) {
            url(word)
        } else if let Some(blotted) = fields(word) {
            Cow::Owned(one(program, &blotted).into_owned())
        } else {
            one(program, word)
        };
        redacted.push(match own_tokens(&shown) {
            Some(blotted) => Cow::Owned(blotted),
            None => shown,
        });
    }
    redacted
}

/// The word without tokens of ours, wherever they stand in it, if it holds any.
fn own_tokens(word: &str) -> Option<String> {
    let begins = |text: &str| TOKEN_PREFIXES.iter().filter_map(|token| text.find(token)).min();
    let mut rest = word;
    let mut blotted = String::new();
    while let Some(start) = begins(rest) {
        let token = &rest[start..];
        let part_of_it = |byte: char| byte.is_ascii_alphanumeric() || "_-.".contains(byte);
        let end = token.find(|byte| !part_of_it(byte)).unwrap_or(token.len());
        blotted.push_str(&rest[..start]);
        blotted.push_str(BLOT);
        rest = &token[end..];
    }
    if blotted.is_empty() {
        return None;
    }
    blotted.push_str(rest);
    Some(blotted)
}

/// The word without the values of fields with a telling name, if there are any
/// as JSON writes them. Within a string of a shell its quotes are escaped.
fn fields(word: &str) -> Option<String> {
    let mut blotted = String::new();
    let mut rest = word;
    while let Some(colon) = rest.find("\":") {
        let (before, after) = rest.split_at(colon + 2);
        blotted.push_str(before);
        let name = before[..colon].trim_end_matches('\\');
        let name = name.rsplit(['"', '\\']).next().unwrap_or_default();
        let value = after.trim_start();
        rest = after;
        if telling(name) && !value.is_empty() {
            blotted.push_str(&after[..after.len() - value.len()]);
            blotted.push_str(BLOT);
            rest = &value[end_of_value(value)..];
        }
    }
    blotted.push_str(rest);
    (blotted != word).then_some(blotted)
}

/// Returns the offset at which a value of JSON ends.
fn end_of_value(value: &str) -> usize {
    for quote in ["\"", "\\\""] {
        let Some(inside) = value.strip_prefix(quote) else { continue };
        let ends = |at: &usize| quote.len() > 1 || !inside[..*at].ends_with('\\');
        let end = inside.match_indices(quote).map(|(at, _)| at).find(ends);
        return end.map_or(value.len(), |at| quote.len() + at + quote.len());
    }
    value.find([',', '}', ' ', '\n']).unwrap_or(value.len())
}

/// Returns whether this is a user with a password, and not two numbers.
fn holds_password(user: &str) -> bool {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    user.split_once(':').is_some_and(|(user, group)| !(number(user) && number(group)))
}

/// Returns whether the next word is the value of this one.
fn announces_secret(program: &str, word: &str) -> bool {
    let short = SHORT_PASSWORD.iter().any(|(name, option)| *name == program && *option == word);
    short || (word.starts_with('-') && !word.contains('=') && telling(word))
}

fn one<'a>(program: &str, word: &'a str) -> Cow<'a, str> {
    for (name, option) in SHORT_PASSWORD {
        if *name == program && word.starts_with(option) && word.len() > option.len() {
            return Cow::Owned(format!("{option}{BLOT}"));
        }
    }
    if TOKENS.iter().any(|token| word.starts_with(token) && word.len() >= token.len() + 12) {
        return Cow::Borrowed(BLOT);
    }
    if let Some((name, value)) = word.split_once(": ")
        && telling(name)
        && !value.is_empty()
    {
        return Cow::Owned(format!("{name}: {BLOT}"));
    }
    // A whole command line in one word, as after `sh -c`.
    if word.contains(' ') {
        return Cow::Owned(redact(word.split(' ')).join(" "));
    }
    if let Some((name, value)) = word.split_once('=')
        && !value.is_empty()
    {
        let user = USERS.contains(&name) && holds_password(value);
        if user || (telling(name) && !is_path(value)) {
            return Cow::Owned(format!("{name}={BLOT}"));
        }
        return match one("", value) {
            Cow::Borrowed(same) if same.len() == value.len() => Cow::Borrowed(word),
            changed => Cow::Owned(format!("{name}={changed}")),
        };
    }
    url(word)
}

/// Takes `user:password` out of a URL.
fn url(word: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = word.split_once("://") else { return Cow::Borrowed(word) };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => Cow::Owned(format!("{scheme}://{BLOT}{}", &rest[at..])),
        None => Cow::Borrowed(word),
    }
}

fn is_path(value: &str) -> bool {
    value.starts_with('/') || value.starts_with("./") || value.starts_with("file:")
}

fn telling(name: &str) -> bool {
    // The last part counts: `--set auth.idle=5m` says nothing secret.
    let last = name.rsplit(['.', ',', ' ', '/', '=']).next().unwrap_or(name);
    let last = last.to_ascii_lowercase().replace(['-', '_'], "");
    let not_itself = ["file", "path", "dir", "ttl", "type", "mode", "method", "timeout"];
    let pass = last.ends_with("pass") && !last.ends_with("bypass");
    (pass || TELLING.iter().any(|part| last.contains(part)))
        && !not_itself.iter().any(|suffix| last.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(line: &str) -> String {
        redact(line.split('|')).join(" ")
    }

    #[test]
    fn secrets_are_blotted_out_wherever_people_put_them() {
        for (line, shown) in [
            ("srv|--password=hunter2|--port=80", "srv --password=*** --port=80"),
            ("srv|--api-token|hunter2|-v", "srv --api-token *** -v"),
            ("env|DB_PASSWORD=hunter2|app", "env DB_PASSWORD=*** app"),
            ("curl|-u|bob:hunter2|https://h/x", "curl -u *** https://h/x"),
            ("curl|-H|Authorization: Bearer hunter2", "curl -H Authorization: ***"),
            ("psql|postgres://bob:hunter2@db/x", "psql postgres://***@db/x"),
            ("app|--db=postgres://bob:hunter2@db/x", "app --db=postgres://***@db/x"),
            ("mysql|-phunter2|x", "mysql -p*** x"),
            ("sh|-c|run --token hunter2 --x=1", "sh -c run --token *** --x=1"),
            ("sh|-c|curl -H 'Authorization: Basic hunter2' h", "sh -c curl -H 'Authorization: ***"),
            ("curl|--header=Authorization: Basic hunter2", "curl --header=Authorization: ***"),
            ("title: --password=hunter2 in one word", "title: --password=*** in one word"),
            ("x|eyJhbGciOiJIUzI1NiJ9.hunter2", "x ***"),
            ("x|--jwt=eyJhbGciOiJIUzI1NiJ9.hunter2", "x --jwt=***"),
            ("x|slv_hunter2", "x ***"),
            ("selvage|node|--join|slvj_hunter2.ab12|-v", "selvage node --join *** -v"),
            ("selvage|node|--join=slvj_hunter2.ab12", "selvage node --join=***"),
            ("sh|-c|A=slv_a; B='slvj_b.c' x", "sh -c A=***; B='***' x"),
            ("slvj_hunter2", "***"),
            ("ci|slvt_hunter2,y", "ci ***,y"),
            ("curl|https://h/x?t=slv_hunter2&u=1", "curl https://h/x?t=***&u=1"),
            ("redis-server|--requirepass|hunter2", "redis-server --requirepass ***"),
            ("env|MYSQL_ROOT_PASS=hunter2", "env MYSQL_ROOT_PASS=***"),
            ("srv|--encryption-key=hunter2", "srv --encryption-key=***"),
            ("srv|--api_key|hunter2", "srv --api_key ***"),
            ("httpie|--user|bob:hunter2|h", "httpie --user *** h"),
            ("httpie|--user=bob:hunter2", "httpie --user=***"),
            ("sh|-c|cd x && curl -u bob:hunter2 h", "sh -c cd x && curl -u *** h"),
            ("sudo|mysql|-phunter2", "sudo mysql -p***"),
            (
                r#"curl|-d|{"user":"bob","password":"hun\"ter2","n":1}"#,
                r#"curl -d {"user":"bob","password":***,"n":1}"#,
            ),
            (r#"srv|--x={"token":12345}"#, r#"srv --x={"token":***}"#),
            (
                r#"sh|-c|curl -d "{\"pass\":\"hunter2\",\"n\":1}" h"#,
                r#"sh -c curl -d "{\"pass\":***,\"n\":1}" h"#,
            ),
        ] {
            assert_eq!(redacted(line), shown);
        }
    }

    #[test]
    fn tokens_of_ours_are_blotted_out_whatever_their_kind() {
        for prefix in TOKEN_PREFIXES {
            assert_eq!(redacted(&format!("x|--it={prefix}hunter2")), "x --it=***");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for line in [
            "srv|--token-file=/etc/token|--port=80",
            "srv|--token-file|/etc/token",
            "srv|--auth.idle=5m",
            "/usr/bin/passwd|bob",
            "srv|--password",
            "srv|--password|--port=80",
            "mkdir|-p|/srv/x",
            "docker|run|-u|1000:1000|x",
            "sudo|-u|bob|x",
            "srv|--allow-bypass|on",
            r#"srv|{"user":"bob","n":1}"#,
            "",
        ] {
            assert_eq!(redacted(line), line.replace('|', " "));
        }
    }
}
