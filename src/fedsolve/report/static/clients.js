// One run seen from its clients: mean, the band from the 10th to the 90th percentile, and the worst client.

const clientParts = [
  { key: "client_loss_mean", name: "mean", width: 2.5, dash: [] },
  { key: "client_loss_p10", name: "10th percentile", width: 1, dash: [] },
  { key: "client_loss_p90", name: "90th percentile", width: 1, dash: [] },
  { key: "client_loss_worst", name: "worst client", width: 2, dash: [5, 3] },
];
const clientRuns = page.runs.filter(({ columns }) => "client_loss_mean" in columns && "client_loss_worst" in columns);
const clientPartsOf = ({ columns }) => clientParts.filter((part) => part.key in columns); // no percentiles of few clients
const clients = document.getElementById("clients"); // absent where no run has client losses
const clientForm = clients?.querySelector("form");
const clientBox = clients?.querySelector(".chart");
const clientReadout = clients?.querySelector(".readout");
let clientPlot = null;

function drawClients() {
  const run = clientRuns[Number(clientForm.run.value)];
  const log = page.metrics.find((m) => m.key === "client_loss_mean").log;
  const colour = css(`--series-${run.colour}`);
  clientPlot?.destroy();
  const options = chartOptions(clientBox, page.axes.round, "Client loss (mean per example)", log);
  const parts = clientPartsOf(run);
  const lines = parts.map(({ name, width, dash }) => ({
    label: name,
    stroke: colour,
    width,
    dash,
    points: { show: false },
  }));
  options.series = [{}, ...lines];
  if (parts.length === clientParts.length) options.bands = [{ series: [3, 2], fill: `${colour}33` }];
  options.hooks = { setCursor: [showClients] };
  const columns = parts.map(({ key }) => drawable(run.columns[key], 1, log));
  clientPlot = new uPlot(options, [run.columns.round, ...columns], clientBox);
  clientBox.setAttribute("aria-label", `Loss over the clients against rounds, ${run.name}`);
  showClients(clientPlot);
}

function showClients(u) {
  const at = u.cursor.idx ?? u.data[0].length - 1;
  const values = clientPartsOf(clientRuns[Number(clientForm.run.value)]).map(({ name }, i) => {
    const value = u.data[i + 1][at];
    return `${name} ${value == null ? "–" : format(value)}`;
  });
  clientReadout.textContent = `Round ${u.data[0][at]}: ${values.join(", ")}`;
}

function startClients() {
  clients.hidden = false;
  clientRuns.forEach((run, i) => clientForm.run.add(new Option(run.name, i)));
  drawClients();
  attend(clientBox, () => clientPlot);
  redrawOnColourChange(drawClients);
  clientForm.addEventListener("change", drawClients);
}

if (clientRuns.length) startClients();
