"use strict";
// How each silo fares in each configuration, and against a baseline.
const MOST_NAMED = 30;  // more bars stand upright, and are named when pointed at
const GAIN = { light: "#0072B2", dark: "#56B4E9" }, LOSS = { light: "#D55E00", dark: "#E98A4B" };
const TRAINED = { loss: "loss of the local steps", clipped: "share of clipped steps",
  largest_norm: "largest gradient norm", drift: "drift" };
const siloMetricName = (metric) => TRAINED[metric] || metricName(metric);
const siloNumber = (v) => (v === null ? "–" : Math.abs(v) < 1000 ? v.toFixed(3) : v.toExponential(2));
const plain = (name) => name.replaceAll("<", "&lt;");  // plotly reads tags
const signed = (v) => (v < 0 ? "−" : "+") + siloNumber(Math.abs(v));

// Runs of a group that have values of each silo; those that diverged only if all have.
function siloRuns(group, metric) {
  const found = group.runs.filter((i) => metric in report.silos.runs[i]);
  const sound = found.filter((i) => !hasDiverged(report.runs[i]));
  return sound.length ? sound : found;
}

// The last value of each silo in a group, the mean over its runs; null where no run has one.
function lastOfSilos(group, metric) {
  const columns = siloRuns(group, metric).map((i) => readColumn(report.silos.runs[i][metric].last));
  return report.silos.silos.map((_, k) => {
    const values = known(columns.map((column) => column[k]));
    return values.length ? mean(values) : null;
  });
}

// How much better a value is than another; null if one of them is missing.
function gainOver(metric, value, other) {
  if (value === null || other === null) return null;
  return higherIsBetter(metric) ? value - other : other - value;
}

function siloOverview(group, metric, baseline) {
  const values = lastOfSilos(group, metric), found = known(values);
  const gains = values.map((v, k) => gainOver(metric, v, baseline[k]));
  const worst = higherIsBetter(metric) ? smallest(found) : largest(found), middle = mean(found);
  return { group, values, gains, found: found.length, mean: middle, worst,
    which: report.silos.silos[values.indexOf(worst)],
    spread: found.length < 2 ? null
      : Math.sqrt(found.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (found.length - 1)),
    gain: known(gains).filter((g) => g > 0).length, lose: known(gains).filter((g) => g < 0).length };
}

const siloGroup = (id) => report.groups[byId(id).value];
const siloMetric = () => byId("silo-metric").value;

function fillSiloTable() {
  const metric = siloMetric(), baseline = siloGroup("silo-baseline"), body = byId("silo-rows");
  const base = lastOfSilos(baseline, metric);
  body.replaceChildren();
  for (const group of report.groups) {
    const row = body.insertRow(), head = document.createElement("th");
    const o = siloOverview(group, metric, base), isBase = group === baseline;
    head.scope = "row";
    head.textContent = group.name + (isBase ? " (baseline)" : "");
    row.append(head);
    row.classList.toggle("chosen", group === siloGroup("silo-shown"));
    const cells = !o.found ? ["–", "–", "not recorded", "–", "–", "–"] : [siloNumber(o.mean),
      siloNumber(o.worst), o.which, siloNumber(o.spread), isBase ? "" : o.gain, isBase ? "" : o.lose];
    cells.forEach((text, i) => {
      const cell = row.insertCell();
      cell.textContent = text;
      if (i === 2) cell.className = "name";
    });
  }
}

function describeSilos(shown, baseline) {
  const total = known(shown.gains).length, missing = report.silos.silos.length - total;
  const same = total - shown.gain - shown.lose;
  if (!total) return "There is nothing to compare: one of the two has no values of this metric.";
  return `${shown.gain} of ${total} silos gain with ${shown.group.name}, ${shown.lose} lose`
    + `${same ? `, ${same} ${same === 1 ? "stays" : "stay"} the same` : ""}. The worst silo has `
    + `${siloNumber(shown.worst)} (${shown.which}) instead of ${siloNumber(baseline.worst)} `
    + `(${baseline.which}).${missing ? ` ${missing} without a value in both.` : ""}`;
}

// Cut a name that is too long for an axis.
const shortName = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

