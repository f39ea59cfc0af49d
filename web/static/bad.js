// The backends of a service that take no connections, with since when, why, and what to do.

import { el } from './dom.js';
import { badge } from './badge.js';
import { age, clock } from './format.js';

const shown = 10; // of a service

// badBackends returns a list of them; null: there are none.
export function badBackends(service) {
  const bad = service.status.backends.filter((b) => !b.removed && (!b.usable || b.held));
  if (!bad.length) return null;
  return [el('ul', { class: 'bad-backends' }, bad.slice(0, shown).map((b) => el('li', { key: b.id }, el('code', {}, b.id), ' ', badge(wordOf(b)), since(b), reason(b), b.health_hint && b.state === 'ready' ? el('p', { class: 'hint' }, b.health_hint) : null))),
    bad.length > shown ? el('p', { class: 'quiet' }, `and ${bad.length - shown} more`) : null];
}

const wordOf = (b) => (b.state !== 'ready' ? b.state : b.held ? 'held up' : b.health ?? 'unknown');

function since(b) {
  const time = b.state === 'ready' ? b.health_since : b.override?.since;
  return time ? [` since ${clock(time)} (`, age(time), ')'] : null;
}

function reason(b) {
  const why = b.state !== 'ready' ? b.override?.author && 'by ' + b.override.author : b.health_reason ?? (b.held ? b.last_error : '');
  return why ? [': ', why] : null;
}
