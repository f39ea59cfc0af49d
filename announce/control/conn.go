package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

const (
	maxLine = 4 << 20 // of one message, in bytes; 512 rows need less than a tenth

	// writeTime bounds how long the other side may take to receive a message.
	writeTime = 10 * time.Second

	// keepaliveEvery is the time between two keepalives of the agent. When missedKeepalives of them have
	// not arrived, the agent does not run.
	keepaliveEvery   = time.Second
	missedKeepalives = 3
)

// conn sends messages of one type and receives messages of another one.
type conn struct {
	net.Conn
	lines *bufio.Scanner
	// every is the time in which something is expected to arrive; 0: the other side may be silent.
	// Only the receiver uses it.
	every time.Duration
	agent string // see Request.Agent; under the server's mutex
}

func newConn(c net.Conn) *conn {
	out := &conn{Conn: c}
	out.lines = bufio.NewScanner(out)
	out.lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return out
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

func (c *conn) send(m any) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = c.SetWriteDeadline(time.Now().Add(writeTime))
	_, err = c.Write(append(line, '\n'))
	return err
}

// receive reads the next message into m. It returns io.EOF at the end.
func (c *conn) receive(m any) error {
	if !c.lines.Scan() {
		err := c.lines.Err()
		if err == nil || errors.Is(err, net.ErrClosed) {
			err = io.EOF
		}
		return err
	}
	if err := json.Unmarshal(c.lines.Bytes(), m); err != nil {
		return fmt.Errorf("invalid message: %w", err)
	}
	return nil
}

// checkProtocol returns an error for the first message of another version.
func checkProtocol(theirs int) error {
	if theirs != Protocol {
		return fmt.Errorf("the other side has version %d of the protocol, this one %d: install the same version of ironvip and restart both", theirs, Protocol)
	}
	return nil
}
