// Draw every chart of the page from its specification, inside the page and without eval; mark the section being read;
// copy commands; sort tables by a column.
// Vega's own interpreter runs the expressions (`ast`), so the page's policy needs no 'unsafe-eval'.
(() => {
  "use strict";
  const specifications = JSON.parse(document.getElementById("specifications").textContent);
  const options = {
    mode: "vega-lite",
    ast: true,
    actions: false,
    renderer: "svg",
    defaultStyle: false,
    tooltip: { theme: "page", offsetX: 12, offsetY: 12 },
  };
  // On a narrow page legends stand one below the other, each in as many columns as its longest name leaves room for.
  const NARROW = 560, LETTER = 7, AROUND = 34, AXIS = 70;
  const fitted = (part, width) => {
    if (part === null || typeof part !== "object") return part;
    if (Array.isArray(part)) return part.map((one) => fitted(one, width));
    const made = Object.fromEntries(Object.entries(part).map(([key, one]) => [key, key === "data" ? one : fitted(one, width)]));
    if (made.legend && made.scale && Array.isArray(made.scale.domain)) {
      const longest = Math.max(...made.scale.domain.map((name) => `dim ${name}`.length));
      const columns = Math.max(1, Math.floor((width - AXIS) / (LETTER * longest + AROUND)));
      made.legend = { ...made.legend, columns: Math.min(columns, made.legend.columns || columns) };
    }
    return made;
  };
  const draw = async (element) => {
    try {
      let specification = specifications[element.dataset.chart];
      if (element.clientWidth < NARROW) {
        specification = fitted(specification, element.clientWidth);
        specification.config.legend.layout = { top: { direction: "vertical", anchor: "start" } };
      }
      await window.vegaEmbed(element, specification, options);
      element.firstElementChild.setAttribute("aria-hidden", "true"); // the element is one image with its own words
      element.dataset.drawn = "yes";
    } catch (error) {
      element.dataset.drawn = "no";
      element.textContent = `This chart could not be drawn (${error.message}). Its numbers are in the table below.`;
    }
  };
  // What is on screen first, one after the other, so that the page answers while it draws.
  const distance = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return Math.max(0, top - window.innerHeight, -bottom);
  };
  const drawAll = async () => {
    const waiting = Array.from(document.querySelectorAll("[data-chart]"));
    while (waiting.length) {
      waiting.sort((one, other) => distance(one) - distance(other));
      await draw(waiting.shift());
      await new Promise((resolve) => setTimeout(resolve));
    }
    document.documentElement.dataset.charts = "ready";
  };
  drawAll();

  for (const block of document.querySelectorAll("pre")) {
    const command = block.textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", `Copy ${command}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(block.querySelector("code")); // ready for Ctrl+C
        button.textContent = "selected";
      }
      setTimeout(() => (button.textContent = "copy"), 1500);
    });
    block.prepend(button);
  }

  // A cell's number, NaN where it does not begin with one: "×1.04", "3,553", "16 %", "3 of 12".
  const numeric = (cell) => {
    const [said] = cell.textContent.trim().replace(/^×/, "").replaceAll(",", "").replace("−", "-").match(/^[+-]?\d[\d.]*(e[+-]?\d+)?/) || [];
    return said === undefined ? NaN : Number(said);
  };
  const sort = (heading, place) => {
    const body = heading.closest("table").tBodies[0];
    const rows = Array.from(body.rows, (row) => [row, numeric(row.cells[place]), row.cells[place].textContent.trim()]);
    const numbers = rows.some(([, value]) => !Number.isNaN(value));
    const before = heading.getAttribute("aria-sort");
    const up = before ? before === "descending" : !numbers; // numbers begin with the largest
    const empty = ([, value, text]) => (numbers ? Number.isNaN(value) : text === "–");
    rows.sort((one, other) => {
      if (empty(one) || empty(other)) return empty(one) - empty(other);
      const order = numbers ? one[1] - other[1] : one[2].localeCompare(other[2]);
      return up ? order : -order;
    });
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows.map(([row]) => row));
  };
  for (const heading of document.querySelectorAll("table:not(.fills) thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(heading, heading.cellIndex));
    heading.append(button);
  }

  const links = new Map(
    Array.from(document.querySelectorAll(".contents a"), (link) => [link.getAttribute("href").slice(1), link]),
  );
  const headings = Array.from(links.keys(), (id) => document.getElementById(id));
  let waits = false;
  const mark = () => {
    waits = false;
    const passed = headings.filter((heading) => heading.getBoundingClientRect().top < 0.3 * window.innerHeight);
    const here = passed.length ? passed[passed.length - 1].id : "";
    for (const [id, link] of links) {
      if (id === here) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    }
  };
  const later = () => {
    if (!waits) requestAnimationFrame(mark);
    waits = true;
  };
  if (links.size) addEventListener("scroll", later, { passive: true });
})();
