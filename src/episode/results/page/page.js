"use strict";
const AXES = { round: "rounds", exchanges: "exchanges", bytes: "MB sent, both ways",
  gradients: "gradients, all clients", seconds: "seconds of training" };
const WORDS = { loss: "loss of the local steps" };

const name = (metric) => WORDS[metric] || metric.replaceAll("_", " ");
const risesToBetter = (metric) => /accuracy|score|auc|f1/.test(metric);

function mean(values) { return values.reduce((a, b) => a + b, 0) / values.length; }

function dark() { return document.documentElement.dataset.theme === "dark"; }
// Black and white change places in the dark; all other colours stay.
function colour(label) {
  const c = report.styles[label].colour;
  return dark() && c === "#000000" ? "#ffffff" : c;
}
function faded(hex) {
  const n = parseInt(hex.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, 0.16)`;
}
// Configurations of one algorithm share its colour and differ in their dashes.
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
function dash(group) {
  const same = report.groups.filter((g) => g.label === group.label && shown(g));
  const own = report.styles[group.label].dash;
  return same.length < 2 ? own : DASHES[same.indexOf(group) % DASHES.length];
}

function shown(group) {
  const off = document.querySelector(`#algorithms input[value="${CSS.escape(group.label)}"]`);
  if (off && !off.checked) return false;
  return [...document.querySelectorAll("#filters select")].every(
    (s) => s.value === "" || JSON.stringify(group.settings[s.dataset.key]) === s.value);
}

function layout(xTitle, yTitle, more) {
  const ink = dark() ? "#ececec" : "#1b1b1b", line = dark() ? "#3b3f46" : "#dddddd";
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: ink, size: 13, family: "system-ui, sans-serif" },
    margin: { l: 60, r: 12, t: 34, b: 50 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: dark() ? "#8a8f98" : "#8a8a8a", activecolor: ink }, hovermode: "closest",
    hoverlabel: { namelength: -1 },
    xaxis: { ...axis, title: { text: xTitle } }, yaxis: { ...axis, title: { text: yTitle } },
    ...more };
}
// Named one by one: plotly's own choice has a button that sends the metrics to its makers.
const BUTTONS = [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: BUTTONS };

function traces(axis, metric, view) {
  const found = [];
  for (const group of report.groups.filter(shown)) {
    const runs = group.runs.map((i) => report.runs[i]);
    const style = { color: colour(group.label), width: 2, dash: dash(group) };
    // A diverged run ends early: it is marked, and the mean is that of the others.
    const whole = runs.filter((r) => r.status !== "diverged");
    const curves = (whole.length ? whole : runs).map((r) => points(r, axis, metric))
      .filter(([x]) => x.length);
    if (view === "each" || curves.length < 2) {
      runs.forEach((run) => {
        const [x, y] = points(run, axis, metric);
        if (!x.length) return;
        const title = group.name + (runs.length > 1 ? `, seed ${run.seed}` : "");
        found.push({ x, y, name: title, mode: x.length > 1 ? "lines" : "markers", line: style,
          marker: { color: style.color }, meta: run.name });
      });
    } else {
      const [x, low, middle, high] = range(curves);
      found.push({ x: [...x, ...x.slice().reverse()], y: [...high, ...low.reverse()],
        fill: "toself", fillcolor: faded(style.color), line: { width: 0 }, hoverinfo: "skip",
        mode: "lines", meta: "range" });
      found.push({ x, y: middle, mode: "lines", line: style,
        name: `${group.name}, mean of ${curves.length}`, meta: "mean" });
    }
    runs.filter((r) => r.status === "diverged").forEach((run) => {
      const [x, y] = points(run, axis, metric);
      const last = y.findLastIndex((v) => v !== null);
      if (last < 0) return;
      found.push({ x: [x[last]], y: [y[last]], mode: "markers", name: `${run.name} diverged`,
        marker: { symbol: "x", size: 11, color: style.color }, meta: "diverged" });
    });
  }
  return found;
}

