// Asks Prometheus what a dashboard asks, with Grafana's variables put in.
//
//   node queries.mjs URL            every query of every board: with All, with one value and with a value that nothing has
//
//   node queries.mjs URL figures    how long they take on other data, the quickest of three tries: tests/bench/queries;
//                                   with PROMETHEUS_PID also what they cost it in CPU, which a busy machine does not change
//
// An empty answer counts as a fault: the made-up day of data.mjs has something for every query. SLOW_MS sets what is too slow.
import { readFileSync, readdirSync } from "node:fs";
import { END } from "./data.mjs";

const folder = new URL("../../deploy/dashboards/", import.meta.url);
export const boards = () => readdirSync(folder).filter((name) => name.endsWith(".json")).map((name) => JSON.parse(readFileSync(new URL(name, folder))));

export async function ask(url, path, parameters) {
  const answer = await fetch(`${url}/api/v1/${path}`, { method: path.startsWith("label/") ? "GET" : "POST", body: path.startsWith("label/") ? undefined : new URLSearchParams(parameters) });
  const body = await answer.json();
  if (body.status !== "success") throw new Error(`${body.errorType}: ${body.error}`);
  return body.data;
}

const SECONDS = { s: 1, m: 60, h: 3600, d: 86400 };
// Pictures end some minutes before the day does: a label just at the right edge would be cut off.
export const NOW = END - Number(process.env.BEFORE_END ?? 0);
export function moment(text) {
  const [, sign, count, unit] = text.match(/^now(?:([+-])(\d+)([smhd]))?$/);
  return NOW + (sign ? (sign === "-" ? -1 : 1) * count * SECONDS[unit] : 0);
}

// As Grafana does: a variable with many values becomes a regular expression, All its own text.
export function fill(text, variables, { from, to, step }) {
  const builtIn = { __rate_interval: "4m", __interval: `${step}s`, __range: `${to - from}s`, __range_s: String(to - from) };
  return text.replace(/\$(?:\{(\w+)(?::[^}]*)?\}|(\w+))/g, (whole, braced, plain) => {
    const name = braced ?? plain, value = builtIn[name] ?? variables[name];
    if (value === undefined) throw new Error(`unknown variable ${whole}`);
    return Array.isArray(value) ? `(${value.join("|")})` : value;
  });
}

// Values of all variables: `pick` chooses among the values that a query gives.
export async function variables(url, board, pick) {
  const chosen = {};
  for (const variable of board.templating.list) {
    if (variable.type === "datasource") continue;
    if (variable.type === "textbox") { chosen[variable.name] = variable.query; continue; }
    if (variable.type === "custom") { chosen[variable.name] = pick(variable.name, null) ?? variable.options[0].value; continue; }
    const [, metric, label] = variable.query.query.match(/^label_values\((.*), *(\w+)\)$/s);
    const values = await ask(url, `label/${label}/values?match[]=${encodeURIComponent(fill(metric, chosen, range(board)))}&start=${END - 3600}&end=${END}`);
    chosen[variable.name] = pick(variable.name, values) ?? variable.allValue;
  }
  return chosen;
}

export function range(board) {
  const from = moment(board.time.from), to = moment(board.time.to);
  return { from, to, step: Math.max(15, Math.ceil((to - from) / 720 / 15) * 15) };
}

// The step of a panel's queries: its own if that is longer.
export function stepOf(board, panel) {
  const [, count, unit] = panel.interval?.match(/^(\d+)([smhd])$/) ?? [];
  return Math.max(range(board).step, count ? count * SECONDS[unit] : 0);
}

export const panels = (board) => board.panels.filter((panel) => panel.type !== "row");

export async function answer(url, board, panel, target, chosen) {
  const step = stepOf(board, panel), times = { ...range(board), step }, query = fill(target.expr, chosen, times);
  const align = (at) => Math.floor(at / step) * step;
  return target.instant
    ? { query, data: await ask(url, "query", { query, time: times.to }) }
    : { query, data: await ask(url, "query_range", { query, start: align(times.from), end: align(times.to), step }) };
}

async function ready(url) {
  for (let tries = 0; tries < 600; tries += 1) {
    try { if ((await fetch(`${url}/-/ready`)).ok) return; } catch { /* not yet */ }
    await new Promise((wait) => setTimeout(wait, 100));
  }
  throw new Error(`no Prometheus at ${url}`);
}

// Seconds on a core that Prometheus has had so far.
const HERTZ = 100;
function spent() {
  if (!process.env.PROMETHEUS_PID) return 0;
  const fields = readFileSync(`/proc/${process.env.PROMETHEUS_PID}/stat`, "utf8").split(") ").at(-1).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / HERTZ;
}

async function check(url, figures) {
  const slow = Number(process.env.SLOW_MS ?? 1000);
  let passed = 0, failed = 0;
  const times = [];
  await ready(url);
  const bad = (what) => { console.log(`FAIL  ${what}`); failed += 1; };
  const selections = {
    all: () => undefined,
    one: (name, values) => (name === "namespace" ? values.find((value) => value === "ml-train") : values ? values.at(-1) : undefined),
    none: (name, values) => (values ? "nothing-has-this" : undefined),
  };
  for (const board of boards()) for (const [name, pick] of Object.entries(selections)) {
    let chosen;
    try { chosen = await variables(url, board, pick); } catch (error) { bad(`${board.title}: variables with ${name}: ${error.message}`); continue; }
    const asked = [
      ...panels(board).flatMap((panel) => panel.targets.map((target) => [`${panel.title} ${target.refId}`, target, panel])),
      ...board.annotations.list.filter((annotation) => annotation.expr).map((annotation) => [annotation.name, { expr: annotation.expr, instant: false }, {}]),
    ];
    for (const [what, target, panel] of asked) {
      try {
        let took = Infinity, cost = Infinity, data;
        for (let tries = 0; tries < (figures ? 3 : 1) && took > 200; tries += 1) {
          const begin = performance.now(), before = spent();
          ({ data } = await answer(url, board, panel, target, chosen));
          took = Math.min(took, performance.now() - begin);
          cost = Math.min(cost, spent() - before);
        }
        times.push([took, `${board.title}: ${what} with ${name}`, cost]);
        if (!figures && name === "all" && data.result.length === 0) bad(`${board.title}: ${what}: no data\n      ${fill(target.expr, chosen, range(board))}`);
        else if (took > slow) bad(`${board.title}: ${what} with ${name}: ${took.toFixed(0)} ms`);
        else passed += 1;
      } catch (error) { bad(`${board.title}: ${what} with ${name}: ${error.message}\n      ${fill(target.expr, chosen, range(board))}`); }
    }
  }
  times.sort(([one], [other]) => other - one);
  for (const [took, what] of times.slice(0, figures ? 10 : 1)) console.log(`slowest: ${what}, ${took.toFixed(0)} ms`);
  if (figures) {
    console.log(`figure query_slowest ${(times[0][0] / 1000).toFixed(3)} s`);
    console.log(`figure query_p50 ${(times[Math.floor(times.length / 2)][0] / 1000).toFixed(3)} s`);
    times.sort(([, , one], [, , other]) => other - one);
    for (const [, what, cost] of times.slice(0, 10)) console.log(`costliest: ${what}, ${cost.toFixed(2)} s of CPU`);
    console.log(`figure query_costliest ${times[0][2].toFixed(3)} s`);
  }
  console.log(`${passed} passed, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}

if (process.argv[1] === new URL(import.meta.url).pathname) await check(process.argv[2], process.argv[3] === "figures");
