//! A cloudlet with an app of `acme` and one of `evil`.

use std::path::{Path, PathBuf};

use selvage_tests::{
    Client, Selvage,
    cloudlet::{busybox, cloudlet_here, furnish_here},
    process::{Cli, Printed},
};
use serde_json::{Value, json};

const PASSWORD: &str = "a long enough password";
/// Secret of the organisation `acme`.
pub(crate) const CANARY: &str = "acme-canary";

/// A running site. Networks of its clusters are `10.NUMBER.1.0/24` for `acme`
/// and `10.NUMBER.2.0/24` for `evil`.
pub(crate) struct Site {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) selvage: Selvage,
    pub(crate) admin: Cli,
    pub(crate) cloudlet: String,
    evil: Cli,
    token: String,
}

impl Site {
    /// Starts everything but the apps.
    pub(crate) async fn start(number: u8) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Names of bridges are made of it, and tests run side by side.
        let cloudlet = format!("edge{number}");
        let scheme = format!("network_scheme: 10.{number}.0.0/16");
        let flags = cloudlet_here(directory.path(), &cloudlet, &scheme);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let selvage = Selvage::up_in(directory.path(), &flags);
        let admin = Cli::admin_of(&selvage);
        furnish_here(&admin, &cloudlet);
        admin.ok(&["developer", "create", "--name", "evil"]);
        let password = admin.home().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let file = password.to_str().unwrap();
        admin.ok(&["user", "add", "eve", "--role", "developer:evil", "--password-file", file]);
        let token = Client::login(&selvage, "eve", PASSWORD).await.unwrap().token.unwrap();
        Self { directory, selvage, admin, cloudlet, evil: Cli::new(), token }
    }

    /// An image with the tools of somebody who looks around.
    pub(crate) fn image(&self) -> PathBuf {
        let path = self.directory.path().join("web.tar");
        let tools = ["sh", "httpd", "cat", "wget", "mount", "mknod", "id", "sleep", "env"];
        let image = busybox(&tools);
        let image = image.command(["/bin/httpd", "-f", "-p", "8080", "-h", "/www"]);
        let image = image.file("www/index.html", 0o644, b"hello").unwrap();
        image.write("localhost/web:1", &path).unwrap();
        path
    }

    /// Runs an app of each, with this image.
    pub(crate) fn run_both(&self, image: &Path) {
        let path = format!("file://{}", image.display());
        let secret = format!("- name: SECRET\n  value: {CANARY}\n");
        let config = format!("configs[0].config={secret}");
        let kept = ["--set", "configs[0].kind=envVarsYaml", "--set", &config];
        for (developer, more) in [("acme", &kept[..]), ("evil", &[])] {
            let app = app(developer, "web", &path);
            self.admin.ok(&[&["app", "create"][..], &words(&app), more].concat());
            self.admin
                .ok(&[&["appinst", "create"][..], &words(&self.instance(developer))].concat());
        }
    }

    /// Removes the apps: instances outlive the process that made them.
    pub(crate) fn end(self) {
        for developer in ["acme", "evil"] {
            let instance = self.instance(developer);
            self.admin.ok(&[&["appinst", "delete", "--yes"][..], &words(&instance)].concat());
        }
    }

    /// The words that name the instance of a developer's app.
    fn instance(&self, developer: &str) -> Vec<String> {
        let named = ["--developer", developer, "--appname", "web", "--appvers", "1"];
        let cluster = format!("autocluster{developer}");
        let place = ["--operator", "op", "--cloudlet", &self.cloudlet, "--cluster", &cluster];
        [&named[..], &place].concat().into_iter().map(str::to_owned).collect()
    }

    /// The key of an instance of one developer's app in a cluster of another.
    pub(crate) fn instance_key(&self, developer: &str, cluster_of: &str) -> Value {
        json!({
            "app_key": app_key(developer),
            "cluster_inst_key": {
                "cluster_key": {"name": format!("autocluster{cluster_of}")},
                "cloudlet_key": self.cloudlet_key(),
                "developer": cluster_of,
            },
        })
    }

    pub(crate) fn cloudlet_key(&self) -> Value {
        json!({"operator_key": {"name": "op"}, "name": self.cloudlet})
    }

    /// Runs a command of the developer of `evil`.
    pub(crate) fn evil(&self, line: &[&str]) -> Printed {
        let ca = self.selvage.ready()["ca"].as_str().unwrap();
        let way = ["--endpoint", self.selvage.endpoint(), "--ca", ca];
        let variables = [("SELVAGE_TOKEN", self.token.as_str())];
        self.evil.run_with(&[&way[..], line].concat(), &variables, None)
    }

    /// Runs a command in the instance of `evil`.
    pub(crate) fn inside(&self, script: &str) -> Printed {
        self.evil(&["exec", "web", "--", "sh", "-c", script])
    }

    /// Calls a method as the developer of `evil`.
    pub(crate) fn call(&self, method: &str, message: &Value) -> Printed {
        self.evil(&["call", method, &message.to_string()])
    }
}

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

/// The words that make an app.
pub(crate) fn app(developer: &str, name: &str, image: &str) -> Vec<String> {
    let named = ["--developer", developer, "--appname", name, "--appvers", "1"];
    let of = ["--imagepath", image, "--imagetype", "docker", "--deployment", "docker"];
    let runs = ["--accessports", "tcp:8080", "--defaultflavor", "s"];
    [&named[..], &of, &runs].concat().into_iter().map(str::to_owned).collect()
}

pub(crate) fn app_key(developer: &str) -> Value {
    json!({"developer_key": {"name": developer}, "name": "web", "version": "1"})
}
