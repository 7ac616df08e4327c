//! What is said to whoever started a daemon.

use std::io::Write;

use selvage_auth::GeneratedPassword;

use crate::{assemble, config::Config, part::Part, ready::Ready};

/// Tells the person who started it what to do next.
pub(crate) fn greet(
    config: &Config,
    ready: &Ready,
    parts: &[Part],
    first: Option<&GeneratedPassword>,
) {
    let mut text = String::new();
    let endpoint = &ready.endpoint;
    let selvage = command_name();
    text += &format!("\nSelvage {} answers on {endpoint}\n", env!("CARGO_PKG_VERSION"));
    if config.insecure {
        text += "\n  *** INSECURE: no encryption, and everybody who can reach this port is admin. ***\n";
    }
    let password_file = assemble::password_file(config);
    let kept = password_file.display();
    match first {
        Some(password) => {
            text += &format!(
                "\n  First start. Log in as admin with the password {}\n  (kept in {kept}; change it with `{selvage} user passwd`)\n",
                password.expose(),
            );
        }
        None if password_file.exists() => {
            text += &format!("\n  The first password of admin is in {kept}\n");
        }
        None => {}
    }
    let missing: Vec<&str> =
        parts.iter().filter(|part| !part.is_built()).map(|part| part.name()).collect();
    if !missing.is_empty() {
        text += &format!(
            "\n  Not built in this version, answering UNIMPLEMENTED: {}\n",
            missing.join(", ")
        );
    }
    let ca = ready.ca.as_ref().map(|ca| format!(" --ca {}", ca.display())).unwrap_or_default();
    let login = if config.insecure {
        format!("export SELVAGE_ENDPOINT={endpoint}")
    } else {
        format!("{selvage} login {endpoint}{ca} --username admin")
    };
    text += &format!(
        "\n  Try:  {login}\n        {selvage} status\n        {selvage} api list\n  Page: {endpoint}/docs\n\n"
    );
    // A closed stdout is no reason to stop serving.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// How a shell calls this program: by its name, where that leads here.
fn command_name() -> String {
    let name = env!("CARGO_PKG_NAME");
    let Ok(own) = std::env::current_exe() else { return name.to_owned() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|it| it.is_file());
    let found = found.and_then(|found| found.canonicalize().ok());
    if found.is_some() && found == own.canonicalize().ok() {
        return name.to_owned();
    }
    own.display().to_string()
}
