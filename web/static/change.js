// Changes of a backend's state.

import { el } from './dom.js';
import { confirm, note, report } from './dialog.js';
import { call, get } from './api.js';
import { plural } from './format.js';

const verbs = { drain: 'Drain', maint: 'Put into maintenance', ready: 'Make ready' };

// changeState asks, and then sets the state of a backend of a service.
export async function changeState(signal, name, path, service, id, to) {
  const b = service.status.backends.find((o) => o.id === id);
  const at = `${path}/backends/${encodeURIComponent(id)}`;
  const others = service.status.backends.filter((o) => o.usable && o.id !== id).length;
  const last = to !== 'ready' && b.usable && others === 0;
  const question = async (refusal) => {
    const open = await get(at + '/connections', { signal }).catch(() => null);
    const connections = open ? `${plural(open.connections, 'connection')} through this host ${open.connections === 1 ? 'is' : 'are'} open` : 'The connections through this host are not known';
    const consequences = to === 'ready' ? [`The override ends. The state is that of the source: ${b.source_state ?? 'ready'}.`, connections + '.'] :
      [`New connections go to the other backends, of which ${others} ${others === 1 ? 'is' : 'are'} usable.`, `${connections}, and may stay until they end by themselves. Clients of UDP move at once.`, 'The state lasts until somebody makes the backend ready, also after a restart.'];
    if (last || refusal) consequences.unshift(el('label', {}, el('input', { type: 'checkbox', name: 'force', required: true }), ' ', refusal ?? 'It is the last usable backend: the service will be down.'));
    return { title: `${verbs[to]}: ${id} of ${name}`, consequences, action: verbs[to], danger: to !== 'ready' };
  };
  for (let refusal = null;;) {
    const answer = await confirm(signal, () => question(refusal));
    if (!answer) return;
    try {
      await call('PUT', at + '/state' + (answer.force ? '?force=true' : ''), { state: to });
      note(to === 'ready' ? `The override of ${id} of ${name} has ended.` : `${id} of ${name} is set to ${to}.`);
      return;
    } catch (err) {
      if (err.code !== 'last_backend' || answer.force) return report(`${verbs[to]} ${id}`, err);
      refusal = err.message; // the agent looks at each port and family
    }
  }
}
