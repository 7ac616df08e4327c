//! M10: a snapshot of a cluster with 100 MB of objects; the cluster is deleted and
//! comes back with the same ones.

use std::{path::Path, time::Instant};

use anyhow::{Result, ensure};
use selvage_bench::report::{Report, of_goal};
use sha2::{Digest, Sha256};

use crate::real::{Host, Programs};

/// Objects, and bytes of each: etcd takes no more than a megabyte and a half at once.
const OBJECTS: usize = 110;
const SIZE: usize = 950_000;

/// Digest of all objects as they are kept: uid, version and content.
async fn digest(host: &Host) -> Result<(usize, String)> {
    let listed = host.until("big", &["get", "configmaps", "-l", "bench", "-o", "json"], "").await?;
    let listed: serde_json::Value = serde_json::from_str(&listed)?;
    let items = listed["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut hasher = Sha256::new();
    for item in items {
        hasher.update(item.to_string());
    }
    Ok((items.len(), hex::encode(hasher.finalize())))
}

async fn fill(host: &Host) -> Result<()> {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for number in 0..OBJECTS {
        // Text that does not become smaller.
        let mut text = String::with_capacity(SIZE);
        while text.len() < SIZE {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(&format!("{state:016x}"));
        }
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"text": text},
            "metadata": {"name": format!("object-{number}"), "labels": {"bench": "1"}},
        });
        host.until("big", &["create", "-f", "-"], &object.to_string()).await?;
    }
    Ok(())
}

pub(crate) async fn measure(
    selvage: &Path,
    programs: &Programs,
    report: &mut Report,
) -> Result<()> {
    let host = Host::start(selvage, programs, 1, &[]).await?;
    let service = host.service()?;
    service.create_version("big", &programs.version, 1, 0).await?;
    host.until_running("big").await?;
    fill(&host).await?;
    let before = digest(&host).await?;
    ensure!(before.0 == OBJECTS, "{} of {OBJECTS} objects", before.0);

    let begun = Instant::now();
    let backup = service.backup("big").await?;
    let taken = begun.elapsed();
    service.delete("big").await?;
    let deleted = begun.elapsed();
    service.restore(&backup.id).await?;
    let after = digest(&host).await?;
    let whole = begun.elapsed();
    ensure!(before == after, "{before:?} became {after:?}");
    let (megabytes, seconds) = (backup.size as f64 / 1e6, whole.as_secs_f64());
    let what = format!("M10 {megabytes:.0} MB: backup, delete, restore, same objects");
    report.row(what, format!("{seconds:.1} s"), "15 s", of_goal(seconds, 15.0));
    let parts = format!(
        "{:.1} s + {:.1} s + {:.1} s",
        taken.as_secs_f64(),
        (deleted - taken).as_secs_f64(),
        (whole - deleted).as_secs_f64()
    );
    report.row("M10   of these", parts, "", "");
    host.until_running("big").await?;
    service.delete("big").await
}
