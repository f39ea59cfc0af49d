// The changes that a reload of the configuration on the disk would make.

import { el, section, show, table } from '../dom.js';
import { badge } from '../badge.js';
import { confirm, failed, note, problemList, report } from '../dialog.js';
import { call } from '../api.js';
import { mayOperate, me } from '../session.js';

const patience = 120_000; // for a reload, in ms

export function planPage(page, signal) {
  const about = [el('h1', {}, 'Plan'), el('p', { class: 'quiet' }, 'Changes that a reload would make: the files of the configuration on the disk of this host, compared with what is in effect.')];
  if (!mayOperate()) {
    show(page, about, el('p', {}, 'The plan needs the role ', el('b', {}, 'operator'), ', because it reads the files of the host. You are ', el('b', {}, me.name), ' with the role ', el('b', {}, me.role), '.'),
      el('p', { class: 'hint' }, 'An admin creates a token of that role: ', el('code', {}, 'ironvip token create NAME --role operator'), '. On the host, ', el('code', {}, 'ironvip config plan'), ' shows the same.'));
    return;
  }
  const result = el('div', { 'aria-live': 'polite' });
  const again = el('button', { onclick: read }, 'Read the files again');
  const reload = el('button', { class: 'danger', hidden: true, onclick: apply }, 'Reload');
  show(page, about, el('p', { class: 'buttons' }, again, reload), result);
  let plan = null;
  read();

  async function read() {
    try {
      plan = await call('POST', '/v1/config/plan', undefined, { signal, time: patience });
    } catch (err) {
      if (signal.aborted) return;
      plan = null;
      reload.hidden = true;
      failed(result, err);
      if (err.errors?.length) result.append(problemList(err.errors));
      return;
    }
    reload.hidden = !mayOperate() || !plan.changes.length;
    show(result, plan.problems.length ? section('Problems', problemList(plan.problems)) : null, plan.warnings.length ? section('Warnings', problemList(plan.warnings)) : null,
      section('Changes', table('Changes', ['Action', 'What', 'Name', 'Detail', 'Impact'], plan.changes.map((c, i) => ({ key: `${i} ${c.kind} ${c.name}`, cells: [badge(c.action), c.kind, c.name, c.detail, c.impact ?? ''] })), 'none: the files are in effect')));
  }

  async function apply() {
    const impacts = [...new Set(plan.changes.map((c) => c.impact).filter(Boolean))];
    if (!await confirm(signal, () => ({ title: 'Reload the configuration', consequences: [`${plan.add} added, ${plan.change} changed, ${plan.remove} removed`, ...impacts], action: 'Reload' }))) return;
    try {
      note((await call('POST', '/v1/reload', undefined, { time: patience })).message);
    } catch (err) {
      report('Reload', err);
    }
    read();
  }
}
