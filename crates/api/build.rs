//! Compiles `proto/` into Rust types, clients and servers, and keeps the
//! descriptor set with its options for everything that works by descriptors.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();

    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(&files)?;

    let out = PathBuf::from(env::var("OUT_DIR")?);
    // protox's own descriptors drop extension options such as
    // google.api.http; the encoded form keeps them.
    fs::write(out.join("descriptors.binpb"), compiler.encode_file_descriptor_set())?;
    let mut types = tonic_prost_build::Config::new();
    // The engine finds the descriptor of a Rust type by its full name.
    types.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".common.Data")
        // Equal messages have equal encodings.
        .btree_map(".")
        .include_file("packages.rs")
        .emit_rerun_if_changed(false)
        .compile_fds_with_config(compiler.file_descriptor_set(), types)?;
    Ok(())
}

fn collect(dir: &PathBuf, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ext| ext == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
