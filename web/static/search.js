// One search box for services, VIPs, backends, pools and nodes.

import { el, servicePath, show } from './dom.js';
import { badge } from './badge.js';
import { get, query } from './api.js';

const pause = 80; // after the last key, in ms

// searchBox returns the box. go(path) shows a page. signal ends what it does outside of its element.
export function searchBox(go, signal) {
  const found = el('ul', { id: 'found', role: 'listbox', class: 'found', 'aria-label': 'Found', hidden: true });
  const box = el('input', { type: 'search', placeholder: 'Service, VIP or backend', 'aria-label': 'Search a service, VIP or backend', role: 'combobox',
    'aria-expanded': 'false', 'aria-controls': 'found', autocomplete: 'off', spellcheck: 'false', maxlength: '100', oninput: ask, onkeydown: key });
  const around = el('search', { onfocusout: (e) => { if (!around.contains(e.relatedTarget)) close(); } }, box, found);
  let timer = 0;
  let request = null;
  let answered = ''; // the text of the shown matches
  let chosen = -1;
  let enter = false; // the user waits for the best match

  function stop() {
    clearTimeout(timer);
    request?.abort();
    request = null;
  }

  function ask() {
    stop();
    enter = false;
    const q = box.value.trim();
    if (!q) return close();
    timer = setTimeout(async () => {
      const turn = request = new AbortController();
      try {
        const { matches, missing } = await get('/v1/search' + query({ q, limit: 12 }), { signal: turn.signal });
        if (turn.signal.aborted) return;
        answered = q;
        draw(matches, missing);
        if (enter) pick();
      } catch (err) {
        if (!turn.signal.aborted) open([message(err.message)]);
      }
    }, pause);
  }

  const message = (text) => el('li', { class: 'quiet', role: 'option', 'aria-disabled': 'true', 'aria-selected': 'false' }, text);

  function draw(matches, missing) {
    chosen = -1;
    const options = matches.map((m, i) => el('li', { role: 'option', id: 'found' + i, 'aria-selected': 'false', 'data-path': pathOf(m), onmousedown: (e) => e.preventDefault(), onclick: (e) => pick(e.currentTarget) },
      el('span', { class: 'kind' }, m.kind), el('b', {}, m.name), ' ',
      m.service && m.service !== m.name ? ['of ', m.service, ' '] : null, m.state ? badge(m.state) : null, el('span', { class: 'quiet' }, ' ', m.detail ?? '')));
    if (!options.length) options.push(message('nothing found'));
    if (missing?.length) options.push(message('not searched, because not readable now: ' + missing.join(', ')));
    open(options);
  }

  function open(children) {
    found.replaceChildren(...children);
    found.hidden = false;
    box.setAttribute('aria-expanded', 'true');
  }

  function close() {
    stop();
    answered = '';
    found.hidden = true;
    box.setAttribute('aria-expanded', 'false');
    box.removeAttribute('aria-activedescendant');
  }

  function key(e) {
    const options = [...found.querySelectorAll('[data-path]')];
    if (e.key === 'Escape') close();
    else if (e.key === 'Enter' && box.value.trim()) {
      if (answered === box.value.trim()) pick(options[chosen]);
      else enter = true;
    } else if ((e.key === 'ArrowDown' || e.key === 'ArrowUp') && options.length) {
      e.preventDefault();
      options[chosen]?.setAttribute('aria-selected', 'false');
      chosen = e.key === 'ArrowDown' ? (chosen + 1) % options.length : (chosen <= 0 ? options.length : chosen) - 1;
      options[chosen].setAttribute('aria-selected', 'true');
      box.setAttribute('aria-activedescendant', options[chosen].id);
    }
  }

  function pick(option = found.querySelector('[data-path]')) {
    if (!option) return;
    close();
    box.value = '';
    go(option.dataset.path);
  }

  document.addEventListener('keydown', (e) => {
    if (e.key === '/' && !e.target.closest('input, textarea, select, dialog')) {
      e.preventDefault();
      box.focus();
    }
  }, { signal });
  return around;
}

// pathOf returns the page of a match.
function pathOf(m) {
  if (m.service) return servicePath(m.service);
  if (m.kind === 'node') return '/fleet';
  return '/addresses' + query({ filter: m.name });
}
