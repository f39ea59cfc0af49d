package healthport

import (
	"net"
	"sync"
	"sync/atomic"
)

// limit bounds the number of open connections.
type limit struct {
	most int64
	open atomic.Int64
}

func (l *limit) take() bool {
	if l.open.Add(1) > l.most {
		l.open.Add(-1)
		return false
	}
	return true
}

func (l *limit) give() { l.open.Add(-1) }

// limited is a listener that resets the connections beyond its limits.
type limited struct {
	net.Listener
	own, all *limit // of this listener, and of all listeners together
}

func (l limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if !l.own.take() {
			reset(c)
			continue
		}
		if !l.all.take() {
			l.own.give()
			reset(c)
			continue
		}
		return &counted{Conn: c, own: l.own, all: l.all}, nil
	}
}

func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}

// counted is a connection that decrements its limits when it is closed.
type counted struct {
	net.Conn
	own, all *limit
	once     sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() {
		c.own.give()
		c.all.give()
	})
	return c.Conn.Close()
}
