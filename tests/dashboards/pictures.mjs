// Takes a picture of every dashboard, dark and light, drawn by picture.jsx in headless Chromium.
//
//   node pictures.mjs URL OUT MODULES     URL of a Prometheus with the made-up day, folder for the PNGs, folder of node_modules
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { answer, boards, fill, panels, range, stepOf, variables, ask } from "./queries.mjs";

const [url, out, modules] = process.argv.slice(2);
const { build } = createRequire(join(modules, "package.json"))("esbuild");
const work = mkdtempSync(join(tmpdir(), "boards-"));
const WIDTH = 1624, ROW = 38;
const only = process.env.ONLY?.split(",");

// What each picture shows.
const picks = {
  "gpumem-workload": { namespace: "ml-train", workload: "llama-finetune" },
};

async function bundle() {
  await build({
    entryPoints: [new URL("picture.jsx", import.meta.url).pathname], outfile: join(work, "picture.js"), bundle: true, minify: true,
    jsx: "automatic", format: "iife", platform: "browser", nodePaths: [modules], define: { "process.env.NODE_ENV": '"production"', global: "window" },
    loader: { ".svg": "dataurl", ".woff2": "dataurl", ".png": "dataurl", ".ttf": "dataurl" }, logLevel: "error",
    // A CommonJS package whose default export Node's rules miss.
    plugins: [{ name: "scrollbars", setup({ onLoad }) {
      onLoad({ filter: /react-custom-scrollbars-2\/lib\/index\.js$/ }, () => ({ contents: 'module.exports = require("./Scrollbars").default;', loader: "js" }));
    } }],
  });
}

async function shoot(board, themeName) {
  const times = range(board), picked = picks[board.uid] ?? {};
  const chosen = await variables(url, board, (name) => picked[name]);
  const answers = {};
  for (const panel of panels(board)) {
    answers[panel.id] = { step: stepOf(board, panel) };
    for (const target of panel.targets) answers[panel.id][target.refId] = (await answer(url, board, panel, target, chosen)).data;
  }
  const annotations = [];
  for (const { expr, iconColor } of board.annotations.list) {
    if (!expr) continue;
    const data = await ask(url, "query_range", { query: fill(expr, chosen, times), start: times.from, end: times.to, step: 60 });
    for (const { values } of data.result) values.forEach(([at], place) => { if (place === 0 || at - values[place - 1][0] > 60) annotations.push({ at, color: iconColor }); });
  }
  const rows = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const page = join(work, `${board.uid}-${themeName}.html`), height = rows * ROW + 125;
  const state = JSON.stringify({ board, answers, annotations, range: times, chosen, themeName }).replace(/</g, "\\u003c");
  writeFileSync(page, `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="picture.css"><div id="root"></div><script>window.BOARD=${state}</script><script src="picture.js"></script>`);
  const png = join(out, `${board.uid.replace("gpumem-", "board-")}-${themeName}.png`);
  const chromium = (...flags) => execFileSync(process.env.CHROMIUM ?? "chromium", ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--lang=en", `--user-data-dir=${join(work, "profile")}`, "--virtual-time-budget=20000", `--window-size=${WIDTH},${height}`, ...flags, `file://${page}`],
  { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"], timeout: 240000, maxBuffer: 1 << 28, env: { ...process.env, TZ: "UTC" } });
  const title = chromium("--dump-dom").match(/<title>([^<]*)<\/title>/)?.[1];
  if (title !== "drawn") throw new Error(`${board.title}, ${themeName}: ${title ?? "nothing was drawn"}`);
  chromium(`--screenshot=${png}`);
  if (!existsSync(png)) throw new Error(`${board.title}, ${themeName}: no picture`);
}

let passed = 0, failed = 0;
mkdirSync(out, { recursive: true });
await bundle();
for (const board of boards()) for (const themeName of ["dark", "light"]) {
  if (only && !only.some((word) => `${board.uid}-${themeName}`.includes(word))) continue;
  try { await shoot(board, themeName); console.log(`ok    ${board.title}, ${themeName}`); passed += 1; }
  catch (error) { console.log(`FAIL  ${error.message}`); failed += 1; }
}
rmSync(work, { recursive: true, force: true });
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
