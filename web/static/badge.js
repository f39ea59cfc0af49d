// A state is a word and a shape. The color only repeats them.

import { el, svg } from './dom.js';

const shapes = {
  check: 'M3 8.5 6.5 12 13 4.5',
  up: 'M8 2.5 14.5 13.5h-13z',
  square: 'M3 3h10v10H3z',
  cross: 'M3.5 3.5l9 9m0-9-9 9',
  ring: 'M8 2.5a5.5 5.5 0 1 0 .01 0z',
  diamond: 'M8 1.5 14.5 8 8 14.5 1.5 8z',
  dots: 'M2 8h2m3 0h2m3 0h2',
  down: 'M8 2v10m-4-4 4 4 4-4',
};

const looks = {
  good: ['check', ['healthy', 'ok', 'ready', 'present', 'alive', 'announced', 'held', 'up', 'established', 'true', 'add']],
  warn: ['up', ['degraded', 'warn', 'drain', 'draining', 'terminating', 'ejected', 'cooling', 'change', 'repair', 'waiting', 'one-way', 'probing', 'panic', 'full', 'held up']],
  bad: ['square', ['down', 'fail', 'unhealthy', 'lost', 'dead', 'conflict', 'no owner', 'false', 'remove']],
  off: ['cross', ['refused', 'maint']],
  calm: ['ring', ['unchecked', 'unknown', 'reserved']],
  away: ['diamond', ['elsewhere', 'withdrawn']],
  wait: ['dots', ['pending', 'idle', 'active', 'connect']],
};

const lookOf = new Map(Object.entries(looks).flatMap(([look, [shape, words]]) => words.map((w) => [w, [look, shape]])));

// badge returns the badge of a state. Without a shape of its own, a word has a ring.
export function badge(state, text = state) {
  const [look, shape] = lookOf.get(String(state).toLowerCase()) ?? ['calm', 'ring'];
  return el('span', { class: 'badge ' + look },
    svg('svg', { viewBox: '0 0 16 16', 'aria-hidden': 'true', class: 'shape' }, svg('path', { d: shapes[shape], 'data-shape': shape })),
    text);
}