// Where all curves have a value: mean x, and the lowest, mean and highest y.
function range(curves) {
  const found = [[], [], [], []], length = Math.min(...curves.map(([x]) => x.length));
  for (let i = 0; i < length; i++) {
    const y = curves.map((c) => c[1][i]);
    if (y.includes(null)) continue;
    const values = [mean(curves.map((c) => c[0][i])), Math.min(...y), mean(y), Math.max(...y)];
    values.forEach((v, k) => found[k].push(v));
  }
  return found;
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

// Whether one configuration that has not diverged is so far above another that only logs show both.
function suggestLog() {
  const metric = $("metric").value;
  const values = report.groups.map((g) => g.runs.map((i) => report.runs[i])
    .filter((r) => r.status !== "diverged").flatMap((r) => points(r, "round", metric)[1])
    .filter((v) => v !== null)).filter((v) => v.length);
  const tops = values.map(most);
  $("logy").checked = least(values.map(least)) > 0 && most(tops) > 30 * least(tops);
}

// Where diverged runs would press all others flat: the range of y that those others need.
function roomWithoutDiverged(axis, metric) {
  const runs = report.groups.filter(shown).flatMap((g) => g.runs.map((i) => report.runs[i]));
  const values = (kept) => runs.filter((r) => (r.status === "diverged") !== kept)
    .flatMap((r) => points(r, axis, metric)[1]).filter((v) => v !== null);
  const calm = values(true), wild = values(false);
  if (!calm.length || !wild.length) return null;
  const low = least(calm), high = most(calm);
  const size = high - low || Math.abs(high) || 1;
  return wild.some((v) => v > high + 2 * size) ? [low - 0.05 * size, high + 0.05 * size] : null;
}

const draw = {
  curves() {
    const axis = $("axis").value, metric = $("metric").value;
    const plan = layout(AXES[axis], name(metric));
    if ($("logx").checked) plan.xaxis.type = "log";
    const room = $("logy").checked ? null : roomWithoutDiverged(axis, metric);
    if ($("logy").checked) plan.yaxis.type = "log";
    if (room) plan.yaxis.range = room;
    $("curves-note").hidden = !room;
    return Plotly.react("curves", traces(axis, metric, $("view").value), plan, CONFIG);
  },
  drift() {
    const axis = $("axis").value, plan = layout(AXES[axis], "drift");
    plan.yaxis.type = "log";  // what is not clipped may drift a thousand times as far
    return Plotly.react("drift", traces(axis, "drift", $("view").value), plan, CONFIG);
  },
  clipping() {
    const run = report.runs[$("clipping-run").value], axis = $("axis").value;
    const x = along(run, axis), c = run.columns, style = colour(run.label);
    const decided = c.clipped.filter((v) => v !== null), clipped = decided.filter(Boolean).length;
    const steps = c.clipped_steps.filter((v) => v !== null);
    const clips = decided.length || c.largest_norm.some((v) => v !== null);
    $("clipping-words").textContent = decided.length
      ? `${clipped} of ${decided.length} rounds were clipped: ‖G_r‖ above γ/η.`
      : !clips ? `${run.label} does not clip.`
      : `Clipping is decided step by step: ${(100 * mean(steps)).toFixed(1)}% of local steps.`;
    const norm = c.global_norm.some((v) => v !== null) ? "global_norm" : "largest_norm";
    const title = norm === "global_norm" ? "‖G_r‖" : "largest ‖g‖ of the round";
    const y = c[norm];
    const data = [
      { x, y, name: title, mode: "lines", line: { color: style, width: 1.5 }, meta: norm },
      { x, y: y.map((v, i) => (c.clipped[i] ? v : null)), name: "clipped", mode: "markers",
        marker: { color: style, size: 5 }, meta: "clipped", showlegend: clipped > 0 },
      { x, y: c.threshold, name: "γ/η", mode: "lines", meta: "threshold",
        line: { color: dark() ? "#ffffff" : "#000000", width: 1.5, dash: "dash" } }];
    const plan = layout(AXES[axis], title, { showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 } });
    plan.margin = { ...plan.margin, t: 80 };
    plan.yaxis.type = "log";
    return Plotly.react("clipping", data, plan, CONFIG);
  },
  partition() {
    const chosen = report.partitions[$("partition-choice").value];
    const few = chosen.labels.length <= 12 && chosen.counts.length <= 20
      && $("partition").clientWidth > 40 * chosen.labels.length;
    const data = [{ type: "heatmap", z: chosen.counts, x: chosen.labels,
      y: chosen.counts.map((_, i) => `client ${i}`), colorscale: "Cividis",
      colorbar: { title: { text: "examples" }, thickness: 12 },
      texttemplate: few ? "%{z}" : undefined,
      hovertemplate: "%{y}, label %{x}: %{z}<extra></extra>" }];
    const plan = layout("label", "");
    plan.xaxis.type = "category";
    plan.yaxis.autorange = "reversed";
    return Plotly.react("partition", data, plan, CONFIG);
  },
};

