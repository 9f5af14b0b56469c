// What both charts share: the page's data, colours, number formats, axes, size and the keyboard.

const page = JSON.parse(document.getElementById("page-data").textContent);

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A number with four significant digits, in plain notation where that is readable.
function format(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

// A column as numbers to draw: null (a gap) where it is not finite or, on a log scale, not positive.
function drawable(column, scale, log) {
  return column.map((entry) => {
    const value = Number(entry) * scale;
    return Number.isFinite(value) && !(log && value <= 0) ? value : null;
  });
}

function axis(label, extra) {
  return {
    label,
    stroke: css("--soft"),
    font: "13px system-ui, sans-serif",
    labelFont: "13px system-ui, sans-serif",
    grid: { stroke: css("--grid"), width: 1 },
    ticks: { stroke: css("--rule"), width: 1 },
    values: (u, splits) => splits.map((v) => (v == null ? "" : format(v))),
    ...extra,
  };
}

// On a log scale label 1, 2 and 5 of each decade, the decades alone where many are shown, all where there is one.
function logLabels(u, splits) {
  const { min, max } = u.scales.y;
  const labelled = max / min < 10 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : max / min < 1e3 ? [1, 2, 5] : [1];
  return splits.map((v) => {
    const digit = Math.round(v / 10 ** Math.floor(Math.log10(v) + 1e-9));
    return labelled.includes(digit) ? v : null;
  });
}

// There is no half round.
function whole(u, splits) {
  return splits.map((v) => (Number.isInteger(v) ? v : null));
}

function chartOptions(box, xLabel, yLabel, log) {
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    padding: [10, 26, 0, 0],
    legend: { show: false },
    focus: { alpha: 0.2 },
    cursor: { y: false, drag: { x: true, y: true, uni: 24 }, dataIdx: nearest },
    scales: { x: { time: false }, y: log ? { distr: 3, log: 10 } : {} },
    axes: [axis(xLabel, xLabel === page.axes?.round ? { filter: whole } : {}), axis(yLabel, { size: 62, ...(log ? { filter: logLabels } : {}) })],
  };
}

// The index of the value of series `s` that lies nearest to index `i` (joined columns have holes).
function nearest(u, s, i) {
  const column = u.data[s];
  if (s === 0 || column[i] != null) return i;
  for (let step = 1; step < column.length; step += 1) {
    if (column[i - step] != null) return i - step;
    if (column[i + step] != null) return i + step;
  }
  return i;
}

function resetZoom(plot) {
  plot.setData(plot.data, true);
}

// Keep the chart as wide as its box, and let the arrow keys move the read-out; `chart()` is the present plot.
function attend(box, chart) {
  new ResizeObserver(() => chart()?.setSize({ width: box.clientWidth, height: box.clientHeight })).observe(box);
  box.addEventListener("keydown", (event) => {
    const plot = chart();
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key === "Escape") resetZoom(plot);
    if (!(event.key in steps)) return;
    event.preventDefault();
    const xs = plot.data[0];
    const now = plot.cursor.idx ?? (event.key === "ArrowRight" ? -1 : xs.length);
    const next = Math.min(xs.length - 1, Math.max(0, now + steps[event.key]));
    plot.setCursor({ left: plot.valToPos(xs[next], "x"), top: 10 });
  });
}

function redrawOnColourChange(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
