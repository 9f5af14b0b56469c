// The page that follows runs: each message of the server brings the table, the details and the curves as they stand.

const view = document.getElementById("view");
const line = document.getElementById("line");
let events = null;

function chosen() {
  return [...document.querySelectorAll('input[name="run"][form="view"]:checked')].map((box) => box.value);
}

function query() {
  const pairs = [["words", view.words.value], ["status", view.status.value], ...chosen().map((name) => ["run", name])];
  return new URLSearchParams(pairs.filter(([, value]) => value)).toString();
}

// Put HTML in an element, and the focus back where it was.
function replace(element, html) {
  if (element.innerHTML === html) return;
  const at = document.activeElement;
  const label = element.contains(at) ? at.getAttribute("aria-label") : null;
  const scroll = element.querySelector(".scroll")?.scrollLeft ?? 0;
  element.innerHTML = html;
  if (label) element.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus();
  if (scroll) element.querySelector(".scroll").scrollLeft = scroll;
}

function show(now) {
  document.getElementById("standing").innerHTML = now.standing;
  replace(document.getElementById("runs"), now.table);
  replace(document.getElementById("details"), now.details);
  showCurves(now.data);
}

// Draw other data: of the same runs where they are now, the zoom kept; of other runs anew.
function showCurves(data) {
  const names = (d) => JSON.stringify([d.runs.map((r) => [r.name, !!r.low]), d.metrics.map((m) => m.key).sort()]);
  const before = page;
  const section = document.getElementById("drawn");
  const away = section.hidden;
  section.hidden = !data;
  if (!data) return;
  page = data;
  if (!before) {
    startCurves();
  } else if (away || names(before) !== names(data)) {
    hidden.clear();
    const [metric, x] = [curveForm.metric.value, curveForm.x.value];
    fillCurves();
    if (data.metrics.some((m) => m.key === metric)) curveForm.metric.value = metric;
    curveForm.x.value = x;
    drawCurves();
  } else {
    const xs = curvePlot.data[0];
    const { min, max } = curvePlot.scales.x;
    const zoomed = min > xs[0] || max < xs[xs.length - 1];
    const shown = [chosenMetric(), curveForm.x.value, curveForm.log.checked];
    drawn = curveTables(...shown);
    const sides = edgeTables(...shown).map(({ table }) => table);
    curvePlot.setData(uPlot.join([...drawn, ...sides]), !zoomed);
    if (zoomed) curvePlot.redraw();
    else frameCurves(chosenMetric(), curveForm.log.checked);
    showValues(curvePlot);
  }
}

// A page that is not seen asks for nothing: a browser has six connections to a server, for all of its tabs.
function follow() {
  events?.close();
  const asked = query();
  history.replaceState(null, "", asked ? `?${asked}` : location.pathname);
  line.textContent = "";
  if (document.hidden) return;
  events = new EventSource(`events?${asked}`);
  events.onopen = () => (line.textContent = "Live.");
  events.onerror = () => (line.textContent = "The server does not answer: this is the last it said.");
  events.onmessage = (message) => show(JSON.parse(message.data));
}

view.addEventListener("submit", (event) => event.preventDefault());
view.querySelector("button").hidden = true; // what is typed is shown at once
view.addEventListener("input", follow);
document.getElementById("runs").addEventListener("change", follow);
document.addEventListener("visibilitychange", follow);
document.getElementById("runs").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  button.disabled = true;
  button.textContent = "Stopping";
  const answer = await fetch("stop", { method: "POST", body: new URLSearchParams(new FormData(event.target)) });
  if (!answer.ok) line.textContent = await answer.text();
});
follow();
