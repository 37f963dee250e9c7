"use strict";
const COSTS = { round: "rounds", exchanges: "exchanges", bytes: "MB sent, both directions",
  gradients: "gradients, all clients", seconds: "seconds of training" };
const METRIC_NAMES = { loss: "loss of the local steps" };
const PLOTS = ["curves", "clipping", "drift", "partition"];

const metricName = (metric) => METRIC_NAMES[metric] || metric.replaceAll("_", " ");
const higherIsBetter = (metric) => /accuracy|score|auc|f1/.test(metric);

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
// Not Math.min(...values), which fails for lists of 100,000 values.
const smallest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const largest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
const known = (values) => values.filter((v) => v !== null);

const hasDiverged = (run) => run.status === "diverged";
const runsOf = (group) => group.runs.map((i) => report.runs[i]);

// Which groups are shown.
function isShown(group) {
  const box = document.querySelector(`#algorithms input[value="${CSS.escape(group.label)}"]`);
  if (box && !box.checked) return false;
  return [...document.querySelectorAll("#filters select")].every(
    (s) => s.value === "" || JSON.stringify(group.settings[s.dataset.key]) === s.value);
}
const shownGroups = () => report.groups.filter(isShown);

// Colours and lines.
const isDark = () => document.documentElement.dataset.theme === "dark";
function colourOf(label) {
  const colour = report.styles[label].colour;
  return isDark() && colour === "#000000" ? "#ffffff" : colour;
}
function transparent(hex) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, 0.16)`;
}
// Configurations of one algorithm share its colour and differ in their dashes.
const DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4",
  longdashdot: "11 3 2 3" };
function dashOf(group) {
  const same = shownGroups().filter((g) => g.label === group.label);
  const names = Object.keys(DASHES);
  return same.length < 2 ? report.styles[group.label].dash
    : names[same.indexOf(group) % names.length];
}
const sampleLine = (colour, dash) => `<svg width="30" height="8" aria-hidden="true"><line x1="0"
  x2="30" y1="4" y2="4" stroke="${colour}" stroke-width="3" stroke-dasharray="${DASHES[dash]}"/></svg>`;

// Plots.
function layout(xTitle, yTitle, more) {
  const ink = isDark() ? "#ececec" : "#1b1b1b", line = isDark() ? "#3b3f46" : "#dddddd";
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: ink, size: 13, family: "system-ui, sans-serif" },
    margin: { l: 60, r: 12, t: 34, b: 50 }, hovermode: "closest", hoverlabel: { namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: isDark() ? "#8a8f98" : "#8a8a8a", activecolor: ink },
    xaxis: { ...axis, title: { text: xTitle } }, yaxis: { ...axis, title: { text: yTitle } },
    ...more };
}
// With whole numbers at the ticks: by default plotly writes 0.9, 0.8, 0.7 as 9, 8, 7.
const LOG = { type: "log", tickformat: "~g" };
// Named one by one, as plotly's default has a button that uploads the data to its makers.
const BUTTONS = [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: BUTTONS };

function curveTraces(cost, metric, view) {
  return shownGroups().flatMap((group) => {
    const runs = runsOf(group), line = { color: colourOf(group.label), width: 2, dash: dashOf(group) };
    // A diverged run ends early: it gets a cross, and the mean is that of the others.
    const sound = runs.filter((run) => !hasDiverged(run));
    const curves = (sound.length ? sound : runs).map((run) => curve(run, cost, metric))
      .filter(([x]) => x.length);
    const lines = view === "each" || curves.length < 2
      ? runTraces(group, runs, cost, metric, line) : meanTraces(group, curves, line);
    return [...lines, ...runs.filter(hasDiverged).flatMap((run) => crossTrace(run, cost, metric, line))];
  });
}

function runTraces(group, runs, cost, metric, line) {
  const traces = [];
  for (const run of runs) {
    const [x, y] = curve(run, cost, metric);
    if (!x.length) continue;
    const name = group.name + (runs.length > 1 ? `, seed ${run.seed}` : "");
    traces.push({ x, y, name, mode: x.length > 1 ? "lines" : "markers", line,
      marker: { color: line.color }, meta: run.name });
  }
  return traces;
}

function meanTraces(group, curves, line) {
  const { x, low, middle, high } = meanAndRange(curves);
  return [
    { x: [...x, ...x.slice().reverse()], y: [...high, ...low.reverse()], fill: "toself",
      fillcolor: transparent(line.color), line: { width: 0 }, hoverinfo: "skip", mode: "lines",
      meta: "range" },
    { x, y: middle, mode: "lines", line, name: `${group.name}, mean of ${curves.length}`,
      meta: "mean" }];
}

function crossTrace(run, cost, metric, line) {
  const [x, y] = curve(run, cost, metric);
  const last = y.findLastIndex((v) => v !== null);
  return last < 0 ? [] : [{ x: [x[last]], y: [y[last]], mode: "markers", name: `${run.name} diverged`,
    marker: { symbol: "x", size: 11, color: line.color }, meta: "diverged" }];
}

// Mean x, and smallest, mean and largest y, wherever all curves have a value.
function meanAndRange(curves) {
  const found = { x: [], low: [], middle: [], high: [] };
  const length = Math.min(...curves.map(([x]) => x.length));
  for (let i = 0; i < length; i++) {
    const y = curves.map((c) => c[1][i]);
    if (y.includes(null)) continue;
    found.x.push(mean(curves.map((c) => c[0][i])));
    found.low.push(Math.min(...y));
    found.middle.push(mean(y));
    found.high.push(Math.max(...y));
  }
  return found;
}

// Switches to a logarithmic y axis if only that shows all configurations that have not diverged.
function suggestLogScale() {
  const metric = byId("metric").value;
  const values = report.groups.map((group) => known(runsOf(group)
    .filter((run) => !hasDiverged(run)).flatMap((run) => curve(run, "round", metric)[1])))
    .filter((list) => list.length);
  const peaks = values.map(largest);
  byId("logy").checked = smallest(values.map(smallest)) > 0 && largest(peaks) > 30 * smallest(peaks);
}

// The range of y without diverged runs, if these would press all other curves flat; else null.
function rangeWithoutDiverged(cost, metric) {
  const runs = shownGroups().flatMap(runsOf);
  const values = (some) => known(some.flatMap((run) => curve(run, cost, metric)[1]));
  const sound = values(runs.filter((run) => !hasDiverged(run))), diverged = values(runs.filter(hasDiverged));
  if (!sound.length || !diverged.length) return null;
  const low = smallest(sound), high = largest(sound);
  const size = high - low || Math.abs(high) || 1;
  return largest(diverged) > high + 2 * size ? [low - 0.05 * size, high + 0.05 * size] : null;
}

// Rounds, unless some runs have many more of them, which would press the others into a corner.
function suggestAxis() {
  const lengths = report.runs.filter((run) => !hasDiverged(run) && run.rounds).map((run) => run.rounds);
  byId("axis").value = largest(lengths) > 2 * smallest(lengths) ? "gradients" : "round";
}

// Where an algorithm has several configurations, the checkboxes do not say which line is which.
function listConfigurations() {
  const groups = shownGroups(), list = byId("configurations");
  list.hidden = groups.length === new Set(groups.map((g) => g.label)).size;
  listLines(list);
}
// Each line that is shown, with its name.
function listLines(list) {
  list.replaceChildren(...shownGroups().map((group) => {
    const entry = document.createElement("span");
    entry.innerHTML = sampleLine(colourOf(group.label), dashOf(group));
    entry.append(group.name);
    return entry;
  }));
}

const draw = {
  curves() {
    const cost = byId("axis").value, metric = byId("metric").value, logY = byId("logy").checked;
    const plan = layout(COSTS[cost], metricName(metric));
    const range = logY ? null : rangeWithoutDiverged(cost, metric);
    if (byId("logx").checked) Object.assign(plan.xaxis, LOG);
    if (logY) Object.assign(plan.yaxis, LOG);
    if (range) plan.yaxis.range = range;
    byId("curves-note").hidden = !range;
    listConfigurations();
    return Plotly.react("curves", curveTraces(cost, metric, byId("view").value), plan, CONFIG);
  },
  drift() {
    const cost = byId("axis").value, plan = layout(COSTS[cost], "drift");
    Object.assign(plan.yaxis, LOG);  // without clipping, clients may drift a thousand times as far
    listLines(byId("drift-lines"));
    return Plotly.react("drift", curveTraces(cost, "drift", byId("view").value), plan, CONFIG);
  },
  clipping() {
    const run = report.runs[byId("clipping-run").value], cost = byId("axis").value;
    const x = costs(run, cost), columns = run.columns, color = colourOf(run.label);
    byId("clipping-words").textContent = describeClipping(run);
    const norm = known(columns.global_norm).length ? "global_norm" : "largest_norm";
    const title = norm === "global_norm" ? "‖G_r‖" : "largest ‖g‖ of the round";
    const y = columns[norm], clipped = y.map((v, i) => (columns.clipped[i] ? v : null));
    const traces = [
      { x, y, name: title, mode: "lines", line: { color, width: 1.5 }, meta: norm },
      { x, y: clipped, name: "clipped rounds", mode: "markers", marker: { color, size: 5 },
        meta: "clipped", showlegend: known(clipped).length > 0 },
      { x, y: columns.threshold, name: "threshold γ/η", mode: "lines", meta: "threshold",
        line: { color: isDark() ? "#ffffff" : "#000000", width: 1.5, dash: "dash" } }];
    const plan = layout(COSTS[cost], title, { showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 } });
    plan.margin = { ...plan.margin, t: 80 };
    Object.assign(plan.yaxis, LOG);
    return Plotly.react("clipping", traces, plan, CONFIG);
  },
  partition() {
    const { labels, clients, counts } = report.partitions[byId("partition-choice").value];
    const fits = labels.length <= 12 && clients.length <= 20
      && byId("partition").clientWidth > 40 * labels.length;
    const traces = [{ type: "heatmap", z: counts, x: labels, colorscale: "Cividis",
      y: clients.map((client) => (/^\d+$/.test(client) ? `client ${client}` : client)),
      colorbar: { title: { text: "examples" }, thickness: 12 },
      text: counts.map((row) => row.map((n) => n || "")), texttemplate: fits ? "%{text}" : undefined,
      hovertemplate: "%{y}, label %{x}: %{z}<extra></extra>" }];
    const plan = layout("label", "");
    plan.xaxis.type = "category";
    plan.yaxis.type = "category";
    plan.yaxis.autorange = "reversed";
    return Plotly.react("partition", traces, plan, CONFIG);
  },
};

function describeClipping(run) {
  const decided = known(run.columns.clipped), steps = known(run.columns.clipped_steps);
  if (decided.length) {
    return `${decided.filter(Boolean).length} of ${decided.length} rounds were clipped: their ‖G_r‖ was above γ/η.`;
  }
  if (!known(run.columns.largest_norm).length) return `${run.label} does not clip.`;
  return `${run.label} decides for each step: ${(100 * mean(steps)).toFixed(1)}% of the local steps were clipped.`;
}

// A plot is drawn when it comes into view, or before the page is printed.
const drawn = new Set();
function refresh(...plots) {
  for (const plot of plots) if (drawn.has(plot)) draw[plot]();
}
function drawInView() {
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !drawn.has(target.id)) drawNow(target);
    }
  }, { rootMargin: "300px" });
  document.querySelectorAll(".plot").forEach((plot) => observer.observe(plot));
}
const drawAll = () => document.querySelectorAll(".plot").forEach(drawNow);
function drawNow(plot) {
  if (plot.offsetParent === null) return;  // in a hidden section
  drawn.add(plot.id);
  draw[plot.id]();
}
