// The dataplane: whether it has what it should have, and what differs.

import { el, facts, section, show, table } from '../dom.js';
import { badge } from '../badge.js';
import { confirm, failed, note, problemList, report } from '../dialog.js';
import { age, count, plural } from '../format.js';
import { call, get } from '../api.js';
import { mayOperate } from '../session.js';
import { Poll } from '../stream.js';

const patience = 120_000; // for a comparison or a repair, in ms

export function dataplanePage(page, signal) {
  const state = el('div');
  const diff = el('div', { id: 'diff', 'aria-live': 'polite' });
  const repair = el('button', { class: 'danger', hidden: true, onclick: fix }, 'Repair');
  const poll = new Poll(signal, async () => {
    const d = await get('/v1/dataplane', { signal });
    show(state, el('p', { class: 'summary' }, badge(d.level), ' ', d.mode, ': ', d.summary), facts(['Chosen because', d.reason], ['Frontends', count(d.frontends)], ['Backends', count(d.backends)], ['Pending', d.pending], ['Refused', d.failed],
      ['Contested', d.contested], ['Repairs since the start', d.drift_repairs], ['Last full comparison', d.last_resync && age(d.last_resync)]),
    problemList(d.problems), d.findings.length ? section('Missing on this host', table('Missing on this host', ['Level', 'What', 'Message', 'Fix'], d.findings.map((f) => ({ key: f.name, cells: [badge(f.level), f.name, f.message, f.fix ? el('code', {}, f.fix) : ''] })))) : null);
  });
  show(page, el('h1', {}, 'Dataplane'), poll.element, state, section('Differences', el('p', { class: 'quiet' }, 'Compares what the kernel or the proxy has with what it should have. It reads the whole dataplane.'),
    el('p', { class: 'buttons' }, el('button', { onclick: compare }, 'Compare now'), repair), diff));

  async function compare() {
    show(diff, el('p', { class: 'quiet' }, 'reading'));
    try {
      const d = await get('/v1/dataplane/diff', { signal, time: patience });
      repair.hidden = !mayOperate() || !d.items.length;
      show(diff, table('Differences', ['Action', 'Frontend', 'Service', 'Details'], d.items.map((i) => ({ key: i.frontend, cells: [badge(i.action), i.frontend, i.service ?? '', i.details.join('; ')] })), 'none: the dataplane has what it should have'));
    } catch (err) {
      if (!signal.aborted) failed(diff, err);
    }
  }

  async function fix() {
    if (!await confirm(signal, () => ({ title: 'Repair the dataplane', consequences: ['Every difference is changed back to what the services request.', 'Connections of frontends without a difference are not affected.'], action: 'Repair' }))) return;
    try {
      const r = await call('POST', '/v1/dataplane/repair', undefined, { time: patience });
      note(`${plural(r.repaired, 'frontend')} repaired.`);
      if (r.problems.length) show(diff, problemList(r.problems));
      else compare();
    } catch (err) {
      report('Repair', err);
    }
  }
}
