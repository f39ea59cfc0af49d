// Filters of a list, which are kept in the page's address.

import { el } from './dom.js';

// asked returns a parameter of the page's address, or "".
export const asked = (name) => new URLSearchParams(location.search).get(name) ?? '';

// keep puts parameters into the page's address, so that the back button and a copy of the address lead to the same list.
export function keep(parameters) {
  const q = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v));
  const search = q.size ? '?' + q : '';
  if (search !== location.search) history.replaceState(history.state, '', location.pathname + search); // browsers limit its calls
}

// textFilter returns an input for words.
export function textFilter(changed) {
  return el('input', { type: 'search', id: 'filter', value: asked('filter'), maxlength: '100', oninput: changed, spellcheck: 'false', autocomplete: 'off' });
}

// wordsOf returns the words of a filter. A row must have all of them.
export const wordsOf = (input) => input.value.toLowerCase().split(/\s+/).filter(Boolean);

// filters returns inputs with their labels, on one line.
export const filters = (...pairs) => el('div', { class: 'filters' }, pairs.map(([label, input]) => el('span', { class: 'filter' }, el('label', { for: input.id }, label), input)));

// order returns the parameter of a list's order: "name" or "-name"; and orderOf reads it.
export const order = (list) => (list.descending ? '-' : '') + list.by.name;
export const orderOf = (fallback) => {
  const text = asked('order') || fallback;
  return { sort: text.replace(/^-/, ''), descending: text.startsWith('-') };
};
