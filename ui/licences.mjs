// Writes src/licences.json: the crates of Cargo.lock with their licences, for the page
// About. To be run when dependencies change; a test of crates/dashboard compares them.
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";

const root = new URL("..", import.meta.url).pathname;
const said = execFileSync("cargo", ["metadata", "--locked", "--format-version", "1"], { cwd: root, maxBuffer: 64 << 20 });
const crates = JSON.parse(said).packages.filter(({ source }) => source);
const unclear = crates.filter(({ license }) => !license);
if (unclear.length) throw new Error(`no licence is named by ${unclear.map(({ name }) => name).join(", ")}`);
const rows = crates
  // Older crates write / for OR.
  .map(({ name, version, license }) => [name, version, license.replace(/\s*\/\s*/g, " OR ")])
  .sort(([a, one], [b, other]) => (a === b ? one.localeCompare(other, "en", { numeric: true }) : a < b ? -1 : 1));
writeFileSync(new URL("src/licences.json", import.meta.url), `[\n${rows.map((row) => JSON.stringify(row)).join(",\n")}\n]\n`);
console.log(`${rows.length} crates`);
