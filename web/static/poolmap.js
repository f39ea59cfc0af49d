// A map of a pool: cells in the order of its addresses, each with a pattern for what most of it is.

import { el, svg } from './dom.js';

const mostCells = 256; // of a range of addresses
const wideRange = 1n << 16n; // of a wider range, the map has only the part between the first and the last lease
const size = 10; // of a cell, in px

// kinds are what a cell can be, and the words for it. The most important comes last.
export const kinds = [['free', 'free'], ['excluded', 'excluded'], ['overlap', 'overlap'], ['own', 'this host’s own'], ['cooling', 'cooling'], ['reserved', 'reserved'], ['used', 'used']];
const rank = Object.fromEntries(kinds.map(([kind], i) => [kind, i]));

// poolMap draws the ranges of a pool. leases are its addresses that are held, cooling or reserved.
export function poolMap(pool, leases) {
  const out = [...pool.exclude.map((prefix) => ({ prefix, kind: 'excluded' })), ...(pool.held_out_ranges ?? []).map(({ prefix, reason }) => ({ prefix, kind: reason === 'overlap' ? 'overlap' : 'own' }))];
  return el('div', { class: 'maps' }, pool.cidrs.map((cidr) => {
    const same = (address) => address.includes(':') === cidr.includes(':'); // of the same family
    const [from, to] = range(cidr);
    const marks = leases.filter((v) => same(v.address)).map((v) => ({ at: addressNumber(v.address), address: v.address, what: v.state === 'held' ? 'used' : v.state })).filter((m) => m.at >= from && m.at <= to);
    const ranges = out.filter((o) => same(o.prefix)).map((o) => [...range(o.prefix), o.kind]);
    return draw(cidr, from, to, marks, ranges);
  }));
}

function draw(cidr, from, to, marks, out) {
  let part = cidr;
  if (to - from >= wideRange && marks.length) {
    const first = marks.reduce((a, b) => (b.at < a.at ? b : a));
    const last = marks.reduce((a, b) => (b.at > a.at ? b : a));
    [from, to, part] = [first.at, last.at, `${first.address} to ${last.address} of ${cidr}`];
  }
  const addresses = to - from + 1n;
  const each = (addresses + BigInt(mostCells) - 1n) / BigInt(mostCells);
  const cells = Number((addresses + each - 1n) / each);
  const what = new Array(cells).fill('free');
  for (const [first, last, kind] of out) {
    // Only a whole cell is of a kind, but for a cell at the end of the range.
    for (let i = Number(((first > from ? first : from) - from + each - 1n) / each); i < cells; i++) {
      const end = from + BigInt(i + 1) * each - 1n;
      if ((end < to ? end : to) > last) break;
      if (rank[kind] > rank[what[i]]) what[i] = kind;
    }
  }
  for (const m of marks) {
    const i = Number((m.at - from) / each);
    if (rank[m.what] > rank[what[i]]) what[i] = m.what;
  }
  const columns = matchMedia('(max-width: 46rem)').matches ? 32 : 64; // shapes in smaller cells can't be told apart
  const rows = Math.ceil(cells / columns);
  const label = `${part}: ${each === 1n ? 'each cell is an address' : `each cell is ${each} addresses, and shows a used one first`}`;
  return el('figure', {}, el('figcaption', { class: 'quiet' }, label),
    svg('svg', { viewBox: `0 0 ${columns * size} ${rows * size}`, class: 'map', role: 'img', 'aria-label': label },
      what.map((w, i) => cell(w, (i % columns) * size, Math.floor(i / columns) * size))));
}

// key returns the cell of a kind for a legend.
export const key = (kind) => svg('svg', { viewBox: `0 0 ${size} ${size}`, class: 'key', 'aria-hidden': 'true' }, cell(kind, 0, 0));

// A shape in each kind of cell tells it from others without color.
function cell(what, x, y) {
  const box = svg('rect', { x: x + 0.5, y: y + 0.5, width: size - 1, height: size - 1, class: 'cell ' + what });
  const line = { excluded: `M${x + 2} ${y + 2}l6 6m0-6-6 6`, overlap: `M${x + 2} ${y + 8}l6-6`, own: `M${x + 5} ${y + 2.2}l2.8 5.3h-5.6z`, cooling: `M${x + 2} ${y + 5}h6`, reserved: `M${x + 5} ${y + 3.4}v3.2` }[what];
  return svg('g', {}, box, line ? svg('path', { d: line, class: 'mark ' + what }) : null);
}

// range returns the first and the last address of a prefix, as numbers.
function range(prefix) {
  const [address, bits] = prefix.split('/');
  const width = address.includes(':') ? 128n : 32n;
  const host = 1n << (width - BigInt(bits ?? width));
  const first = (addressNumber(address) / host) * host;
  return [first, first + host - 1n];
}

// addressNumber returns an address as a number.
function addressNumber(address) {
  if (!address.includes(':')) return address.split('.').reduce((n, part) => (n << 8n) + BigInt(part), 0n);
  const words = (text) => (text ? text.split(':').flatMap((w) => (w.includes('.') ? halves(w) : [w])) : []);
  const [head, tail] = address.split('::');
  const left = words(head);
  const right = words(tail);
  const zeros = tail === undefined ? [] : new Array(8 - left.length - right.length).fill('0');
  return [...left, ...zeros, ...right].reduce((n, w) => (n << 16n) + BigInt('0x' + w), 0n);
}

// halves returns the words of an IPv4 address at the end of an IPv6 address.
function halves(v4) {
  const n = addressNumber(v4);
  return [(n >> 16n).toString(16), (n & 0xffffn).toString(16)];
}
