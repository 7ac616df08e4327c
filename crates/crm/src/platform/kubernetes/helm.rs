//! Charts, rendered by the program `helm`: it is given words, never a line for
//! a shell, and nothing of the cluster. A chart is a program of strangers, so it
//! runs as a user that has its copy of the chart and nothing else, with little
//! memory and time. What it renders is checked and applied as any manifest is.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use selvage_api::edgeproto::App;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    sync::Semaphore,
};

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
/// Most memory that rendering may use, in MB.
const MEMORY_MB: u64 = 1024;
/// Most address space, in MB: Go reserves more than it uses.
const ADDRESSES_MB: u64 = 4096;
/// Most processor time, in seconds.
const PROCESSOR_SECONDS: u64 = 60;
/// Largest file that rendering may write, in bytes.
const FILE_SIZE: u64 = 1 << 20;
/// Words of programs that ran out of memory.
const OUT_OF_MEMORY: [&str; 3] = ["out of memory", "memory exhausted", "cannot allocate memory"];
/// Charts that are rendered at a time.
static TURNS: Semaphore = Semaphore::const_new(2);
/// First of the users that render: no account has such a number, and no virtual
/// machine.
const FIRST_USER: u32 = 0x7100_0000;
/// Largest chart in a folder, in bytes.
const LARGEST_CHART: u64 = 64 << 20;
/// Bytes of an error text of helm that are passed on.
const MAX_ERROR: usize = 16 << 10;
/// Annotations by which helm knows objects that belong to a moment.
const HOOK: &str = "helm.sh/hook";
const HOOK_WEIGHT: &str = "helm.sh/hook-weight";

/// The program, and where it may keep files.
pub(super) struct Helm<'a> {
    pub(super) program: &'a Path,
    /// Folder through which everybody may pass. Each run has one of its own in it.
    pub(super) folder: &'a Path,
    pub(super) names: &'a InstanceNames,
    /// Version of the cluster that charts are rendered for.
    pub(super) version: String,
}

/// Folder with what a run is about. It is gone when this is.
struct Stage {
    folder: PathBuf,
    /// User who has it; none where this process cannot become another.
    user: Option<u32>,
    chart: PathBuf,
    values: Vec<PathBuf>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(path = %self.folder.display(), %error, "not removed");
        }
    }
}

impl Stage {
    fn make(within: &Path, app: &App, chart: &Path) -> io::Result<Self> {
        let unique = uuid::Uuid::new_v4();
        let folder = within.join(format!("selvage-helm-{}", unique.simple()));
        let user = rustix::process::geteuid().is_root();
        // One of its own for each run: it cannot touch another.
        let user = user.then(|| FIRST_USER | (unique.as_fields().0 >> 8));
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        // The end of a chart's name says what it is.
        let name = chart.file_name().unwrap_or_default().to_string_lossy();
        let staged = folder.join(format!("chart-{name}"));
        let mut stage = Self { folder, user, chart: staged, values: Vec::new() };
        let mut left = LARGEST_CHART;
        copy(chart, &stage.chart, &mut left, user)?;
        let given = app.configs.iter().filter(|config| VALUES.contains(&config.kind.as_str()));
        for (number, config) in given.enumerate() {
            let path = stage.folder.join(format!("values-{number}.yaml"));
            let mut options = fs::OpenOptions::new();
            let mut file = options.create_new(true).write(true).mode(0o600).open(&path)?;
            io::Write::write_all(&mut file, config.config.as_bytes())?;
            own(&path, user)?;
            stage.values.push(path);
        }
        own(&stage.folder, user)?;
        Ok(stage)
    }

    /// Command that runs a program as the user of this, within limits.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("prlimit");
        command.args([
            format!("--data={}", MEMORY_MB << 20),
            format!("--as={}", ADDRESSES_MB << 20),
            format!("--cpu={PROCESSOR_SECONDS}"),
            format!("--fsize={FILE_SIZE}"),
            "--core=0".to_owned(),
        ]);
        if let Some(user) = self.user {
            command.args(["setpriv", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
            command.args([format!("--reuid={user}"), format!("--regid={user}")]);
            command.args(["--no-new-privs", "--"]);
        }
        command.arg(program).current_dir(&self.folder).env_clear().kill_on_drop(true);
        // No cluster to ask, and nothing of the user that the crm runs as.
        command.env("KUBECONFIG", "/dev/null").env("HOME", &self.folder);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn own(path: &Path, user: Option<u32>) -> io::Result<()> {
    std::os::unix::fs::lchown(path, user, user)
}

/// Copies a chart, a file or a folder, as far as bytes are left for it. Links in it are
/// left out: they could lead to files that only the user of the crm may read.
fn copy(from: &Path, to: &Path, left: &mut u64, user: Option<u32>) -> io::Result<()> {
    let metadata = fs::metadata(from)?;
    if metadata.is_dir() {
        fs::DirBuilder::new().mode(0o700).create(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            if !entry.file_type()?.is_symlink() {
                copy(&entry.path(), &to.join(entry.file_name()), left, user)?;
            }
        }
    } else if metadata.is_file() {
        let rest = left.checked_sub(metadata.len());
        *left = rest.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        fs::copy(from, to)?;
    } else {
        return Ok(());
    }
    own(to, user)
}

/// The program itself, wherever it is in the path.
fn find(program: &Path) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // One with a folder in its name is that.
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|place| place.is_file()).ok_or_else(|| {
        let reason = "deployment helm needs the program helm on the crm's machine, and there is \
                      none";
        Error::state(reason)
    })
}

impl Helm<'_> {
    /// Renders a chart of this machine, with everything that is in it.
    pub(super) async fn render(&self, app: &App, chart: &Path) -> Result<Vec<Object>> {
        let program = find(self.program)?;
        let _turn = TURNS.acquire().await;
        let stage = Stage::make(self.folder, app, chart).during("making a copy of the chart")?;
        let text = tokio::time::timeout(RENDER_TIMEOUT, self.run(&program, &stage)).await;
        let text = text.map_err(|_| Error::state("helm takes too long to render the chart"))??;
        Ok(in_order(manifest::read(&text)?))
    }

