// One service: its state and why, its ports, its backends, its traffic and its events.

import { el, facts, once, section, show, table } from '../dom.js';
import { badBackends } from '../bad.js';
import { badge } from '../badge.js';
import { changeState } from '../change.js';
import { Sparkline } from '../chart.js';
import { problemList } from '../dialog.js';
import { age, bytes, bytesPerSecond, clock, count, perSecond } from '../format.js';
import { get, query, servicePathOf } from '../api.js';
import { mayChange } from '../session.js';
import { Poll, Stream } from '../stream.js';

const statsTime = 2000; // between two reads of the counters, in ms
const againTime = 10_000; // between two reads of the service, in ms
const eventsShown = 50;

export function servicePage(page, signal, [namespace, short]) {
  const name = namespace === 'default' ? short : namespace + '/' + short;
  const path = servicePathOf(namespace, short);
  const state = el('span');
  const parts = Object.fromEntries(['about', 'why', 'backends', 'frontends', 'events'].map((k) => [k, el('div', { id: k })]));
  const sparks = [new Sparkline('New connections', perSecond), new Sparkline('Open connections', count), new Sparkline('From clients', bytesPerSecond), new Sparkline('To clients', bytesPerSecond)];

  let service = null;
  let seen = false; // since the stream has begun
  let traffic = new Map(); // backend's address → its traffic over all frontends
  const change = (id, to) => changeState(signal, name, path, service, id, to);
  const drawBackends = () => service && show(parts.backends, backendTable(service.status.backends, traffic, mayChange(namespace) && change));

  const details = once(0, async () => {
    const [why, frontends] = await Promise.all([get(path + '/explain', { signal }), get('/v1/dataplane/frontends' + query({ service: name, limit: 200 }), { signal })].map((p) => p.catch(() => null)));
    if (!service) return;
    if (why) show(parts.why, el('ul', {}, why.lines.map((l) => el('li', {}, l))), problemList(why.problems));
    if (frontends) show(parts.frontends, frontendTable(frontends.items), frontends.next ? 'and more' : null);
  });

  const watch = new Stream({ service: name }, {
    begin() {
      seen = false;
    },
    values(changes) {
      for (const c of changes) {
        if (c.service) draw(c.service);
        else if (c.deleted || (c.synced && !seen)) gone();
      }
    },
  });
  signal.addEventListener('abort', () => watch.close());

  function draw(s) {
    if (!service) stats.now();
    service = s;
    seen = true;
    show(state, badge(s.status.state));
    show(parts.about, el('p', { class: 'summary' }, s.status.summary), badBackends(s),
      s.status.panic ? el('p', {}, badge('warn', 'panic'), ' unhealthy backends take new connections, too, because too few are healthy') : null,
      s.status.full ? el('p', {}, badge('warn', 'full'), ' new clients wait or are refused: a limit of connections is reached') : null,
      facts(['VIPs', s.status.vips.join(', ')], ['Ports', s.status.ports.map(portText).join(', ')], ['Pool', s.status.pool], ['DNS', s.status.dns_names?.join(', ')],
        ['Scheduler', s.spec.scheduler], ['Source', s.source + (s.origin ? ': ' + s.origin : '')],
        ['Labels', Object.entries(s.spec.labels ?? {}).map(([k, v]) => `${k}=${v}`).join(', ')], ['VIP for', s.status.allocated_at && age(s.status.allocated_at)]));
    drawBackends();
    details();
  }

  function gone() {
    service = null;
    show(state, badge('refused', 'does not exist'));
    for (const part of Object.values(parts)) show(part);
    show(parts.about, el('p', {}, 'This host has no service of this name now. The page shows it as soon as there is one.'));
  }

  // The stream tells changes, but not what only the time changes: a heartbeat, a reason that has ended. An answer can be
  // older than what the stream has told since.
  new Poll(signal, async () => {
    const s = service && await get(path, { signal });
    if (s && service && s.revision >= service.revision) draw(s);
  }, againTime);
  let before = null;
  const stats = new Poll(signal, async () => {
    if (!service) return;
    const s = await get(path + '/stats', { signal });
    const now = { at: performance.now() / 1000, ...s.traffic };
    const rate = (a, b) => Math.max(0, (a - b) / (now.at - before.at)); // a counter can begin anew
    sparks[1].add(now.active_connections);
    if (before) [rate(now.connections, before.connections), null, rate(now.in.bytes, before.in.bytes), rate(now.out.bytes, before.out.bytes)].forEach((v, i) => v !== null && sparks[i].add(v));
    const last = traffic;
    traffic = sumByBackend(s.frontends);
    for (const [at, t] of traffic) t.rate = before && last.has(at) ? rate(t.connections, last.get(at).connections) : 0;
    before = now;
    drawBackends();
  }, statsTime);
  let since = 0;
  const events = [];
  const log = new Poll(signal, async () => {
    const list = await get('/v1/events' + query({ since: since || undefined }), { signal });
    since = list.last;
    events.unshift(...list.items.filter((e) => e.service === name).reverse());
    events.length = Math.min(events.length, eventsShown);
    show(parts.events, table('Events', ['Time', 'Kind', 'Object', 'Message'], events.map((e) => ({ key: e.id, cells: [el('span', { title: e.time }, clock(e.time)), e.kind, e.object ?? '', e.message + (e.count > 1 ? ` (${e.count} times since ${clock(e.first)})` : '')] }))));
  });
  show(page, el('h1', {}, name, ' ', state), parts.about, section('Why', parts.why), section('Backends', parts.backends),
    section('Traffic through this host', stats.element, el('div', { class: 'sparks' }, sparks.map((s) => s.element))), section('Frontends', parts.frontends), section('Events', log.element, parts.events));
}

