// Runs once for each piece of the page: a press of a blank sets its control, a press of "Copy" copies, a map says what it holds.
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
  const text = copy.parentElement.querySelector('pre').textContent;
  const say = (word) => { copy.textContent = word; setTimeout(() => { copy.textContent = 'Copy'; }, 1500); };
  navigator.clipboard.writeText(text).then(() => say('Copied'), () => {
    // Without permission the text is selected instead, ready for Ctrl+C.
    getSelection().selectAllChildren(copy.parentElement.querySelector('pre'));
    say('Selected');
  });
});

// A map: the cell under the pointer, or the one that the arrow keys moved to, is framed and read out below.
const show = (map, row, column) => {
  const { rows, columns, units, parts } = JSON.parse(map.dataset.cells);
  row = Math.min(Math.max(row, 0), rows.length - 1);
  column = Math.min(Math.max(column, 0), columns.length - 1);
  Object.assign(map.dataset, { row, column });
  const frame = map.querySelector('.ol-frame');
  const [x, y, width, height] = ['x', 'y', 'width', 'height'].map((name) => Number(frame.getAttribute(name)));
  const cell = { x: x + (column * width) / columns.length, y: y + (row * height) / rows.length,
    width: width / columns.length, height: height / rows.length };
  for (const [name, value] of Object.entries(cell)) map.querySelector('.ol-cursor').setAttribute(name, value);
  const said = `${units[0]} ${rows[row]}, ${units[1]} ${columns[column]}: ${(parts[row][column] / 10).toFixed(1)} %`;
  map.nextElementSibling.textContent = said;
};
element.addEventListener('pointermove', (event) => {
  const map = event.target.closest('[data-cells]');
  if (!map) return;
  const box = map.querySelector('.ol-frame').getBoundingClientRect();
  const [across, down] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  if (across < 0 || across > 1 || down < 0 || down > 1) return;
  const { rows, columns } = JSON.parse(map.dataset.cells);
  show(map, Math.floor(down * rows.length), Math.floor(across * columns.length));
});
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
element.addEventListener('keydown', (event) => {
  const map = event.target.closest('[data-cells]');
  if (!map || !STEPS[event.key]) return;
  event.preventDefault();
  const [down, across] = 'row' in map.dataset ? STEPS[event.key] : [0, 0];
  show(map, Number(map.dataset.row || 0) + down, Number(map.dataset.column || 0) + across);
});
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
