// Draw every chart of the page from its specification, inside the page and without eval.
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
      element.dataset.drawn = "yes";
    } catch (error) {
      element.dataset.drawn = "no";
      element.textContent = `This chart could not be drawn (${error.message}). Its numbers are in the table below.`;
    }
  };
  const all = Array.from(document.querySelectorAll("[data-chart]"), draw);
  Promise.all(all).then(() => {
    document.documentElement.dataset.charts = "ready";
  });
})();
