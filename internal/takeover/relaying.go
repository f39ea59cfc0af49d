package takeover

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// relayTime bounds the wait for the first answer of processes that relay connections. One that hangs doesn't delay the
// start of an agent.
const relayTime = time.Second

// retryTime is the pause before another try to reach such a process.
const retryTime = time.Second

// Relaying is a process that relays connections, as a later agent sees it.
type Relaying struct {
	State State   // at first
	Open  []Count // at first
	path  string
	conn  *conversation // nil: to be opened

	ends struct {
		sync.Mutex
		waiting []message
		more    chan struct{} // has room for one
	}
}

// FindRelays returns the processes that relay connections by the sockets in dir, and removes what dead ones have left. It
// waits for their counts for at most a second.
func FindRelays(ctx context.Context, dir string) (found []*Relaying, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, relayTime)
	defer cancel()
	all := make([]*Relaying, len(paths))
	var work sync.WaitGroup
	for i, path := range paths {
		work.Go(func() {
			r := &Relaying{path: path}
			r.ends.more = make(chan struct{}, 1)
			if r.reach(ctx) {
				all[i] = r
			}
		})
	}
	work.Wait()
	for _, r := range all {
		if r != nil {
			found = append(found, r)
		}
	}
	return found, nil
}

// reach opens the conversation and reads the first counts. It returns false if the process has ended.
func (r *Relaying) reach(ctx context.Context) (lives bool) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", r.path)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		_ = os.Remove(r.path)
		return false
	case errors.Is(err, os.ErrNotExist):
		return false
	case err != nil:
		return true
	}
	c := converse(conn)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	state, open, err := first(c)
	if !stop() || err != nil {
		conn.Close()
		return true // it hangs, or has just ended
	}
	r.State, r.Open, r.conn = state, open, c
	return true
}

// first reads everything up to start.
func first(c *conversation) (state State, open []Count, err error) {
	for {
		m, err := c.receive(time.Time{})
		switch {
		case err != nil:
			return state, open, err
		case m.Relay != nil:
			state = *m.Relay
		case m.Open != nil:
			open = append(open, *m.Open)
		case m.Start:
			return state, open, nil
		}
	}
}

// Follow reports the states and the counts, beginning with the first ones, until the process has ended or ctx ends. Call it
// once.
func (r *Relaying) Follow(ctx context.Context, state func(State), count func(Count)) {
	known := map[Backend]struct{}{}
	report := func(c Count) {
		if known[c.Backend] = struct{}{}; c.N == 0 {
			delete(known, c.Backend)
		}
		count(c)
	}
	for ctx.Err() == nil {
		if r.conn == nil && !r.reach(ctx) {
			return
		}
		if r.conn == nil {
			select {
			case <-ctx.Done():
			case <-time.After(retryTime):
			}
			continue
		}
		state(r.State)
		gone := known
		known = map[Backend]struct{}{}
		for _, c := range r.Open {
			delete(gone, c.Backend)
			report(c)
		}
		for b := range gone {
			count(Count{Backend: b})
		}
		r.read(ctx, state, report)
		r.conn = nil
	}
}

// read reports what the process sends, until the end of the conversation.
func (r *Relaying) read(ctx context.Context, state func(State), count func(Count)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := r.conn
	defer c.conn.Close()
	defer context.AfterFunc(ctx, func() { c.conn.Close() })()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() { r.writeEnds(ctx, c) })
	for {
		m, err := c.receive(time.Time{})
		switch {
		case err != nil:
			return
		case m.Relay != nil:
			state(*m.Relay)
		case m.Open != nil:
			count(*m.Open)
		}
	}
}

// End makes the process end its connections to a backend. It doesn't wait.
func (r *Relaying) End(b Backend) {
	r.ends.Lock()
	defer r.ends.Unlock()
	r.ends.waiting = append(r.ends.waiting, message{End: &b})
	select {
	case r.ends.more <- struct{}{}:
	default:
	}
}

func (r *Relaying) writeEnds(ctx context.Context, c *conversation) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.ends.more:
		}
		r.ends.Lock()
		ends := r.ends.waiting
		r.ends.waiting = nil
		r.ends.Unlock()
		if c.send(ends...) != nil {
			return
		}
	}
}

// Close ends a conversation that is not followed.
func (r *Relaying) Close() {
	if r.conn != nil {
		r.conn.conn.Close()
	}
}
