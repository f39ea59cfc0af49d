package watch

// Overrun gives the subscriptions the smallest buffer, and reads no events until flood has returned.
func (w *Watcher) Overrun(flood func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		s.events.SetBuffer(0)
	}
	flood()
}