const portText = (p) => `${p.port}${p.last_port ? '-' + p.last_port : ''}/${p.protocol}${p.name ? ' ' + p.name : ''}${p.target_port && p.target_port !== p.port ? ' → ' + p.target_port : ''}${p.node_port ? ', node port ' + p.node_port : ''}`;

function frontendTable(frontends) {
  return table('Frontends', ['Address', 'Kind', 'Scheduler', 'Forward', 'Applied', 'Problem'], frontends.map((f) => ({ key: `${f.address} ${f.protocol} ${f.audience}`,
    cells: [`${f.address}/${f.protocol}`, f.kind + (f.audience ? ', ' + f.audience : ''), f.scheduler, f.forward, f.applied ? badge('true', 'yes') : badge('pending', 'not yet'), f.problem?.message ?? f.warning?.message ?? ''] })), 'none: nothing is programmed');
}

// sumByBackend returns the traffic of each backend's address over the frontends.
function sumByBackend(frontends) {
  const sums = new Map();
  for (const b of frontends.flatMap((f) => f.backends)) {
    const t = sums.get(b.address) ?? { active: 0, connections: 0, bytes: 0, rate: 0 };
    t.active += b.traffic.active_connections;
    t.connections += b.traffic.connections;
    t.bytes += b.traffic.in.bytes + b.traffic.out.bytes;
    sums.set(b.address, t);
  }
  return sums;
}

// trafficOf returns the traffic of a backend. One without a port has counters for each of its ports.
function trafficOf(b, traffic) {
  const sum = { active: 0, connections: 0, bytes: 0, rate: 0 };
  for (const [at, t] of traffic) {
    if (at !== b.id && (b.port || !(at.startsWith(b.address + ':') || at.startsWith(`[${b.address}]:`)))) continue;
    for (const k of Object.keys(sum)) sum[k] += t[k];
  }
  return sum;
}

function backendTable(backends, traffic, change) {
  const heads = ['Backend', 'State', 'Health', 'Why', 'Weight', 'Open', 'New', 'Total', 'Volume', 'Place'];
  return table('Backends', change ? [...heads, 'Change'] : heads, backends.map((b) => {
    const t = trafficOf(b, traffic);
    const cells = [el('code', {}, b.id), stateCell(b), healthCell(b), b.health_reason ?? b.last_error ?? '',
      b.weight + (b.group ? ` in ${b.group}` : '') + (b.slow_start ? ` (${b.slow_start}%)` : ''), count(t.active) + (b.max_connections ? ` of ${count(b.max_connections)}` : ''), perSecond(t.rate), count(t.connections), bytes(t.bytes), [b.node, b.zone].filter(Boolean).join(', ')];
    return { key: b.id, cells: change ? [...cells, actions(b, change)] : cells };
  }), 'none: the service has no backend');
}

const quiet = (...text) => el('p', { class: 'quiet' }, ...text);

function stateCell(b) {
  const o = b.override;
  return [badge(b.state),
    o ? quiet(`by ${o.author ?? 'an operator'}`, o.since ? [' for ', age(o.since)] : null, o.expires ? ', until ' + clock(o.expires) : '', o.local ? ', on this host only' : '') : null,
    b.removed ? quiet('removed', b.leaving_at ? ', until ' + clock(b.leaving_at) : '') : null,
    b.backup ? quiet('backup', b.serving ? ', serving' : '') : null,
    b.ttl ? quiet(`TTL ${b.ttl}`, b.expires_at ? ', next heartbeat by ' + clock(b.expires_at) : '') : null];
}

function healthCell(b) {
  return [badge(b.health ?? 'unknown'), b.health_since ? [' ', age(b.health_since)] : null,
    b.held ? quiet('held: all checks failed at once', b.held_until ? ', until ' + clock(b.held_until) : '') : null,
    b.ejected_until ? quiet('until ' + clock(b.ejected_until)) : null];
}

function actions(b, change) {
  if (b.removed) return '';
  const button = (to, text) => el('button', { key: to, onclick: () => change(b.id, to), 'aria-label': `${text} ${b.id}` }, text);
  return [b.override ? button('ready', 'Ready') : null, b.state === 'drain' ? null : button('drain', 'Drain'), b.state === 'maint' ? null : button('maint', 'Maintenance')];
}
