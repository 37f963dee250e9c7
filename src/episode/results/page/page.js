"use strict";
// Cost to reach a target.
function costsToReach(run, metric, target) {
  const [, y] = curve(run, "round", metric);
  const reaches = higherIsBetter(metric) ? (v) => v >= target : (v) => v <= target;
  const place = y.findIndex((v) => v !== null && reaches(v));
  if (place < 0) return null;
  const index = metric in run.metrics ? run.evaluated[place] : place;
  return Object.fromEntries(Object.keys(COSTS).map((cost) => [cost, costAt(run, cost, index)]));
}

function fillTargetTable() {
  const metric = byId("target-metric").value, target = Number(byId("target").value);
  byId("target-sense").textContent = higherIsBetter(metric) ? "at least" : "at most";
  const body = byId("target-rows");
  body.replaceChildren();
  for (const group of shownGroups()) {
    const found = runsOf(group).map((run) => costsToReach(run, metric, target)).filter(Boolean);
    const row = body.insertRow(), head = document.createElement("th");
    head.scope = "row";
    head.textContent = group.name;
    row.append(head);
    const diverged = runsOf(group).filter(hasDiverged).length;
    row.insertCell().textContent =
      `${found.length} of ${group.runs.length}${diverged ? ` (${diverged} diverged)` : ""}`;
    for (const cost of Object.keys(COSTS)) {
      const digits = cost === "seconds" || cost === "bytes" ? 1 : 0;
      const value = found.length ? mean(found.map((c) => c[cost])) : null;
      const cell = row.insertCell();
      cell.textContent = value === null ? "–" : value.toLocaleString("en", {
        minimumFractionDigits: digits, maximumFractionDigits: digits });
      if (value !== null) cell.dataset.value = value;
    }
  }
}

// Suggests 90% of the best final value as the target.
function suggestTarget() {
  const metric = byId("target-metric").value, rises = higherIsBetter(metric);
  const sound = report.runs.filter((run) => !hasDiverged(run));
  const final = (sound.length ? sound : report.runs)
    .map((run) => curve(run, "round", metric)[1].findLast((v) => v !== null))
    .filter((v) => v !== undefined);
  if (!final.length) return;
  const best = rises ? Math.max(...final) : Math.min(...final);
  const target = rises ? 0.9 * best : best > 0 ? best / 0.9 : best * 0.9;
  byId("target").value = Number(target.toPrecision(2));
}

// Controls.
function addOption(select, value, text) {
  const option = document.createElement("option");
  option.value = value;
  option.textContent = text;
  select.append(option);
}

function fillControls() {
  for (const metric of [...report.metrics, "loss"]) {
    addOption(byId("metric"), metric, metricName(metric));
    addOption(byId("target-metric"), metric, metricName(metric));
  }
  report.runs.forEach((run, i) => {
    const group = report.groups.find((g) => g.runs.includes(i));
    const status = run.status === "finished" ? "" : ` (${run.status})`;
    if (run.rounds) addOption(byId("clipping-run"), i, `${group.name}, seed ${run.seed}${status}`);
  });
  const deciding = report.runs.findIndex((run) => run.rounds && known(run.columns.clipped).length);
  if (deciding >= 0) byId("clipping-run").value = deciding;
  for (const label of Object.keys(report.styles)) {
    const entry = document.createElement("label");
    entry.innerHTML = '<input type="checkbox" checked><span></span>';
    entry.querySelector("input").value = label;
    entry.append(label);
    byId("algorithms").append(entry);
  }
  const keys = Object.keys(report.groups[0]?.settings ?? {});
  keys.filter((key) => !key.startsWith("algorithm.")).forEach(addFilter);
  report.partitions.forEach((p, i) => addOption(byId("partition-choice"), i, p.title));
  byId("partition-section").hidden = !report.partitions.length;
  fillSiloControls();
}

function addFilter(key) {
  const label = document.createElement("label"), select = document.createElement("select");
  select.dataset.key = key;
  addOption(select, "", "all");
  const values = new Set(report.groups.map((group) => JSON.stringify(group.settings[key])));
  for (const value of values) addOption(select, value, settingText(JSON.parse(value)));
  label.append(`${key} `, select);
  byId("filters").append(label);
}

function settingText(value) {
  if (value === null) return "–";
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : JSON.stringify(value);
}

function setTheme() {
  const choice = byId("theme").value, system = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = choice === "auto" ? (system ? "dark" : "light") : choice;
  for (const entry of document.querySelectorAll("#algorithms label")) {
    const label = entry.querySelector("input").value;
    const single = report.groups.filter((group) => group.label === label).length === 1;
    const dash = single ? report.styles[label].dash : "solid";
    entry.querySelector("span").innerHTML = sampleLine(colourOf(label), dash);
  }
  refresh(...PLOTS);
}

function listen() {
  const on = (ids, react) => ids.forEach((id) => byId(id).addEventListener("change", react));
  on(["metric"], suggestLogScale);
  on(["metric", "logx", "logy"], () => refresh("curves"));
  on(["axis"], () => refresh("curves", "drift", "clipping"));
  on(["view"], () => refresh("curves", "drift"));
  on(["algorithms", "filters"], () => { refresh("curves", "drift"); fillTargetTable(); });
  on(["clipping-run"], () => refresh("clipping"));
  on(["partition-choice"], () => refresh("partition"));
  if (report.silos) listenToSilos(on);
  on(["target-metric"], () => { suggestTarget(); fillTargetTable(); });
  byId("target").addEventListener("input", fillTargetTable);
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
    await loadReport();
    fillControls();
    suggestAxis();
    suggestLogScale();
    suggestTarget();
    setTheme();
    fillTargetTable();
    listen();
    drawInView();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    byId("error").hidden = false;
    byId("error").textContent = `The plots cannot be shown (${error.message}): use a browser of 2023 or later.`;
    throw error;
  }
}
start();
