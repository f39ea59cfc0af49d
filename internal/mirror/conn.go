package mirror

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"sync"
	"time"
)

// Protocol is the version of the protocol. Both sides name theirs first. Version 1 had lines of JSON. A row whose fields
// another version would drop or misread needs another number: an upgrade restarts the announcer then.
const Protocol = 4

const (
	maxHello = 64 << 10 // bytes of the first line

	// writeTime bounds how long the other side may take to receive a message.
	writeTime = 10 * time.Second

	// keepaliveEvery is the time between two keepalives of a client. When missedKeepalives of them have
	// not arrived, the client does not run.
	keepaliveEvery   = time.Second
	missedKeepalives = 3
)

// hello is the first message of each side, a line of JSON, which every version understands.
type hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version,omitempty"` // of ironvip, from the server
	// Client tells clients apart: the server refuses one while another one is connected.
	Client  string `json:"client,omitempty"`
	Refused string `json:"refused,omitempty"` // why the server ends the connection
}

// header begins a message: the changed rows and the keys of removed ones of a table follow, if there are any; or the
// value of a question or an answer. Without content it is a keepalive.
type header struct {
	Table        string
	Set, Removed int  // how many
	Synced       bool // everything was sent: rows that this connection has not named are gone

	Call   uint64 // the number of a question, which its answer has, too; 0: the message is neither
	Method string // of a question; "": the message is an answer
	Failed string // why there is no value
}

// conn sends and receives messages.
type conn struct {
	net.Conn
	in  *bufio.Reader
	dec *gob.Decoder

	mu  sync.Mutex // of what follows
	out bytes.Buffer
	enc *gob.Encoder

	// every is the time in which something is expected to arrive; 0: the other side may be silent.
	// Only the receiver uses it.
	every  time.Duration
	client string // see hello; under the server's mutex
}

func newConn(raw net.Conn) *conn {
	c := &conn{Conn: raw}
	c.in = bufio.NewReaderSize(c, maxHello)
	c.dec, c.enc = gob.NewDecoder(c.in), gob.NewEncoder(&c.out)
	return c
}

// Read implements io.Reader. It returns an error if the other side was silent for too long. It counts
// pauses, not time: if this process did not run, what has arrived meanwhile is read before the other
// side is given up.
func (c *conn) Read(b []byte) (int, error) {
	for missed := 0; ; {
		deadline := time.Time{}
		if c.every > 0 {
			deadline = time.Now().Add(c.every)
		}
		_ = c.SetReadDeadline(deadline)
		n, err := c.Conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if missed++; missed == missedKeepalives {
			return 0, fmt.Errorf("nothing received for %s: the other side does not run", missedKeepalives*c.every)
		}
	}
}

// greet sends the first message.
func (c *conn) greet(h hello) error {
	h.Protocol = Protocol
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return c.write(append(line, '\n'))
}

// greeted receives the first message. It returns an error for one of another version.
func (c *conn) greeted() (h hello, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return h, ended(err)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("invalid message: %w", err)
	}
	if h.Protocol != Protocol {
		return h, fmt.Errorf("the other side has version %d of the protocol, this one %d: install the same version of ironvip and restart both", h.Protocol, Protocol)
	}
	if h.Refused != "" {
		return h, errors.New("refused: " + h.Refused)
	}
	return h, nil
}

// send sends a message. It may be called concurrently.
func (c *conn) send(h header, set, removed any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Reset()
	err := c.enc.Encode(h)
	if err == nil && h.Set > 0 {
		err = c.enc.Encode(set)
	}
	if err == nil && h.Removed > 0 {
		err = c.enc.Encode(removed)
	}
	if err != nil { // the encoder may have told of a type that the other side has not got
		c.Close()
		return err
	}
	return c.write(c.out.Bytes())
}

func (c *conn) write(b []byte) error {
	_ = c.SetWriteDeadline(time.Now().Add(writeTime))
	_, err := c.Write(b)
	return err
}

// follow mirrors the tables of the other side until the connection ends. Change runs what a message changes, in
// order. Synced, if not nil, is called by it when everything was received. Call reads what follows the header of a
// question or an answer.
func (c *conn) follow(tables []Mirrored, change func(func()) error, synced func(), call func(header) error) error {
	sinks := make(map[string]sink, len(tables))
	for _, t := range tables {
		name, s := t.begin()
		sinks[name] = s
	}
	for {
		var h header
		if err := c.dec.Decode(&h); err != nil {
			return ended(err)
		}
		if h.Call != 0 {
			if err := call(h); err != nil {
				return ended(err)
			}
			continue
		}
		apply := func() {}
		if s := sinks[h.Table]; s != nil {
			var err error
			if apply, err = s.decode(c.dec, h); err != nil {
				return fmt.Errorf("invalid message about %s: %w", h.Table, ended(err))
			}
		} else if err := c.skip(h); err != nil { // a table of a later version
			return ended(err)
		}
		if h.Synced {
			apply = func() {
				for _, s := range sinks {
					s.synced()
				}
				if synced != nil {
					synced()
				}
			}
		}
		if err := change(apply); err != nil {
			return err
		}
	}
}

// skip reads the rows of a message that nobody wants.
func (c *conn) skip(h header) error {
	for _, n := range []int{h.Set, h.Removed} {
		if n > 0 {
			if err := c.dec.DecodeValue(reflect.Value{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ended returns io.EOF for every error that is the end of a connection.
func ended(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}

// oneOf waits for one of the channels, or for the end of the context, which is its error.
func oneOf(ctx context.Context, channels []<-chan struct{}) error {
	cases := make([]reflect.SelectCase, 0, len(channels)+1)
	for _, c := range append(channels, ctx.Done()) {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c)})
	}
	reflect.Select(cases)
	return ctx.Err()
}
