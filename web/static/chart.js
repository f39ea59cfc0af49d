// Sparklines: the last values of a quantity, drawn as a line.

import { el, fixed, show, svg } from './dom.js';

const width = 160;
const height = 36;
export const samples = 60;

// Sparkline shows the last sixty values, with the newest as text.
export class Sparkline {
  constructor(title, format) {
    this.format = format;
    this.values = [];
    this.line = svg('polyline', { class: 'line', points: '' });
    this.now = el('b', {}, '–');
    this.most = el('span', { class: 'quiet' }, '\u00a0');
    this.element = fixed(el('figure', { class: 'spark' },
      el('figcaption', {}, title, ' ', this.now),
      svg('svg', { viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true', preserveAspectRatio: 'none' }, svg('path', { class: 'base', d: `M0 ${height - 0.5}H${width}` }), this.line),
      this.most));
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > samples) this.values.shift();
    const top = Math.max(...this.values, 1e-9);
    const step = width / (samples - 1);
    const left = width - (this.values.length - 1) * step;
    this.line.setAttribute('points', this.values.map((v, i) => `${(left + i * step).toFixed(1)},${(height - 2 - (v / top) * (height - 6)).toFixed(1)}`).join(' '));
    show(this.now, this.format(value));
    show(this.most, 'most ', this.format(Math.max(...this.values)));
  }
}
