package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	maxLine = 4 << 20 // of one message, in bytes; 512 rows need less than a tenth

	// writeTime bounds how long the other side may take to receive a message.
	writeTime = 10 * time.Second
)

// conn sends messages of one type and receives messages of another one.
type conn struct {
	net.Conn
	lines *bufio.Scanner
}

func newConn(c net.Conn) *conn {
	lines := bufio.NewScanner(c)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &conn{c, lines}
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
