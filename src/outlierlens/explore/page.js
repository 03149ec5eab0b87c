// Runs once for each piece of the page: a press of a blank sets its control, a press of "Copy" copies, charts are drawn.
element.addEventListener('click', (event) => {
  const blank = event.target.closest('[data-blank]');
  if (blank) {
    // The number of the blank is a control like any other, though one that nobody sees.
    const number = document.querySelector('#ol-blank input');
    number.value = blank.dataset.blank;
    number.dispatchEvent(new Event('input', { bubbles: true }));
    return;
  }
  const copy = event.target.closest('[data-copy]');
  if (!copy) return;
  const text = copy.parentElement.querySelector('pre');
  const say = (word) => { copy.textContent = word; setTimeout(() => { copy.textContent = 'Copy'; }, 1500); };
  navigator.clipboard.writeText(text.textContent).then(() => say('Copied'), () => {
    getSelection().selectAllChildren(text); // without permission it is ready for Ctrl+C
    say('Selected');
  });
});
const draw = async () => {
  const held = element.querySelector('[data-specifications]');
  for (const chart of element.querySelectorAll('[data-chart]:not([data-drawn])')) {
    chart.dataset.drawn = 'yes';
    const specification = JSON.parse(held.dataset.specifications)[chart.dataset.chart];
    const options = { mode: 'vega-lite', ast: true, actions: false, renderer: 'svg', defaultStyle: false };
    try {
      await window.vegaEmbed(chart, specification, options);
      chart.firstElementChild.setAttribute('aria-hidden', 'true'); // the element is one image with its own words
    } catch (error) {
      chart.dataset.drawn = 'no';
      chart.textContent = `This chart could not be drawn (${error.message}). Its numbers are in the table below.`;
    }
  }
};
new MutationObserver(draw).observe(element, { childList: true, subtree: true });
draw();
// Ctrl+Enter in the text shows it; one listener does for the page, whichever piece comes first.
if (!window.olKeys) {
  window.olKeys = true;
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey) || !event.target.closest('#ol-text')) return;
    event.preventDefault();
    event.target.dispatchEvent(new Event('blur'));
    document.querySelector('#ol-run').click();
  });
}