// A plot is drawn when it comes into view, and before the page is printed.
const drawn = new Set();
function refresh(...plots) {
  for (const plot of plots) if (drawn.has(plot)) draw[plot]();
}
function watchPlots() {
  const watcher = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !drawn.has(target.id) && target.offsetParent !== null) {
        drawn.add(target.id);
        draw[target.id]();
      }
    }
  }, { rootMargin: "300px" });
  document.querySelectorAll(".plot").forEach((plot) => watcher.observe(plot));
}
function drawAll() {
  for (const plot of document.querySelectorAll(".plot")) {
    if (plot.offsetParent === null) continue;
    drawn.add(plot.id);
    draw[plot.id]();
  }
}

// Costs at the first evaluation that is at the target or better.
function reached(run, metric, target) {
  const [, y] = points(run, "round", metric);
  const better = risesToBetter(metric) ? (v) => v >= target : (v) => v <= target;
  const place = y.findIndex((v) => v !== null && better(v));
  if (place < 0) return null;
  const i = metric in run.metrics ? run.at[place] : place;
  return Object.fromEntries(Object.keys(AXES).map((a) => [a, costAt(run, a, i)]));
}

function fillTargets() {
  const metric = $("target-metric").value, target = Number($("target").value);
  $("target-sense").textContent = risesToBetter(metric) ? "at least" : "at most";
  const body = $("target-rows");
  body.replaceChildren();
  for (const group of report.groups.filter(shown)) {
    const costs = group.runs.map((i) => reached(report.runs[i], metric, target)).filter(Boolean);
    const row = body.insertRow(), head = document.createElement("th");
    head.scope = "row";
    head.textContent = group.name;
    row.append(head);
    const lost = group.runs.filter((i) => report.runs[i].status === "diverged").length;
    const mark = lost ? ` (${lost} diverged)` : "";
    row.insertCell().textContent = `${costs.length} of ${group.runs.length}${mark}`;
    for (const axis of Object.keys(AXES)) {
      const digits = axis === "seconds" || axis === "bytes" ? 1 : 0;
      const value = costs.length ? mean(costs.map((c) => c[axis])) : null;
      const cell = row.insertCell();
      cell.textContent = value === null ? "–" : value.toLocaleString("en", {
        minimumFractionDigits: digits, maximumFractionDigits: digits });
      if (value !== null) cell.dataset.value = value;
    }
  }
}

