package fleet

import (
	"context"
	"fmt"
)

// Reread reads everything anew, at once, for what was written past the journal:
// by hand, say. It returns when the tables have it. The error, which wraps
// ErrUnavailable, is that Consul can't be read, or that the context ended first;
// the reading goes on then.
func (t *Tree) Reread(ctx context.Context) error {
	done := make(chan error, 1)
	t.mu.Lock()
	t.asked = append(t.asked, done)
	t.interrupt()
	t.mu.Unlock()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%w: %v", ErrUnavailable, err)
		}
		return nil
	case <-t.ended:
		return fmt.Errorf("%w: the tree has ended", ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("%w: not read in time: %v", ErrUnavailable, ctx.Err())
	}
}

// whoAsked takes over those who wait for a reading that is yet to begin.
func (t *Tree) whoAsked() []chan error {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked := t.asked
	t.asked = nil
	return asked
}

func (t *Tree) askAgain(asked []chan error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = append(t.asked, asked...)
}

func answer(asked []chan error, err error) {
	for _, done := range asked {
		done <- err
	}
}
