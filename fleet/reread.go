package fleet

import (
	"context"
	"fmt"
)

// Reread reads the whole tree at once, for what was written without the log, such as by hand.
// It returns when the tables have it. An error wraps ErrUnavailable: the store can't be read, or the
// context ended first. The read goes on in that case.
func (t *Tree) Reread(ctx context.Context) error {
	done := make(chan error, 1)
	t.mu.Lock()
	t.rereads = append(t.rereads, done)
	t.interrupt()
	t.mu.Unlock()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%w: %v", ErrUnavailable, err)
		}
		return nil
	case <-t.ended:
		return fmt.Errorf("%w: this agent is ending", ErrUnavailable)
	case <-ctx.Done():
		return fmt.Errorf("%w: not read in time: %v", ErrUnavailable, ctx.Err())
	}
}

// takeRereads takes the callers that wait for a read that has not begun.
func (t *Tree) takeRereads() []chan error {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked := t.rereads
	t.rereads = nil
	return asked
}

func (t *Tree) requeueRereads(asked []chan error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rereads = append(t.rereads, asked...)
}

func answer(asked []chan error, err error) {
	for _, done := range asked {
		done <- err
	}
}
