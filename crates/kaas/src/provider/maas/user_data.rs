//! User data of a machine, for its first start: it installs our agent, which joins
//! the controller by a token that is good for that machine and once. No other
//! secret is in it, and no key.

use base64::Engine as _;
use selvage_kit::identity::Secret;
use serde_json::json;
use zeroize::Zeroizing;

/// Script that installs the agent; takes where the program is, and its digest.
const INSTALL: &str = include_str!("install.sh");
const UNIT: &str = include_str!("selvage-node.service");

/// Place of the join token on the machine.
pub const TOKEN_FILE: &str = "/etc/selvage/join-token";

/// Values that the user data of a machine is made of.
pub(super) struct FirstStart<'a> {
    pub(super) controller: &'a str,
    pub(super) token: &'a Secret,
    pub(super) binary_url: &'a str,
    pub(super) binary_sha256: &'a str,
    pub(super) packages: &'a [String],
    pub(super) instance_type: &'a str,
}

impl FirstStart<'_> {
    /// The user data, in base64 as MaaS takes it.
    pub(super) fn encode(&self) -> Zeroizing<String> {
        let document = Zeroizing::new(format!("#cloud-config\n{}\n", self.document()));
        Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(document.as_bytes()))
    }

    /// JSON, which is YAML that nothing can be injected into.
    fn document(&self) -> serde_json::Value {
        let file = |path: &str, permissions: &str, content: &str| {
            json!({"path": path, "permissions": permissions, "owner": "root:root",
                   "content": content})
        };
        json!({
            "package_update": !self.packages.is_empty(),
            "packages": self.packages,
            "write_files": [
                file(TOKEN_FILE, "0600", self.token.expose()),
                file("/etc/selvage/node.toml", "0600", &self.config()),
                file("/etc/systemd/system/selvage-node.service", "0644", UNIT),
                file("/usr/local/sbin/selvage-install", "0755", INSTALL),
            ],
            "runcmd": [
                ["/usr/local/sbin/selvage-install", self.binary_url, self.binary_sha256],
            ],
        })
    }

    /// Configuration of the agent.
    fn config(&self) -> String {
        let mut labels = toml::Table::new();
        let (key, value) = ("instance-type".to_owned(), self.instance_type.to_owned());
        if !value.is_empty() && selvage_kit::labels::check([(&key, &value)]).is_ok() {
            labels.insert(key, value.into());
        }
        let mut join = toml::Table::new();
        join.insert("controller".into(), self.controller.into());
        join.insert("token_file".into(), TOKEN_FILE.into());
        join.insert("labels".into(), labels.into());
        let table = |key: &str, value: toml::Value| toml::Table::from_iter([(key.into(), value)]);
        let mut config = table("data", "/var/lib/selvage".into());
        config.insert("listen".into(), table("address", "0.0.0.0".into()).into());
        config.insert("join".into(), join.into());
        config.insert("node".into(), table("kubernetes", true.into()).into());
        config.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn user_data_is_cloud_config_with_the_token_in_one_file() {
        let token = Secret::new("slvj_secret");
        let start = FirstStart {
            controller: "edge.example:8443",
            token: &token,
            binary_url: "https://edge.example/selvage\"; reboot",
            binary_sha256: "ab",
            packages: &["containerd".into()],
            instance_type: "gpu",
        };
        let encoded = start.encode();
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded.as_bytes()).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let json = text.strip_prefix("#cloud-config\n").unwrap();
        let document: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(text.matches("slvj_secret").count(), 1);
        let files = document["write_files"].as_array().unwrap();
        let holder = files.iter().find(|file| file["content"] == "slvj_secret").unwrap();
        assert_eq!(holder["path"], TOKEN_FILE);
        assert_eq!(holder["permissions"], "0600");
        // Never words of a shell.
        assert_eq!(document["runcmd"][0][1], "https://edge.example/selvage\"; reboot");
        let config = files.iter().find(|file| file["path"] == "/etc/selvage/node.toml").unwrap();
        let config: toml::Table = config["content"].as_str().unwrap().parse().unwrap();
        assert_eq!(config["join"]["controller"].as_str(), Some("edge.example:8443"));
        assert_eq!(config["join"]["labels"]["instance-type"].as_str(), Some("gpu"));
    }
}
