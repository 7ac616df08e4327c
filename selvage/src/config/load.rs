//! Reads the configuration of a daemon, and prints it.

use std::io::Write;

use anyhow::Context;
use selvage_kit::config::Loader;

use super::Config;
use crate::{agent, args::Serve, demo};

/// Exit code of a configuration that cannot be used.
pub(crate) const BAD_CONFIG: u8 = 64;

/// Environment variables that are not settings of a daemon.
const CLIENT_VARIABLES: [&str; 12] = [
    "SELVAGE_CA",
    "SELVAGE_CERT",
    "SELVAGE_CONFIG",
    "SELVAGE_CONFIG_FILE",
    "SELVAGE_CONTEXT",
    "SELVAGE_ENDPOINT",
    agent::TOKEN_VARIABLE,
    "SELVAGE_KEY",
    "SELVAGE_NODES",
    "SELVAGE_OUTPUT",
    "SELVAGE_TIMEOUT",
    "SELVAGE_TOKEN",
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
    let mut config: Config = loader.load()?;
    if serve.demo && config.crm.cloudlet.is_empty() {
        config.crm.cloudlet = demo::CLOUDLET.into();
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
