// The curves: one line per method, with the metric, the x axis and the methods to choose; bands are ranges over seeds.

const curves = document.getElementById("curves");
const curveForm = curves.querySelector("form");
const curveBox = curves.querySelector(".chart");
const readout = curves.querySelector(".readout");
const legend = curves.querySelector(".legend");
const hidden = new Set(); // labels of methods that are not shown
let curvePlot = null;
let drawn = []; // [x values, y values] of each run as it is drawn now
let edges = []; // of each run with several seeds, the series of the lower and the upper edge of its band

function chosenMetric() {
  return page.metrics.find((m) => m.key === curveForm.metric.value);
}

function curveTables(metric, x, log) {
  const averaged = metric.averaged && curveForm.iterate.value === "averaged";
  const key = metric.key + (averaged ? "_averaged" : "");
  return page.runs.map(({ columns }) => [
    columns[x].map(Number),
    columns[key] ? drawable(columns[key], metric.scale, log) : columns[x].map(() => null),
  ]);
}

// The smallest and the largest of the seeds as further tables, for the runs that have them.
function edgeTables(metric, x, log) {
  const key = metric.key + (metric.averaged && curveForm.iterate.value === "averaged" ? "_averaged" : "");
  return page.runs.flatMap((run, i) =>
    run.low?.[key]
      ? [run.low, run.high].map((side) => ({
          run: i,
          table: [run.columns[x].map(Number), drawable(side[key], metric.scale, log)],
        }))
      : [],
  );
}

function drawCurves() {
  const metric = chosenMetric();
  const x = curveForm.x.value;
  const log = curveForm.log.checked;
  curveForm.iterate[0].closest("fieldset").disabled = !metric.averaged;
  curvePlot?.destroy();
  const lines = page.runs.map((run) => ({
    label: run.name,
    show: !hidden.has(run.label),
    stroke: css(`--series-${run.colour}`),
    width: 2,
    dash: run.dash,
    points: { show: false },
  }));
  const options = chartOptions(curveBox, page.axes[x], metric.label, log);
  const sides = edgeTables(metric, x, log);
  edges = sides.map(({ run }, i) => ({ run, series: lines.length + 1 + i }));
  options.series = [
    {},
    ...lines,
    ...sides.map(({ run }) => ({ show: lines[run].show, stroke: "transparent", points: { show: false } })),
  ];
  const faint = lines.length > 6 ? "14" : "2e"; // many bands hide the lines
  options.bands = edges
    .filter((_, i) => i % 2)
    .map(({ run, series }) => ({ series: [series, series - 1], fill: `${lines[run].stroke}${faint}` }));
  options.hooks = { setCursor: [showValues] };
  drawn = curveTables(metric, x, log);
  curvePlot = new uPlot(options, uPlot.join([...drawn, ...sides.map(({ table }) => table)]), curveBox);
  frameCurves(metric, log);
  curveBox.setAttribute("aria-label", `${metric.title} of ${page.runs.length} runs against ${page.axes[x]}`);
  showValues(curvePlot);
}

// Show the range in which the methods differ, where the page names one; resetting the zoom shows all.
function frameCurves(metric, log) {
  if (metric.range && !log) curvePlot.setScale("y", { min: metric.range[0], max: metric.range[1] });
}

// Write the values under the cursor, or the last ones while there is no cursor, beside the names.
function showValues(u) {
  const at = u.cursor.idx;
  const xs = u.data[0];
  const { unit } = chosenMetric();
  const where = page.axes[curveForm.x.value];
  readout.textContent = at == null ? "Last values:" : `${where}: ${format(xs[at])}`;
  legend.querySelectorAll("button").forEach((button, i) => {
    const value = valueAt(drawn[i], at == null ? Infinity : xs[at]);
    const shown = value == null ? "–" : format(value) + (unit === "%" ? " %" : "");
    button.querySelector(".value").textContent = shown;
  });
}

// The value evaluated last at or before `x`; null where the run had diverged by then.
function valueAt([xs, ys], x) {
  return ys[xs.findLastIndex((v) => v <= x)] ?? null;
}

function makeLegend() {
  const pattern = document.createElement("template");
  pattern.innerHTML = `<button type="button" aria-pressed="true"><svg class="sample" viewBox="0 0 26 8"
    aria-hidden="true"><line x1="1" y1="4" x2="25" y2="4"/></svg><span class="name"></span>
    <span class="value"></span></button>`;
  page.runs.forEach((run, i) => {
    const button = pattern.content.firstElementChild.cloneNode(true);
    button.querySelector(".name").textContent = run.name;
    const line = button.querySelector("line");
    line.style.stroke = `var(--series-${run.colour})`;
    line.style.strokeDasharray = run.dash.join(" ");
    button.addEventListener("click", () => toggle(run.label));
    for (const start of ["pointerenter", "focus"]) {
      button.addEventListener(start, () => curvePlot.setSeries(i + 1, { focus: true }));
    }
    for (const end of ["pointerleave", "blur"]) {
      button.addEventListener(end, () => curvePlot.setSeries(null, { focus: true }));
    }
    legend.append(button);
  });
}

function toggle(label) {
  if (!hidden.delete(label)) hidden.add(label);
  page.runs.forEach((run, i) => {
    if (run.label !== label) return;
    const shown = { show: !hidden.has(label) };
    curvePlot.setSeries(i + 1, shown);
    for (const edge of edges) if (edge.run === i) curvePlot.setSeries(edge.series, shown);
    legend.children[i].setAttribute("aria-pressed", String(!hidden.has(label)));
  });
}

curves.hidden = false;
for (const metric of page.metrics) curveForm.metric.add(new Option(metric.title, metric.key));
curveForm.log.checked = chosenMetric().log;
makeLegend();
drawCurves();
attend(curveBox, () => curvePlot);
redrawOnColourChange(drawCurves);
curveForm.addEventListener("submit", (event) => event.preventDefault());
curveForm.unzoom.addEventListener("click", () => resetZoom(curvePlot));
curveForm.addEventListener("change", (event) => {
  if (event.target.name === "metric") curveForm.log.checked = chosenMetric().log;
  drawCurves();
});
