package mirror

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"sync"

	"github.com/ironvip/ironvip/internal/parallel"
)

// Method answers one kind of questions, see Answer.
type Method interface {
	called() string
	// decode reads a question. The returned function answers it.
	decode(*gob.Decoder) (func(context.Context) (any, error), error)
}

// Answer returns a method that answers questions by their name. The answers may be given concurrently. The context ends
// with the connection. An answer or a question that gob can't encode, such as a struct without fields, ends the connection.
func Answer[Q, A any](name string, answer func(context.Context, Q) (A, error)) Method {
	return method[Q, A]{name, answer}
}

type method[Q, A any] struct {
	name   string
	answer func(context.Context, Q) (A, error)
}

func (m method[Q, A]) called() string { return m.name }

func (m method[Q, A]) decode(d *gob.Decoder) (func(context.Context) (any, error), error) {
	var q Q
	if err := d.Decode(&q); err != nil {
		return nil, err
	}
	return func(ctx context.Context) (any, error) { return m.answer(ctx, q) }, nil
}

// answer reads a question and answers it, beside other work.
func (s *Server) answer(ctx context.Context, work parallel.Group, c *conn, h header) error {
	for _, m := range s.Answer {
		if m.called() != h.Method {
			continue
		}
		answer, err := m.decode(c.dec)
		if err != nil {
			return fmt.Errorf("invalid question %s: %w", h.Method, err)
		}
		work.Go(func() error {
			a, err := answer(ctx)
			if err != nil {
				return c.send(header{Call: h.Call, Failed: err.Error()}, nil, nil)
			}
			return c.send(header{Call: h.Call, Set: 1}, a, nil)
		})
		return nil
	}
	if err := c.skip(h); err != nil {
		return err
	}
	return c.send(header{Call: h.Call, Failed: "unknown method " + h.Method}, nil, nil)
}

// calls are the questions of a client. The zero value is ready.
type calls struct {
	mu      sync.Mutex
	conn    *conn         // nil: not connected
	tried   chan struct{} // closed once a connection has begun or failed; nil before anybody waits
	why     error         // why there is no connection
	last    uint64
	waiting map[uint64]*question
}

// question waits for its answer.
type question struct {
	decode func(*gob.Decoder) error
	done   chan error // has room for one
}

// begin begins a connection.
func (c *calls) begin(with *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.why = with, nil
	c.try()
}

// try records that a connection has begun or failed. The caller holds mu.
func (c *calls) try() {
	if c.tried == nil {
		c.tried = make(chan struct{})
	}
	select {
	case <-c.tried:
	default:
		close(c.tried)
	}
}

// end ends a connection, and the questions that it has not answered.
func (c *calls) end(with *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != with {
		return
	}
	c.conn = nil
	for _, q := range c.waiting {
		q.done <- errors.New("the connection has ended before the answer")
	}
	clear(c.waiting)
}

// lost records why there is no connection.
func (c *calls) lost(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why = why
	c.try()
}

// answered reads an answer.
func (c *calls) answered(h header) error {
	c.mu.Lock()
	q := c.waiting[h.Call]
	delete(c.waiting, h.Call)
	conn := c.conn
	c.mu.Unlock()
	switch {
	case q == nil: // nobody waits any more
		return conn.skip(h)
	case h.Failed != "":
		q.done <- errors.New(h.Failed)
		return nil
	}
	err := q.decode(conn.dec)
	q.done <- err
	return err
}

// Ask asks the server of a client, which answers with a method of this name and these types. It waits for the first
// attempt to connect. Without a connection, it returns why there is none.
func Ask[Q, A any](ctx context.Context, client *Client, name string, q Q) (A, error) {
	c := &client.calls
	var a A
	c.mu.Lock()
	if c.tried == nil {
		c.tried = make(chan struct{})
	}
	tried := c.tried
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return a, ctx.Err()
	case <-tried:
	}
	c.mu.Lock()
	with, why := c.conn, c.why
	if with == nil {
		c.mu.Unlock()
		if why == nil {
			why = fmt.Errorf("no connection to the %s", client.Server)
		}
		return a, why
	}
	c.last++
	number := c.last
	asked := &question{decode: func(d *gob.Decoder) error { return d.Decode(&a) }, done: make(chan error, 1)}
	if c.waiting == nil {
		c.waiting = make(map[uint64]*question)
	}
	c.waiting[number] = asked
	c.mu.Unlock()
	if err := with.send(header{Call: number, Method: name, Set: 1}, q, nil); err != nil {
		c.forget(number)
		return a, fmt.Errorf("ask the %s: %w", client.Server, err)
	}
	select {
	case err := <-asked.done:
		return a, err
	case <-ctx.Done():
		if !c.forget(number) { // the answer is being read
			<-asked.done
		}
		var none A
		return none, ctx.Err()
	}
}

// forget drops a question. It returns false if its answer has arrived.
func (c *calls) forget(number uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waits := c.waiting[number]
	delete(c.waiting, number)
	return waits
}
