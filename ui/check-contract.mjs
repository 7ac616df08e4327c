// Compares src/contract.ts with what a server says of itself: every method and
// every field that the page uses must be in /openapi.json.
// Usage: node check-contract.mjs OPENAPI_FILE
import { readFileSync } from "node:fs";
import ts from "typescript";

const document = JSON.parse(readFileSync(process.argv[2], "utf8"));
const file = new URL("src/contract.ts", import.meta.url).pathname;
const program = ts.createProgram([file], { strict: true, target: ts.ScriptTarget.ES2022, types: [] });
const checker = program.getTypeChecker();
const problems = [];
let fields = 0;

const resolve = (schema) => (schema?.$ref ? document.components.schemas[schema.$ref.split("/").pop()] : schema);

/** What is left of a type when it may be absent. */
function inner(type) {
  const parts = type.isUnion() ? type.types.filter((one) => !(one.flags & ts.TypeFlags.Undefined)) : [type];
  return parts.length === 1 ? parts[0] : undefined;
}

function compare(type, schema, where, depth = 0) {
  const real = resolve(schema);
  const own = inner(type);
  if (!own || !real || depth > 8) return;
  if (checker.isArrayType(own)) {
    compare(checker.getTypeArguments(own)[0], real.items, `${where}[]`, depth + 1);
  } else if (own.flags & ts.TypeFlags.Object && real.properties && !checker.getIndexInfosOfType(own).length) {
    for (const property of checker.getPropertiesOfType(own)) {
      fields += 1;
      const name = `${where}.${property.name}`;
      if (!(property.name in real.properties)) problems.push(`${name} is not in the contract`);
      else compare(checker.getTypeOfSymbol(property), real.properties[property.name], name, depth + 1);
    }
  }
}

const schemaOf = (content) => (content?.["application/json"] ?? content?.["application/connect+json"])?.schema;
const methods = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(file))).find(({ name }) => name === "Methods");
const all = checker.getPropertiesOfType(checker.getDeclaredTypeOfSymbol(methods));
for (const method of all) {
  const operation = document.paths[`/${method.name}`]?.post;
  if (!operation) {
    problems.push(`${method.name} is not in the contract`);
    continue;
  }
  const [request, reply] = checker.getTypeArguments(checker.getTypeOfSymbol(method));
  compare(request, schemaOf(operation.requestBody.content), `${method.name} request`);
  compare(reply, schemaOf(operation.responses["200"].content), `${method.name} reply`);
}
if (problems.length) {
  console.error(problems.join("\n"));
  process.exit(1);
}
console.log(`${all.length} methods and ${fields} fields are as the server has them`);
