// The hosts of the fleet, and which of them announces each VIP, and why.

import { el, section, show, table } from '../dom.js';
import { badge } from '../badge.js';
import { confirm, note, report } from '../dialog.js';
import { age, count, plural } from '../format.js';
import { all, call, get } from '../api.js';
import { List } from '../list.js';
import { ordered } from '../services.js';
import { mayOperate } from '../session.js';
import { Poll } from '../stream.js';

const most = 20_000; // VIPs in the table
const nodeTime = 2000; // between two reads of the hosts' rows, in ms: an agent asks the fleet's store for them

// staleNote returns an element that says why what follows may be outdated, and is hidden while it is not.
function staleNote() {
  const element = el('p', { class: 'failed', role: 'status', hidden: true });
  return { element, set(why) {
    element.hidden = !why;
    show(element, why ?? '');
  } };
}

// The reason of the decision, and why the VIP is not announced where it should be.
function whyCell(a) {
  const problems = a.places.filter((p) => p.reason).map((p) => `${p.at}: ${p.reason}`);
  const text = [a.why, ...problems].join('; ');
  return el('span', { title: text }, text);
}

export function fleetPage(page, signal) {
  const nodes = el('div');
  const peers = el('div');
  const stale = staleNote();
  const stalePeers = staleNote();
  const owners = new List('VIPs and their owners', [
    { name: 'vip', title: 'VIP', width: 'minmax(5.6rem, 1fr)', cell: (a) => a.vip, sort: (a) => ordered(a.vip) },
    { name: 'owner', title: 'Owner', width: 'minmax(0, .8fr)', cell: (a) => a.owner ?? (a.here ? 'this host' : ''), sort: (a) => a.owner ?? '' },
    { name: 'state', title: 'State', wide: true, width: '7.6rem', cell: (a) => badge(a.state), sort: (a) => a.state },
    { name: 'mode', title: 'Mode', wide: true, width: '5rem', cell: (a) => a.mode, sort: (a) => a.mode },
    { name: 'since', title: 'For', wide: true, width: '6rem', cell: (a) => age(a.since), sort: (a) => a.since },
    { name: 'why', title: 'Why', width: 'minmax(0, 2.4fr)', cell: whyCell, sort: (a) => a.why },
  ], { key: (a) => a.vip, sort: 'vip', empty: 'no pool is announced' });

  let hosts = [];
  let silent = new Map(); // name of a host without heartbeats to this one → the session with it
  const nodePoll = new Poll(signal, async () => {
    ({ items: hosts } = await all('/v1/nodes', 2000, { signal }));
    const heads = ['Host', 'State', 'Dataplane', 'Services', 'Problems', 'Lag', 'VIPs', 'Version', 'Last report'];
    show(nodes, table('Hosts', mayOperate() ? [...heads, 'Change'] : heads, hosts.map((n) => ({ key: n.name, cells: hostCells(n) }))));
  }, nodeTime);
  let revision = -1; // of the announcements that are shown
  const ownerPoll = new Poll(signal, async () => {
    const head = await get('/v1/announcements?limit=1', { signal });
    stale.set(head.stale);
    if (head.revision === revision && owners.rows?.length) return;
    owners.set((await all('/v1/announcements', most, { signal })).items);
    revision = head.revision;
  });
  const peerPoll = new Poll(signal, async () => {
    const { items, stale: why } = await all('/v1/announce/peers', 2000, { signal });
    stalePeers.set(why);
    silent = new Map(items.filter((x) => x.kind === 'host' && !x.up).map((x) => [x.name, x]));
    show(peers, table('Sessions', ['Kind', 'Name', 'State', 'For', 'VIPs', 'Why'], items.map((x) => ({ key: x.kind + ' ' + x.name, cells: [x.kind, x.name, badge(x.state), age(x.since), x.owned ?? '', [x.reason ?? '', x.hint ? el('p', { class: 'hint' }, x.hint) : null]] }))));
  });
  show(page, el('h1', {}, 'Fleet'), section('Hosts', nodePoll.element, nodes), section('Announcements', ownerPoll.element, stale.element, owners.element), section('Sessions', peerPoll.element, stalePeers.element, peers));

  // Of a host that never reported, such as a peer of the announcer, little is known.
  function hostCells(n) {
    const known = n.seen || n.self;
    const states = [badge(n.state), n.draining ? [' ', badge('draining')] : null, n.since ? [' for ', age(n.since)] : null];
    // The fleet misses a host later than the other hosts miss its heartbeats.
    const session = n.state === 'present' && silent.get(n.name);
    if (session) states.push(' ', badge(session.state, `heartbeats: ${session.state}`), ' for ', age(session.since));
    const cells = [[n.name, n.self ? el('span', { class: 'quiet' }, ' answers') : null, n.elected ? el('span', { class: 'quiet' }, ' leader') : null],
      states, n.dataplane, known ? count(n.services) : '', known ? n.problems : '', known ? `${n.lag_ms} ms` : '', n.vip_count ?? '', n.version, n.seen ? age(n.seen) : ''];
    if (!mayOperate()) return cells;
    const verb = n.draining ? 'End the drain' : 'Drain';
    return [...cells, n.state === 'present' ? el('button', { onclick: () => drain(n), 'aria-label': `${verb}: ${n.name}` }, verb) : ''];
  }

  // drain asks, and then begins or ends the drain of a host.
  async function drain(n) {
    const verb = n.draining ? 'End the drain' : 'Drain';
    const answer = await confirm(signal, () => {
      const vips = n.vip_count === undefined ? 'its VIPs' : plural(n.vip_count, 'VIP');
      const others = hosts.filter((o) => o.name !== n.name && o.state === 'present' && !o.draining);
      const consequences = n.draining ? ['The host may own VIPs again.'] : [
        others.length ? `Other hosts take over ${vips}, if they can announce them. The others are withdrawn.` : `There is no other host: ${vips} are withdrawn, and clients no longer reach them.`,
        'Open connections through the host can break, because the next host does not know them.', 'The drain lasts until somebody ends it, also after a restart.'];
      return { title: `${verb}: host ${n.name}`, consequences, action: verb, danger: !n.draining };
    });
    if (!answer) return;
    try {
      await call(n.draining ? 'DELETE' : 'PUT', `/v1/nodes/${encodeURIComponent(n.name)}/drain`);
      note(n.draining ? `${n.name} no longer drains.` : `${n.name} drains.`);
      nodePoll.now();
    } catch (err) {
      report(`${verb} ${n.name}`, err);
    }
  }
}
