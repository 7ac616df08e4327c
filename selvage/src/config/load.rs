//! Reads the configuration of a daemon, and prints it.

use std::io::Write;

use anyhow::Context;
use selvage_kit::config::Loader;

use super::Config;
use crate::{args::Serve, demo, join};

/// Exit code of a configuration that cannot be used.
pub(crate) const BAD_CONFIG: u8 = 64;

/// Environment variables that are not settings of a daemon.
const CLIENT_VARIABLES: [&str; 13] = [
    "SELVAGE_CA",
    "SELVAGE_CERT",
    "SELVAGE_CONFIG",
    "SELVAGE_CONFIG_FILE",
    "SELVAGE_CONTEXT",
    "SELVAGE_ENDPOINT",
    join::TOKEN_VARIABLE,
    "SELVAGE_KEY",
    "SELVAGE_KUBECTL",
    "SELVAGE_NODES",
    "SELVAGE_OUTPUT",
    "SELVAGE_TIMEOUT",
    "SELVAGE_TOKEN",
];

/// Keys that have a new name; the old one is understood for one more release.
const RENAMED: [(&str, &str); 9] = [
    ("node.controller", "join.controller"),
    ("node.join_file", "join.token_file"),
    ("node.ca", "join.ca"),
    ("node.ca_sha256", "join.ca_sha256"),
    ("node.advertise", "join.advertise"),
    ("node.labels", "join.labels"),
    ("node.report", "join.report_interval"),
    ("crm.patience", "crm.start_timeout"),
    ("crm.look", "crm.resync_interval"),
];

/// Reads the configuration: defaults, file, environment, flags.
pub(crate) fn load(serve: &Serve) -> anyhow::Result<Config> {
    let mut loader = Loader::new().environment().allow_variables(CLIENT_VARIABLES);
    if let Some(path) = &serve.config {
        loader = loader.file(path);
    }
    if let Some(data) = &serve.data {
        loader = loader.flag("--data", "data", data.display().to_string());
    }
    if let Some(port) = serve.port {
        loader = loader.flag("--port", "listen.port", port.to_string());
    }
    if let Some(address) = &serve.address {
        loader = loader.flag("--address", "listen.address", address.as_str());
    }
    if serve.insecure {
        loader = loader.flag("--insecure", "insecure", "true");
    }
    if serve.allow_power {
        loader = loader.flag("--allow-power", "node.allow_power", "true");
    }
    if let Some(filter) = &serve.log {
        loader = loader.flag("--log", "log.filter", filter.as_str());
    }
    if let Some(format) = &serve.log_format {
        loader = loader.flag("--log-format", "log.format", format.as_str());
    }
    for setting in &serve.settings {
        loader = loader.set(setting)?;
    }
    for (old, new) in RENAMED {
        loader = loader.renamed(old, new);
    }
    let (mut config, warnings): (Config, _) = loader.load_with_warnings()?;
    config.warnings = warnings;
    if serve.demo && config.crm.cloudlet.is_empty() {
        config.crm.cloudlet = demo::CLOUDLET.into();
    }
    if serve.whole {
        config.dns.listen_by_default();
        config.controller.strict_by_default();
    }
    config.validate()?;
    // Paths in what we write must mean the same to whoever reads them.
    config.data = std::path::absolute(&config.data).context("data")?;
    Ok(config)
}

/// Prints the configuration in force.
pub(crate) fn dump(config: &Config) -> anyhow::Result<()> {
    let text = selvage_kit::config::dump(config)?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
