//! Embeds the page that `ui/` is built into, or a stub where it was not built,
//! so that working on the server needs no Node.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../ui/dist");
    let manifest = root.join("manifest.json");
    // Watching a file that is not there would build anew each time; `./dev ui`
    // touches this file instead.
    if manifest.exists() {
        println!("cargo:rerun-if-changed={}", manifest.display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/page/stub.html");
    let mut code = String::from("&[\n");
    if manifest.exists() {
        let manifest: Value = serde_json::from_str(&fs::read_to_string(&manifest)?)?;
        let files = manifest["files"].as_array().ok_or("ui/dist/manifest.json has no files")?;
        for file in files {
            embed(&mut code, &root, file)?;
        }
    }
    code.push_str("]\n");
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("page.rs"), code)?;
    Ok(())
}

fn embed(code: &mut String, root: &Path, file: &Value) -> Result<(), Box<dyn Error>> {
    let text = |name: &str| file[name].as_str().ok_or(format!("ui/dist/manifest.json: no {name}"));
    let path = root.join(text("file")?).canonicalize()?;
    println!("cargo:rerun-if-changed={}", path.display());
    let path = path.to_str().ok_or("a path that is not text")?;
    let immutable = file["immutable"].as_bool().unwrap_or_default();
    writeln!(
        code,
        "    File {{ path: {:?}, media: {:?}, etag: {:?}, immutable: {immutable}, plain: \
         include_bytes!({path:?}), gzip: include_bytes!({:?}), brotli: include_bytes!({:?}) }},",
        text("path")?,
        text("type")?,
        format!("\"{}\"", text("etag")?),
        format!("{path}.gz"),
        format!("{path}.br"),
    )?;
    Ok(())
}