// The bars, worst first: gains over the baseline, or plain values if it is compared with itself.
function siloBars() {
  const metric = siloMetric(), compares = byId("silo-shown").value !== byId("silo-baseline").value;
  const base = siloOverview(siloGroup("silo-baseline"), metric, []);
  const shown = siloOverview(siloGroup("silo-shown"), metric, base.values);
  const height = compares ? shown.gains : shown.values;
  const better = compares || higherIsBetter(metric) ? 1 : -1;
  const order = report.silos.silos.map((_, k) => k).filter((k) => height[k] !== null)
    .sort((a, b) => better * (height[a] - height[b]));
  return { metric, compares, base, shown, height, order };
}

function drawSiloBars() {
  const bars = siloBars(), { compares, order } = bars, plot = byId("silo-gains");
  const lying = order.length <= MOST_NAMED, first = !plot.data;
  byId("silo-words").textContent = compares ? describeSilos(bars.shown, bars.base)
    : byId("silo-shown").length > 1 ? "Choose another configuration to see who gains and who loses."
    : "Only one configuration has records of each silo, so nobody gains or loses.";
  plot.style.height = lying ? `${6 + 1.7 * Math.max(2, order.length)}rem` : "";
  const done = Plotly.react(plot, [siloTrace(bars, lying)], lying ? lyingPlan(bars, plot)
    : uprightPlan(bars), { ...CONFIG, displayModeBar: !lying });
  if (first) plot.on("plotly_click", (event) => chooseSilo(event.points[0].customdata));
  return done;
}

const barTitle = ({ compares, metric }) => (compares ? "gain in " : "") + siloMetricName(metric);

function siloTrace({ metric, compares, base, shown, height, order }, lying) {
  const theme = isDark() ? "dark" : "light", chosen = Number(byId("silo").value);
  const places = order.map((_, i) => i), lengths = order.map((k) => height[k]);
  const edge = { color: layout().font.color, width: order.map((k) => (lying && k === chosen ? 2 : 0)) };
  const color = order.map((k) => (compares && height[k] < 0 ? LOSS : GAIN)[theme]);
  return { type: "bar", orientation: lying ? "h" : "v", cliponaxis: false, customdata: order,
    x: lying ? lengths : places, y: lying ? places : lengths, meta: metric,
    marker: { color, line: edge }, hoverinfo: "text", textposition: lying ? "outside" : "none",
    text: lengths.map((v) => (compares ? signed(v) : siloNumber(v))),
    hovertext: order.map((k) => `${plain(report.silos.silos[k])}: ${siloNumber(shown.values[k])}`
      + (compares ? ` instead of ${siloNumber(base.values[k])}` : "")) };
}

// A row for each silo, with its name, and room for the numbers beside the bars.
function lyingPlan(bars, plot) {
  const { order, height } = bars, plan = layout(barTitle(bars), "");
  const most = plot.clientWidth < 500 ? 14 : 28;
  const names = order.map((k) => shortName(report.silos.silos[k], most));
  const low = Math.min(0, smallest(order.map((k) => height[k])));
  const high = Math.max(0, largest(order.map((k) => height[k]))), sides = (low < 0) + (high > 0);
  const width = Math.max(120, plot.clientWidth - 40 - 7 * largest(names.map((n) => n.length)));
  const room = 54 * (high - low || 1) / Math.max(60, width - 54 * sides);  // 54 pixels for a number
  Object.assign(plan.yaxis, { tickvals: order.map((_, i) => i), ticktext: names.map(plain),
    showgrid: false, zeroline: false, fixedrange: true, range: [-0.5, order.length - 0.5] });
  Object.assign(plan.xaxis, { zerolinecolor: plan.font.color, fixedrange: true, nticks: 6,
    range: [low < 0 ? low - room : 0, high > 0 ? high + room : 0] });
  return { ...plan, margin: { ...plan.margin, t: 8, l: 20 }, bargap: 0.35 };
}

