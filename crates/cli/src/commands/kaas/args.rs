//! `selvage kaas` and `selvage kubectl` as clap reads them.

use std::path::PathBuf;

// No doc comment: it would speak for whatever this is flattened into.
#[derive(clap::Subcommand, Debug)]
pub enum KaasCommand {
    /// Make a cluster
    #[command(after_help = "\
Examples:
  selvage kaas create demo --wait
  selvage kaas create prod --control-plane 3 --pool web=3 --pool gpu=1:gpu --wait
  selvage kaas create prod --control-plane 3 --dry-run
  selvage kaas create -f cluster.yaml")]
    Create(Create),
    /// List clusters
    #[command(visible_alias = "ls")]
    List,
    /// Show a cluster: status, conditions, pools
    Show(Show),
    /// List the machines of a cluster
    Nodes(Named),
    /// List what happened to a cluster
    Events(Named),
    /// Print a kubeconfig, good for a day
    Kubeconfig(Kubeconfig),
    /// Add and delete pools
    #[command(subcommand)]
    Pool(Pool),
    /// Change how many machines pools have
    #[command(after_help = "Example:\n  selvage kaas scale demo web=5 batch=0 --wait")]
    Scale(Scale),
    /// Upgrade a cluster; without a version, list those it can go to
    Upgrade(Upgrade),
    /// Leave a cluster unchanged until it is resumed
    Pause(Named),
    /// Resume a paused cluster
    Resume(Named),
    /// Stop everything on a cluster's machines and keep its data
    Hibernate(Watched),
    /// Start a cluster that hibernates
    Wake(Watched),
    /// Replace the certificate authorities of a cluster while it runs
    RotateCertificates(Watched),
    /// List machines that do not come up and that no cluster gets
    Quarantine(Quarantine),
    /// Take a snapshot of a cluster's etcd, with the keys of the cluster
    Backup(Named),
    /// List the snapshots of a cluster, or of all, also of those that are gone
    Backups(Backups),
    /// Restore a cluster from a snapshot, or make a new one from it
    #[command(after_help = "\
Examples:
  selvage kaas restore demo --from demo-20261118-120000-1a2b --wait
  selvage kaas restore demo --from demo-20261118-120000-1a2b --as copy --wait")]
    Restore(Restore),
    /// Delete a cluster and give its machines back
    #[command(visible_alias = "rm")]
    Delete(Delete),
    /// List the versions on offer, and who delivers machines
    Versions,
}

/// The name of a cluster.
#[derive(clap::Args, Debug)]
pub struct Named {
    /// Name of the cluster
    pub name: String,
}

/// The name of a cluster, and whether to wait for it.
#[derive(clap::Args, Debug)]
pub struct Watched {
    /// Name of the cluster
    pub name: String,
    /// Wait until it is done, and tell of each machine's step
    #[arg(long)]
    pub wait: bool,
}

/// `selvage kaas quarantine`
#[derive(clap::Args, Debug)]
pub struct Quarantine {
    /// Let clusters have this machine again instead
    #[arg(long, value_name = "MACHINE")]
    pub release: Option<String>,
}

/// Manner of a change.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct ChangeArgs {
    /// Wait until it is done, and tell of each machine's step
    #[arg(long, conflicts_with = "dry_run")]
    pub wait: bool,
    /// Print what would be done and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `selvage kaas create`
#[derive(clap::Args, Debug)]
// Its own --version is that of the cluster.
#[command(disable_version_flag = true)]
pub struct Create {
    /// Name of the cluster
    #[arg(required_unless_present = "file")]
    pub name: Option<String>,
    /// File with the request, YAML or JSON, in the words of `cnct.kaas.api`
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["version", "control_plane", "instance_type", "pools"])]
    pub file: Option<PathBuf>,
    /// Version of Kubernetes; the newest on offer if not given
    #[arg(long = "kubernetes", value_name = "VERSION")]
    pub version: Option<String>,
    /// Machines of the control plane: 1, 3 or 5
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub control_plane: i32,
    /// Type of the machines of the control plane
    #[arg(long = "type", value_name = "TYPE", default_value = "standard")]
    pub instance_type: String,
    /// A pool of workers, may be repeated
    #[arg(long = "pool", value_name = "NAME=COUNT[:TYPE]", value_parser = pool)]
    pub pools: Vec<PoolSize>,
    /// Organisation that owns it, if you belong to several
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub organisation: String,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// `selvage kaas show`
#[derive(clap::Args, Debug)]
pub struct Show {
    /// Name of the cluster
    pub name: String,
    /// Wait and show every step until the cluster is settled
    #[arg(long, short)]
    pub watch: bool,
}

