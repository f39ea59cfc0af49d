// Numbers and times as text.

import { el } from './dom.js';

const units = ['', 'k', 'M', 'G', 'T', 'P', 'E'];

// count returns a number with three digits and a unit: "12", "1.24 k", "3.1 M".
export function count(n) {
  let unit = 0;
  for (; n >= 1000 && unit < units.length - 1; unit++) n /= 1000;
  const digits = unit === 0 && Number.isInteger(n) ? 0 : n >= 100 ? 0 : n >= 10 ? 1 : 2;
  return n.toFixed(digits) + (unit ? ' ' + units[unit] : '');
}

// bytes returns a volume: "12 B", "3.10 MB".
export const bytes = (n) => (n < 1000 ? count(n) + ' ' : count(n)) + 'B';
export const bytesPerSecond = (n) => bytes(n) + '/s';
export const perSecond = (n) => count(n) + '/s';

// plural returns "1 service", "2 services".
export const plural = (n, one, more = one + 's') => `${count(n)} ${n === 1 ? one : more}`;

// duration returns seconds with the two largest units: "4d 3h", "12m 5s".
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']].map(([n, unit], i, all) => [Math.floor((i ? s % all[i - 1][0] : s) / n), unit]);
  const first = parts.findIndex(([n]) => n > 0);
  if (first < 0) return '0s';
  return parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => n + unit).join(' ');
}

let skew = 0; // how far the agent's clock is ahead of the browser's, in ms

// setClock learns the agent's clock from the header Date of a response, which has whole seconds.
export function setClock(date) {
  const ahead = Date.parse(date) - Date.now();
  if (Number.isNaN(ahead)) return;
  skew = Math.abs(ahead) < 2000 ? 0 : ahead;
}

export const agentTime = () => Date.now() + skew;

const pad = (n) => String(n).padStart(2, '0');

// clock returns a time of day in the browser's time zone, with the date if it isn't today.
export function clock(time) {
  const t = new Date(time);
  const day = t.toDateString() === new Date(agentTime()).toDateString() ? '' : `${t.getFullYear()}-${pad(t.getMonth() + 1)}-${pad(t.getDate())} `;
  return `${day}${pad(t.getHours())}:${pad(t.getMinutes())}:${pad(t.getSeconds())}`;
}

// age returns how long ago a time was. It stays right while the page is open.
export function age(time) {
  return el('time', { datetime: time, title: `${clock(time)}, ${time}` }, ago(time));
}

const ago = (time) => duration((agentTime() - new Date(time)) / 1000);

setInterval(() => {
  if (document.hidden) return;
  for (const e of document.querySelectorAll('time')) {
    const now = ago(e.dateTime);
    if (e.textContent !== now) e.firstChild.data = now;
  }
}, 1000);
