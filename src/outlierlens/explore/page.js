// Runs once a piece of the page: presses of blanks set their control, presses of "Copy" to the clipboard.
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
