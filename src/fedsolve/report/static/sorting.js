// Sort a table by pressing the head of a column: numbers from the largest first, texts from A; nothing comes last.

function compareCells(a, b, direction) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const [x, y] = [Number(a), Number(b)];
  const both = !Number.isNaN(x) && !Number.isNaN(y);
  return direction * (both ? x - y : a.localeCompare(b, "en", { numeric: true }));
}

function sortBy(table, column) {
  const head = table.tHead.rows[0].cells[column];
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const value = (row) => row.cells[column].dataset.value;
  const texts = rows.some((row) => value(row) !== "" && Number.isNaN(Number(value(row))));
  const before = head.getAttribute("aria-sort") ?? (texts ? "descending" : "ascending");
  const direction = before === "ascending" ? -1 : 1;
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  body.append(...rows.sort((a, b) => compareCells(value(a), value(b), direction)));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    cell.querySelector("button").addEventListener("click", () => sortBy(table, column));
  });
}
