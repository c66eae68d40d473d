// Holds the boards to Grafana's own types: the dashboard's as @grafana/schema describes it, and the options of each panel kind.
//
//   node schema.mjs MODULES
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { boards, panels } from "./queries.mjs";

const modules = process.argv[2], require = createRequire(join(modules, "package.json"));
const { createGenerator } = require("ts-json-schema-generator");
const Ajv = require("ajv").default ?? require("ajv");
const raw = join(modules, "@grafana/schema/dist/types/raw");
const work = join(modules, ".boards"); mkdirSync(work, { recursive: true });

// A file that is not there would give a schema that anything fits.
const root = (file, type) => existsSync(`${file}.d.ts`) && `import type { ${type} as Original } from "${file}";\nexport type Root = Original;`;

function schema(name, source) {
  const path = join(work, `${name}.ts`);
  writeFileSync(path, source);
  writeFileSync(join(work, "tsconfig.json"), JSON.stringify({ compilerOptions: { moduleResolution: "node", module: "esnext", target: "esnext", skipLibCheck: true, types: [] }, files: [path] }));
  return createGenerator({ path, type: "Root", tsconfig: join(work, "tsconfig.json"), skipTypeCheck: true, additionalProperties: false, topRef: true }).createSchema("Root");
}

let passed = 0, failed = 0;
const ajv = () => new Ajv({ strict: false, allErrors: true, allowUnionTypes: true });
function hold(what, validate, value) {
  if (validate(value)) { passed += 1; return; }
  failed += 1;
  console.log(`FAIL  ${what}`);
  for (const { instancePath, message, params } of validate.errors.slice(0, 8)) console.log(`      ${instancePath} ${message} ${JSON.stringify(params)}`);
}

const dashboard = ajv().compile(schema("dashboard", root(join(raw, "dashboard/x/types.gen"), "Dashboard")));
const options = Object.fromEntries(["timeseries", "stat", "table", "bargauge"].map((kind) =>
  [kind, ajv().compile(schema(kind, root(join(raw, "composable", kind, "panelcfg/x/types.gen"), "Options")))]));
for (const board of boards()) {
  // What the Prometheus data source adds to an annotation is in no type of Grafana's.
  const list = board.annotations.list.map(({ expr, step, titleFormat, textFormat, useValueForTime, ...rest }) => rest);
  hold(board.title, dashboard, { ...board, annotations: { list } });
  for (const panel of panels(board)) hold(`${board.title}: options of ${panel.title}`, options[panel.type] ?? (() => { throw new Error(`panel type ${panel.type}`); }), panel.options);
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
