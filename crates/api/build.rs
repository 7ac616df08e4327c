//! Compiles `proto/` into Rust types, clients and servers, and keeps the
//! descriptor set with its options for everything that works by descriptors.

#[allow(unreachable_pub)]
#[path = "src/secret/fields.rs"]
mod secret;

use std::{collections::BTreeMap, env, error::Error, fmt::Write, fs, path::PathBuf};

use prost_types::{DescriptorProto, FileDescriptorSet};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    watch(&root)?;
    println!("cargo:rerun-if-changed=src/secret/fields.rs");
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
    let (text, places) = comments(&compiler.file_descriptor_set())?;
    fs::write(out.join("comments.txt"), text)?;
    fs::write(out.join("comments.rs"), places)?;
    compiler.include_source_info(false);
    fs::write(out.join("bare.binpb"), compiler.encode_file_descriptor_set())?;
    let secretive = secretive(&compiler.file_descriptor_set());
    fs::write(out.join("debug.rs"), debug_impls(&secretive)?)?;
    let mut types = tonic_prost_build::Config::new();
    // The engine finds the descriptor of a Rust type by its full name.
    types.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".common.Data")
        // Equal messages have equal encodings.
        .btree_map(".")
        .skip_debug(secretive.iter().map(|(name, _)| name))
        .include_file("packages.rs")
        .emit_rerun_if_changed(false)
        .compile_fds_with_config(compiler.file_descriptor_set(), types)?;
    Ok(())
}

/// Has this run again when a contract changes. Not when `wire.lock` does, which lies
/// beside the folders and would have everything built again.
fn watch(root: &PathBuf) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.is_dir() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
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

/// All comments in one text, each after its place, and where in it they are,
/// by ascending place. So they are found without being read first.
fn comments(set: &FileDescriptorSet) -> Result<(String, String), Box<dyn Error>> {
    let mut all = BTreeMap::new();
    for file in &set.file {
        for location in file.source_code_info.iter().flat_map(|info| &info.location) {
            let comment = match (location.leading_comments(), location.trailing_comments()) {
                ("", trailing) => trailing,
                (leading, _) => leading,
            };
            if !comment.is_empty() {
                let path: Vec<String> = location.path.iter().map(ToString::to_string).collect();
                all.insert(format!("{} {}", file.name(), path.join(" ")), comment);
            }
        }
    }
    let (mut text, mut places) = (String::new(), String::from("&[\n"));
    for (place, comment) in all {
        let start = text.len();
        text += &place;
        let middle = text.len();
        text += comment;
        writeln!(places, "    [{start}, {middle}, {}],", text.len())?;
    }
    places += "]\n";
    Ok((text, places))
}

/// Messages with a secret among their own fields: the name in the contract
/// and the path of the Rust type.
fn secretive(set: &FileDescriptorSet) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in &set.file {
        let package = file.package();
        for message in &file.message_type {
            let module = format!("crate::{}", package.replace('.', "::"));
            find(message, &format!(".{package}"), &module, &mut found);
        }
    }
    found
}

fn find(message: &DescriptorProto, scope: &str, module: &str, found: &mut Vec<(String, String)>) {
    let name = format!("{scope}.{}", message.name());
    let is_secret = |field: &str| {
        let full = format!("{}.{field}", name.trim_start_matches('.'));
        secret::FIELDS.contains(&field) || secret::FIELDS.contains(&full.as_str())
    };
    if message.field.iter().any(|field| is_secret(field.name())) {
        found.push((name.clone(), format!("{module}::{}", message.name())));
    }
    let inner = format!("{module}::{}", snake(message.name()));
    for nested in &message.nested_type {
        find(nested, &name, &inner, found);
    }
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

fn debug_impls(secretive: &[(String, String)]) -> Result<String, std::fmt::Error> {
    let mut code = String::new();
    for (_, path) in secretive {
        writeln!(
            code,
            "impl fmt::Debug for {path} {{\n    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> \
             fmt::Result {{\n        debug(self, f)\n    }}\n}}"
        )?;
    }
    Ok(code)
}
