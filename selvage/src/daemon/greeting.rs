//! Greetings to the person who started a daemon.

use std::io::Write;

use selvage_auth::GeneratedPassword;
use selvage_membership::{Kind, Member};
use selvage_part::Process;

use super::{identity, ready::Ready};
use crate::{config::Config, parts::Info};

/// Prints the next steps with a daemon that has a store.
pub(super) fn own(
    config: &Config,
    ready: &Ready,
    process: &Process,
    first: Option<&GeneratedPassword>,
) {
    let mut text = String::new();
    let endpoint = ready.endpoint.as_deref().unwrap_or_default();
    let selvage = command_name();
    text += &format!("\nSelvage {} answers on {endpoint}\n", env!("CARGO_PKG_VERSION"));
    if config.insecure {
        text += "\n  *** INSECURE: no encryption, and everybody who can reach this port is admin. ***\n";
    }
    let password_file = identity::password_file(config);
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
    if let Some(address) = ready.addresses.get("dns") {
        let root = &config.controller.root_domain;
        text += &format!("\n  Names of apps below {root} are answered by DNS on {address}\n");
    }
    let is_missing = |name: &&str| Info::find(name).is_some_and(|info| !info.built);
    let missing: Vec<&str> = process.running.iter().copied().filter(is_missing).collect();
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
        "\n  Try:  {login}\n        {selvage} status\n        {selvage} dashboard\n  Page: {endpoint}/  (API: {endpoint}/docs)\n\n"
    );
    print(&text);
}

/// Prints the addresses of a daemon that joined a controller, and its name.
pub(super) fn joined(ready: &Ready, member: &Member, kind: Kind) {
    let ends = jiff::Timestamp::from_second(member.not_after()).unwrap_or_default();
    print(&format!(
        "\nSelvage {} answers on {} as {kind}/{}\n  Controller:  {}\n  Certificate: until {ends}, renewed by itself\n\n",
        env!("CARGO_PKG_VERSION"),
        ready.endpoint.as_deref().unwrap_or_default(),
        member.name(),
        member.controller(),
    ));
}

/// The sockets of a daemon that has nothing else, for the log.
pub(super) fn bare(ready: &Ready) {
    for (name, path) in &ready.sockets {
        tracing::info!(part = name, socket = %path.display(), "the socket is served");
    }
}

fn print(text: &str) {
    // A closed stdout is no reason to stop serving.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Returns the name by which a shell calls this program, where that leads here.
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
