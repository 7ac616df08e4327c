//! Files that the agent of this machine gives to no caller.

use std::path::PathBuf;

use selvage_kit::config::SecretFile;
use selvage_part::Kind;

use super::Config;
use crate::daemon::store::FILE as STORE_FILE;

impl Config {
    /// Files and folders with keys, credentials and state. Those with keys
    /// come first, and the data directory itself last: what is named here by
    /// itself is also known by its inode.
    pub(crate) fn protected(&self) -> Vec<PathBuf> {
        let kinds =
            [Kind::Node, Kind::Cloudlet, Kind::Dme].map(|kind| self.data.join(kind.directory()));
        let kept = ["pki", STORE_FILE, "initial-admin-password"].map(|name| self.data.join(name));
        let (store, influx, crm) = (&self.store, &self.controller.influx, &self.crm);
        let dashboard = &self.dashboard;
        let files = [
            &self.tls.key,
            &store.key,
            &crm.site,
            &crm.kubeconfig,
            &crm.pull_secrets,
            &self.lvmd.config,
            &dashboard.kubeconfig,
            &self.kaas.ssh.key_file,
        ];
        let secrets: [&Option<SecretFile>; 11] = [
            &store.password_file,
            &influx.password_file,
            &influx.token_file,
            &self.join.token_file,
            &self.dme.location_password_file,
            &self.dns.update.key_file,
            &dashboard.ceph.password_file,
            &dashboard.prometheus.token_file,
            &self.kaas.maas.api_key_file,
            &self.kaas.backup.secret_access_key_file,
            &self.kaas.backup.password_file,
        ];
        let machines =
            self.kaas.ssh.machines.values().filter_map(|machine| machine.key_file.clone());
        let clients =
            self.auth.oidc.iter().filter_map(|provider| provider.client_secret_file.clone());
        kinds
            .into_iter()
            .chain(kept)
            .chain(files.into_iter().flatten().cloned())
            .chain(secrets.into_iter().flatten().map(|file| file.0.clone()))
            .chain(clients)
            .chain(machines)
            .chain([self.data.clone()])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_file_with_a_secret_is_forgotten() {
        let files = serde_json::json!({
            "data": "/data",
            "tls": { "key": "/s/tls.key" },
            "store": { "key": "/s/store.key", "password_file": "/s/store.password" },
            "controller": {
                "influx": { "password_file": "/s/influx.password", "token_file": "/s/influx.token" }
            },
            "join": { "token_file": "/s/join" },
            "dns": { "update": { "key_file": "/s/tsig" } },
            "dme": { "location_password_file": "/s/location" },
            "dashboard": {
                "ceph": { "password_file": "/s/ceph" },
                "prometheus": { "token_file": "/s/prometheus" },
                "kubeconfig": "/s/kubeconfig",
            },
            "kaas": {
                "maas": { "api_key_file": "/s/maas" },
                "backup": {
                    "secret_access_key_file": "/s/s3",
                    "password_file": "/s/backup.password",
                },
                "ssh": {
                    "key_file": "/s/ssh",
                    "machines": { "m": { "address": "a", "host_keys": [], "key_file": "/s/ssh-m" } },
                },
            },
            "auth": { "oidc": [{
                "name": "corp",
                "issuer": "https://login.example",
                "client_id": "selvage",
                "client_secret_file": "/s/oidc",
            }] },
        });
        let config: Config = serde_json::from_value(files.clone()).unwrap();
        let protected = config.protected();
        for file in files.to_string().split('"').filter(|text| text.starts_with("/s/")) {
            assert!(protected.contains(&PathBuf::from(file)), "{file}");
        }
        // Whoever adds a setting of this kind adds it above, too.
        let written = serde_json::to_value(&config).unwrap().to_string();
        let settings = written.matches("_file\":").count() + written.matches("\"key\":").count();
        assert_eq!(settings, 17, "{written}");
        for kept in ["pki", "joined", "joined-cloudlet", "joined-dme", "store.redb"] {
            assert!(protected.contains(&PathBuf::from("/data").join(kept)), "{kept}");
        }
    }
}
