"use strict";
// All metrics come from the runs' folders, unrounded; see results/report.py for their layout.
const report = {};
const $ = (id) => document.getElementById(id);

async function unpack(id) {
  const text = atob($(id).textContent), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream);
}

// Columns are places in one array of numbers, and become lists when they are first looked at.
// What is no finite number is null, which a plot leaves out.
let numbers = new Float64Array();
const read = ([start, count]) =>
  Array.from(numbers.subarray(start, start + count), (v) => (Number.isFinite(v) ? v : null));
function lazily(places) {
  const lists = {};
  for (const [name, place] of Object.entries(places)) {
    const keep = (value) => Object.defineProperty(lists, name, { value, enumerable: true });
    Object.defineProperty(lists, name, { enumerable: true, configurable: true,
      get: () => keep(read(place))[name] });
  }
  return lists;
}
async function load() {
  const [data, packed] = await Promise.all([unpack("data"), unpack("numbers")]);
  Object.assign(report, await data.json());
  numbers = new Float64Array(await packed.arrayBuffer());
  for (const run of report.runs) {
    run.columns = lazily(run.columns);
    run.metrics = lazily(run.metrics);
    run.at = read(run.at);
  }
}

function costAt(run, axis, i) {
  const c = run.columns;
  if (axis === "bytes") return (c.bytes_up[i] + c.bytes_down[i]) / 1e6;
  return axis === "round" ? c.round[i] + 1 : c[axis][i];
}

// The points of a run: [x, y], for metrics at evaluated rounds only.
function points(run, axis, metric) {
  if (metric in run.metrics) return [run.at.map((i) => costAt(run, axis, i)), run.metrics[metric]];
  return metric in run.columns ? [along(run, axis), run.columns[metric]] : [[], []];
}
const along = (run, axis) => run.columns.round.map((_, i) => costAt(run, axis, i));