// Too many silos for names: they stand side by side, and the chosen one is pointed at.
function uprightPlan(bars) {
  const { order, height } = bars, chosen = order.indexOf(Number(byId("silo").value));
  const plan = layout(`${order.length} silos, the worst first`, barTitle(bars));
  const y = height[order[chosen]], text = plain(report.silos.silos[order[chosen]] ?? "");
  Object.assign(plan.xaxis, { showgrid: false, zeroline: false, showticklabels: false });
  plan.yaxis.zerolinecolor = plan.font.color;
  return { ...plan, bargap: order.length > 60 ? 0.1 : 0.25, annotations: chosen < 0 ? [] : [{
    x: chosen, y, text, ax: 0, ay: y < 0 ? 26 : -26, arrowcolor: plan.font.color, arrowwidth: 1.5,
    xanchor: chosen < order.length / 2 ? "left" : "right", font: { color: plan.font.color } }] };
}

function chooseSilo(place) {
  byId("silo").value = place;
  refresh("silo-gains", "silo-curves");
}

// [x, y] of one silo in one run, where it has values.
function siloCurve(i, cost, metric, silo) {
  const { rounds, values } = report.silos.runs[i][metric], count = report.silos.silos.length;
  const places = readColumn(rounds), y = places.map((_, row) => numbers[values[0] + row * count + silo]);
  const kept = places.map((_, row) => row).filter((row) => Number.isFinite(y[row]));
  return [kept.map((row) => costAt(report.runs[i], cost, places[row])), kept.map((row) => y[row])];
}

function siloTraces(cost, metric, silo) {
  return shownGroups().flatMap((group) => {
    const line = { color: colourOf(group.label), width: 2, dash: dashOf(group) };
    const curves = siloRuns(group, metric).map((i) => siloCurve(i, cost, metric, silo))
      .filter(([x]) => x.length);
    if (!curves.length) return [];
    const alike = curves.every(([x]) => x.length === curves[0][0].length);
    const { x, middle } = alike ? meanAndRange(curves) : {};
    const lines = alike ? [[x, middle]] : curves;  // if its rounds differ by seed, every run
    return lines.map(([xs, ys], n) => ({ x: xs, y: ys, name: group.name, line, meta: group.name,
      mode: xs.length > 1 ? "lines" : "markers", marker: { color: line.color }, showlegend: !n }));
  });
}

function drawSiloCurves() {
  const cost = byId("axis").value, metric = siloMetric(), silo = Number(byId("silo").value);
  const plan = layout(COSTS[cost], siloMetricName(metric), { showlegend: true,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 } });
  plan.margin = { ...plan.margin, t: 60 };
  byId("silo-curves").setAttribute("aria-label", `Curves of ${report.silos.silos[silo]}`);
  if (metric === "drift" || metric === "largest_norm") Object.assign(plan.yaxis, LOG);
  return Plotly.react("silo-curves", siloTraces(cost, metric, silo), plan, CONFIG);
}

draw["silo-gains"] = drawSiloBars;
draw["silo-curves"] = drawSiloCurves;
PLOTS.push("silo-gains", "silo-curves");

function fillSiloControls() {
  byId("silos-section").hidden = !report.silos;
  if (!report.silos) return;
  report.silos.metrics.forEach((m) => addOption(byId("silo-metric"), m, siloMetricName(m)));
  report.silos.silos.forEach((name, k) => addOption(byId("silo"), k, name));
  const able = report.groups.map((g, i) => i).filter((i) =>
    report.groups[i].runs.some((r) => Object.keys(report.silos.runs[r]).length));
  for (const i of able) {
    for (const id of ["silo-shown", "silo-baseline"]) addOption(byId(id), i, report.groups[i].name);
  }
  const ours = able.slice(1).find((i) => report.groups[i].label === "episode");
  byId("silo-shown").value = ours ?? able[1] ?? able[0];
  byId("silo-note").hidden = !report.silos.thinned;
  chooseWorstSilo();
  fillSiloTable();
}

// The curve that is shown first is that of the silo that loses most.
function chooseWorstSilo() {
  const { order } = siloBars();
  if (order.length) byId("silo").value = order[0];
}

function listenToSilos(on) {
  on(["silo-metric", "silo-shown", "silo-baseline"], () => {
    fillSiloTable();
    refresh("silo-gains", "silo-curves");
  });
  on(["silo"], () => refresh("silo-gains", "silo-curves"));
  on(["axis", "algorithms", "filters"], () => refresh("silo-curves"));
}
