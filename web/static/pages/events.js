// Events, newest first, as they happen.

import { el, once, serviceLink, show } from '../dom.js';
import { filters, keep, order, orderOf, textFilter, wordsOf } from '../filters.js';
import { count, clock, plural } from '../format.js';
import { List } from '../list.js';
import { Stream } from '../stream.js';

const kept = 2000;
const pause = 100; // between two changes of the list, in ms

export function eventsPage(page, signal) {
  let events = [];
  const soon = once(pause, draw);
  const text = textFilter(draw);
  const number = el('p', { class: 'quiet', role: 'status' }, 'loading');
  const list = new List('Events', [
    { name: 'time', title: 'Time', width: '10.5rem', narrow: '4.8rem', cell: (e) => el('span', { title: e.time }, clock(e.time)), sort: (e) => e.id },
    { name: 'kind', title: 'Kind', wide: true, width: '12rem', cell: (e) => e.kind, sort: (e) => e.kind },
    { name: 'service', title: 'Service', wide: true, width: 'minmax(0, .7fr)', cell: (e) => (e.service ? serviceLink(e.service) : ''), sort: (e) => e.service ?? '' },
    { name: 'message', title: 'Message', width: 'minmax(0, 3fr)', cell: (e) => el('span', { title: e.message }, e.message, e.count > 1 ? ` (${count(e.count)} times since ${clock(e.first)})` : '') },
  ], { key: (e) => e.id, ...orderOf('-time'), empty: 'no event matches', height: 'tall', changed: draw });
  show(page, el('h1', {}, 'Events'), filters(['Filter', text]), number, list.element);
  const stream = new Stream({ path: '/v1/events', keep: kept }, { values(more) {
    events = events.concat(more).slice(-kept);
    soon();
  } });
  signal.addEventListener('abort', () => stream.close());

  function draw() {
    keep({ filter: text.value, order: order(list) });
    const words = wordsOf(text);
    const rows = events.filter((e) => words.every((w) => `${e.kind} ${e.service ?? ''} ${e.object ?? ''} ${e.message}`.toLowerCase().includes(w)));
    list.set(rows);
    show(number, `${count(rows.length)} of ${plural(events.length, 'event')}`);
  }
}
