// Package takeover is the conversation between a running agent and the process that replaces it.
//
// It runs over a unix socket in the state directory. Its inputs are the listening sockets of the
// running agent; its outputs are those sockets in the new process, and the decision which of both
// processes is the agent. Messages are lines of JSON after a line of text:
//
//	new: "takeover 1"
//	old: refused, and the conversation ends; or sockets, which follow (see sockets.Set.Send), and start
//	new: alive, every second; ready when it serves everything
//	old: bye: it accepts no more clients. Or resumed: it has waited long enough, goes on, and the
//	     new process must end
//
// A process that relays connections states them from the request until its last one has ended, on a
// socket of its own (Relay). Each later agent follows all of them (Relaying), in conversations like
// this:
//
//	relay: relay (the State), the open connections, and start; then changes of both
//	agent: end, when the connections to a backend must end
//
// The package knows nothing about the parts of an agent. Files: message.go (the messages), old.go and
// new.go (the two sides of a take-over), relay.go and relaying.go (those of relayed connections),
// counts.go (changes of connections), process.go (the end of a process that hangs).
package takeover

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/vip"
)

const hello = "takeover 1\n"

// Bounds of the conversation.
const (
	helloTime = 2 * time.Second  // for a request
	stopTime  = time.Minute      // for the old process to stop its parts
	writeTime = 10 * time.Second // for the other side to read a message
	aliveTime = time.Second      // between two signs of life
	byeTime   = 10 * time.Second // for the answer to ready

	// silence is how long the new process may give no sign of life. The old one waits a tenth more,
	// in case it was itself suspended meanwhile.
	silence = 10 * time.Second
	// readyTime bounds the time until the new process serves everything. A source that can't be
	// reached delays it by 30 s.
	readyTime = 90 * time.Second
)

// Backend is one backend of a frontend.
type Backend struct {
	Frontend vip.FrontendKey `json:"frontend"`
	Addr     netip.AddrPort  `json:"addr"`
}

// Count is the number of open connections and sessions to a backend.
type Count struct {
	Backend
	N int64 `json:"n"`
}

// message is what one side sends: one of its fields.
type message struct {
	Refused string    `json:"refused,omitempty"` // why
	Sockets bool      `json:"sockets,omitempty"`
	Start   bool      `json:"start,omitempty"`
	Alive   bool      `json:"alive,omitempty"`
	Ready   bool      `json:"ready,omitempty"`
	Bye     *Farewell `json:"bye,omitempty"`
	Resumed string    `json:"resumed,omitempty"` // why
	Open    *Count    `json:"open,omitempty"`
	Relay   *State    `json:"relay,omitempty"`
	End     *Backend  `json:"end,omitempty"`
}

// Farewell is the last message about the take-over itself: the old process accepts no more clients.
type Farewell struct {
	Reload bool `json:"reload,omitempty"` // it was asked to reload its configuration since the request
}

// conversation is one side. Several goroutines may send, one may receive.
type conversation struct {
	conn   net.Conn
	reader *bufio.Reader // after the sockets
	mu     sync.Mutex    // of writes
}

func converse(conn net.Conn) *conversation {
	return &conversation{conn: conn, reader: bufio.NewReader(conn)}
}

func (c *conversation) send(messages ...message) error {
	var text []byte
	for _, m := range messages {
		line, err := json.Marshal(m)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTime))
	_, err := c.conn.Write(text)
	return err
}

// receive returns the next message, or an error after the deadline.
func (c *conversation) receive(deadline time.Time) (m message, err error) {
	_ = c.conn.SetReadDeadline(deadline)
	line, err := c.reader.ReadBytes('\n')
	if err != nil {
		return m, err
	}
	return parse(line)
}

func parse(line []byte) (m message, err error) {
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("unknown message %q", line)
	}
	return m, nil
}

// maxLine bounds a line that is read byte by byte.
const maxLine = 4096

// receiveLine reads a line and not a byte more, because messages with descriptors may follow.
func receiveLine(conn io.Reader) (line []byte, err error) {
	for b := make([]byte, 1); len(line) < maxLine; {
		switch n, err := conn.Read(b); {
		case n == 1:
			if line = append(line, b[0]); b[0] == '\n' {
				return line, nil
			}
		case err != nil:
			return line, err
		}
	}
	return line, errors.New("the line is too long")
}
