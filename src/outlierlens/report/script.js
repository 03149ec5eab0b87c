// Draw every chart of the page from its specification, inside the page and without eval; mark the section being read.
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
  const draw = async (element) => {
    try {
      await window.vegaEmbed(element, specifications[element.dataset.chart], options);
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
