// Overview: what is wrong now and what to do about it, the VIPs, and the traffic.

import { el, facts, link, once, section, serviceLink, servicePath, show, table } from '../dom.js';
import { badBackends } from '../bad.js';
import { badge } from '../badge.js';
import { Sparkline, samples } from '../chart.js';
import { problemList } from '../dialog.js';
import { age, bytesPerSecond, count, perSecond } from '../format.js';
import { all, get } from '../api.js';
import { loading, onServices, services, states, tally, wrongStates } from '../services.js';
import { Poll, Stream } from '../stream.js';

const shown = 20; // services that are wrong
const detailTime = 10_000; // after which a service that is wrong is read again: its reasons may be others

export function overviewPage(page, signal) {
  const wrong = el('div', { id: 'wrong' });
  const tiles = el('ul', { class: 'tiles' });
  const busy = el('div');
  const overrides = el('div', { id: 'overrides' });
  const node = el('div');
  const sparks = [new Sparkline('New connections', perSecond), new Sparkline('Open connections', count), new Sparkline('From clients', bytesPerSecond), new Sparkline('To clients', bytesPerSecond)];

  let checks = [];
  const details = new Map(); // name → {summary, service, at} of the services that are wrong and shown

  function draw() {
    const inTrouble = troubled();
    const boxes = [...checks.filter((c) => c.level !== 'ok' && c.name !== 'services').map(checkBox), ...inTrouble.slice(0, shown).map((s) => serviceBox(s, details.get(s.name)?.service))];
    const more = inTrouble.length > shown ? el('p', { key: 'more' }, `and ${count(inTrouble.length - shown)} more: `, wrongStates.filter((s) => tally[s]).map((s) => [link('/services?state=' + s, s), ' '])) : null;
    show(wrong, boxes, more, !boxes.length ? (loading.done ? el('p', {}, badge('ok', 'nothing')) : el('p', { class: 'quiet' }, 'loading')) : null);
    show(tiles, states.map((s) => el('li', {}, link('/services?state=' + s, el('b', {}, count(tally[s])), badge(s)))), el('li', {}, link('/services', el('b', {}, count(services.size)), 'all services')));
  }

  const isOld = (s) => details.get(s.name)?.summary !== s || performance.now() - details.get(s.name).at > detailTime;

  // The backends of the services that are wrong. Only those whose summary has changed are read again.
  const read = once(0, async () => {
    const names = troubled().slice(0, shown);
    for (const name of details.keys()) if (!names.some((s) => s.name === name)) details.delete(name);
    await Promise.all(names.filter(isOld).map(async (s) => {
      const service = await get('/v1' + servicePath(s.name), { signal }).catch(() => null);
      if (service) details.set(s.name, { summary: s, service, at: performance.now() });
    }));
    draw();
  });

  const status = new Poll(signal, async () => {
    const s = await get('/v1/status', { signal });
    checks = s.checks;
    show(node, facts(['Node', s.node], ['Version', s.version], ['Started', age(s.started)]),
      table('Checks', ['Check', 'State', 'Message'], s.checks.map((c) => ({ key: c.name, cells: [c.name, badge(c.level), c.message] }))));
    if (troubled().slice(0, shown).some(isOld)) read(); // also after a read that failed
    draw();
  });
  const overridden = new Poll(signal, async () => {
    const { items, more } = await all('/v1/overrides', 1000, { signal });
    show(overrides, table('Overrides', ['Service', 'Backend', 'State', 'By', 'For', 'Until'], items.map((o) => ({ key: o.service + ' ' + o.backend, cells: [serviceLink(o.service), el('code', {}, o.backend), [badge(o.state), o.missing ? ' the service does not have it' : ''],
      o.author ?? '', o.since ? age(o.since) : '', o.expires ?? 'somebody ends it'] })), 'none'), more ? 'and more' : null);
  });
  show(page, el('h1', {}, 'Overview'), status.element, section('Wrong now', wrong), section('Services', tiles),
    section('Traffic', el('div', { class: 'sparks' }, sparks.map((s) => s.element)), busy), section('Overrides of operators', overridden.element, overrides), section('This host', node));

  onServices(signal, () => {
    draw();
    read();
  });
  const top = new Stream({ path: '/v1/top?interval=2s&limit=8&by=bytes', keep: samples }, { values(lines) {
    for (const t of lines) {
      if (t.problem) return show(busy, problemList([t.problem]));
      [t.sum.connections_per_second, t.sum.active_connections, t.sum.bytes_in_per_second, t.sum.bytes_out_per_second].forEach((v, i) => sparks[i].add(v));
      show(busy, el('h3', {}, 'Busiest services'), table('Busiest services', ['Service', 'Open', 'New', 'From clients', 'To clients'],
        t.items.map((s) => ({ key: s.service, cells: [serviceLink(s.service), count(s.active_connections), perSecond(s.connections_per_second), bytesPerSecond(s.bytes_in_per_second), bytesPerSecond(s.bytes_out_per_second)] }))));
    }
  } });
  signal.addEventListener('abort', () => top.close());
}

// troubled returns the services that are wrong, worst first.
function troubled() {
  if (!wrongStates.some((s) => tally[s])) return [];
  const rank = (s) => wrongStates.indexOf(s.state);
  return [...services.values()].filter((s) => rank(s) >= 0).sort((a, b) => rank(a) - rank(b) || (a.order < b.order ? -1 : 1));
}

function checkBox(c) {
  const more = c.problems?.slice(c.in_message ?? 0) ?? [];
  return el('article', { class: 'wrong', key: 'check ' + c.name }, el('h3', {}, badge(c.level), ' ', c.name), el('p', {}, c.message),
    c.hint ? el('p', { class: 'hint' }, c.hint) : null, more.length ? problemList(more) : null);
}

// serviceBox shows a service that is wrong, with its backends that take no connections, once they are known.
function serviceBox(s, service) {
  return el('article', { class: 'wrong', key: s.name },
    el('h3', {}, badge(s.state), ' ', serviceLink(s.name)), el('p', {}, s.summary),
    service ? badBackends(service) : null,
    service?.status.problems.length ? problemList(service.status.problems) : null);
}
