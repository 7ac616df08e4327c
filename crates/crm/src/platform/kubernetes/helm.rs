//! Charts, rendered by the program `helm`: it is given words, never a line for
//! a shell, and nothing of the cluster. What it renders is checked and applied
//! as any manifest is.

use std::{
    ffi::OsString,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use selvage_api::edgeproto::App;
use selvage_runtime::private_directory;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{
    manifest::{self, MAX_BYTES, Object},
    names::InstanceNames,
};
use crate::{Error, Result, error::During};

/// The contract's word for a file of values, in the original's spelling and in
/// the right one.
const VALUES: [&str; 2] = ["hemlCustomizationYaml", "helmCustomizationYaml"];
/// Time in which a chart must be rendered.
const RENDER_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of an error text of helm that are passed on.
const MAX_ERROR: usize = 16 << 10;
/// Annotations by which helm knows objects that belong to a moment.
const HOOK: &str = "helm.sh/hook";
const HOOK_WEIGHT: &str = "helm.sh/hook-weight";

/// The program, and where it may keep files.
pub(super) struct Helm<'a> {
    pub(super) program: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) names: &'a InstanceNames,
    /// Version of the cluster that charts are rendered for.
    pub(super) version: String,
}

/// Files that are gone when this is.
struct Files(Vec<PathBuf>);

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "not removed");
            }
        }
    }
}

impl Helm<'_> {
    /// Renders a chart of this machine, with everything that is in it.
    pub(super) async fn render(&self, app: &App, chart: &Path) -> Result<Vec<Object>> {
        private_directory(self.folder).during("making a folder for charts")?;
        let values = self.values(app)?;
        let text = tokio::time::timeout(RENDER_TIMEOUT, self.run(chart, &values)).await;
        let text = text.map_err(|_| Error::state("helm takes too long to render the chart"))??;
        Ok(in_order(manifest::read(&text)?))
    }

    fn values(&self, app: &App) -> Result<Files> {
        let mut files = Files(Vec::new());
        let given = app.configs.iter().filter(|config| VALUES.contains(&config.kind.as_str()));
        for (number, config) in given.enumerate() {
            let path = self.folder.join(format!("{}-{number}.yaml", self.names.release));
            let mut options = std::fs::OpenOptions::new();
            let file = options.create(true).truncate(true).write(true).mode(0o600).open(&path);
            let mut file = file.during("writing a file of values")?;
            files.0.push(path);
            io::Write::write_all(&mut file, config.config.as_bytes())
                .during("writing a file of values")?;
        }
        Ok(files)
    }

    fn words(&self, chart: &Path, values: &Files) -> Vec<OsString> {
        let mut words: Vec<OsString> =
            ["template", "--include-crds", "--namespace"].map(Into::into).into();
        words.push(OsString::from(&self.names.namespace));
        words.extend(["--kube-version".into(), OsString::from(&self.version)]);
        for path in &values.0 {
            words.extend(["--values".into(), path.into()]);
        }
        // What comes after this is never taken for a flag.
        words.extend(["--".into(), OsString::from(&self.names.release), chart.into()]);
        words
    }

    async fn run(&self, chart: &Path, values: &Files) -> Result<String> {
        let mut command = tokio::process::Command::new(self.program);
        command.args(self.words(chart, values)).env_clear().kill_on_drop(true);
        // No cluster to ask, and nothing of the user that the crm runs as.
        command.env("KUBECONFIG", "/dev/null").env("HOME", self.folder);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut helm = match command.spawn() {
            Ok(helm) => helm,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let reason = "deployment helm needs the program helm on the crm's machine, and \
                              there is none";
                return Err(Error::state(reason));
            }
            Err(source) => return Err(Error::Io { doing: "running helm", source }),
        };
        let (out, errors) = (helm.stdout.take(), helm.stderr.take());
        let (out, errors) = tokio::join!(read(out, MAX_BYTES), read(errors, MAX_ERROR));
        let status = helm.wait().await.during("running helm")?;
        let errors = String::from_utf8_lossy(&errors.unwrap_or_default()).trim().to_owned();
        if !status.success() {
            let ended = || format!("helm template ended with {status}");
            return Err(Error::state(if errors.is_empty() { ended() } else { errors }));
        }
        let too_long = || Error::state(format!("the chart renders more than {MAX_BYTES} bytes"));
        Ok(String::from_utf8_lossy(&out.ok_or_else(too_long)?).into_owned())
    }
}

/// Everything that is written there; none where it is too much. What is too
/// much is read all the same, so that the program comes to its end.
async fn read(from: Option<impl AsyncRead + Unpin>, limit: usize) -> Option<Vec<u8>> {
    let mut from = from?;
    let mut text = Vec::new();
    let mut piece = vec![0; 16 << 10];
    let mut too_much = false;
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        too_much |= text.len() + length > limit;
        if !too_much {
            text.extend_from_slice(&piece[..length]);
        }
    }
    (!too_much).then_some(text)
}

