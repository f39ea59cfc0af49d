// All services, with a filter. The rows follow every change.

import { el, serviceLink, show } from '../dom.js';
import { badge } from '../badge.js';
import { asked, filters, keep, order, orderOf, textFilter, wordsOf } from '../filters.js';
import { age, count, plural } from '../format.js';
import { List } from '../list.js';
import { loading, onServices, ordered, services, sources, states } from '../services.js';

export function servicesPage(page, signal) {
  const text = textFilter(draw);
  const state = choice('state', draw);
  const source = choice('source', draw);
  // The namespace in the page's address is a choice, also if it has no service: the list then says so.
  options(state, [...new Set([...states, asked('state')])].filter(Boolean), asked('state'));
  options(source, asked('source') ? [asked('source')] : [], asked('source'));
  const number = el('p', { class: 'quiet', role: 'status' });
  const list = new List('Services', [
    { name: 'name', title: 'Name', width: 'minmax(0, 2fr)', cell: (s) => serviceLink(s.name), sort: (s) => s.order },
    { name: 'state', title: 'State', width: '7.6rem', cell: (s) => badge(s.state), sort: (s) => states.indexOf(s.state) },
    { name: 'vips', title: 'VIP', width: 'minmax(0, 1.5fr)', cell: (s) => s.vips.join(' '), sort: (s) => ordered(s.vips[0] ?? '') },
    { name: 'ports', title: 'Ports', wide: true, cell: (s) => s.ports, sort: (s) => ordered(s.ports) },
    { name: 'backends', title: 'Backends', wide: true, number: true, width: '6.5rem', cell: (s) => `${s.usable}/${s.backends}`, sort: (s) => s.usable / Math.max(1, s.backends) },
    { name: 'source', title: 'Source', wide: true, width: 'minmax(0, .7fr)', cell: (s) => s.source, sort: (s) => s.source },
    { name: 'since', title: 'VIP for', wide: true, number: true, width: '7rem', cell: (s) => (s.allocated_at ? age(s.allocated_at) : ''), sort: (s) => s.allocated_at ?? '' },
  ], { key: (s) => s.order, ...orderOf('state'), empty: 'no service matches', height: 'tall', changed: draw });
  show(page, el('h1', {}, 'Services'), filters(['Filter', text], ['State', state], ['Source', source]), number, list.element);

  function draw() {
    keep({ filter: text.value, state: state.value, source: source.value, order: order(list) });
    if (!loading.done) return show(number, 'loading');
    const words = wordsOf(text);
    const rows = [...services.values()].filter((s) => (!state.value || s.state === state.value) && (!source.value || s.source === source.value) && words.every((w) => s.text.includes(w)));
    list.set(rows);
    const unknown = state.value && !states.includes(state.value);
    show(number, unknown ? [badge('fail', 'unknown state'), ` "${state.value}": the states are ${states.join(', ')}`] : rows.length === services.size ? plural(rows.length, 'service') : `${count(rows.length)} of ${plural(services.size, 'service')}`);
  }

  onServices(signal, () => {
    options(source, [...new Set([...sources.keys(), source.value])].filter(Boolean).sort(), source.value);
    draw();
  });
}

const choice = (id, changed) => el('select', { id, onchange: changed });

function options(select, values, chosen) {
  if (values.join() === [...select.options].slice(1).map((o) => o.value).join() && select.options.length) return;
  select.replaceChildren(el('option', { value: '' }, 'all'), ...values.map((v) => el('option', { value: v }, v)));
  select.value = chosen;
}
