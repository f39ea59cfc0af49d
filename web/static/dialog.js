// Questions before a change, and its result.

import { el, show } from './dom.js';

const noteTime = 8000; // that the result of a change is shown, in ms

let asking = false;

// confirm asks once before a change, unless a question is open. It returns the values of the named controls in the
// form, or null. prepare() returns the title, the lines of text or elements that say what the change will do, and the
// name of the action. signal ends the question with its page.
export async function confirm(signal, prepare) {
  if (asking) return null;
  asking = true;
  try {
    const question = await prepare();
    return signal.aborted ? null : await ask(signal, question);
  } finally {
    asking = false;
  }
}

function ask(signal, { title, consequences, action, danger = true }) {
  return new Promise((resolve) => {
    const form = el('form', { method: 'dialog', onsubmit: () => resolve(Object.fromEntries(new FormData(form))) },
      el('h2', { id: 'question' }, title),
      el('ul', {}, consequences.map((c) => el('li', {}, c))),
      el('p', { class: 'buttons' },
        el('button', { onclick: () => dialog.close() }, 'Cancel'),
        el('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, action)));
    const dialog = el('dialog', { 'aria-labelledby': 'question', onclose: () => {
      resolve(null); // without effect after an answer
      dialog.remove();
    } }, form);
    signal.addEventListener('abort', () => dialog.close());
    document.getElementById('dialogs').append(dialog);
    dialog.showModal();
    form.querySelector('button[type=button]').focus();
  });
}

// note shows the result of a change for a while, or a problem until the user closes it.
export function note(text, problem) {
  const box = el('div', { class: 'note' + (problem ? ' bad' : ''), role: problem ? 'alert' : 'status' },
    el('p', {}, text), problem?.hint ? el('p', { class: 'hint' }, problem.hint) : null,
    el('button', { 'aria-label': 'Close', onclick: () => box.remove() }, '×'));
  document.getElementById('notes').append(box);
  if (!problem) setTimeout(() => box.remove(), noteTime);
}

// report shows the problem of a failed change.
export function report(what, err) {
  note(`${what}: ${err.message}`, err);
}

// problemList returns problems of the API with their hints.
export function problemList(problems) {
  return el('ul', { class: 'problems' }, problems.map((p) => el('li', {},
    [p.place, p.service && `service "${p.service}"`, p.field].filter(Boolean).map((part) => [el('code', {}, part), ' ']), p.message,
    p.hint ? el('p', { class: 'hint' }, p.hint) : null)));
}

// failed shows on a page why it can't show more.
export function failed(where, err) {
  show(where, el('p', { class: 'failed', role: 'alert' }, err.message), err.hint ? el('p', { class: 'hint' }, err.hint) : null);
}