/// Sorts hooks to where they belong. Those that run at other moments than at
/// install and upgrade (tests, deletion, rollback) are left out.
fn in_order(objects: Vec<Object>) -> Vec<Object> {
    let mut placed: Vec<((i8, i64), Object)> = Vec::new();
    for object in objects {
        let annotation = |name: &str| object.value["metadata"]["annotations"][name].as_str();
        let weight = annotation(HOOK_WEIGHT).and_then(|weight| weight.parse().ok()).unwrap_or(0);
        let Some(hooks) = annotation(HOOK) else {
            placed.push(((0, 0), object));
            continue;
        };
        let of = |names: [&str; 2]| hooks.split(',').any(|hook| names.contains(&hook.trim()));
        if of(["pre-install", "pre-upgrade"]) {
            placed.push(((-1, weight), object));
        } else if of(["post-install", "post-upgrade"]) {
            placed.push(((1, weight), object));
        }
    }
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, object)| object).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::PermissionsExt;

    use selvage_api::edgeproto::ConfigFile;

    use super::*;

    fn names() -> InstanceNames {
        let text = |text: &str| text.to_owned();
        InstanceNames {
            namespace: text("ns"),
            id: text("id"),
            record: text("selvage-id"),
            release: text("release"),
        }
    }

    /// Renders with a program in place of helm.
    async fn render(script: &str) -> Result<Vec<Object>> {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("helm");
        std::fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let names = names();
        let folder = directory.path().join("files");
        let version = "v1.33.0".into();
        let helm = Helm { program: &program, folder: &folder, names: &names, version };
        let values = ConfigFile { kind: VALUES[1].into(), config: "a: b".into() };
        let app = App { configs: vec![values], ..App::default() };
        let rendered = helm.render(&app, Path::new("/charts/one.tgz")).await;
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "values stay");
        rendered
    }

    #[tokio::test]
    async fn helm_gets_the_chart_and_the_values_and_no_cluster() {
        let script = r#"cat <<YAML
apiVersion: v1
kind: ConfigMap
metadata: {name: seen}
data:
  words: "$*"
  variables: "$(env | cut -d= -f1 | sort | tr '\n' ' ')"
  kubeconfig: "$KUBECONFIG"
  values: "$(cat $(echo "$*" | sed 's/.*--values \([^ ]*\).*/\1/'))"
YAML
"#;
        let seen = render(script).await.unwrap().remove(0).value;
        let of = |name: &str| seen["data"][name].as_str().unwrap();
        assert!(
            of("words")
                .starts_with("template --include-crds --namespace ns --kube-version v1.33.0 ")
        );
        assert!(of("words").ends_with(" -- release /charts/one.tgz"), "{}", of("words"));
        assert_eq!(of("kubeconfig"), "/dev/null");
        assert_eq!(of("values"), "a: b");
        let mut variables = of("variables").split(' ').filter(|name| !name.is_empty());
        let known = ["HOME", "KUBECONFIG", "PATH", "PWD", "_", "SHLVL", "OLDPWD"];
        assert_eq!(variables.find(|name| !known.contains(name)), None);
    }

    #[tokio::test]
    async fn helm_that_fails_or_floods_is_an_error() {
        let error = render("echo broken chart >&2; exit 3").await.unwrap_err().to_string();
        assert_eq!(error, "broken chart");
        let error = render("exit 3").await.unwrap_err().to_string();
        assert!(error.starts_with("helm template ended with"), "{error}");
        let flood = "head -c 2000000 /dev/zero | tr '\\0' '#'";
        let error = render(flood).await.unwrap_err().to_string();
        assert_eq!(error, "the chart renders more than 1048576 bytes");
    }

    #[test]
    fn hooks_are_where_they_belong() {
        let object = |name: &str, hook: &str, weight: &str| {
            let hook =
                if hook.is_empty() { String::new() } else { format!("helm.sh/hook: '{hook}', ") };
            format!(
                "---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, annotations: \
                 {{{hook}helm.sh/hook-weight: '{weight}'}}}}}}\n"
            )
        };
        let text = [
            object("after", "post-install", "0"),
            object("test", "test", "0"),
            object("main", "", "9"),
            object("gone", "pre-delete,post-delete", "0"),
            object("second", "pre-install, pre-upgrade", "5"),
            object("first", "pre-upgrade", "-5"),
        ]
        .concat();
        let objects = in_order(manifest::read(&text).unwrap());
        let names: Vec<&str> = objects.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["first", "second", "main", "after"]);
    }
}
