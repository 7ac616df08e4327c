// Builds the page into dist/: hashed names, precompressed copies beside each
// file, and manifest.json, from which crates/dashboard embeds it.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { outline } from "./world.mjs";

const DIST = new URL("dist/", import.meta.url).pathname;
const TYPES = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
};
const common = {
  bundle: true, minify: true, write: false, format: "esm", target: ["es2022"], legalComments: "none",
  logLevel: "warning", absWorkingDir: new URL(".", import.meta.url).pathname,
};
const files = [];
const written = new Set();

/** Leaves a file alone that is as it should be, so that cargo does not embed it anew. */
function write(file, bytes) {
  written.add(file);
  const path = DIST + file;
  if (!existsSync(path) || !readFileSync(path).equals(Buffer.from(bytes))) writeFileSync(path, bytes);
}

/** Writes one file and its compressed copies; returns the path it is served at. */
function emit(name, extension, contents) {
  const bytes = Buffer.from(contents);
  const digest = createHash("sha256").update(bytes).digest("hex").slice(0, 12);
  const hashed = extension !== "html";
  const file = hashed ? `assets/${name}-${digest}.${extension}` : `${name}.${extension}`;
  const compressed = {
    br: brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } }),
    gz: gzipSync(bytes, { level: 9 }),
  };
  write(file, bytes);
  for (const [suffix, packed] of Object.entries(compressed)) write(`${file}.${suffix}`, packed);
  files.push({
    path: hashed ? `/${file}` : "/", file, type: TYPES[extension], immutable: hashed, etag: digest,
    bytes: bytes.length, brotli: compressed.br.length, gzip: compressed.gz.length,
  });
  return `/${file}`;
}

/** Removes what is no longer used, but not what a cargo build that is under way may still read. */
function removeOld() {
  const old = Date.now() - 3_600_000;
  for (const name of readdirSync(`${DIST}assets`)) {
    const path = `${DIST}assets/${name}`;
    if (!written.has(`assets/${name}`) && statSync(path).mtimeMs < old) rmSync(path);
  }
}

/**
 * The terminal writes <style> elements and style attributes, which our content
 * security policy forbids. Style sheets and the CSSOM are allowed, so it gets
 * those. A release with other places fails the build instead of the page.
 */
const terminalUnderPolicy = {
  name: "terminal-under-policy",
  setup(plugin) {
    plugin.onLoad({ filter: /@xterm\/xterm\/lib\/xterm\.mjs$/ }, ({ path }) => {
      let source = readFileSync(path, "utf8");
      const replace = (pattern, by, times) => {
        const found = source.match(pattern)?.length ?? 0;
        if (found !== times) throw new Error(`${path}: ${pattern} is there ${found} times, not ${times}`);
        source = source.replace(pattern, by);
      };
      replace(/[\w.]+\.createElement\("style"\)/g, "__styleElement()", 3);
      replace(/(\w+)\.setAttribute\("style",([^;]*?\$\{\w+\};`)\)/g, "($1.style.cssText=$2)", 1);
      return { contents: `import { styleElement as __styleElement } from "./src/style-element.ts";\n${source}`, resolveDir: common.absWorkingDir };
    });
  },
};

async function script(name, entry, options = {}) {
  const { outputFiles } = await build({ ...common, entryPoints: [entry], outdir: "out", jsx: "automatic", jsxImportSource: "preact", ...options });
  const [code] = outputFiles.filter(({ path }) => path.endsWith(".js"));
  const [style] = outputFiles.filter(({ path }) => path.endsWith(".css"));
  return { code: emit(name, "js", code.contents), style: style && emit(name, "css", style.contents) };
}

mkdirSync(DIST + "assets", { recursive: true });
const chart = await script("chart", "src/chart-library.ts");
const terminal = await script("terminal", "src/terminal-library.ts", { plugins: [terminalUnderPolicy] });
const licences = await script("licences", "src/licence-library.ts");
const app = await script("app", "src/main.tsx", {
  define: {
    LAZY: JSON.stringify({ chart, terminal, licences }),
    WORLD: JSON.stringify(outline()),
  },
});
const page = readFileSync(new URL("src/index.html", import.meta.url), "utf8")
  .replace("{{script}}", app.code).replace("{{style}}", app.style);
emit("index", "html", page);
write("manifest.json", JSON.stringify({ files }, null, 1) + "\n");
removeOld();

const first = files.filter(({ file }) => /^(index|assets\/app-)/.test(file));
const sum = first.reduce((total, { brotli }) => total + brotli, 0);
console.log(`ui: ${files.length} files; first load ${(sum / 1000).toFixed(1)} kB in ${first.length} files`);
if (sum > 80_000) throw new Error("the first load is larger than 80 kB");