/// `selvage kaas kubeconfig`
#[derive(clap::Args, Debug)]
pub struct Kubeconfig {
    /// Name of the cluster
    pub name: String,
    /// Write it to this file, for you alone, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `selvage kaas pool`
#[derive(clap::Subcommand, Debug)]
pub enum Pool {
    /// Add a pool to a cluster
    Add(AddPool),
    /// Delete pools: drain their nodes and give the machines back
    #[command(visible_alias = "rm")]
    Delete(DeletePool),
}

/// `selvage kaas pool add`
#[derive(clap::Args, Debug)]
pub struct AddPool {
    /// Name of the cluster
    pub cluster: String,
    /// The pool
    #[arg(value_name = "NAME=COUNT[:TYPE]", value_parser = pool)]
    pub pool: PoolSize,
    /// Label of its nodes, may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// `selvage kaas pool delete`
#[derive(clap::Args, Debug)]
pub struct DeletePool {
    /// Name of the cluster
    pub cluster: String,
    /// Names of pools
    #[arg(required = true)]
    pub pools: Vec<String>,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// `selvage kaas scale`
#[derive(clap::Args, Debug)]
pub struct Scale {
    /// Name of the cluster
    pub cluster: String,
    /// New sizes
    #[arg(required = true, value_name = "POOL=COUNT", value_parser = pool)]
    pub pools: Vec<PoolSize>,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// `selvage kaas upgrade`
#[derive(clap::Args, Debug)]
#[command(disable_version_flag = true)]
pub struct Upgrade {
    /// Name of the cluster
    pub name: String,
    /// Version to go to
    pub version: Option<String>,
    /// Continue even if a node is not ready or a disruption budget blocks the drain
    #[arg(long)]
    pub force: bool,
    /// Take the upgrade back, while no control plane has begun with it
    #[arg(long, conflicts_with_all = ["version", "force", "dry_run"])]
    pub abort: bool,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// `selvage kaas backups`
#[derive(clap::Args, Debug)]
pub struct Backups {
    /// Name of the cluster; all if not given
    pub name: Option<String>,
    /// Delete this snapshot instead
    #[arg(long, value_name = "ID", conflicts_with = "name")]
    pub delete: Option<String>,
}

/// `selvage kaas restore`
#[derive(clap::Args, Debug)]
pub struct Restore {
    /// Name of the cluster that the snapshot was taken of
    pub name: String,
    /// Id of the snapshot
    #[arg(long, value_name = "ID")]
    pub from: String,
    /// Make another cluster of this name, and leave the first one alone
    #[arg(long = "as", value_name = "NEW")]
    pub target: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// Wait until it runs, and tell of each machine's step
    #[arg(long)]
    pub wait: bool,
}

/// `selvage kaas delete`
#[derive(clap::Args, Debug)]
pub struct Delete {
    /// Name of the cluster
    pub name: String,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub how: ChangeArgs,
}

/// `selvage kubectl`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  selvage kubectl -- get nodes
  selvage kubectl --cluster prod -- apply -f app.yaml
The kubectl of your PATH runs, or the one that SELVAGE_KUBECTL names, with a kubeconfig
that is made for this run and removed after it.")]
pub struct Kubectl {
    /// Cluster to talk to; the only one there is, if not given
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Arguments of kubectl
    #[arg(last = true, required = true, value_name = "ARGUMENT")]
    pub arguments: Vec<std::ffi::OsString>,
}

/// A pool as it stands on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSize {
    pub name: String,
    pub count: i32,
    pub instance_type: String,
}

fn pool(text: &str) -> Result<PoolSize, String> {
    let (name, rest) = text.split_once('=').ok_or("not of the form NAME=COUNT")?;
    let (count, instance_type) = rest.split_once(':').unwrap_or((rest, ""));
    let count = count.parse().map_err(|_| format!("{count:?} is not a number"))?;
    Ok(PoolSize { name: name.to_owned(), count, instance_type: instance_type.to_owned() })
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("not of the form KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_read_with_and_without_a_type() {
        let sized = |name: &str, count, kind: &str| {
            Ok(PoolSize { name: name.into(), count, instance_type: kind.into() })
        };
        assert_eq!(pool("web=3"), sized("web", 3, ""));
        assert_eq!(pool("gpu=1:gpu"), sized("gpu", 1, "gpu"));
        assert!(pool("web").is_err() && pool("web=x").is_err());
    }
}