function suggestTarget() {
  const metric = $("target-metric").value, rises = risesToBetter(metric);
  const whole = report.runs.filter((r) => r.status !== "diverged");
  const last = (whole.length ? whole : report.runs).map((r) => points(r, "round", metric)[1].findLast((v) => v !== null))
    .filter((v) => v !== undefined);
  if (!last.length) return;
  const best = rises ? Math.max(...last) : Math.min(...last);
  const goal = rises ? 0.9 * best : best > 0 ? best / 0.9 : best * 0.9;
  $("target").value = Number(goal.toPrecision(2));
}

function option(select, value, text) {
  const entry = document.createElement("option");
  entry.value = value;
  entry.textContent = text;
  select.append(entry);
}

function fillControls() {
  for (const metric of [...report.metrics, "loss"]) {
    option($("metric"), metric, name(metric));
    option($("target-metric"), metric, name(metric));
  }
  report.runs.forEach((run, i) => {
    const group = report.groups.find((g) => g.runs.includes(i));
    const words = run.status === "finished" ? "" : ` (${run.status})`;
    if (run.rounds) option($("clipping-run"), i, `${group.name}, seed ${run.seed}${words}`);
  });
  const decided = report.runs.findIndex((r) => r.rounds && r.columns.clipped.some((v) => v !== null));
  if (decided >= 0) $("clipping-run").value = decided;
  for (const [label, style] of Object.entries(report.styles)) {
    const entry = document.createElement("label");
    const strokes = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" }[style.dash];
    entry.innerHTML = `<input type="checkbox" checked><svg width="26" height="8" aria-hidden="true">
      <line x1="0" x2="26" y1="4" y2="4" stroke-width="3" stroke-dasharray="${strokes}"/></svg>`;
    entry.querySelector("input").value = label;
    entry.append(label);
    $("algorithms").append(entry);
  }
  const keys = Object.keys(report.groups[0]?.settings ?? {});
  for (const key of keys.filter((k) => !k.startsWith("algorithm."))) {
    const label = document.createElement("label"), select = document.createElement("select");
    select.dataset.key = key;
    option(select, "", "all");
    const values = new Set(report.groups.map((g) => JSON.stringify(g.settings[key])));
    for (const value of values) option(select, value, shortly(JSON.parse(value)));
    label.append(`${key} `, select);
    $("filters").append(label);
  }
  report.partitions.forEach((p, i) => option($("partition-choice"), i, p.title));
  $("partition-section").hidden = !report.partitions.length;
}

function shortly(value) {
  if (value === null) return "–";
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : JSON.stringify(value);
}

function paintSwatches() {
  document.querySelectorAll("#algorithms label").forEach((entry) => {
    entry.querySelector("line").setAttribute("stroke", colour(entry.querySelector("input").value));
  });
}

function setTheme() {
  const asked = $("theme").value, system = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = asked === "auto" ? (system ? "dark" : "light") : asked;
  paintSwatches();
  refresh("curves", "drift", "clipping", "partition");
}

function listen() {
  const on = (ids, act) => ids.forEach((id) => $(id).addEventListener("change", act));
  on(["metric"], suggestLog);
  on(["metric", "logx", "logy"], () => refresh("curves"));
  on(["axis"], () => refresh("curves", "drift", "clipping"));
  on(["view"], () => refresh("curves", "drift"));
  on(["algorithms", "filters"], () => { refresh("curves", "drift"); fillTargets(); });
  on(["clipping-run"], () => refresh("clipping"));
  on(["partition-choice"], () => refresh("partition"));
  on(["target-metric"], () => { suggestTarget(); fillTargets(); });
  $("target").addEventListener("input", fillTargets);
  on(["theme"], setTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setTheme);
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    for (const entry of document.querySelectorAll("details")) entry.open = true;
    drawAll();
  });
  addEventListener("afterprint", setTheme);
}

async function start() {
  try {
    await load();
    fillControls();
    suggestLog();
    suggestTarget();
    setTheme();
    fillTargets();
    listen();
    watchPlots();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `The plots cannot be shown (${error.message}): this page needs a browser of 2023 or later.`;
    throw error;
  }
}
start();
