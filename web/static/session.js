// Who the user is, and what they may do.

import { call, forgetKey, get, hasKey } from './api.js';

const ranks = ['none', 'viewer', 'registrar', 'operator', 'admin'];

export const me = { name: '', role: 'none', namespaces: [], node: '', version: '' };

// identify asks the agent who the user is.
export async function identify() {
  Object.assign(me, await get('/v1/whoami'));
}

// mayOperate reports whether the user may change services of all namespaces, nodes and the dataplane.
export const mayOperate = () => ranks.indexOf(me.role) >= ranks.indexOf('operator');

// mayChange reports whether the user may change the backends of a namespace.
export const mayChange = (namespace) => mayOperate() || (me.role === 'registrar' && me.namespaces.includes(namespace));

// hasSession reports whether the user has logged in with a token.
export const hasSession = () => me.name.startsWith('token ') && !hasKey();

// login exchanges a token for a cookie, which scripts can't read.
export async function login(token) {
  await call('POST', '/ui/session', { token });
  forgetKey(); // of an earlier `ironvip dashboard` on this port
}

export const logout = () => call('DELETE', '/ui/session');
