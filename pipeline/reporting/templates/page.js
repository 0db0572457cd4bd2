"use strict";

// Tables: a button in each header sorts up, then down, then back to the table's own order.
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const sortKey = (cell) => {
  if (cell.dataset.number !== undefined) return Number(cell.dataset.number);
  return cell.dataset.text ?? null;
};

// Numbers before texts; what is missing stands last in both directions.
const compareKeys = (a, b, direction) => {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return direction * (typeof a === "number" ? a - b : collator.compare(a, b));
};

const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const order = NEXT[header.getAttribute("aria-sort")];
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", order);
      const direction = order === "descending" ? -1 : 1;
      const rows = order === "none" ? original : original
        .map((row) => [sortKey(row.cells[column]), row])
        .sort((a, b) => compareKeys(a[0], b[0], direction))
        .map(([, row]) => row);
      body.append(...rows);
    });
  });
}

// A link to a run opens it.
const runElement = (run) => document.getElementById(`run-${run}`);

const openRun = (hash) => {
  const element = document.getElementById(decodeURIComponent(hash.slice(1)));
  if (element instanceof HTMLDetailsElement) element.open = true;
};
addEventListener("hashchange", () => openRun(location.hash));
openRun(location.hash);

// A value with small print or several runs shows them on a card; one with a single run leads there at once.
const card = document.getElementById("card");

const fillCard = (detail, runs) => {
  card.replaceChildren();
  if (detail) card.append(Object.assign(document.createElement("p"), { textContent: detail }));
  const list = document.createElement("ul");
  for (const run of runs) {
    const link = document.createElement("a");
    link.href = `#run-${encodeURIComponent(run)}`;
    link.textContent = runElement(run).dataset.label;
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }
  if (runs.length) card.append(list);
};

const placeCard = (value) => {
  const box = value.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - card.offsetWidth - 8);
  card.style.left = `${Math.max(8, left) + scrollX}px`;
  card.style.top = `${box.bottom + 6 + scrollY}px`;
};

const showCard = (value) => {
  fillCard(value.dataset.detail, JSON.parse(value.dataset.runs));
  card.showPopover();
  placeCard(value);
  card.focus({ preventScroll: true });
};

for (const value of document.querySelectorAll(".value")) {
  if (!card.showPopover || (JSON.parse(value.dataset.runs).length === 1 && !value.dataset.detail)) continue;
  value.setAttribute("aria-haspopup", "dialog");
  // The card says what the tooltip says, to the keyboard and to fingers too.
  if (value instanceof HTMLAnchorElement === false) {
    value.tabIndex = 0;
    value.setAttribute("role", "button");
  }
  value.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    showCard(value);
  });
  value.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    showCard(value);
  });
}

document.addEventListener("click", (event) => {
  const link = event.target instanceof Element && event.target.closest('a[href^="#run-"]');
  if (!link || event.defaultPrevented) return;
  if (card.contains(link)) card.hidePopover();
  // Again to where the address already points: no hashchange comes.
  openRun(link.hash);
});
