"use strict";
// Data of the report, packed into the page by results/report.py; all numbers are unrounded.
const report = {};
const byId = (id) => document.getElementById(id);

async function unpack(id) {
  const text = atob(byId(id).textContent), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream);
}

// A column is given by its start and length in one array of numbers. It becomes a list when it is
// first used; a number that is not finite becomes null, which plots leave out.
let numbers = new Float64Array();
const readColumn = ([start, length]) =>
  Array.from(numbers.subarray(start, start + length), (v) => (Number.isFinite(v) ? v : null));
function lazyColumns(places) {
  const columns = {};
  for (const [name, place] of Object.entries(places)) {
    const keep = (value) => Object.defineProperty(columns, name, { value, enumerable: true });
    Object.defineProperty(columns, name, { enumerable: true, configurable: true,
      get: () => keep(readColumn(place))[name] });
  }
  return columns;
}

async function loadReport() {
  const [data, columns] = await Promise.all([unpack("data"), unpack("columns")]);
  Object.assign(report, await data.json());
  numbers = new Float64Array(await columns.arrayBuffer());
  for (const run of report.runs) {
    run.columns = lazyColumns(run.columns);
    run.metrics = lazyColumns(run.metrics);
    run.evaluated = readColumn(run.evaluated);
  }
}

// Cost of a run up to and including the round at this index.
function costAt(run, cost, index) {
  const columns = run.columns;
  if (cost === "bytes") return (columns.bytes_up[index] + columns.bytes_down[index]) / 1e6;
  return cost === "round" ? columns.round[index] + 1 : columns[cost][index];
}
const costs = (run, cost) => run.columns.round.map((_, index) => costAt(run, cost, index));

// [x, y] of a curve; a metric has points at evaluated rounds only.
function curve(run, cost, metric) {
  if (metric in run.metrics) {
    return [run.evaluated.map((index) => costAt(run, cost, index)), run.metrics[metric]];
  }
  return metric in run.columns ? [costs(run, cost), run.columns[metric]] : [[], []];
}
