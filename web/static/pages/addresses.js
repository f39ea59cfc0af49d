// The pools with a map of each, and every VIP and node port.

import { el, section, serviceLink, show } from '../dom.js';
import { badge } from '../badge.js';
import { problemList } from '../dialog.js';
import { filters, keep, order, orderOf, textFilter, wordsOf } from '../filters.js';
import { age, clock, count, plural } from '../format.js';
import { all, get } from '../api.js';
import { List } from '../list.js';
import { ordered } from '../services.js';
import { key, kinds, poolMap } from '../poolmap.js';
import { Poll } from '../stream.js';

const most = 20_000; // leases in the table

export function addressesPage(page, signal) {
  const pools = el('div');
  const text = textFilter(draw);
  const number = el('p', { class: 'quiet', role: 'status' }, 'loading');
  const list = new List('Addresses and node ports', [
    { name: 'address', title: 'Address', width: 'minmax(0, 1.3fr)', cell: nameOf, sort: (v) => ordered(nameOf(v)) },
    { name: 'state', title: 'State', width: '7.6rem', cell: (v) => badge(v.state), sort: (v) => v.state },
    { name: 'service', title: 'Service', width: 'minmax(0, 1.2fr)', cell: servicesOf, sort: (v) => ordered(v.holders[0]?.service ?? v.reservation?.for ?? '') },
    { name: 'pool', title: 'Pool', wide: true, cell: (v) => v.pool ?? '', sort: (v) => v.pool ?? '' },
    { name: 'since', title: 'For', wide: true, width: '7rem', cell: (v) => age(v.since), sort: (v) => v.since },
  ], { key: nameOf, ...orderOf('address'), empty: 'no address matches', height: 'tall', changed: draw });

  let leases = null;
  let revision = -1; // of the leases that are shown
  const poll = new Poll(signal, async () => {
    const [p, head] = await Promise.all([all('/v1/pools', 1000, { signal }), get('/v1/vips?limit=1', { signal })]);
    if (head.revision !== revision) {
      leases = await all('/v1/vips', most, { signal });
      revision = head.revision;
      draw();
    }
    show(pools, p.items.length ? p.items.map((pool) => poolBox(pool, leases.items)) : el('p', { class: 'quiet' }, 'none'));
  });
  show(page, el('h1', {}, 'Addresses'), poll.element, section('Pools', pools), section('VIPs and node ports', filters(['Filter', text]), number, list.element));

  function draw() {
    keep({ filter: text.value, order: order(list) });
    if (!leases) return;
    const words = wordsOf(text);
    const rows = leases.items.filter((v) => words.every((w) => `${nameOf(v)} ${v.state} ${v.pool ?? ''} ${v.holders.map((h) => h.service).join(' ')} ${v.reservation?.for ?? ''}`.toLowerCase().includes(w)));
    list.set(rows);
    show(number, `${count(rows.length)} of ${count(leases.items.length)}${leases.more ? ', and more' : ''}`);
  }
}

const nameOf = (v) => v.address ?? `${v.node_port}/${v.protocol}`;

function servicesOf(v) {
  if (!v.holders.length) return v.reservation?.for ? ['for ', v.reservation.for] : 'for any service';
  const names = v.holders.map((h) => serviceLink(h.service)).flatMap((a, i) => (i ? [', ', a] : [a]));
  return v.state === 'cooling' ? ['last ', names, v.until ? [', free at ', clock(v.until)] : null] : names;
}

// heldOut says what something else has of a pool.
function heldOut(n, ranges) {
  return el('details', {}, el('summary', {}, `${plural(n, 'address', 'addresses')} held out: something else has ${n === 1 ? 'it' : 'them'}`),
    el('ul', {}, ranges.map((r) => el('li', { key: r.prefix }, el('code', {}, r.prefix), ' ', r.message))));
}

function poolBox(pool, leases) {
  const out = pool.held_out_ranges ?? [];
  const numbers = { free: pool.free, cooling: pool.cooling, reserved: pool.reserved, used: pool.used };
  const has = { excluded: true, overlap: out.some((r) => r.reason === 'overlap'), own: out.some((r) => r.reason !== 'overlap') };
  return el('article', { class: 'pool', key: pool.name },
    el('h3', {}, pool.name, pool.removed ? [' ', badge('refused', 'not in the configuration')] : null),
    el('p', {}, pool.cidrs.join(', '), pool.cidrs.length ? ': ' : '', `${count(pool.used)} of ${count(pool.size)} used`, pool.exclude.length ? `; excluded: ${pool.exclude.join(', ')}` : ''),
    poolMap(pool, leases.filter((v) => v.pool === pool.name && v.address)),
    el('ul', { class: 'legend' }, kinds.filter(([kind]) => has[kind] ?? true).toReversed().map(([kind, word]) => el('li', {}, key(kind), word, kind in numbers ? [' ', el('b', {}, count(numbers[kind]))] : null))),
    out.length ? heldOut(pool.held_out, out) : null,
    pool.alarms.length ? problemList(pool.alarms) : null);
}