    fn words(&self, stage: &Stage) -> Vec<OsString> {
        let mut words: Vec<OsString> =
            ["template", "--include-crds", "--namespace"].map(Into::into).into();
        words.push(OsString::from(&self.names.namespace));
        words.extend(["--kube-version".into(), OsString::from(&self.version)]);
        for path in &stage.values {
            words.extend(["--values".into(), path.into()]);
        }
        // What comes after this is never taken for a flag.
        words.extend(["--".into(), OsString::from(&self.names.release)]);
        words.push(stage.chart.clone().into());
        words
    }

    async fn run(&self, program: &Path, stage: &Stage) -> Result<String> {
        let spawned = stage.command(program).args(self.words(stage)).spawn();
        let mut helm = spawned.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::missing("program prlimit (package util-linux)"),
            _ => Error::Io { doing: "running helm", source },
        })?;
        let (out, errors) = (helm.stdout.take(), helm.stderr.take());
        let (out, errors) = tokio::join!(read(out, MAX_BYTES), read(errors, MAX_ERROR));
        let status = helm.wait().await.during("running helm")?;
        if !status.success() {
            let errors = String::from_utf8_lossy(&errors.text).trim().to_owned();
            if OUT_OF_MEMORY.iter().any(|words| errors.to_lowercase().contains(words)) {
                let reason = format!("the chart takes more than {MEMORY_MB} MB to render");
                return Err(Error::state(reason));
            }
            let ended = || format!("helm template ended with {status}");
            return Err(Error::state(if errors.is_empty() { ended() } else { errors }));
        }
        if out.too_long {
            return Err(Error::state(format!("the chart renders more than {MAX_BYTES} bytes")));
        }
        Ok(String::from_utf8_lossy(&out.text).into_owned())
    }
}

/// Beginning of what a program writes.
#[derive(Default)]
struct Written {
    text: Vec<u8>,
    too_long: bool,
}

/// Reads up to a limit. What is too much is read all the same, so that the program
/// comes to its end.
async fn read(from: Option<impl AsyncRead + Unpin>, limit: usize) -> Written {
    let mut written = Written::default();
    let Some(mut from) = from else { return written };
    let mut piece = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let taken = length.min(limit - written.text.len());
        written.too_long |= taken < length;
        written.text.extend_from_slice(&piece[..taken]);
    }
    written
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
        let at = |name: &str| directory.path().join(name);
        let (program, folder, chart) = (at("helm"), at("files"), at("one.tgz"));
        fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
        fs::write(&chart, "of this chart").unwrap();
        fs::set_permissions(&chart, fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(&folder).unwrap();
        for path in [directory.path(), program.as_path(), folder.as_path()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let names = names();
        let version = "v1.33.0".into();
        let helm = Helm { program: &program, folder: &folder, names: &names, version };
        let values = ConfigFile { kind: VALUES[1].into(), config: "a: b".into() };
        let app = App { configs: vec![values], ..App::default() };
        let rendered = helm.render(&app, &chart).await;
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "values stay");
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
  chart: "$(cat $(echo "$*" | sed 's/.* //'))"
  user: "$(id -u)"
  rights: "$(grep -h -e ^CapBnd -e ^NoNewPrivs /proc/self/status | tr -d '\t\n')"
YAML
"#;
        let seen = render(script).await.unwrap().remove(0).value;
        let of = |name: &str| seen["data"][name].as_str().unwrap();
        assert!(
            of("words")
                .starts_with("template --include-crds --namespace ns --kube-version v1.33.0 ")
        );
        assert!(of("words").ends_with("/chart-one.tgz"), "{}", of("words"));
        assert!(of("words").contains(" -- release /"), "{}", of("words"));
        assert_eq!(of("chart"), "of this chart");
        if rustix::process::geteuid().is_root() {
            assert_eq!(of("user").parse::<u32>().unwrap() >> 24, FIRST_USER >> 24);
            assert_eq!(of("rights"), "CapBnd:0000000000000000NoNewPrivs:1");
        }
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

    #[tokio::test]
    async fn a_chart_has_little_memory_and_no_disk() {
        let bomb = "head -c 3000000000 /dev/zero | tail -n 1";
        let error = render(bomb).await.unwrap_err().to_string();
        assert_eq!(error, "the chart takes more than 1024 MB to render");
        let error = render("head -c 3000000 /dev/zero > $HOME/x").await.unwrap_err().to_string();
        let ended = ["File too large", "ile size limit", "ended with"];
        assert!(ended.iter().any(|words| error.contains(words)), "{error}");
        let large = "head -c 100000000 /dev/zero | tail -n 1 >/dev/null\n\
                     echo '{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}'";
        assert_eq!(render(large).await.unwrap().len(), 1, "a large one is no bomb");
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
