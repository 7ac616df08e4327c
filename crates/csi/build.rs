//! Compiles the contracts of the kubelet. They are spoken on sockets of this
//! machine only and are not ours, so they are not among those of `proto/`.

use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let files = ["csi.proto", "pluginregistration.proto"].map(|name| root.join(name));
    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_imports(true).open_files(&files)?;
    tonic_prost_build::configure()
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
